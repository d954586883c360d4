"""Choosing among strategies by what each has paid lately: a bandit on discounted means."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["choose_arm", "update_arms"]

Floats = NDArray[np.float64]


def choose_arm(sums: Floats, weights: Floats, exploration: float, draw: np.random.Generator) -> int:
    """Return an arm: one never tried, else with probability ``exploration`` any, else the best discounted mean
    ``[A]``.
    """
    untried = np.flatnonzero(weights == 0)
    if len(untried):
        return int(untried[0])
    if draw.random() < exploration:
        return int(draw.integers(len(sums)))
    return int(np.argmax(sums / weights))


def update_arms(sums: Floats, weights: Floats, arm: int, gain: float, discount: float) -> tuple[Floats, Floats]:
    """Return the discounted sums and weights ``[A]`` after ``arm`` paid ``gain``; only that arm's past is
    discounted.
    """
    sums, weights = sums.copy(), weights.copy()
    sums[arm] = discount * sums[arm] + gain
    weights[arm] = discount * weights[arm] + 1.0
    return sums, weights
