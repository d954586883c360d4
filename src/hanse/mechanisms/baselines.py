"""Baselines for comparison: FedAvg, FedProx, selection rules, local and centralised training.

Each function returns a :class:`hanse.core.part.Mechanism` made of parts that other modules define. To vary one, replace
a part: ``dataclasses.replace(fedavg(20), weigh=Median())`` is FedAvg with another rule for the average.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from pydantic import Field

from hanse.base.factories import Positive, Share, Weight
from hanse.core.part import Mechanism
from hanse.mechanisms.deploy import ServerModel
from hanse.mechanisms.select import UCB, Everyone, Oort, PowerOfChoice, SFedAvg, TheOne, Uniform
from hanse.mechanisms.train import OwnModels, Proximal, SharedModel
from hanse.mechanisms.weigh import BySamples


def fedavg(clients_per_round: Positive = 10) -> Mechanism:
    """FedAvg (McMahan et al. 2017): clients are drawn at random, and their models averaged by numbers of samples.

    Args:
        clients_per_round: how many clients train in a round (all that are present, if there are fewer).
    """
    return Mechanism("fedavg", Uniform(clients_per_round), SharedModel(), BySamples(), deploy=ServerModel())


def fedprox(clients_per_round: Positive = 10, mu: Weight = 0.1) -> Mechanism:
    """FedProx (Li et al. 2020): FedAvg with the proximal term ``mu/2 |theta - start|^2`` in each client's loss.

    Args:
        clients_per_round: how many clients train in a round.
        mu: strength of the pull towards the model that the client started from. With 0 this is FedAvg.
    """
    return replace(fedavg(clients_per_round), name="fedprox", train=Proximal(mu))


def ucb(clients_per_round: Positive = 10, beta: Weight = 0.01) -> Mechanism:
    """UCB selection (Pandey et al. 2023): GreedyFed with a bonus ``beta sqrt(ln t / N_k)`` for rarely chosen clients.

    Args:
        clients_per_round: how many clients train in a round.
        beta: weight of the bonus, in units of the values; with 0 the ranking is GreedyFed's.
    """
    from hanse.mechanisms.greedyfed import greedyfed

    return replace(greedyfed(clients_per_round), name="ucb", select=UCB(clients_per_round, beta=beta))


def s_fedavg(
    clients_per_round: Positive = 10,
    alpha: Share = 0.75,
    beta: Weight = 0.25,
) -> Mechanism:
    """S-FedAvg (Nagalapatti, Narayanam 2021): clients are drawn by a softmax of their averaged Shapley values.

    Args:
        clients_per_round: how many clients train in a round.
        alpha: how much of a client's old average stays when it is valued again.
        beta: weight of the new value.
    """
    from hanse.mechanisms.greedyfed import greedyfed

    return replace(greedyfed(clients_per_round), name="s_fedavg", select=SFedAvg(clients_per_round, alpha, beta))


def power_of_choice(clients_per_round: Positive = 10, decay: Annotated[float, Field(gt=0, le=1)] = 0.9) -> Mechanism:
    """Power-of-Choice (Cho et al. 2022): FedAvg, but of some clients asked, those with the largest losses train.

    Args:
        clients_per_round: how many clients train in a round.
        decay: the number of clients asked shrinks by this factor per round, down to ``clients_per_round``.
    """
    return replace(fedavg(), name="power_of_choice", select=PowerOfChoice(clients_per_round, decay))


def oort(clients_per_round: Positive = 10) -> Mechanism:
    """Oort (Lai et al. 2021): FedAvg with clients of high statistical utility and some that have never trained.

    Args:
        clients_per_round: how many clients train in a round.
    """
    return replace(fedavg(), name="oort", select=Oort(clients_per_round))


def set_aware(clients_per_round: Positive = 10) -> Mechanism:
    """hanse's own selection: like GreedyFed, but chooses clients whose data complement each other (``set_aware.py``).

    Args:
        clients_per_round: how many clients train in a round.
    """
    from hanse.mechanisms.greedyfed import greedyfed
    from hanse.mechanisms.set_aware import SetAware

    return replace(greedyfed(clients_per_round), name="set_aware", select=SetAware(clients_per_round))


def local() -> Mechanism:
    """Local training: every client trains its own model in every round, and nothing is mixed."""
    return Mechanism("local", Everyone(), OwnModels(), BySamples(), deploy=ServerModel())


def centralised() -> Mechanism:
    """Centralised training: all data at one client, as an upper bound. Needs ``data.partition = "pooled"``."""
    return Mechanism("centralised", TheOne(), SharedModel(), BySamples(), deploy=ServerModel())
