"""Shares of a pot by values that are only known with an error: drawn toward their mean, then proportional.

The estimator is empirical Bayes with a normal prior (Efron, Morris 1973; errors that differ: Morris 1983), whose
variance is estimated by moments.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from hanse.games.game import Floats


def shrunken(values: ArrayLike, errors: ArrayLike) -> Floats:
    """Return values ``[n]`` drawn toward their mean, each the further the larger its error is.

    With the mean ``m`` and ``t2 = max(0, var(values) - mean(errors^2))``, the spread that the errors do not explain, it
    is ``m + t2 / (t2 + errors^2) * (values - m)``. A value without error stays as it is.

    Args:
        values: ``[n]``, in any unit.
        errors: ``[n]``, the values' standard errors; infinite or NaN if unknown: such a value becomes the mean.

    Examples:
        >>> shrunken([1.0, 2.0, 3.0], [0.5, 0.5, 0.5]).tolist()
        [1.25, 2.0, 2.75]
        >>> shrunken([1.0, 1.1, 0.0], [2.0, 2.0, 0.0]).round(3).tolist()
        [0.7, 0.7, 0.0]
    """
    given, squares = np.asarray(values, float), np.square(np.nan_to_num(np.asarray(errors, float), nan=np.inf))
    if len(given) < 2:
        return given.copy()
    mean, known = given.mean(), np.isfinite(squares)
    spread = max(0.0, float(given.var(ddof=1) - squares[known].mean())) if known.any() else 0.0
    own = np.where(squares == 0, 1.0, spread / np.where(squares == 0, 1.0, spread + squares))
    return np.asarray(mean + own * (given - mean))


def shares(values: ArrayLike, errors: ArrayLike) -> Floats:
    """Return shares ``[n]`` by :func:`shrunken` values, of those whose value is above 0: all others get nothing.

    Args:
        values: ``[n]``, in any unit.
        errors: ``[n]``, their standard errors.

    Returns:
        Shares that sum to 1, or zeros if no value is above 0.

    Examples:
        >>> shares([3.0, 1.0, 0.0, -2.0], np.zeros(4)).tolist()
        [0.75, 0.25, 0.0, 0.0]
        >>> shares([3.0, 1.0, 0.0, -2.0], np.full(4, 9.0)).tolist()  # cannot be told apart
        [0.5, 0.5, 0.0, 0.0]
    """
    worth, found = np.asarray(values, float), np.zeros(np.size(values))
    above = worth > 0
    if above.any():
        found[above] = np.maximum(shrunken(worth[above], np.asarray(errors, float)[above]), 0.0)
        found /= found.sum()
    return found
