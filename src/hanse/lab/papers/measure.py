"""From finished runs to a cell's number: a figure at a round, the best so far, or rounds against another run.

Effective rounds are those of the mean over the seeds of the best accuracies so far, as whole rounds are printed in
GTFLAT's table 3; their deviation is over the seeds, each measured by itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hanse.lab.papers.frame import Cell, PaperTable
from hanse.reports.effective import best_so_far, effective_round, improvement

__all__ = ["Pair", "measured"]

Floats = NDArray[np.float64]
Pair = tuple[Mapping[str, Any] | None, Mapping[str, Any] | None]
"""One seed's finished run and the one that it is compared with; None: there is none."""


def measured(cell: Cell, runs: Sequence[Pair], table: PaperTable) -> tuple[float | None, float | None, int]:
    """Return the cell's number over its seeds: mean, sample standard deviation (None for one seed), how many seeds.

    A seed whose run is not there does not count. An effective round that is never reached leaves no number, and its
    seed out of the deviation.
    """
    if cell.measure in ("rounds", "improvement"):
        return _against(cell, runs, table.metric)
    factor = table.factor if cell.factor is None else cell.factor
    values = [v * factor for run, _ in runs if (v := _mean_of(cell, run, table.metric)) is not None]
    if not values:
        return None, None, 0
    return float(np.mean(values)), _sd(values), len(values)


def _sd(values: Sequence[float]) -> float | None:
    return float(np.std(values, ddof=1)) if len(values) > 1 else None


def _mean_of(cell: Cell, result: Mapping[str, Any] | None, metric: str) -> float | None:
    """Return the cell's figure, or the mean of its figures where it has several; None if one is missing."""
    names = (cell.metric or metric,) if isinstance(cell.metric, str) else cell.metric
    found = [_read(cell, result, name) for name in names]
    known = [value for value in found if value is not None]
    return float(np.mean(known)) if len(known) == len(found) else None


def _read(cell: Cell, result: Mapping[str, Any] | None, metric: str) -> float | None:
    """Return the figure at the cell's round, or the best one until then."""
    if result is None or cell.at not in result["tested"] or metric not in result["curves"]:
        return None
    last = result["tested"].index(cell.at)
    if cell.measure == "at":
        value = result["curves"][metric][last]
        return None if value is None else float(value)
    there = [v for v in result["curves"][metric][: last + 1] if v is not None]
    return float(max(there)) if there else None


def _against(cell: Cell, runs: Sequence[Pair], metric: str) -> tuple[float | None, float | None, int]:
    curves = [pair for run, base in runs if (pair := _curves(cell, run, base, metric)) is not None]
    if not curves:
        return None, None, 0
    tested, ours, theirs = curves[0][0], np.array([c[1] for c in curves]), np.array([c[2] for c in curves])
    each = [_one(cell, tested, a, b) for a, b in zip(ours, theirs, strict=True)]
    together = _one(cell, tested, ours.mean(axis=0), theirs.mean(axis=0))
    return together, _sd([v for v in each if v is not None]), len(curves)


def _curves(
    cell: Cell, run: Mapping[str, Any] | None, base: Mapping[str, Any] | None, metric: str
) -> tuple[NDArray[np.int64], Floats, Floats] | None:
    """Return the rounds until the cell's, and both runs' best figures so far; None unless both are whole."""
    if run is None or base is None or run["tested"] != base["tested"] or cell.at not in run["tested"]:
        return None
    last = run["tested"].index(cell.at) + 1
    pair = [found["curves"].get(metric, [None])[:last] for found in (run, base)]
    if any(None in curve for curve in pair):
        return None
    ours, theirs = (best_so_far(np.array(curve, dtype=np.float64)) for curve in pair)
    return np.array(run["tested"][:last], dtype=np.int64), ours, theirs


def _one(cell: Cell, tested: NDArray[np.int64], ours: Floats, theirs: Floats) -> float | None:
    target = float(theirs[-1])
    reached = effective_round(tested, ours, target)
    if cell.measure == "rounds":
        return None if reached is None else float(reached)
    return improvement(reached, effective_round(tested, theirs, target))
