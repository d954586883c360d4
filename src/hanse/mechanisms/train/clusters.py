"""TRAIN for clients that find their clusters by losses: IFCA (the best one), FedSoft (all, by importance)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
import torch
from pydantic import Field

from hanse.federation.port import Counted, Nearest, Request, Score, Scored
from hanse.mechanisms.part import Context, Floats, Ints, State, TrainPart, View
from hanse.mechanisms.train.basic import chosen_seats
from hanse.table import Seats, Table

__all__ = ["ClusterModels", "SoftClusters", "lowest_loss"]

Clusters = Annotated[int, Field(ge=2)]
ScoreSamples = Annotated[int, Field(ge=1)] | None


def lowest_loss(view: View, cluster: Ints) -> Ints:
    """Return each client's row of lowest loss ``[N]`` where it said so this round (ties: the lower row), else
    ``cluster [N]`` as it was.
    """
    found = cluster.copy()
    for c in view.present.tolist():
        answer = view.answers.get((c, "clusters"))
        if isinstance(answer, Scored) and answer.num_samples:
            loss = answer.loss.double().nan_to_num(nan=torch.inf)
            found[c] = int(loss.argmin())
    return found


@dataclass(frozen=True)
class ClusterModels(TrainPart):
    """IFCA (Ghosh et al. 2020, Alg. 1, option II): each client trains the one of K models that loses least on its data.

    Everyone who is present is asked before selection, on at most ``score_samples`` training samples (None: all); this
    costs K models down a client, whether it is chosen or not. The models start from different initial values.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"clients", "clusters_handed_out"})
    gives: ClassVar[frozenset[str]] = frozenset({"groups", "cluster_losses"})
    clusters: Clusters = 2
    score_samples: ScoreSamples = None

    def table(self, context: Context) -> tuple[Table, Ints]:
        """Return K server rows; all are at home in the first until they have said more."""
        rows = torch.stack([context.initial(k) for k in range(self.clusters)])
        return Table.of(rows), np.zeros(context.num_clients, np.int64)

    def init(self, context: Context) -> State:
        """Everyone is in the first cluster."""
        return {"cluster": np.zeros(context.num_clients, np.int64)}

    def asks(self, view: View, state: State) -> Sequence[Request]:
        """Ask for the loss of every model."""
        if view.stage != "open":
            return ()
        task = Score("clusters", view.table.rows, limit=self.score_samples)
        return [Request(int(c), (task,)) for c in view.present]

    def decide(self, view: View, state: State) -> Seats:
        """Seat each chosen client at its row of lowest loss."""
        client = chosen_seats(view).client
        return Seats.at(client, lowest_loss(view, state["cluster"])[client])

    def learn(self, outcome: View, state: State) -> State:
        """Remember the clusters."""
        return {"cluster": lowest_loss(outcome, state["cluster"])}


@dataclass(frozen=True)
class SoftClusters(TrainPart):
    """FedSoft (Ruan, Joe-Wong 2022): each client's own model, pulled towards all K centres by importance.

    ``u_ik`` is the share of client i's samples on which centre k has the lowest loss, at least ``smoothing`` (its
    sigma) and then normalised; it is estimated every ``interval`` rounds by everyone who is present. Since the u_ik sum
    to one, ``sum_k u_ik lam/2 |theta - c_k|^2`` (its local objective) is one pull towards ``sum_k u_ik c_k``, up to a
    constant. Rows: i client i's model, which is sent every round; N + k centre k.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"clients", "soft_shares"})
    gives: ClassVar[frozenset[str]] = frozenset({"importance"})
    clusters: Clusters = 2
    lam: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.1
    smoothing: Annotated[float, Field(gt=0, lt=1)] = 1e-4
    interval: Annotated[int, Field(ge=1)] = 1
    score_samples: ScoreSamples = None

    def table(self, context: Context) -> tuple[Table, Ints]:
        """Return N rows of clients and K different centres; client i's home is row i."""
        n = context.num_clients
        centres = torch.stack([context.initial(k) for k in range(self.clusters)])
        return Table.of(torch.cat([context.initial(0).repeat(n, 1), centres])), np.arange(n, dtype=np.int64)

    def init(self, context: Context) -> State:
        """Every centre is as important as the others."""
        return {"importance": np.full((context.num_clients, self.clusters), 1.0 / self.clusters)}

    def asks(self, view: View, state: State) -> Sequence[Request]:
        """Ask on how many samples each centre is the best one, every ``interval`` rounds."""
        if view.stage != "open" or view.round % self.interval:
            return ()
        task = Nearest("importance", view.table.rows[view.context.num_clients :], limit=self.score_samples)
        return [Request(int(c), (task,)) for c in view.present]

    def decide(self, view: View, state: State) -> Seats:
        """Seat each chosen client at its own row, pulled towards its mean of the centres."""
        client = chosen_seats(view).client
        n = view.context.num_clients
        R = np.zeros((len(client), view.table.size))
        R[:, n : n + self.clusters] = self._importance(view, state)[client]
        return Seats(client, client, client, R=R, mu=np.full(len(client), self.lam))

    def learn(self, outcome: View, state: State) -> State:
        """Remember the importance."""
        return {"importance": self._importance(outcome, state)}

    def _importance(self, view: View, state: State) -> Floats:
        importance: Floats = state["importance"].copy()
        for c in view.present.tolist():
            answer = view.answers.get((c, "importance"))
            if isinstance(answer, Counted) and int(answer.counts.sum()):
                counts = answer.counts.double().cpu().numpy()
                u = np.maximum(counts / counts.sum(), self.smoothing)
                importance[c] = u / u.sum()
        return importance
