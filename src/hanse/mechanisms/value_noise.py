"""What the noise in updates does to values, so that the intervals of values include it (``[federation] private``).

Noise moves a value by chance: to first order by the slope of the loss times the noise. And it makes models worse. Noise
of the variance V at each number of a model raises the loss by about ``c V``, with ``c = tr(H) / 2`` and H the Hessian
of the loss. It does so in every round, and always upwards. A value's error includes both effects (:func:`together`). So
nobody is said to have clearly done harm, or good, because of noise alone.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from hanse.base.pytorch import Tensor
from hanse.core.part import Values
from hanse.core.table import Floats, Updates
from hanse.federation.wrapped import NOISE


def noise_of(updates: Updates) -> Floats:
    """Return the standard deviation of the noise at each number of each update, ``[S]``, as declared; 0 for none."""
    said = updates.metrics or [{}] * len(updates)
    return np.array([max(0.0, float(one.get(NOISE, 0.0))) for one in said])


def unknown_without(values: Values, updates: Updates) -> Values:
    """Return values without known errors (NaN) for updates with noise, if the value part gave no errors."""
    if values.standard_errors is not None or not noise_of(updates).any():
        return values
    return replace(values, standard_errors=np.full(len(updates), np.nan))


def worsened(rise: float, slope: Tensor, step: Tensor, squares: Floats) -> Floats:
    """Return by how much noise raised the loss of a row that a round moved, ``[m]``: a part for each of its noises.

    What counts is how much more the loss rose along the step than the slope at its start predicts. Where the step is
    nothing but noise, the squares share that (for normal noise this is exact in expectation, by Stein's lemma). Where
    it is longer, only its part.

    Args:
        rise: of the loss along the step.
        slope: ``[P]``, at the step's start.
        step: ``[P]``.
        squares: ``[m]``, the expected squared lengths of the noises in the step.
    """
    moved = step.to(slope)
    beyond = max(0.0, rise - float(slope @ moved))
    whole = max(float(moved @ moved), float(squares.sum()))
    return beyond * squares / whole if whole > 0 else np.zeros_like(squares)


def together(chance: Floats, worse: Floats, round: int) -> Floats:
    """Return standard errors ``[m]`` that include the noise, for values that are summed over rounds.

    Over t rounds chance adds up as sqrt(t) and harm as t. With ``e_r^2 = chance^2 + (2 r + 1) worse^2`` the errors of
    the rounds 0 to t - 1 add up to ``e^2 = t chance^2 + t^2 worse^2``. Then ``1.96 e`` is at least ``t worse + 1.645
    sqrt(t) chance`` (Cauchy-Schwarz). So of all sums of noise alone, at most 5 % are clearly below 0.

    Args:
        chance: the standard deviation of each value by noise, to first order.
        worse: by how much the noise moves each value in expectation.
        round: r, from 0.
    """
    return np.asarray(np.hypot(chance, math.sqrt(2 * round + 1) * worse))
