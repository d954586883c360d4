"""GreedyFed (Singhal, Pandey, Popovski 2024): train with the clients whose updates have been worth most.

Alg. 1: meet everyone once in random order, then take the M largest cumulative Shapley values; average by samples.
Alg. 2: each round's Shapley values by GTG-Shapley on the server's validation loss.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from hanse.base.factories import Positive
from hanse.core.part import Mechanism
from hanse.mechanisms.deploy import ServerModel
from hanse.mechanisms.select import Greedy
from hanse.mechanisms.train import SharedModel
from hanse.mechanisms.value import GTG
from hanse.mechanisms.weigh import BySamples


def greedyfed(
    clients_per_round: Positive = 10,
    averaging: Literal["mean"] | Annotated[float, Field(ge=0, lt=1)] = "mean",
    eps: Annotated[float, Field(ge=0)] = 1e-4,
) -> Mechanism:
    """GreedyFed with M = ``clients_per_round``, cumulative values by "mean" or with exponential weight ``averaging``,
    and GTG-Shapley's truncation threshold ``eps``.
    """
    return Mechanism(
        name="greedyfed",
        select=Greedy(clients_per_round, averaging),
        train=SharedModel(),
        weigh=BySamples(),
        value=GTG(eps),
        deploy=ServerModel(),
    )
