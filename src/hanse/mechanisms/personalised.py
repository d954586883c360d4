"""Personalised systems to compare with: which parts each published one is made of.

``clients_per_round`` is how many train a round, at random; by default everyone does, as in these papers' comparisons.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from hanse.mechanisms.deploy import ClusterModel, OwnModel, ServerModel
from hanse.mechanisms.part import Mechanism, SelectPart
from hanse.mechanisms.select import Everyone, Uniform
from hanse.mechanisms.train import (
    ClusterModels,
    Controlled,
    Ditto,
    FromCentres,
    SentModels,
    SharedModel,
    SoftClusters,
    TowardsCentres,
)
from hanse.mechanisms.weigh import BySamples
from hanse.mechanisms.weigh.centres import FedAMP, HeurFedAMP, PFedGraph
from hanse.mechanisms.weigh.cfl import CFL
from hanse.mechanisms.weigh.fedfomo import FedFomo
from hanse.mechanisms.weigh.linear import ControlVariates, SoftShares

__all__ = ["cfl", "ditto", "fedamp", "fedfomo", "fedsoft", "heur_fedamp", "ifca", "pfedgraph", "scaffold"]

Seated = Annotated[int, Field(ge=1)] | None
Weight = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Clusters = Annotated[int, Field(ge=2)]


def _who(clients_per_round: int | None) -> SelectPart:
    return Everyone() if clients_per_round is None else Uniform(clients_per_round)


def ditto(clients_per_round: Seated = None, lam: Weight = 1.0) -> Mechanism:
    """Ditto (Li et al. 2021): FedAvg, and a private model a client that is pulled to the shared one by ``lam``."""
    return Mechanism("ditto", _who(clients_per_round), Ditto(lam), BySamples(), deploy=OwnModel())


def fedamp(
    clients_per_round: Seated = None, lam: Weight = 0.01, step: Positive | None = None, sigma: Positive | None = None
) -> Mechanism:
    """FedAMP (Huang et al. 2021): own models pulled by ``lam / step`` (``lam`` where the step follows the distances) to
    centres that weigh the others by their distance; ``step`` is its alpha.
    """
    mu = lam if step is None else lam / step
    weigh = FedAMP(step, sigma)
    return Mechanism("fedamp", _who(clients_per_round), TowardsCentres(mu), weigh, deploy=ServerModel())


def heur_fedamp(clients_per_round: Seated = None, lam: Weight = 0.01) -> Mechanism:
    """HeurFedAMP (Huang et al. 2021): FedAMP with weights by cosines, as pFedGraph's and iPFL's comparisons run it."""
    return Mechanism("heur_fedamp", _who(clients_per_round), TowardsCentres(lam), HeurFedAMP(), deploy=ServerModel())


def pfedgraph(clients_per_round: Seated = None, lam: Weight = 0.01, alpha: Positive = 0.8) -> Mechanism:
    """pFedGraph (Ye et al. 2023): start models from a graph of who helps whom; each client holds what it trained."""
    return Mechanism("pfedgraph", _who(clients_per_round), FromCentres(lam), PFedGraph(alpha), deploy=OwnModel())


def fedfomo(clients_per_round: Seated = None, models: Annotated[int, Field(ge=1)] = 6) -> Mechanism:
    """FedFomo (Zhang et al. 2021): each client mixes what helps it most of up to ``models`` others' updates."""
    return Mechanism("fedfomo", _who(clients_per_round), SentModels(), FedFomo(models), deploy=ServerModel())


def cfl(clients_per_round: Seated = None, eps1: Weight = 2.0, eps2: Weight = 2.5) -> Mechanism:
    """CFL (Sattler et al. 2020): clusters that split when their members' updates are long and their mean is short."""
    return Mechanism("cfl", _who(clients_per_round), SharedModel(), CFL(eps1, eps2), deploy=ServerModel())


def ifca(clients_per_round: Seated = None, clusters: Clusters = 2) -> Mechanism:
    """IFCA (Ghosh et al. 2020): ``clusters`` models, and each client trains the one that loses least on its data."""
    return Mechanism("ifca", _who(clients_per_round), ClusterModels(clusters), BySamples(), deploy=ClusterModel())


def fedsoft(
    clients_per_round: Seated = None,
    clusters: Clusters = 2,
    lam: Weight = 0.1,
    interval: Annotated[int, Field(ge=1)] = 1,
) -> Mechanism:
    """FedSoft (Ruan, Joe-Wong 2022): own models pulled by ``lam`` to ``clusters`` centres, each by its importance,
    which is estimated every ``interval`` rounds.
    """
    train = SoftClusters(clusters, lam, interval=interval)
    return Mechanism("fedsoft", _who(clients_per_round), train, SoftShares(), deploy=ServerModel())


def scaffold(clients_per_round: Seated = None, global_lr: Positive = 1.0) -> Mechanism:
    """SCAFFOLD (Karimireddy et al. 2020): one shared model, client drift corrected by control variates."""
    weigh = ControlVariates(global_lr)
    return Mechanism("scaffold", _who(clients_per_round), Controlled(), weigh, deploy=ServerModel())
