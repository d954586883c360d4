"""The mechanisms that everything is compared with: FedAvg, FedProx, local training, centralised training."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from pydantic import Field

from hanse.mechanisms.deploy import ServerModel
from hanse.mechanisms.part import Mechanism
from hanse.mechanisms.select import Everyone, TheOne, Uniform
from hanse.mechanisms.train import OwnModels, Proximal, SharedModel
from hanse.mechanisms.weigh import BySamples

__all__ = ["centralised", "fedavg", "fedprox", "local"]


def fedavg(clients_per_round: Annotated[int, Field(ge=1)] = 10) -> Mechanism:
    """FedAvg (McMahan et al. 2017): ``clients_per_round`` at random, averaged by their numbers of samples."""
    return Mechanism("fedavg", Uniform(clients_per_round), SharedModel(), BySamples(), deploy=ServerModel())


def fedprox(clients_per_round: Annotated[int, Field(ge=1)] = 10, mu: Annotated[float, Field(ge=0)] = 0.1) -> Mechanism:
    """FedProx (Li et al. 2020): FedAvg with the proximal pull ``mu/2 |theta - start|^2`` at each client."""
    return replace(fedavg(clients_per_round), name="fedprox", train=Proximal(mu))


def local() -> Mechanism:
    """Each client alone: everyone trains its own model in every round and nothing is mixed."""
    return Mechanism("local", Everyone(), OwnModels(), BySamples(), deploy=ServerModel())


def centralised() -> Mechanism:
    """All data at one place, as an upper bound; needs ``data.partition = "pooled"``."""
    return Mechanism("centralised", TheOne(), SharedModel(), BySamples(), deploy=ServerModel())
