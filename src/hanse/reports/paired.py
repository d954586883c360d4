"""Paired comparisons of numbers that share their seeds (:func:`paired`), and Holm's correction (:func:`holm`)."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hanse.games.jackknife import t_quantile

MOST_FLIPPED = 16  # pairs for which all patterns of signs are tried: 2^16 = 65,536


@dataclass(frozen=True, kw_only=True)
class Paired:
    """Statistics of the differences of paired numbers. Both tests are two-sided.

    Attributes:
        pairs: how many pairs.
        mean: the mean difference.
        sd: the sample standard deviation of the differences.
        low: the lower end of the 95 % interval of the mean (Student's t).
        high: the upper end of that interval.
        p: the p-value of the paired t test.
        p_sign_flip: the p-value of the exact sign-flip test. The test assumes only that both signs are equally likely
            if there is no difference. With n pairs it cannot be below ``2 / 2^n``. None for more than 16 pairs.
    """

    pairs: int
    mean: float
    sd: float
    low: float
    high: float
    p: float
    p_sign_flip: float | None


def paired(ours: Mapping[Hashable, float], theirs: Mapping[Hashable, float]) -> Paired | None:
    """Return the paired comparison ``ours - theirs``, pair by pair.

    Args:
        ours: a number by key, usually the seed.
        theirs: the other side's figures, in the same form.

    Returns:
        The comparison over the keys that both have, or None if there are fewer than two.

    Example:
        >>> found = paired({0: 0.81, 1: 0.84, 2: 0.86}, {0: 0.80, 1: 0.82, 2: 0.83, 3: 0.90})
        >>> found.pairs, round(found.mean, 4), round(found.low, 4), round(found.high, 4)
        (3, 0.02, -0.0048, 0.0448)
        >>> found.p_sign_flip  # of the 8 patterns of signs, two lie as far from 0
        0.25
    """
    keys = [key for key in ours if key in theirs]
    if len(keys) < 2:
        return None
    differences = np.array([ours[key] - theirs[key] for key in keys])
    n, mean, sd = len(keys), float(differences.mean()), float(differences.std(ddof=1))
    error = sd / math.sqrt(n)
    half = t_quantile(n - 1) * error
    if error == 0:  # all differences are equal: without spread any mean but 0 is certain
        p = 1.0 if mean == 0 else 0.0
    else:
        from scipy.special import stdtr  # late: it takes longer to import than a run to read

        p = 2 * float(stdtr(n - 1, -abs(mean) / error))
    return Paired(
        pairs=n, mean=mean, sd=sd, low=mean - half, high=mean + half, p=p, p_sign_flip=_sign_flip(differences)
    )


def _sign_flip(differences: np.ndarray) -> float | None:
    """Return the share of all sign patterns for which the mean is at least as far from 0; None for many pairs."""
    n = len(differences)
    if n > MOST_FLIPPED:
        return None
    signs = 1.0 - 2.0 * ((np.arange(2**n)[:, None] >> np.arange(n)) & 1)
    sums = np.abs(signs @ differences)
    # the same numbers added up in another order differ in their last bits, which must not decide
    return float((sums >= abs(differences.sum()) * (1 - 1e-9)).mean())


def holm(p: Sequence[float]) -> list[float]:
    """Return p-values with Holm's correction, which limits the probability of any false alarm to that of one test.

    Examples:
        >>> holm([0.01, 0.04, 0.03])
        [0.03, 0.06, 0.06]
    """
    corrected, least = [0.0] * len(p), 0.0
    for rank, i in enumerate(np.argsort(p, kind="stable").tolist()):
        least = max(least, min(1.0, (len(p) - rank) * p[i]))
        corrected[i] = least
    return corrected
