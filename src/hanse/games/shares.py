"""Shares of a pot by values that are only known with an error: drawn together as far as the errors say, then cut at 0.

The estimator is empirical Bayes with a normal prior (Efron, Morris 1973; errors that differ: Morris 1983). The spread
that the errors do not explain is that of Paule and Mandel (1982).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from hanse.games.game import Floats


def spread_of(values: Floats, squares: Floats) -> tuple[float, float]:
    """Return the mean and the variance ``t2`` of what values estimate, from their squared errors.

    ``t2`` is at least 0 and such that ``sum((values - mean)^2 / (t2 + squares))`` is n - 1 (Paule, Mandel 1982); the
    mean has the same weights. A value without a known error, or an uncertain one beside certain ones, hardly counts.

    Args:
        values: ``[n]``, at most 1 in size.
        squares: ``[n]``, infinite if unknown.
    """

    def at(t2: float) -> tuple[float, float]:
        weights = 1.0 / (squares + t2)
        mean = float(weights @ values / weights.sum())
        return mean, float(weights @ (values - mean) ** 2)

    known = np.isfinite(squares)
    if known.sum() < 2:
        return float(values.mean()), 0.0
    values, squares = values[known], squares[known]
    low, high = 1e-18, 4.0 * len(values)
    if at(low)[1] <= len(values) - 1:
        return at(low)[0], 0.0
    for _ in range(100):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if at(middle)[1] > len(values) - 1 else (low, middle)
    return at(high)[0], high


def shares(values: ArrayLike, errors: ArrayLike) -> Floats:
    """Return shares ``[n]`` by values, of those whose value is above 0; all others get nothing.

    Each value is drawn toward the mean of those above 0, by ``errors^2 / (t2 + errors^2)`` of the way
    (:func:`spread_of`). One that is smaller than its own error is drawn toward 0 instead: nobody gains by being unsure.
    If nothing is left of any, all get the same.

    Args:
        values: ``[n]``, in any unit; not finite: it counts as 0.
        errors: ``[n]``, their standard errors; infinite or NaN: unknown.

    Returns:
        Shares that sum to 1, or zeros if no value is above 0.

    Examples:
        >>> shares([3.0, 1.0, 0.0, -2.0], np.zeros(4)).tolist()
        [0.75, 0.25, 0.0, 0.0]
        >>> shares([3.0, 2.0, -2.0], [1.9, 1.9, 0.1]).tolist()  # cannot be told apart
        [0.5, 0.5, 0.0]
        >>> shares([3.0, 5.0, 4.0, 0.1], [0.1, 0.1, 0.1, 50.0]).round(2).tolist()
        [0.25, 0.42, 0.33, 0.0]
    """
    worth = np.nan_to_num(np.asarray(values, float), posinf=0.0, neginf=0.0)
    above, found = worth > 0, np.zeros(np.size(worth))
    if not above.any():
        return found
    scale = float(worth.max())
    v = worth[above] / scale
    with np.errstate(over="ignore"):
        squares = np.square(np.nan_to_num(np.asarray(errors, float)[above], nan=np.inf, posinf=np.inf) / scale)
    mean, t2 = spread_of(v, squares)
    left = np.where(squares > 0, t2 / np.where(squares > 0, t2 + squares, 1.0), 1.0)
    toward = np.where(np.isfinite(squares) & (v * v < squares), 0.0, mean)
    drawn = np.maximum(toward + left * (v - toward), 0.0)
    found[above] = drawn / drawn.sum() if drawn.sum() > 0 else 1.0 / len(v)
    return found
