"""IFCA (Ghosh et al. 2020, Alg. 1, option II): several models, and each client trains one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from pydantic import Field

from hanse.base.factories import Positive
from hanse.core.part import Context, Deployment, DeployPart, Mechanism, State, TrainPart, View, by_slot
from hanse.core.port import Request, Score, Scored
from hanse.core.table import Block, Ints, Seats
from hanse.mechanisms.select import Seated, who
from hanse.mechanisms.train import chosen_seats
from hanse.mechanisms.weigh import BySamples

Clusters = Annotated[int, Field(ge=2)]


@dataclass(frozen=True)
class IFCA(TrainPart, DeployPart):
    """IFCA, in the slots train and deploy: rows "cluster", of which each client trains and holds the one that loses
    least on its data.

    Everyone who is present is asked before selection, on at most ``score_samples`` training samples (None: all); this
    costs K models down a client, whether it is chosen or not. The models start from different initial values.
    """

    needs = frozenset({"clients"})
    gives = by_slot(train={"groups"})
    reads = by_slot(deploy={"cluster"})
    clusters: Clusters = 2
    score_samples: Positive | None = None

    def blocks(self) -> Sequence[Block]:
        """Return the clusters' models."""
        return (Block("cluster", self.clusters, initial="different", held=True),)

    def init(self, context: Context) -> State:
        """Everyone is in the first cluster."""
        return {"cluster": np.zeros(context.num_clients, np.int64)}

    def asks(self, view: View, state: State) -> Sequence[Request]:
        """Ask for the loss of every model."""
        if view.stage != "open":
            return ()
        task = Score("clusters", view.table.models("cluster"), limit=self.score_samples)
        return [Request(int(c), (task,)) for c in view.present]

    def seats(self, view: View, state: State) -> tuple[Seats, State]:
        """Seat each chosen client at its model of lowest loss."""
        cluster, client = _lowest_loss(view, state), chosen_seats(view).client
        return Seats.at(client, view.at("cluster")[cluster[client]]), {"cluster": cluster}

    def deploy(self, view: View, state: State) -> tuple[Deployment, State]:
        """Return the clusters' rows, with the size of the largest cluster."""
        cluster = _lowest_loss(view, state)
        largest = int(np.bincount(cluster).max(initial=0))
        deployment = Deployment(view.at("cluster")[cluster], metrics={"deploy/largest_cluster": largest})
        return deployment, {"cluster": cluster}


def _lowest_loss(view: View, state: State) -> Ints:
    """Return each client's cluster ``[N]``: that of lowest loss where it said so this round (ties: the lower one), else
    as it was.
    """
    found: Ints = state["cluster"].copy()
    for c in view.present.tolist():
        answer = view.answers.get((c, "clusters"))
        if isinstance(answer, Scored) and answer.num_samples:
            loss = answer.loss.double().nan_to_num(nan=np.inf)
            found[c] = int(loss.argmin())
    return found


def ifca(clients_per_round: Seated = None, clusters: Clusters = 2) -> Mechanism:
    """IFCA (Ghosh et al. 2020): ``clusters`` models, and each client trains the one that loses least on its data."""
    part = IFCA(clusters)
    return Mechanism("ifca", who(clients_per_round), part, BySamples(), deploy=part)
