"""The mechanisms that everything is compared with: FedAvg, FedProx, local training, centralised training."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from pydantic import Field

from hanse.base.factories import Positive, Share
from hanse.core.part import Mechanism
from hanse.mechanisms.deploy import ServerModel
from hanse.mechanisms.greedyfed import greedyfed
from hanse.mechanisms.select import UCB, Everyone, Oort, PowerOfChoice, SFedAvg, TheOne, Uniform
from hanse.mechanisms.set_aware import SetAware
from hanse.mechanisms.train import OwnModels, Proximal, SharedModel
from hanse.mechanisms.weigh import BySamples


def fedavg(clients_per_round: Positive = 10) -> Mechanism:
    """FedAvg (McMahan et al. 2017): ``clients_per_round`` at random, averaged by their numbers of samples."""
    return Mechanism("fedavg", Uniform(clients_per_round), SharedModel(), BySamples(), deploy=ServerModel())


def fedprox(clients_per_round: Positive = 10, mu: Annotated[float, Field(ge=0)] = 0.1) -> Mechanism:
    """FedProx (Li et al. 2020): FedAvg with the proximal pull ``mu/2 |theta - start|^2`` at each client."""
    return replace(fedavg(clients_per_round), name="fedprox", train=Proximal(mu))


def ucb(clients_per_round: Positive = 10, beta: Annotated[float, Field(ge=0)] = 0.01) -> Mechanism:
    """UCB (Pandey et al. 2023): GreedyFed with the bonus ``beta sqrt(ln t / N_k)`` for clients that sat rarely."""
    return replace(greedyfed(clients_per_round), name="ucb", select=UCB(clients_per_round, beta=beta))


def s_fedavg(
    clients_per_round: Positive = 10,
    alpha: Share = 0.75,
    beta: Annotated[float, Field(ge=0)] = 0.25,
) -> Mechanism:
    """S-FedAvg (Nagalapatti, Narayanam 2021): clients drawn by a softmax of their averaged Shapley values."""
    return replace(greedyfed(clients_per_round), name="s_fedavg", select=SFedAvg(clients_per_round, alpha, beta))


def power_of_choice(clients_per_round: Positive = 10, decay: Annotated[float, Field(gt=0, le=1)] = 0.9) -> Mechanism:
    """Power-of-Choice (Cho et al. 2022): FedAvg with the candidates on whose data the model loses most."""
    return replace(fedavg(), name="power_of_choice", select=PowerOfChoice(clients_per_round, decay))


def oort(clients_per_round: Positive = 10) -> Mechanism:
    """Oort (Lai et al. 2021): FedAvg with clients of high statistical utility, and some that were never met."""
    return replace(fedavg(), name="oort", select=Oort(clients_per_round))


def set_aware(clients_per_round: Positive = 10) -> Mechanism:
    """Hanse's own: GreedyFed that may choose clients for what they add up to (see ``set_aware.py``)."""
    return replace(greedyfed(clients_per_round), name="set_aware", select=SetAware(clients_per_round))


def local() -> Mechanism:
    """Each client alone: everyone trains its own model in every round and nothing is mixed."""
    return Mechanism("local", Everyone(), OwnModels(), BySamples(), deploy=ServerModel())


def centralised() -> Mechanism:
    """All data at one place, as an upper bound; needs ``data.partition = "pooled"``."""
    return Mechanism("centralised", TheOne(), SharedModel(), BySamples(), deploy=ServerModel())
