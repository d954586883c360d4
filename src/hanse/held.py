"""What clients make for themselves of the models that they hold, and how tiers' models do on each distribution.

Personal models are mixed at the client (PI-FL eq. 4), from weights that the server never sees; here, where all clients
live in one process, this is done when a round is tested.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from hanse.data.federated import FederatedData
from hanse.federation.bids import fit
from hanse.games.tiers import mixture
from hanse.learning.job import Engine, Scores
from hanse.mechanisms.part import Floats, OwnMix
from hanse.table import SERVER, Table

__all__ = ["by_distribution", "own_weights"]

_MOST_ROWS = 16  # server rows that are tested on each distribution


def _fits(scores: Scores) -> list[float]:
    return [fit(float(loss), float(right)) for loss, right in zip(scores.loss, scores.accuracy, strict=True)]


def own_weights(engine: Engine, data: FederatedData, table: Table, own: OwnMix) -> Floats:
    """Return the weights ``[N, K]`` of each client's personal model: its importance weights for the rows of ``own``,
    measured on its own share (a client without samples there: on its train share), normalised if so asked.
    """
    ids = list(range(data.num_clients))
    pool, index = data.pool(ids, own.share)
    scored = engine.score_each(table.rows[own.rows], pool, index)
    v = np.array([_fits(scores) for scores in scored])
    if empty := [c for c in ids if not len(index[c])]:
        pool, index = data.pool(empty, "train")
        v[empty] = [_fits(scores) for scores in engine.score_each(table.rows[own.rows], pool, index)]
    weights = np.zeros((data.num_clients, table.size))
    weights[:, own.rows] = mixture(v, own.normalised)
    return weights


def by_distribution(engine: Engine, data: FederatedData, table: Table) -> Mapping[str, float]:
    """Return how each server row does on the held-out data of each distribution: accuracy, or ``1 / (1 + loss)``."""
    rows = np.flatnonzero(table.owner == SERVER)[:_MOST_ROWS]
    found: dict[str, float] = {}
    for d, samples in enumerate(data.server_tests if len(rows) else ()):
        if len(samples):
            scores = engine.score(table.rows[rows], samples)
            found |= {f"test/row {k}/distribution {d}": x for k, x in zip(rows.tolist(), _fits(scores), strict=True)}
    return found
