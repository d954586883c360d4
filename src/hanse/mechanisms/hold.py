"""DEPLOY for personal models: each client holds its own row, or its cluster's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from hanse.mechanisms.part import Context, Deployment, DeployPart, State, View
from hanse.mechanisms.train.clusters import lowest_loss

__all__ = ["ClusterModel", "OwnModel"]


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
