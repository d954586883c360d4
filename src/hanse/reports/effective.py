"""How many rounds a run takes to be as good as another: GTFLAT's Definition 3 and eq. (13)."""

from __future__ import annotations

import numpy as np

from hanse.reports.chart import Floats, Ints

__all__ = ["EPSILON", "best_so_far", "effective_round", "improvement"]

EPSILON = 5e-3
"""GTFLAT's tolerance: half a percent of accuracy."""


def best_so_far(accuracy: Floats) -> Floats:
    """Return the cumulative maximum over the rounds, the last axis, ``[..., rounds]``: GTFLAT's figure 2."""
    return np.asarray(np.maximum.accumulate(accuracy, axis=-1))


def effective_round(rounds: Ints, accuracy: Floats, target: float, epsilon: float = EPSILON) -> int | None:
    """Return R*, GTFLAT Definition 3: how many rounds until ``accuracy [n]`` is at least ``target - epsilon``.

    ``rounds [n]``: how many had been played at each test, ascending. None: it never was.
    """
    # a share of correct answers is a fraction whose last bits must not decide
    there = np.flatnonzero(accuracy >= target - epsilon - 1e-12)
    return int(rounds[there[0]]) if len(there) else None


def improvement(ours: float | None, theirs: float | None) -> float | None:
    """Return the effective round improvement ratio in percent, GTFLAT eq. (13): ``(1 - ours / theirs) 100``.

    ``ours`` and ``theirs`` are effective rounds for the same target, the other's accuracy. Positive: fewer rounds than
    the other. None if one of them never got there.
    """
    if ours is None or theirs is None or theirs == 0:
        return None
    return (1.0 - ours / theirs) * 100.0
