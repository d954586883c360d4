"""How well the clients' models fit their own test shares, and how tiers' models do on each distribution."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from hanse.core.table import Floats, Table
from hanse.data.federated import FederatedData
from hanse.federation.bids import fits
from hanse.learning.job import Engine, Scores

__all__ = ["QUANTILES", "by_distribution", "personal_fit"]

QUANTILES = (10, 25, 50, 75, 90)
_MOST_ROWS = 16  # server rows that are tested on each distribution


def by_distribution(engine: Engine, data: FederatedData, table: Table) -> Mapping[str, float]:
    """Return how each server row does on the held-out data of each distribution: accuracy, or ``1 / (1 + loss)``.

    With as many rows as distributions also "test/tier d/..", where tier d is the row that is matched to distribution d
    (the matching with the largest sum; which row serves which is chance), its "best" figure, and "test/separated": 1 if
    every tier is best on its own distribution and on each distribution its own tier is best.
    """
    rows, tests = table.on_show[:_MOST_ROWS], [t for t in data.server_tests if len(t)]
    if not len(rows) or not tests:
        return {}
    figures = np.array([fits(engine.score(table.rows[rows], samples)) for samples in tests]).T
    found = {f"test/row {k}/distribution {d}": x for k, own in zip(rows, figures, strict=True) for d, x in _enum(own)}
    if len(rows) == len(tests):
        from scipy.optimize import linear_sum_assignment  # late: few runs need it, and it is long to import

        _, tier = linear_sum_assignment(figures.T, maximize=True)
        for d, own in enumerate(figures[tier]):
            found |= {f"test/tier {d}/distribution {e}": x for e, x in _enum(own)}
            found[f"test/tier {d}/best"] = float(own.max())
        found["test/separated"] = float(_separated(figures[tier]))
    return found


def _enum(figures: Floats) -> Iterator[tuple[int, float]]:
    return enumerate(figures.tolist())


def _separated(figures: Floats) -> bool:
    """Say whether the diagonal of ``figures [D, D]`` is the largest of its row and of its column, alone."""
    own, rest = np.diag(figures), figures.copy()
    np.fill_diagonal(rest, -np.inf)
    return bool((own > rest.max(axis=1)).all() and (own > rest.max(axis=0)).all())


def personal_fit(scores: Scores) -> Mapping[str, float]:
    """Return the mean and some quantiles over clients of how well their models fit their own test shares."""
    found = np.array(fits(scores))[scores.count > 0]
    if not len(found):
        return {}
    mean = {"client/test_fit": float(found.mean())}
    return mean | {f"client/test_fit_q{q}": float(np.quantile(found, q / 100)) for q in QUANTILES}
