"""DEPLOY: which model each client holds after the round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from hanse.mechanisms.part import Context, Deployment, DeployPart, OwnMix, State, View
from hanse.mechanisms.tiers import tier_rows, wanted_tiers
from hanse.mechanisms.train.clusters import lowest_loss

__all__ = ["ClusterModel", "OneShot", "OwnModel", "ServerModel"]


@dataclass(frozen=True)
class ServerModel(DeployPart):
    """Every client holds the row that it will start from next."""

    def decide(self, view: View, state: State) -> Deployment:
        """Return the home rows of the new table."""
        return Deployment(view.mixed.home)


@dataclass(frozen=True)
class OwnModel(DeployPart):
    """Client i holds row i, its own model, whatever row it starts the next round from."""

    needs: ClassVar[frozenset[str]] = frozenset({"own_models"})
    gives: ClassVar[frozenset[str]] = frozenset({"own_handed_out"})

    def decide(self, view: View, state: State) -> Deployment:
        """Return row i for client i."""
        return Deployment(np.arange(view.context.num_clients, dtype=np.int64))


@dataclass(frozen=True)
class ClusterModel(DeployPart):
    """Each client holds the model that lost least on its data when it was last asked."""

    needs: ClassVar[frozenset[str]] = frozenset({"cluster_losses"})
    gives: ClassVar[frozenset[str]] = frozenset({"clusters_handed_out"})

    def init(self, context: Context) -> State:
        """Everyone holds the first one."""
        return {"cluster": np.zeros(context.num_clients, np.int64)}

    def decide(self, view: View, state: State) -> Deployment:
        """Return the clusters' rows, with the size of the largest cluster."""
        rows = lowest_loss(view, state["cluster"])
        largest = int(np.bincount(rows).max(initial=0))
        return Deployment(rows, metrics={"deploy/largest_cluster": largest})

    def learn(self, outcome: View, state: State) -> State:
        """Remember the clusters."""
        return {"cluster": lowest_loss(outcome, state["cluster"])}


@dataclass(frozen=True)
class OneShot(DeployPart):
    """PI-FL's personal models in one shot: each client mixes the tiers' models by its own importance weights (eqs 3,
    4).

    The weights come from the client's ``share`` "validation", which is drawn from what it will be tested on, or from
    "train", on which a client with other goals than its training data mixes in the wrong tier (papers.md P23); a client
    without a validation share takes its train share. Unless ``normalised`` they are the weights as printed (P4).
    They are made at the client and never sent. Beside it a client holds the tier that it bids for first.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"tiers"})
    share: Literal["validation", "train"] = "validation"
    normalised: bool = True

    def decide(self, view: View, state: State) -> Deployment:
        """Return each client's preferred tier, and how it mixes."""
        rows = tier_rows(view.table)
        held = view.mixed.home.copy()
        for c in view.present.tolist():
            for first in wanted_tiers(view, c)[:1]:
                if type(first) is int and 0 <= first < len(rows):
                    held[c] = rows[first]
        return Deployment(np.asarray(held, np.int64), own_mix=OwnMix(rows, self.share, self.normalised))
