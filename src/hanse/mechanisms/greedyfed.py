"""GreedyFed (Singhal, Pandey, Popovski 2024): train with the clients whose updates have been worth most so far.

Alg. 1 first lets every client train once, in random order. From then on it takes the M clients with the largest
cumulative Shapley values and averages their models by numbers of samples. Alg. 2 estimates the Shapley values of each
round by GTG-Shapley on the server's validation loss. Other mechanisms use the same parts.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from hanse.base.factories import Positive, Weight
from hanse.core.part import Mechanism
from hanse.mechanisms.deploy import ServerModel
from hanse.mechanisms.select import Greedy
from hanse.mechanisms.train import SharedModel
from hanse.mechanisms.value import GTG
from hanse.mechanisms.weigh import BySamples


def greedyfed(
    clients_per_round: Positive = 10,
    averaging: Literal["mean"] | Annotated[float, Field(ge=0, lt=1)] = "mean",
    eps: Weight = 1e-4,
) -> Mechanism:
    """GreedyFed: greedy selection by cumulative Shapley values, with FedAvg's training and averaging.

    Args:
        clients_per_round: the paper's M.
        averaging: how a client's values of several rounds are combined: "mean", or a number for an exponential average:
            the weight that the old value keeps.
        eps: GTG-Shapley's truncation threshold, in units of the validation loss.
    """
    return Mechanism(
        name="greedyfed",
        select=Greedy(clients_per_round, averaging),
        train=SharedModel(),
        weigh=BySamples(),
        value=GTG(eps),
        deploy=ServerModel(),
    )
