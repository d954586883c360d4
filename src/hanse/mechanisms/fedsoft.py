"""FedSoft (Ruan, Joe-Wong 2022): each client's model is pulled towards all cluster centres, weighted by importance.

A client's data may be a mixture of several distributions, so it belongs to each cluster to some degree. These degrees,
its *importances*, are estimated from how many of its samples each centre fits best. :class:`FedSoft` does everything in
two slots; :func:`soft_shares` is its rule for the centres.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from pydantic import Field

from hanse.base.factories import Positive, Weight
from hanse.core.part import Context, Mechanism, Most, State, TrainPart, View, Weighed, WeighPart, by_slot
from hanse.core.port import Counted, Nearest, Request
from hanse.core.table import PER_CLIENT, Block, Floats, Replace, Seats
from hanse.mechanisms.deploy import ServerModel
from hanse.mechanisms.select import Seated, who
from hanse.mechanisms.train import chosen_seats
from hanse.mechanisms.weigh import addable

Clusters = Annotated[int, Field(ge=2, le=10_000)]
CENTRES = frozenset({"cluster"})


def soft_shares(importance: Floats, num_samples: Floats) -> Floats:
    """Return how much each update counts for each centre, ``v_ks = u_sk n_s / sum_s u_sk n_s``, ``[K, S]``.

    A centre that is important to no client gets a row of zeros. If no client reports samples, all count the same.

    Args:
        importance: importances ``[S, K]`` of the centres to the clients.
        num_samples: reported samples ``[S]``.

    Examples:
        Two clients have 10 and 30 samples. The first belongs to both clusters, the second only to the second cluster:

        >>> soft_shares(np.array([[0.5, 0.5], [0.0, 1.0]]), np.array([10.0, 30.0])).round(3)
        array([[1.   , 0.   ],
               [0.143, 0.857]])
    """
    n = addable(num_samples) if num_samples.any() else np.ones(len(num_samples))
    weights = (importance * n[:, None]).T
    total = weights.sum(axis=1, keepdims=True)
    return np.asarray(np.divide(weights, total, out=np.zeros_like(weights), where=total > 0))


@dataclass(frozen=True)
class FedSoft(TrainPart, WeighPart):
    """FedSoft, in the slots train and weigh: each client has a row "model", and all clients share the rows "cluster".

    The importance ``u_ik`` is the share of client i's samples for which centre k has the lowest loss of all centres.
    Every present client is asked for its importances every ``interval`` rounds.

    The clients' objective has the pulls ``sum_k u_ik lam/2 |theta - c_k|^2``. Since the u_ik sum to 1, this equals one
    pull towards ``sum_k u_ik c_k``, up to a constant. Seats use that single pull. For the new centres the paper draws
    clients by importance times samples and averages them equally. Here each centre becomes the mean of all updates with
    these weights. This is the expected value of the paper's random draw.

    Attributes:
        clusters: the number of centres, at least 2. They start from different initial models.
        lam: strength of the pull.
        smoothing: the paper's sigma, the least importance before normalisation.
        interval: importances are estimated once in so many rounds. score_samples: the most samples used for that. None:
            all.

    Examples:
        >>> from hanse.runs.rehearsal import rehearse
        >>> part, view, state = rehearse("fedsoft").before("train")
        >>> seats, state = part.seats(view, state)
        >>> seats.R.shape
        (4, 6)
    """

    adds = (("pull", "lam"),)

    needs = by_slot(
        train={"clients", "penalty", "samples", "new rows cluster"},
        weigh={"clients", "samples", "rows cluster", "rows model"},
    )
    fills = by_slot(weigh=CENTRES)
    clusters: Clusters = 2
    lam: Weight = 0.1
    smoothing: Annotated[float, Field(gt=0, lt=1)] = 1e-4
    interval: Positive = 1
    score_samples: Positive | None = None

    def blocks(self, context: Context) -> Sequence[Block]:
        """Return a row "model" for each client, and the rows of the centres."""
        return Block("model", PER_CLIENT), Block("cluster", self.clusters, initial="different")

    def init(self, context: Context) -> State:
        """Return equal importances for all centres, ``[N, K]``."""
        return {"importance": np.full((context.num_clients, self.clusters), 1.0 / self.clusters)}

    def questions(self, clients: int, rows: int) -> Mapping[str, Most]:
        """Return what :meth:`asks` asks at most."""
        return {"Nearest": Most(1, self.clusters, samples=self.score_samples)}

    def asks(self, view: View, state: State) -> Sequence[Request]:
        """Ask every present client, every ``interval`` rounds, on how many of its samples each centre has the lowest
        loss.

        Args:
            view: the round. The method reads ``stage``, ``round``, ``present`` and ``table``.
            state: as :meth:`init` makes it.
        """
        if view.stage != "open" or view.round % self.interval:
            return ()
        task = Nearest("importance", view.table.models("cluster"), limit=self.score_samples)
        return [Request(int(c), (task,)) for c in view.present]

    def seats(self, view: View, state: State) -> tuple[Seats, State]:
        """Return a seat for each chosen client at its own row, pulled towards its weighted mean of the cluster centres.

        Args:
            view: the round. The method reads ``present``, ``answers``, ``table``, ``at``, ``home`` and ``choice``.
            state: as :meth:`init` makes it.
        """
        importance, client = self._importance(view, state), chosen_seats(view).client
        own = view.at("model", client)
        R = np.zeros((len(client), view.table.size))
        R[:, view.at("cluster")] = importance[client]
        return Seats(client, own, own, R=R, mu=np.full(len(client), self.lam)), {"importance": importance}

    def weigh(self, view: View, state: State) -> tuple[Weighed, State]:
        """Return the new centres; ``weigh/best_importance`` is the mean of the seats' largest importances.

        Args:
            view: the round. The method reads ``at`` and ``trained``.
            state: as :meth:`init` makes it.
        """
        updates = view.trained
        importance = state["importance"][updates.seats.client]
        centres = Replace(view.at("cluster"), soft_shares(importance, updates.num_samples))
        return Weighed((centres,), metrics={"weigh/best_importance": float(importance.max(axis=1).mean())}), state

    def _importance(self, view: View, state: State) -> Floats:
        """Return the importances ``[N, K]``: from this round's answers where there are any, else as they were."""
        importance: Floats = state["importance"].copy()
        for c in view.present.tolist():
            answer = view.answers.get((c, "importance"))
            if isinstance(answer, Counted) and int(answer.counts.sum()):
                counts = answer.counts.double().cpu().numpy()
                u = np.maximum(counts / counts.sum(), self.smoothing)
                importance[c] = u / u.sum()
        return importance


def fedsoft(
    clients_per_round: Seated = None, clusters: Clusters = 2, lam: Weight = 0.1, interval: Positive = 1
) -> Mechanism:
    """FedSoft (Ruan, Joe-Wong 2022): one model per client, pulled towards all cluster centres, weighted by importance.

    Args:
        clients_per_round: how many clients, drawn at random, train in a round. None: all of them.
        clusters: the number of centres.
        lam: strength of the pull.
        interval: importances are estimated every so many rounds.
    """
    part = FedSoft(clusters, lam, interval=interval)
    return Mechanism("fedsoft", who(clients_per_round), part, part, deploy=ServerModel())
