"""GreedyFed (Singhal, Pandey, Popovski 2024): train with the clients whose updates have been worth most so far.

Alg. 1 first lets every client train once, in random order. From then on it takes the M clients with the largest
cumulative Shapley values and averages their models by numbers of samples. Alg. 2 estimates the Shapley values of each
round by GTG-Shapley on the server's validation loss.

The other mechanisms here are GreedyFed with another selector.
"""

from __future__ import annotations

from dataclasses import replace

from hanse.base.factories import Positive, Share, Weight
from hanse.core.part import Mechanism
from hanse.mechanisms.deploy import ServerModel
from hanse.mechanisms.select import UCB, Averaging, Greedy, SFedAvg
from hanse.mechanisms.set_aware import SetAware
from hanse.mechanisms.train import SharedModel
from hanse.mechanisms.value import GTG
from hanse.mechanisms.weigh import BySamples


def greedyfed(clients_per_round: Positive = 10, averaging: Averaging = "mean", eps: Weight = 1e-4) -> Mechanism:
    """GreedyFed: greedy selection by cumulative Shapley values, with FedAvg's training and averaging.

    Args:
        clients_per_round: the paper's M.
        averaging: how a client's values of several rounds are combined: "mean", or a number for an exponential average:
            the weight that the old value keeps.
        eps: GTG-Shapley's truncation threshold, in units of the validation loss.
    """
    select = Greedy(clients_per_round, averaging)
    return Mechanism("greedyfed", select, SharedModel(), BySamples(), GTG(eps), deploy=ServerModel())


def ucb(clients_per_round: Positive = 10, beta: Weight = 0.01) -> Mechanism:
    """UCB selection (Pandey et al. 2023): GreedyFed with a bonus ``beta sqrt(ln t / N_k)`` for rarely chosen clients.

    Args:
        clients_per_round: how many clients train in a round.
        beta: weight of the bonus, in units of the values; with 0 the ranking is GreedyFed's.
    """
    return replace(greedyfed(clients_per_round), name="ucb", select=UCB(clients_per_round, beta=beta))


def s_fedavg(clients_per_round: Positive = 10, alpha: Share = 0.75, beta: Weight = 0.25) -> Mechanism:
    """S-FedAvg (Nagalapatti, Narayanam 2021): clients are drawn by a softmax of their averaged Shapley values.

    Args:
        clients_per_round: how many clients train in a round.
        alpha: how much of a client's old average stays when it is valued again.
        beta: weight of the new value.
    """
    return replace(greedyfed(clients_per_round), name="s_fedavg", select=SFedAvg(clients_per_round, alpha, beta))


def set_aware(clients_per_round: Positive = 10) -> Mechanism:
    """hanse's own selection: like GreedyFed, but chooses clients whose data complement each other (``set_aware.py``).

    Args:
        clients_per_round: how many clients train in a round.
    """
    return replace(greedyfed(clients_per_round), name="set_aware", select=SetAware(clients_per_round))
