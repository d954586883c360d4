"""Path values: the worth of each step, from a few gradients along the path that the model actually took.

A round moves a model from ``w`` to ``w + D``, ``D = sum_i s_i``, where ``s_i = q_i d_i`` is player i's weighted step.
In the *increment game*, a coalition is worth the effect of its members' steps without the others':

    v(S) = U(w + sum_{i in S} s_i) - U(w)

Nothing is rescaled, so a step of zero is worth exactly 0. The increment game can be extended to fractions of players.
The path value is the Aumann-Shapley value of this extension (Aumann, Shapley 1974), in which all steps grow at the same
rate:

    phi_i = integral_0^1 <grad U(w + t D), s_i> dt

With respect to the parameters, this is the integrated gradient of U (Sundararajan, Taly, Yan 2017). Friedman (2004)
characterises it among path methods of cost sharing. It follows that

* the values sum to ``U(w + D) - U(w)``, and summed over rounds to the whole run's gain;
* given the path, a value is linear in the player's step. Splitting a step among several names therefore earns the same
  in total, and a sum of steps has the sum of the values.

The path value requires two things: U is differentiable along the path (kinks, such as ReLU's, are harmless), and the
steps contain every change. It is *not* the Shapley value of the increment game in general. For a quadratic U the two
are equal: both are ``<grad U(w) + H D / 2, s_i>``. With third derivatives they differ, since the Shapley value averages
the gradient over random sets of steps, and the path value over equal fractions of all steps.

The integral is taken at Gauss-Legendre points, one gradient each. PI-FL's eq. (1) is the rule with a single point at
the end of the path (:func:`hanse.games.shapley.first_order`), up to the origin of the parameters.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from hanse.base.pytorch import Tensor, torch
from hanse.games.game import Coalition, Floats, positive_or_zero, whole_number

MOST_POINTS = 24
"""The most points of one rule."""
TOLERANCE = 0.01
"""The difference between the values' sum and the gain, as a share of it, above which more points are used."""
_AT_ONCE = 1 << 19  # numbers of steps that are held in float64 at once: so few stay in the cache


