"""Differences between experiments that share their seeds: paired tests and intervals."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

__all__ = ["LEVEL", "Paired", "interval", "paired"]

LEVEL = 0.95
MOST_FLIPPED = 16  # pairs for which all sign flips are tried: 65,536


@dataclass(frozen=True)
class Paired:
    """The differences of ``pairs`` pairs: their ``mean``, sample standard deviation ``sd``, the ends of a 95 % interval
    for the mean (Student's t), the p-value of the paired t test, and of the sign-flip test, which assumes only that
    without a difference each sign is as likely as the other (None for more than 16 pairs). All two-sided.
    """

    pairs: int
    mean: float
    sd: float
    low: float
    high: float
    p: float
    p_sign_flip: float | None

    @property
    def told(self) -> str:
        """Whether the interval leaves out 0."""
        return "a difference" if self.low > 0 or self.high < 0 else "no difference that these seeds can tell"


def paired(ours: Mapping[Hashable, float], theirs: Mapping[Hashable, float]) -> Paired | None:
    """Return ``ours - theirs`` over the keys (seeds) that both have; None for fewer than two."""
    keys = [key for key in ours if key in theirs]
    if len(keys) < 2:
        return None
    differences = np.array([ours[key] - theirs[key] for key in keys])
    n, mean, sd = len(keys), float(differences.mean()), float(differences.std(ddof=1))
    low, high = interval(differences.tolist()) or (mean, mean)
    error = sd / math.sqrt(n)
    if error == 0:
        p = 1.0 if mean == 0 else 0.0
    else:
        p = float(2 * stats.t.sf(abs(mean) / error, n - 1))
    return Paired(n, mean, sd, low, high, p, _sign_flip(differences))


def interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Return the ends of the 95 % interval for the mean of ``values`` (Student's t); None for fewer than two."""
    n = len(values)
    if n < 2:
        return None
    mean, error = float(np.mean(values)), float(np.std(values, ddof=1)) / math.sqrt(n)
    half = float(stats.t.ppf((1 + LEVEL) / 2, n - 1)) * error
    return mean - half, mean + half


def _sign_flip(differences: np.ndarray) -> float | None:
    """Return the share of all sign patterns whose mean is at least as far from 0."""
    n = len(differences)
    if n > MOST_FLIPPED:
        return None
    signs = 1.0 - 2.0 * ((np.arange(2**n)[:, None] >> np.arange(n)) & 1)
    sums = np.abs(signs @ differences)
    # sums of the same numbers in another order differ in their last bits
    return float((sums >= abs(differences.sum()) * (1 - 1e-9)).mean())
