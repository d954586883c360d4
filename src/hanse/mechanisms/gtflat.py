"""GTFLAT (Mahini, Mousavi, Daneshtalab): an add-on that replaces the weights of any average by an equilibrium.

``dataclasses.replace(mechanism, weigh=GTFLAT())`` puts it on any mechanism that averages; these are the published ones.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from pydantic import Field

from hanse.core.part import Mechanism
from hanse.mechanisms.baselines import fedavg, fedprox
from hanse.mechanisms.weigh.gtflat import GTFLAT, Generations, Population, Scale, Strength

__all__ = ["gtfedavg", "gtfedprox"]


def gtfedavg(
    clients_per_round: Annotated[int, Field(ge=1)] = 10,
    strength: Strength = 0.8,
    generations: Generations = 50,
    population: Population = None,
    scale: Scale = "paper",
) -> Mechanism:
    """GTFedAvg: FedAvg with GTFLAT's weights."""
    weigh = GTFLAT(strength, generations, population, scale)
    return replace(fedavg(clients_per_round), name="gtfedavg", weigh=weigh)


def gtfedprox(
    clients_per_round: Annotated[int, Field(ge=1)] = 10,
    mu: Annotated[float, Field(ge=0)] = 0.1,
    strength: Strength = 0.8,
    generations: Generations = 50,
    population: Population = None,
    scale: Scale = "paper",
) -> Mechanism:
    """GTFedProx: FedProx with GTFLAT's weights."""
    weigh = GTFLAT(strength, generations, population, scale)
    return replace(fedprox(clients_per_round, mu), name="gtfedprox", weigh=weigh)