@dataclass(frozen=True, eq=False)
class PathIntegral:
    """The means of several gradients along a path.

    Attributes:
        gradients: ``[G, P]`` float64, the mean of each gradient.
        total: the utility's gain along the path by this integral.
        residual: the rest of the gain: the error of the integral, and anything else that changed the utility. NaN if
            the gain is not known.
        points: the number of points of the last rule used.
        evaluated: how many points were evaluated, those of earlier rules included.
    """

    gradients: Tensor
    total: float
    residual: float
    points: int
    evaluated: int

    @property
    def finite(self) -> bool:
        """Whether all gradients are finite numbers."""
        return bool(self.gradients.isfinite().all())

    def along(self, steps: Tensor) -> Floats:
        """Return ``[n, G]``, the inner products of ``steps [n, P]`` with each mean gradient.

        It is 0 for a step of zero.
        """
        width = max(1, steps.shape[1])
        parts = torch.split(steps, max(1, _AT_ONCE // width))
        return np.concatenate([(part.double() @ self.gradients.T).cpu().numpy() for part in parts])


@dataclass(frozen=True, eq=False)
class PathValues:
    """What each step was worth.

    Attributes:
        values: ``[n]`` float64.
        residual: the gain minus the sum of the values, which is the error of the integral. NaN: the gain was not given.
        without_block: ``[n, G - 1]``, the values by the other gradients, if ``gradient`` returns several.
        points: the number of points of the last rule used.
        evaluated: how many points were evaluated, those of earlier rules included.
    """

    values: Floats
    residual: float
    without_block: Floats
    points: int
    evaluated: int


def integrate(
    gradient: Callable[[Tensor], Any],
    start: Tensor,
    step: Tensor,
    points: int = 3,
    *,
    gain: float | None = None,
    tolerance: float = TOLERANCE,
    shares: Floats | None = None,
) -> PathIntegral:
    """Return the mean gradient along the straight path from ``start`` to ``start + step``.

    Args:
        gradient: takes a model ``[P]`` and returns the utility's gradient ``[P]``, or several gradients ``[G, P]``.
        start: ``[P]``.
        step: ``[P]``.
        points: the points of the Gauss-Legendre rule, 1 to 24. A rule of k points is exact where the utility is a
            polynomial of degree up to 2 k along the path.
        gain: the utility's actual gain. While the integral differs from it by more than ``tolerance`` times the gain,
            the number of points is doubled, up to 24. It is not doubled if doubling hardly changed the integral,
            because then something else changed the utility.
        tolerance: a share of the gain, at least 0.
        shares: ``[G]``, the coefficients with which the gradients sum to the utility's gradient. None: the first
            gradient is the utility's.

    Raises:
        ValueError: shapes that do not fit, or too many or too few points.

    Examples:
        >>> found = integrate(lambda w: -2 * w, torch.tensor([3.0]), torch.tensor([-1.0]), gain=5.0)  # U(w) = -w^2
        >>> round(found.total, 9), found.points
        (5.0, 3)
    """
    count = whole_number("points", points)
    if not 1 <= count <= MOST_POINTS:
        raise ValueError(f"points is {points}; allowed: 1 to {MOST_POINTS}")
    positive_or_zero("tolerance", tolerance)
    if start.ndim != 1 or step.shape != start.shape:
        raise ValueError(f"start has shape {tuple(start.shape)}, step {tuple(step.shape)}; allowed: (P,) for both")
    evaluated, before = 0, math.inf
    while True:
        mean = _mean(gradient, start, step, count)
        evaluated += count
        along = mean @ step.double()
        total = float(along[0] if shares is None else torch.from_numpy(shares).to(along) @ along)
        residual = math.nan if gain is None else gain - total
        near = 0.0 if gain is None else tolerance * abs(gain)
        # a comparison with NaN is false: without a gain, or with a gradient that is not finite, one rule is all
        if count == MOST_POINTS or gain is None or not min(abs(residual), 10 * abs(total - before)) > near:
            return PathIntegral(mean, total, residual, count, evaluated)
        count, before = min(2 * count, MOST_POINTS), total


def values(
    gradient: Callable[[Any], Any],
    steps: Any,
    points: int = 3,
    *,
    start: Any = None,
    gain: float | None = None,
    tolerance: float = TOLERANCE,
) -> PathValues:
    """Return the path value of every step: the Aumann-Shapley value of the increment game.

    Args:
        gradient: a function that takes a model ``[P]`` (an array if ``steps`` is one, else a tensor) and returns the
            gradient ``[P]`` of the utility there. It may also return several gradients ``[G, P]``: first the utility's
            and then, for intervals, those of the utility without each block of its samples.
        steps: ``[n, P]``, each player's weighted step ``q_i d_i``: its weight times its change of the model.
        points: see :func:`integrate`.
        start: ``[P]``, the model before. None: zeros, so that ``gradient`` gets the model's change.
        gain: the utility's actual gain, ``U(start + sum of steps) - U(start)``. If given, points are added until the
            sum of the values agrees with the gain, and ``residual`` is the rest.
        tolerance: see :func:`integrate`.

    Raises:
        ValueError: shapes do not fit, a number is not finite, or the number of points is out of range.

    Examples:
        Two steps go towards 1, and one away from it. U(w) = -(w - 1)^2 gains 0.75 from 0 to 0.5:

        >>> found = values(lambda w: -2 * (w - 1), [[0.25], [0.5], [-0.25]], gain=0.75)
        >>> found.values.round(4).tolist(), abs(found.residual) < 1e-12
        ([0.375, 0.75, -0.375], True)
    """
    moves = steps.detach() if isinstance(steps, Tensor) else torch.as_tensor(np.asarray(steps, dtype=np.float64))
    if moves.ndim != 2 or len(moves) < 1:
        raise ValueError(f"steps has shape {tuple(moves.shape)}; allowed: (n, P) with at least one step")
    if gain is not None and not math.isfinite(gain):
        raise ValueError(f"gain is {gain}; allowed: a finite number, or None")
    moves = moves if moves.is_floating_point() else moves.double()  # else a start would be cut to whole numbers
    before = torch.zeros(moves.shape[1]) if start is None else torch.as_tensor(start)
    before = before.detach().to(moves)
    if not bool(moves.isfinite().all() & before.isfinite().all()):
        raise ValueError("steps or start has numbers that are not finite; allowed: finite numbers")

    def asked(model: Tensor) -> Any:
        return gradient(model if isinstance(steps, Tensor) else model.numpy())

    integral = integrate(asked, before, moves.sum(0), points, gain=gain, tolerance=tolerance)
    if not integral.finite:
        raise ValueError("gradient returned numbers that are not finite on the path; allowed: finite numbers")
    worth = integral.along(moves)
    return PathValues(worth[:, 0], integral.residual, worth[:, 1:], integral.points, integral.evaluated)


def increment_game(utility: Callable[[Any], float], steps: Any, start: Any = None) -> Callable[[Coalition], float]:
    """Return the increment game itself, for the solvers of :mod:`hanse.games.shapley`.

    Args:
        utility: takes a model ``[P]`` and returns its worth.
        steps: ``[n, P]`` numpy array, the players' weighted steps.
        start: ``[P]``, the model before. None: zeros.

    Examples:
        >>> from hanse.games import shapley
        >>> game = increment_game(lambda w: -float((w - 1) @ (w - 1)), [[0.25], [0.5], [-0.25]])
        >>> shapley.exact(game, 3).round(4).tolist()  # of a quadratic utility: the path values
        [0.375, 0.75, -0.375]
    """
    moves = np.asarray(steps, dtype=np.float64)
    before = np.zeros(moves.shape[1]) if start is None else np.asarray(start, dtype=np.float64)
    nothing = utility(before)

    def worth(coalition: Coalition) -> float:
        return float(utility(before + moves[sorted(coalition)].sum(axis=0)) - nothing)

    return worth


def _mean(gradient: Callable[[Tensor], Any], start: Tensor, step: Tensor, points: int) -> Tensor:
    """Return the Gauss-Legendre mean of the gradients on the path, ``[G, P]`` float64."""
    nodes, masses = np.polynomial.legendre.leggauss(points)
    mean: Tensor | None = None
    for t, mass in zip(((nodes + 1) / 2).tolist(), (masses / 2).tolist(), strict=True):
        gradients = torch.as_tensor(gradient(start + t * step)).detach()
        gradients = gradients[None] if gradients.ndim == 1 else gradients
        if gradients.ndim != 2 or gradients.shape[1] != len(start):
            raise ValueError(
                f"gradient has shape {tuple(gradients.shape)}; allowed: ({len(start)},) or (G, {len(start)})"
            )
        mean = torch.zeros_like(gradients, dtype=torch.float64) if mean is None else mean
        mean.add_(gradients, alpha=mass)
    assert isinstance(mean, Tensor)
    return mean
