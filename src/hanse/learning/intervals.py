"""95 % intervals for small tests, which stay valid even if every sample is right.

If a model gets all of ten samples right, the standard error is 0 and a normal interval has no width. The intervals here
are the sets of true figures under which the observed one is plausible (score intervals).
"""

from __future__ import annotations

import math

Z = 1.959963984540054  # the 97.5 % point of the normal distribution
Interval = tuple[float, float]


def wilson(share: float, n: float) -> Interval:
    """Return the 95 % interval of a proportion of n samples (Wilson 1927).

    Args:
        share: the proportion found, 0 to 1.
        n: how many samples, at least 1.

    Examples:
        >>> low, high = wilson(1.0, 10)
        >>> round(low, 3), high
        (0.722, 1.0)
    """
    middle, half = share + Z**2 / (2 * n), Z * math.sqrt(share * (1 - share) / n + Z**2 / (4 * n**2))
    low, high = ((middle + side * half) / (1 + Z**2 / n) for side in (-1, 1))
    return (0.0 if share == 0 else low), (1.0 if share == 1 else high)  # without the last bit of rounding


def auc_interval(auc: float, positive: int, negative: int) -> Interval:
    """Return the 95 % interval of an AUC (Newcombe 2006, method 5).

    The interval contains every true AUC that is at most 1.96 standard errors from the observed one. The error is Hanley
    and McNeil's (1982) at the true AUC, with both sample sizes minus 1 replaced by their mean.

    Args:
        auc: the AUC found, 0 to 1.
        positive: how many samples are of class 1, at least 1.
        negative: how many samples are of class 0, at least 1.

    Examples:
        >>> low, high = auc_interval(1.0, 5, 5)
        >>> round(low, 3), high
        (0.643, 1.0)
    """
    from scipy.optimize import brentq  # late: it takes longer to import than a short run

    both = (positive + negative) / 2 - 1

    def beyond(true: float) -> float:
        spread = 1 + both * ((1 - true) / (2 - true) + true / (1 + true))
        return abs(auc - true) - Z * math.sqrt(max(0.0, true * (1 - true) * spread / (positive * negative)))

    tiny = 1e-12
    low = float(brentq(beyond, 0.0, auc - tiny)) if auc > tiny and beyond(0.0) > 0 else 0.0
    high = float(brentq(beyond, auc + tiny, 1.0)) if auc < 1 - tiny and beyond(1.0) > 0 else 1.0
    return low, high


def difference(ours: float, mine: Interval, theirs: float, other: Interval, correlation: float = 0.0) -> Interval:
    """Return the 95 % interval of the difference of two figures from the interval of each.

    The method is Newcombe's (1998, method 10) for pairs, and for any two figures Zou's (2007, "MOVER").

    Args:
        ours: one figure.
        mine: the interval of ``ours``.
        theirs: the figure to subtract.
        other: the interval of ``theirs``.
        correlation: the correlation of the two figures, -1 to 1; 0 for independent samples.

    Examples:
        >>> low, high = difference(56 / 70, wilson(56 / 70, 70), 48 / 80, wilson(48 / 80, 80))  # Newcombe's example (a)
        >>> round(low, 4), round(high, 4)
        (0.0524, 0.3339)
    """

    def reach(a: float, b: float) -> float:
        return math.sqrt(max(0.0, a * a - 2 * correlation * a * b + b * b))

    apart = ours - theirs
    return apart - reach(ours - mine[0], other[1] - theirs), apart + reach(mine[1] - ours, theirs - other[0])
