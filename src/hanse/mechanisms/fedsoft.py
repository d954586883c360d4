"""FedSoft (Ruan, Joe-Wong 2022): each client's own model, pulled towards all cluster centres by their importance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from pydantic import Field

from hanse.base.factories import Positive, Weight
from hanse.core.part import Context, Mechanism, State, TrainPart, View, Weighed, WeighPart, by_slot
from hanse.core.port import Counted, Nearest, Request
from hanse.core.table import PER_CLIENT, Block, Floats, Replace, Seats
from hanse.mechanisms.deploy import ServerModel
from hanse.mechanisms.select import Seated, who
from hanse.mechanisms.train import chosen_seats
from hanse.mechanisms.weigh import addable

Clusters = Annotated[int, Field(ge=2)]
CENTRES = frozenset({"cluster"})


def soft_shares(importance: Floats, num_samples: Floats) -> Floats:
    """Return ``v_ks = u_sk n_s / sum_s u_sk n_s`` ``[K, S]``, FedSoft's shares, from ``importance [S, K]``; a centre
    that is important to nobody has a row of zeros. With no samples reported all count the same.
    """
    n = addable(num_samples) if num_samples.any() else np.ones(len(num_samples))
    weights = (importance * n[:, None]).T
    total = weights.sum(axis=1, keepdims=True)
    return np.asarray(np.divide(weights, total, out=np.zeros_like(weights), where=total > 0))


@dataclass(frozen=True)
class FedSoft(TrainPart, WeighPart):
    """FedSoft, in the slots train and weigh: a row "model" a client, which is sent every round, and rows "cluster".

    ``u_ik`` is the share of client i's samples on which centre k has the lowest loss, at least ``smoothing`` (its
    sigma) and then normalised; it is estimated every ``interval`` rounds by everyone who is present. Since the u_ik sum
    to one, ``sum_k u_ik lam/2 |theta - c_k|^2`` (its local objective) is one pull towards ``sum_k u_ik c_k``, up to a
    constant. Each centre becomes the mean of all updates by importance times samples: the paper draws clients for each
    centre by these weights and averages them plainly; this is the mean of that draw.
    """

    needs = frozenset({"clients"})
    reads = by_slot(train=CENTRES, weigh=CENTRES | {"model"})
    fills = by_slot(weigh=CENTRES)
    pulls = True
    clusters: Clusters = 2
    lam: Weight = 0.1
    smoothing: Annotated[float, Field(gt=0, lt=1)] = 1e-4
    interval: Positive = 1
    score_samples: Positive | None = None

    def blocks(self) -> Sequence[Block]:
        """Return a model a client, and the different centres."""
        return Block("model", PER_CLIENT), Block("cluster", self.clusters, initial="different")

    def init(self, context: Context) -> State:
        """Every centre is as important as the others."""
        return {"importance": np.full((context.num_clients, self.clusters), 1.0 / self.clusters)}

    def asks(self, view: View, state: State) -> Sequence[Request]:
        """Ask on how many samples each centre is the best one, every ``interval`` rounds."""
        if view.stage != "open" or view.round % self.interval:
            return ()
        task = Nearest("importance", view.table.models("cluster"), limit=self.score_samples)
        return [Request(int(c), (task,)) for c in view.present]

    def seats(self, view: View, state: State) -> tuple[Seats, State]:
        """Seat each chosen client at its own row, pulled towards its mean of the centres."""
        importance, client = self._importance(view, state), chosen_seats(view).client
        own = view.at("model", client)
        R = np.zeros((len(client), view.table.size))
        R[:, view.at("cluster")] = importance[client]
        return Seats(client, own, own, R=R, mu=np.full(len(client), self.lam)), {"importance": importance}

    def weigh(self, view: View, state: State) -> tuple[Weighed, State]:
        """Return the centres."""
        updates = view.trained
        importance = state["importance"][updates.seats.client]
        centres = Replace(view.at("cluster"), soft_shares(importance, updates.num_samples))
        return Weighed((centres,), metrics={"weigh/best_importance": float(importance.max(axis=1).mean())}), state

    def _importance(self, view: View, state: State) -> Floats:
        """Return how important each centre is to each client, ``[N, K]``."""
        importance: Floats = state["importance"].copy()
        for c in view.present.tolist():
            answer = view.answers.get((c, "importance"))
            if isinstance(answer, Counted) and int(answer.counts.sum()):
                counts = answer.counts.double().cpu().numpy()
                u = np.maximum(counts / counts.sum(), self.smoothing)
                importance[c] = u / u.sum()
        return importance


def fedsoft(
    clients_per_round: Seated = None,
    clusters: Clusters = 2,
    lam: Weight = 0.1,
    interval: Positive = 1,
) -> Mechanism:
    """FedSoft (Ruan, Joe-Wong 2022): own models pulled by ``lam`` to ``clusters`` centres, each by its importance,
    which is estimated every ``interval`` rounds.
    """
    part = FedSoft(clusters, lam, interval=interval)
    return Mechanism("fedsoft", who(clients_per_round), part, part, deploy=ServerModel())
