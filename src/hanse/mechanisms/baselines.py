"""Baselines for comparison: FedAvg, FedProx, selection rules, local and centralised training.

Each function returns a :class:`hanse.core.part.Mechanism` made of parts that other modules define. To vary one, replace
a part: ``dataclasses.replace(fedavg(20), weigh=Median())`` is FedAvg with another rule for the average.
"""

from __future__ import annotations

from dataclasses import replace

from hanse.base.factories import Positive, SomeShare, Weight
from hanse.core.part import Mechanism
from hanse.mechanisms.deploy import ServerModel
from hanse.mechanisms.select import Everyone, Oort, PowerOfChoice, TheOne, Uniform
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


def power_of_choice(clients_per_round: Positive = 10, decay: SomeShare = 0.9) -> Mechanism:
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


def local() -> Mechanism:
    """Local training: every client trains its own model in every round, and nothing is mixed."""
    return Mechanism("local", Everyone(), OwnModels(), BySamples(), deploy=ServerModel())


def centralised() -> Mechanism:
    """Centralised training: all data at one client, as an upper bound. Needs ``data.partition = "pooled"``."""
    return Mechanism("centralised", TheOne(), SharedModel(), BySamples(), deploy=ServerModel())
