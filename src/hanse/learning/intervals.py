"""How far chance moves a figure of a test: standard errors and 95 % intervals.

Errors that the random draw of samples causes are the jackknife's (:mod:`hanse.games.jackknife`):
:func:`sample_blocks` splits the samples, a scorer computes the figure without each block, and :func:`errors_without`
turns these into standard errors.

The intervals (:func:`wilson`, :func:`auc_interval`) are for small tests, and stay valid even if every sample is right.
If a model gets all of ten samples right, the standard error is 0 and a normal interval has no width. They are the sets
of true figures under which the observed one is plausible (score intervals).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from hanse.base.pytorch import Tensor, torch
from hanse.base.streams import stream
from hanse.data.units import numbered
from hanse.games.jackknife import jackknife_errors, t_factor

UNITS = "units"
"""The name of the number of units among the metrics of a test, where its samples have units."""
BLOCKS = 20
"""How many blocks the samples are cut into."""


def sample_blocks(n: int, units: Tensor | None = None) -> list[Tensor]:
    """Divide ``n`` samples into 20 blocks, or into n if there are fewer than 20 samples, and return their positions.

    Blocks are drawn at random, and in the same way for the same n. The order of the samples therefore does not matter.
    For fewer than two samples there are none.

    Args:
        n: how many samples there are.
        units: ``[n]``, the unit of each sample (:class:`hanse.data.samples.Samples`). Blocks are then of whole units,
            so the jackknife over them is that of a cluster sample.
    """
    if units is not None:
        number = numbered(units.numpy())
        whole = sample_blocks(count_units(units))
        return [torch.from_numpy(np.flatnonzero(np.isin(number, some.numpy()))) for some in whole]
    order = torch.from_numpy(stream(0, "validation blocks").permutation(n))
    count = min(BLOCKS, n) if n > 1 else 0
    return [order[b::count] for b in range(count)]


def count_units(units: Tensor) -> int:
    """Return how many different units there are."""
    return len(np.unique(units.numpy()))


def unit_error(values: NDArray[np.float64], units: Tensor) -> float:
    """Return the standard error of the mean of samples' values over draws of their units, by the linearised ratio of
    the units' totals and sizes; NaN for a single unit.

    It is enlarged so that 1.96 errors to either side are a 95 % interval by Student's t.

    Args:
        values: ``[n]``.
        units: ``[n]``, the unit of each.
    """
    off = np.bincount(numbered(units.numpy()), weights=values - values.mean())
    count = len(off)
    if count < 2:
        return math.nan
    return t_factor(count - 1) * math.sqrt(count / (count - 1) * float((off**2).sum())) / len(values)


def errors_without(without: NDArray[np.float64], count: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the standard errors of n figures, ``[n]``; NaN where they are not known.

    Args:
        without: ``[n, 20]``, each figure with one block of its samples left out. With m < 20 samples only the first m
            blocks count.
        count: int64 ``[n]``, how many samples, or units if samples have some, each figure has.
    """
    known = zip(without, np.minimum(count, BLOCKS).tolist(), strict=True)
    return np.array([jackknife_errors(own[:blocks]) for own, blocks in known], np.float64)


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
