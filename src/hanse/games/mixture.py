"""Values of games whose coalitions are *averages* or *sums*, from few evaluations, with standard errors.

In a federated round a coalition's model is the weighted mean of its members' updates, so its worth is a smooth function
of its mixture ``x_S = (q_i [i in S]) / q(S)``. In the increment game (``game="increment"``), a coalition's model is the
old model plus the sum of its members' weighted steps. There, ``x_S = q_i [i in S]``. A Gaussian process with the kernel
``(c + x_S' G x_T)^4`` is fitted to a stratified sample of coalitions and their complements. It is the *surrogate* of
the game. The sample always has all single players and all coalitions without one player. The Shapley value of the
surrogate has a closed form (:mod:`hanse.games.mixture_kernel`), so the surrogate's misfit is the only error.

:func:`mixture` does everything at once. In steps: :func:`design` chooses the coalitions, you evaluate them, and
:func:`fit` fits the surrogate. Of the resulting :class:`MixtureFit`, :meth:`MixtureFit.estimate` gives the Shapley
value with its errors, and :meth:`MixtureFit.values` that of other utilities of the same coalitions.

Three kinds of values are computed:

* *plug-in*: the values of a game whose worths are the evaluated ones where these are known, and the surrogate's
  elsewhere. These are slightly biased, but more accurate while few coalitions are known.
* *cross-fitted*: five surrogates are fitted, each without a fifth of the sampled pairs. Their misfit on unseen pairs is
  added, scaled up to all pairs of that size. This is unbiased except for the choice of the kernel's parameters.
* *reported*: the plug-in values, moved towards the cross-fitted ones where the two differ by more than their errors.
  This corrects surrogates that are wrong about a player.

*Standard errors* come from the surrogates' misfit on unseen pairs, stratum by stratum.

Medians, Krum's choices and server momentum are not averages: use :func:`hanse.games.shapley.gtg` or
:func:`hanse.games.shapley.monte_carlo` for them.

Notation: ``n`` players; weights ``q [n]``; ``m`` evaluated coalitions (row 0 is the empty one, row 1 all players);
``k`` sampled pairs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property, wraps
from itertools import combinations, islice
from typing import Any, Literal, ParamSpec, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hanse.games.game import Coalition, Floats, Memo, Utility, generator, whole_number
from hanse.games.jackknife import SURE
from hanse.games.mixture_kernel import kernel_values, shapley_weights, sum_kernel_values

Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]
Factor = tuple[Floats, bool]
Game = Literal["average", "increment"]
"""What a coalition's model is: the average of its members' updates, or the model before plus the sum of their steps."""
P = ParamSpec("P")
R = TypeVar("R")

BUDGET = 10  # coalitions a player by default: errors of 1 to 2 % on real games of 10 to 20 players
_OFFSETS = (0.3, 1.0, 3.0)  # the kernel's constant c, beside Gram matrices whose mean diagonal is 1
_NOISES = (1e-7, 1e-5, 1e-3, 1e-2)  # as a share of the kernel's mean diagonal
_FIRST = 5  # coalitions a player before it is asked whether they are enough
_POINTS = 200  # the kernel is chosen on at most so many coalitions
_FOLDS = 5
_LEAST = 3  # pairs of each size, if the budget allows
_FAR = 4.0  # times the median distance from the median worth: from there on a player is far from the others
_FAR_SIZES = 3  # up to this size of the smaller side, the far player's pairs are strata of their own
_ENUMERATED = 20_000  # pairs: strata up to here are listed and shuffled, larger ones drawn
_ALIKE = 0.01  # of the sum of the positive values: players that differ by less need no ranking
_SMALLEST = 1e-6  # a weight below this share of the mean weight counts as this share
_ROUNDING = 1e-8  # how far a Gram matrix may be from symmetric and positive semidefinite, relative to its largest entry


@cache
def _libraries() -> Any:
    """Return the controller of this process's BLAS threads. It looks for the libraries once, after all are loaded."""
    import scipy.linalg  # noqa: F401  its library is one of them
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


def _on_one_thread(function: Callable[P, R]) -> Callable[P, R]:
    """Make a function's linear algebra run on one thread.

    The matrices are small, so that several threads would only wait for each other. And the bits of the result do not
    depend on how many threads there are.
    """

    @wraps(function)
    def alone(*args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function with BLAS limited to one thread."""
        with _libraries().limit(limits=1, user_api="blas"):
            return function(*args, **kwargs)

    return alone


@dataclass(frozen=True, eq=False)
class Design:
    """The coalitions to evaluate: the empty one, all players, and sampled pairs of a coalition and its complement.

    A stratum is all pairs whose smaller side has ``s = 1 .. n // 2`` players. If there is a far player, its pairs of
    sizes 2 and 3, those with it on the smaller side, are strata of their own, which come last. Designs of one seed and
    one far player are nested: a larger budget adds pairs.

    Attributes:
        members: ``[m, n]`` bool. Row 0 is the empty coalition, and row 1 all players. Then come the smaller sides of
            the ``k`` pairs, and then the ``k`` complements in the same order.
        stratum: ``[k]`` int64, the stratum of each pair.
        available: ``[strata + 1]`` float64, how many pairs each stratum has; entry 0 is 0.
        taken: ``[strata + 1]`` int64, how many pairs of each stratum are evaluated.
        far: the far player, if there is one.

    Examples:
        >>> plan = design(4, budget=12, seed=0)
        >>> plan.players, plan.coalitions()[:2]
        (4, [frozenset(), frozenset({0, 1, 2, 3})])
    """

    members: Bools
    stratum: Ints
    available: Floats
    taken: Ints
    far: int | None = None

    @property
    def players(self) -> int:
        """The number of players, n."""
        return int(self.members.shape[1])

    @property
    def pairs(self) -> int:
        """The number of sampled pairs, k."""
        return len(self.stratum)

    @property
    def complete(self) -> bool:
        """Whether all coalitions are evaluated, so that values are exact."""
        return bool((self.taken == self.available).all())

    def size(self, stratum: int) -> int:
        """Return how many players are on the smaller side of a stratum's pairs."""
        return _size(self.players, stratum)

    def split(self, stratum: int) -> bool:
        """Return whether a stratum has only the far player's pairs of its size, or all others."""
        return 2 <= self.size(stratum) <= _far_sizes(self.players, self.far)

    def coalitions(self) -> list[Coalition]:
        """Return the coalitions in the order of the rows, to be evaluated."""
        return [frozenset(np.flatnonzero(row).tolist()) for row in self.members]


def design(n: int, budget: int | None = None, seed: int | np.random.Generator = 0, far: int | None = None) -> Design:
    """Choose at most ``budget`` coalitions to evaluate.

    If all ``2**n`` fit, all are taken. Otherwise, the design has the empty coalition, all players, the single players
    and the coalitions without one player. It also has pairs of the other sizes, in proportion to 1 / size. The far
    player's pairs are drawn in addition, in proportion to 1 / (size - 1). From about 8 coalitions per player on, the
    design has all of the far player's pairs of size 2.

    Args:
        n: number of players.
        budget: the most coalitions. Default: 10 per player.
        seed: the seed of the draws, or a numpy generator to use.
        far: the player of which a surrogate is likely to miss most, as :func:`far_player` finds it. Default: none.

    Raises:
        ValueError: ``n < 1``, the budget is below ``2 n + 2`` and also does not cover all ``2**n`` coalitions, or the
            far player is not one of the players.
    """
    n = whole_number("n", n)
    budget = whole_number("budget", BUDGET * n if budget is None else budget)
    _check_budget(n, budget)
    if far is not None and far not in range(n):
        raise ValueError(f"far is {far!r}; allowed: None or a player, 0 to {n - 1}")
    available = [0] + [math.comb(n, s) // (2 if 2 * s == n else 1) for s in range(1, n // 2 + 1)]
    for s in range(2, _far_sizes(n, far) + 1):
        available[s] = math.comb(n - 1, s)
        available.append(math.comb(n - 1, s - 1))
    taken = _shared_out(n, available, (budget - 2) // 2)
    draw = generator(seed, "mixture")
    base = int(draw.integers(2**62))  # each stratum has its own stream: a larger budget continues each of them
    sides, stratum = [], []
    for s, count in enumerate(taken):
        for side in islice(_sides(n, s, far, generator(base, f"mixture {s}")), count):
            row = np.zeros(n, dtype=bool)
            row[list(side)] = True
            sides.append(row)
            stratum.append(s)
    small = np.array(sides, dtype=bool).reshape(-1, n)
    members = np.concatenate([np.zeros((1, n), dtype=bool), np.ones((1, n), dtype=bool), small, ~small])
    sizes = np.array(available, dtype=np.float64)
    return Design(members, np.array(stratum, dtype=np.int64), sizes, np.array(taken, dtype=np.int64), far)


def _check_budget(n: int, budget: int) -> None:
    """Raise ValueError if the budget does not hold the coalitions that every design has."""
    least = min(2**n, 2 * n + 2)
    if budget < least:
        raise ValueError(f"budget is {budget}; allowed: at least {least} coalitions for {n} players")


def _shared_out(n: int, available: Sequence[int], pairs: int) -> list[int]:
    """Return how many of ``pairs`` each stratum gets.

    Stratum 1 gets all of its pairs, every other one three, as far as they go: the far player's strata first, because no
    other stratum tells how much is missed there. The rest is given out one by one, each to the stratum whose share
    ``1 / s`` is served least (half of that share if both sides have ``s`` players). The far player's strata have the
    shares 1 and 1/2.
    """
    taken = [0] * len(available)
    left = pairs
    first_far = n // 2 + 1
    for s in [1, *range(first_far, len(available)), *range(2, first_far)][: len(available) - 1]:
        taken[s] = min(available[s], left, available[s] if s == 1 else _LEAST)
        left -= taken[s]
    share = [0.0] + [(0.5 if 2 * s == n else 1.0) / s for s in range(1, n // 2 + 1)]
    share += [1 / (_size(n, stratum) - 1) for stratum in range(len(share), len(available))]
    while left:
        open_strata = [s for s in range(1, len(available)) if taken[s] < available[s]]
        if not open_strata:
            break
        taken[min(open_strata, key=lambda s: (taken[s] + 1) / share[s])] += 1
        left -= 1
    return taken


def _size(n: int, stratum: int) -> int:
    """Return how many players are on the smaller side of a stratum's pairs: the far player's strata come last."""
    return stratum if stratum <= n // 2 else stratum - n // 2 + 1


def _far_sizes(n: int, far: int | None) -> int:
    """Return up to which size the far player's pairs are strata of their own."""
    return 1 if far is None else min(_FAR_SIZES, (n - 1) // 2)


def _sides(n: int, stratum: int, far: int | None, draw: np.random.Generator) -> Iterator[tuple[int, ...]]:
    """Yield the smaller sides of a stratum's pairs in random order, each once.

    Where both sides are of one size, the one with player 0 stands for the pair.
    """
    size, apart = _size(n, stratum), None
    if far is not None and 2 <= size <= _far_sizes(n, far):
        apart, there = far, stratum > n // 2
    elif 2 * size == n:
        apart, there = 0, True
    others = [player for player in range(n) if player != apart]
    first = (apart,) if apart is not None and there else ()
    for side in _subsets(others, size - len(first), draw):
        yield first + side


def _subsets(players: Sequence[int], size: int, draw: np.random.Generator) -> Iterator[tuple[int, ...]]:
    """Yield the subsets of so many players in random order, each once."""
    if math.comb(len(players), size) <= _ENUMERATED:
        # a short list is shuffled; where it would be long, subsets are drawn and repeats thrown away
        listed = list(combinations(players, size))
        for place in draw.permutation(len(listed)):
            yield listed[place]
        return
    seen: set[tuple[int, ...]] = set()
    while True:
        side = tuple(players[place] for place in sorted(draw.choice(len(players), size, replace=False).tolist()))
        if side not in seen:
            seen.add(side)
            yield side


def far_player(alone: ArrayLike) -> int | None:
    """Return the player far from all others, such as one with flipped labels, or None.

    Its own worth differs from the median one by the most, and by more than four times as much as half of all do. Of its
    coalitions with few others a surrogate misses most, and the more the lighter these are.

    Args:
        alone: ``[n]``, the single players' worths.
    """
    worth = np.asarray(alone, dtype=np.float64)
    apart = np.abs(worth - np.median(worth))
    far = int(apart.argmax())
    return far if apart[far] > _FAR * np.median(apart) else None


@dataclass(frozen=True, eq=False)
class _Kernel:
    """The kernel ``(offset + x' gram y)^4 / scale``, with ``noise`` added to its diagonal."""

    gram: Floats
    offset: float
    scale: float
    noise: float

    def between(self, x: Floats, y: Floats) -> Floats:
        """Return the kernel of mixtures ``x [a, n]`` and ``y [b, n]``, ``[a, b]``, without the noise."""
        squared = np.square(self.offset + x @ self.gram @ y.T)
        return np.asarray(np.square(squared) / self.scale)


def _chosen(x: Floats, worth: Floats, grams: Sequence[Floats]) -> _Kernel:
    """Return the kernel of largest marginal likelihood for ``worth [m]`` of mixtures ``x [m, n]``."""
    if len(x) > _POINTS:  # evenly spread over the strata: factors cost the cube of their number
        some = np.unique(np.linspace(0, len(x) - 1, _POINTS).astype(np.int64))
        x, worth = x[some], worth[some]
    best, chosen = -math.inf, None
    for gram in grams:
        for offset in _OFFSETS:
            kernel = _Kernel(gram, offset, 1.0, 0.0)
            unscaled = kernel.between(x, x)
            scale = float(np.diag(unscaled).mean())
            for noise in _NOISES:
                likelihood = _likelihood(unscaled / scale, worth, noise)
                if chosen is None or likelihood > best:
                    best, chosen = likelihood, _Kernel(gram, offset, scale, noise)
    assert chosen is not None
    return chosen


def _likelihood(kernel: Floats, worth: Floats, noise: float) -> float:
    """Return the log marginal likelihood of ``worth [m]`` without its constants.

    The scale of the worths is profiled out: the best one for this kernel is taken.
    """
    try:
        factor = _factor(kernel, noise)
    except np.linalg.LinAlgError:  # numerically singular with so little noise
        return -math.inf
    variance = float(worth @ _solve(factor, worth)) / len(worth)  # the scale of the worths that fits best
    half_log_det = float(np.log(np.diag(factor[0])).sum())
    return -0.5 * len(worth) * math.log(max(variance, 1e-300)) - half_log_det  # equal worths have variance 0


def _factor(kernel: Floats, noise: float) -> Factor:
    """Return the Cholesky factor of a kernel with noise on its diagonal. Raises LinAlgError if it is singular."""
    from scipy.linalg import cho_factor  # late: it takes longer to import than a small game to solve

    noisy = kernel.copy()
    noisy[np.diag_indices(len(noisy))] += noise
    factor, lower = cho_factor(noisy, lower=True, overwrite_a=True, check_finite=False)
    return np.asarray(factor), bool(lower)


def _solve(factor: Factor, right: Floats) -> Floats:
    """Return the solution of ``kernel @ x = right`` from the kernel's factor."""
    from scipy.linalg import cho_solve

    return np.asarray(cho_solve(factor, right, check_finite=False))


@dataclass(frozen=True, eq=False)
class _Functional:
    """The n players' values as linear functionals of a game: sums of every coalition's worth with a coefficient.

    Attributes:
        on_kernels: ``[n, m - 1]``, the values of the game ``k(., x_T)``, in which the empty coalition is worth 0, for
            every evaluated T but the empty one.
        empty: ``[n]``, the coefficients of the empty coalition.
        full: ``[n]``, the coefficients of all players.
        small: ``[k, n]``, the coefficients of the sampled pairs' smaller sides.
        large: ``[k, n]``, the coefficients of their complements.
    """

    on_kernels: Floats
    empty: Floats
    full: Floats
    small: Floats
    large: Floats


@dataclass(frozen=True, eq=False)
class _Estimates:
    """The estimates of values in ``c`` utilities. The first column is the fit's own utility.

    Attributes:
        plug_in: ``[n, c]``.
        cross_fitted: ``[n, c]``.
        spread: ``[n]``, the standard errors of ``cross_fitted`` in the first column, by which values are moved.
        width: ``[n]``, the same with what a few extreme pairs may hide.
    """

    plug_in: Floats
    cross_fitted: Floats
    spread: Floats
    width: Floats

    def _apart(self) -> Floats:
        """Return how far the two estimates differ, ``[n]``, in the first column."""
        return np.abs((self.cross_fitted - self.plug_in)[:, 0])

    @property
    def values(self) -> Floats:
        """The reported values, ``[n, c]``: the plug-in values, moved towards the cross-fitted ones.

        Where the two differ by more than ``sqrt(2)`` spreads, they are moved by ``1 - 2 spread^2 / difference^2`` of
        the way. This is a James-Stein rule, applied value by value.
        """
        apart = self._apart()
        with np.errstate(divide="ignore", invalid="ignore"):
            moved = np.nan_to_num(np.maximum(0.0, 1.0 - 2.0 * np.square(self.spread / apart)))
        return np.asarray(self.plug_in + moved[:, None] * (self.cross_fitted - self.plug_in))

    @property
    def errors(self) -> Floats:
        """The standard errors of ``values``, ``[n]``: the difference stands for the bias that may be left."""
        return np.maximum(np.maximum(self.spread, self.width), np.minimum(self._apart(), 1.5 * self.spread))


@dataclass(frozen=True, eq=False)
class MixtureEstimate:
    """The result of :func:`mixture`: values of a game of averages, and the cost of computing them.

    Attributes:
        values: ``[n]`` float64, the reported values. They are ``plug_in``, moved towards ``cross_fitted`` where these
            two differ by more than their error. Unlike them, they need not sum to ``v(N) - v({})`` unless they are
            exact.
        standard_errors: ``[n]``, widened by Student's factor, so that ``values +- 1.96 standard_errors`` are 95 %
            intervals. They are 0 where values are exact, and NaN where too few pairs are sampled: each stratum of a
            far player needs two, and so does one of the others. They are bounds by design, on games of ten players
            two to five times the true errors: of the ``cross_fitted`` values (1.6 times those of ``values``), times
            Student's factor for the few pairs that a value rests on.
        cross_fitted: ``[n]``, the cross-fitted values, unbiased except for the choice of the kernel's parameters.
        plug_in: ``[n]``, the values with the surrogate's worth wherever none was evaluated.
        distinct: how many coalitions were evaluated, including the empty one and all players.
        exact: whether all coalitions were evaluated.
        fit: the fit, which has the values in other utilities of the same coalitions.
    """

    values: Floats
    standard_errors: Floats
    cross_fitted: Floats
    plug_in: Floats
    distinct: int
    exact: bool
    fit: MixtureFit = field(repr=False)


@dataclass(frozen=True, eq=False, repr=False)
class MixtureFit:
    """A surrogate of a game of averages, fitted to the worths of a design's coalitions. :func:`fit` makes it.

    Attributes:
        design: the coalitions.
        worth: ``[m]``, the coalitions' worths, in the design's order.
        weights: ``[n]``, the players' weights, positive, summing to 1.
        kernel: the kernel that was chosen. None: all coalitions are known.
        folds: ``[k]``, the fold of each sampled pair. -1: the pair is in a stratum that is completely known, and every
            fold trains on it.
        game: whether coalitions are averages or sums.

    Examples:
        There are four players, and a coalition's worth is its members' average:

        >>> gains, plan = np.array([1.0, 2.0, 3.0, 6.0]), design(4, budget=12, seed=0)
        >>> worth = [float(gains[sorted(coalition)].mean()) if coalition else 0.0 for coalition in plan.coalitions()]
        >>> found = fit(plan, worth, weights=np.ones(4)).estimate()
        >>> found.values.shape, round(float(found.values.sum()), 6)
        ((4,), 3.0)
    """

    design: Design
    worth: Floats
    weights: Floats
    kernel: _Kernel | None
    folds: Ints
    game: Game = "average"

    @_on_one_thread
    def values(self, worth: Floats) -> Floats:
        """Return the reported values ``[n, c]`` in other utilities, with this fit's kernel.

        Args:
            worth: ``[m, c]``, the worths of the same coalitions in each of them.
        """
        # the fit's own worths stand first: their errors say how far values move to the cross-fitted ones
        return self._of(np.column_stack([self.worth, worth])).values[:, 1:]

    @_on_one_thread
    def estimate(self) -> MixtureEstimate:
        """Return the Shapley value with its errors."""
        found = self._of(self.worth[:, None])
        values, cross_fitted, plug_in = (one[:, 0] for one in (found.values, found.cross_fitted, found.plug_in))
        return MixtureEstimate(values, found.errors, cross_fitted, plug_in, len(self.worth), self.design.complete, self)

    def _mixtures(self) -> Floats:
        """Return the mixtures ``[m - 1, n]`` of the evaluated coalitions but the empty one."""
        return _mixtures(self.design.members[1:], self.weights, self.game)

    @cached_property
    def _functional(self) -> _Functional:
        """The players' Shapley values as functionals of the game."""
        n, there = self.design.players, self.design.members[2:]
        w, size = shapley_weights(n), there.sum(axis=1)
        # a coalition of s players counts w(s - 1) for a member and -w(s) for another one
        coefficients = np.where(there, w[np.maximum(size - 1, 0), None], -w[np.minimum(size, n - 1), None])
        small, large = np.split(coefficients, 2)
        on_kernels = np.zeros((n, 0))
        if self.kernel is not None:
            u, offset = self._mixtures() @ self.kernel.gram, self.kernel.offset
            if self.game == "average":
                on_kernels = kernel_values(offset + u, self.weights)
            else:
                on_kernels = sum_kernel_values(u, self.weights, offset)
            on_kernels /= self.kernel.scale
        return _Functional(on_kernels, np.full(n, -w[0]), np.full(n, w[n - 1]), small, large)

    def _of(self, worth: Floats) -> _Estimates:
        """Return the estimates for worths ``[m, c]``; the errors are those of the first column."""
        functional, empty, rest = self._functional, worth[:1], worth[1:]
        if self.kernel is None:
            exact = np.outer(functional.empty, empty) + np.outer(functional.full, rest[0])
            exact += self._on_pairs(functional, rest, np.arange(self.design.pairs))
            return _Estimates(exact, exact, np.zeros(len(exact)), np.zeros(len(exact)))
        x = self._mixtures()  # without the empty coalition, which has no mixture: its worth is taken as it is
        kernel = self.kernel.between(x, x)
        mean = rest.mean(axis=0)
        constant = np.outer(functional.empty, empty - mean)

        def fitted(pairs: Ints) -> tuple[Floats, Floats]:
            """Return the functional of the surrogate fitted to these pairs, and what it misses at every coalition."""
            rows = np.concatenate([[0], 1 + pairs, 1 + self.design.pairs + pairs])
            factor = _factor(kernel[np.ix_(rows, rows)], self.kernel.noise if self.kernel else 0.0)
            solved = _solve(factor, rest[rows] - mean)
            misses = rest - mean - kernel[:, rows] @ solved
            known = self._on_pairs(functional, misses, pairs) + np.outer(functional.full, misses[0])
            return functional.on_kernels[:, rows] @ solved + constant + known, misses

        plug_in, _ = fitted(np.arange(self.design.pairs))
        cross_fitted, unseen = self._cross_fitted(functional, fitted, plug_in)
        return _Estimates(plug_in, cross_fitted, *self._errors(functional, unseen[:, 0]))

    def _on_pairs(self, functional: _Functional, worth: Floats, pairs: Ints) -> Floats:
        """Return what the functional takes from these pairs in ``worth [m - 1, c]``, ``[f, c]``."""
        k = self.design.pairs
        small, large = worth[1 : 1 + k][pairs], worth[1 + k :][pairs]
        return np.asarray(functional.small[pairs].T @ small + functional.large[pairs].T @ large)

    def _cross_fitted(
        self, functional: _Functional, fitted: Callable[[Ints], tuple[Floats, Floats]], plug_in: Floats
    ) -> tuple[Floats, Floats]:
        """Return the cross-fitted functional, and what surrogates miss on pairs that they have not seen.

        Returns:
            The functional ``[f, c]``, and the misses ``[m - 1, c]``. Without sampled pairs the functional is the
            plug-in one.
        """
        design, k = self.design, self.design.pairs
        surrogates, unseen = [], np.zeros((1 + 2 * k, plug_in.shape[1]))
        unknown: dict[int, list[Floats]] = {s: [] for s in np.unique(design.stratum[self.folds >= 0]).tolist()}
        for fold in range(int(self.folds.max(initial=-1)) + 1):
            held = np.flatnonzero(self.folds == fold)
            value, misses = fitted(np.flatnonzero(self.folds != fold))
            surrogates.append(value)
            for rows in (1 + held, 1 + k + held):
                unseen[rows] = misses[rows]
            for s, parts in unknown.items():
                here = held[design.stratum[held] == s]
                if len(here):  # what is missed on all pairs that this fold's surrogate has not seen
                    pairs = design.available[s] - (design.taken[s] - len(here))
                    parts.append(self._on_pairs(functional, misses, here) * (pairs / len(here)))
        if not surrogates:
            return plug_in, unseen
        total = np.mean(surrogates, axis=0)
        for parts in unknown.values():
            total = total + np.mean(parts, axis=0)
        return np.asarray(total), unseen

    def _errors(self, functional: _Functional, unseen: Floats) -> tuple[Floats, Floats]:
        """Return the spread ``[f]`` and the errors ``[f]`` from ``unseen [m - 1]``: what surrogates miss on pairs that
        they have not seen.

        The spread takes each stratum's pairs as equals. But one player far from all others makes the misses of its own
        pairs many times as large as the rest, and few of these are drawn. So for the errors each stratum is split by
        the player that is on the smaller sides of the most squared misses (:func:`_group`), unless the design splits it
        by the far player. A stratum with fewer than two sampled pairs takes the spread of the nearest one that has two.
        But the far player's pairs and the others are unlike: if either are too few, the errors are not known.
        """
        design, k, n = self.design, self.design.pairs, self.design.players
        small, large = unseen[1 : 1 + k], unseen[1 + k :]
        missed = functional.small * small[:, None] + functional.large * large[:, None]
        weight = np.square(functional.small) + np.square(functional.large)
        sampled = [s for s in range(1, len(design.taken)) if design.taken[s] < design.available[s]]
        enough = [s for s in sampled if design.taken[s] > 1]
        far, rest = ([s for s in sampled if (s > n // 2) is of] for of in (True, False))  # with its pairs, and without
        if not set(far) <= set(enough) or (rest and not set(rest) & set(enough)):
            return np.full(len(functional.full), np.nan), np.full(len(functional.full), np.nan)
        unit = float(np.abs(missed).max()) or 1.0  # squares of squares overflow where the worths themselves do not
        size = float(np.abs(unseen).max()) or 1.0
        squares = np.square(small / size) + np.square(large / size)
        sides = design.members[2 : 2 + k]
        apart = sides[:, int((squares @ sides).argmax())]
        equals, split = [], []
        for s in sampled:
            source = min(enough, key=lambda other: (abs(design.size(other) - design.size(s)), other != s, other))
            of = np.flatnonzero(design.stratum == source)
            variance = (design.available[source] * (missed[of] / unit)).var(axis=0, ddof=1)
            # of a mean over a sample without replacement: what is known whole has no error
            part = (1 - design.taken[s] / design.available[s]) * variance / max(1, design.taken[s])
            equals.append((part, np.full(len(part), len(of) - 1.0)))
            if source != s or 2 * s == n:  # where sides are of one size, every player is on one of them
                split.append(equals[-1])
                continue
            worst = of[squares[of].argmax()][None]  # stands for a part of which no pair was drawn
            parts = [(of[apart[of]], math.comb(n - 1, s - 1), True), (of[~apart[of]], math.comb(n - 1, s), False)]
            if design.split(s):  # the far player's pairs are apart by design
                parts = [(of, int(design.available[s]), True)]
            for drawn, pairs, pooled in parts:
                some = drawn if len(drawn) else worst
                variance, freedom = _group(missed[some] / unit, weight[some], pooled=pooled)
                split.append((pairs * (pairs - len(some)) / len(some) * variance, freedom))
        return _combined(equals, unit), _combined(split, unit)


def _combined(parts: Sequence[tuple[Floats, Floats]], unit: float) -> Floats:
    """Return standard errors ``[f]`` of sums of parts, each with its variances (in squares of ``unit``) and degrees of
    freedom ``[f]``.

    They are widened by Student's factor for Satterthwaite's degrees of freedom.
    """
    from scipy.special import stdtrit

    square = np.sum([part for part, _ in parts], axis=0)
    spread = np.sum([part**2 / freedom for part, freedom in parts], axis=0)
    freedom = np.divide(square**2, spread, out=np.full(len(square), 1e6), where=spread > 0)
    return np.asarray(unit * np.sqrt(square) * stdtrit(np.clip(freedom, 1, 1e6), 0.975) / SURE)


def _group(missed: Floats, weight: Floats, *, pooled: bool) -> tuple[Floats, Floats]:
    """Return the variances ``[f]`` of what is missed on some pairs, and their degrees of freedom ``[f]``.

    Args:
        missed: ``[p, f]``, what each functional misses on each pair.
        weight: ``[p, f]``, the squares of its coefficients there: a value rests on the few pairs with its player on the
            smaller side, so that Kish's effective number of pairs (1965) counts, and not their number.
        pooled: whether the mean over the functionals counts where it is larger, for pairs that are few.
    """
    count, counts = len(missed), weight.any(axis=0)
    variance = np.square(missed[0]) if count == 1 else missed.var(axis=0, ddof=1)
    if pooled and counts.any():
        variance = np.where(counts, np.maximum(variance, variance[counts].mean()), variance)
    part = np.ldexp(weight, -np.frexp(weight.max(axis=0))[1])  # of many players squares would underflow
    kish = np.divide(
        part.sum(axis=0) ** 2, np.square(part).sum(axis=0), out=np.full(len(variance), float(count)), where=counts
    )
    return variance, np.maximum(1.0, kish - 1)


@_on_one_thread
def fit(
    design: Design, worth: ArrayLike, weights: ArrayLike, grams: Sequence[ArrayLike] = (), game: Game = "average"
) -> MixtureFit:
    """Fit a surrogate to the worths of a design's coalitions.

    Args:
        design: the coalitions.
        worth: ``[m]``, the worth of each coalition, in the order of ``design.coalitions()``.
        weights: ``[n]``, how the average weighs its members. A weight of 0 counts as a millionth of the mean. If all
            weights are 0, they are equal.
        grams: Gram matrices ``[n, n]`` of the players' similarity, such as inner products of their updates' steps.
            All-zero matrices are ignored. The identity, each matrix, and their sum are tried.
        game: "average", or "increment" where coalitions are sums of weighted steps.

    Raises:
        ValueError: shapes do not fit, a number is not finite, a weight is negative, or a Gram matrix is not symmetric
            and positive semidefinite.
    """
    n, m = design.players, len(design.members)
    worths = np.asarray(worth, dtype=np.float64)
    if worths.shape != (m,):
        raise ValueError(f"worth has shape {worths.shape}; allowed: ({m},), one for each coalition of the design")
    if not np.isfinite(worths).all():
        place = int(np.flatnonzero(~np.isfinite(worths))[0])
        members = np.flatnonzero(design.members[place]).tolist()
        raise ValueError(f"value of coalition {members} is {worths[place]}; allowed: a finite number")
    shares, matrices = _shares(weights, n), _grams(grams, n)
    if design.complete:
        return MixtureFit(design, worths, shares, None, np.full(design.pairs, -1), game)
    apart = worths[1:] - worths[1:].mean()
    # the fit is the same in any unit, and so are its numbers where squares would overflow or vanish
    unit = float(np.abs(apart).max())
    kernel = _chosen(_mixtures(design.members[1:], shares, game), apart / unit if unit > 0 else apart, matrices)
    # a stratum that is known whole has nothing to estimate: no fold leaves its pairs out
    sampled = (design.taken < design.available)[design.stratum]
    folds = np.full(design.pairs, -1)
    folds[sampled] = np.arange(int(sampled.sum())) % _FOLDS
    return MixtureFit(design, worths, shares, kernel, folds, game)


def mixture(
    value: Utility,
    n: int,
    weights: ArrayLike,
    grams: Sequence[ArrayLike] | Callable[[], Sequence[ArrayLike]] = (),
    budget: int | None = None,
    seed: int | np.random.Generator = 0,
    *,
    enough: Callable[[Floats, Floats], bool] | None = None,
    game: Game = "average",
) -> MixtureEstimate:
    """Estimate the Shapley value of a game whose coalitions are averages or sums, from at most ``budget`` coalitions.

    Args:
        value: the utility, smooth in the mixture of the players. Its method ``many``, if any, gets all coalitions at
            once.
        n: number of players.
        weights: ``[n]``, how the average weighs its members.
        grams: Gram matrices ``[n, n]`` of the players' similarity (see :func:`hanse.games.mixture.fit`), or a function
            that returns them. The function is called after all single players have been evaluated.
        budget: the most coalitions to evaluate, including the empty one and all players. Default: 10 per player, which
            gave errors of 1 to 2 % of the values on real games of 10 to 20 players. If the budget covers all ``2**n``,
            values are exact.
        seed: the seed of the draws, or a numpy generator to use.
        enough: a function that decides whether values ``[n]`` with standard errors ``[n]`` are exact enough, such as
            :func:`hanse.games.mixture.ranking_settled`. It is called when 5 coalitions per player have been evaluated,
            and whenever that number has doubled. Default: the whole budget is used.
        game: "average", or "increment" where coalitions are sums of weighted steps.

    Raises:
        ValueError: an argument is out of range, the budget is below ``2 n + 2`` and does not cover all coalitions, or a
            worth is not finite.

    Examples:
        >>> positions = np.arange(8) / 7  # eight players on a line
        >>> def worth(coalition):  # high where the mean of the members is near the middle
        ...     return 1 - 4 * (positions[list(coalition)].mean() - 0.5) ** 2 if coalition else 0.0
        >>> found = mixture(worth, n=8, weights=np.ones(8), budget=40)
        >>> found.values.round(2).tolist(), found.distinct  # from 40 of 256 coalitions
        ([0.03, 0.11, 0.16, 0.19, 0.19, 0.16, 0.11, 0.03], 40)
    """
    n = whole_number("n", n)
    _shares(weights, n)  # before anything is evaluated
    if not callable(grams):
        _grams(grams, n)
    most = whole_number("budget", BUDGET * n if budget is None else budget)
    _check_budget(n, most)
    # one key for all sizes: the designs are nested, so that a doubled budget evaluates only what is new
    key, memo = int(generator(seed, "mixture").integers(2**62)), Memo(value)
    size = most if enough is None else min(most, max(_FIRST * n, 2 * n + 2))
    far = far_player(memo.many([frozenset({i}) for i in range(n)]))
    while True:
        plan = design(n, size, key, far)
        worth = memo.many(plan.coalitions())
        estimate = fit(plan, worth, weights, grams() if callable(grams) else grams, game).estimate()
        if size >= most or plan.complete or (enough is not None and enough(estimate.values, estimate.standard_errors)):
            return estimate
        size = min(most, 2 * size)


def ranking_settled(sure: float) -> Callable[[Floats, Floats], bool]:
    """Return a rule for ``enough``: stop once the whole ranking of the players is right with probability ``sure``.

    Every two neighbours in the ranking must be distinguishable, or known to differ by less than a hundredth of the sum
    of the positive values. (Twins can never be distinguished.) The probability is divided among the neighbours
    (Bonferroni).

    Args:
        sure: the probability, above 0.5 and below 1.

    Raises:
        ValueError: ``sure`` is out of range.
    """
    if isinstance(sure, bool) or not 0.5 < sure < 1:
        raise ValueError(f"sure is {sure!r}; allowed: a number above 0.5 and below 1")

    def settled(values: Floats, errors: Floats) -> bool:
        """Whether all neighbours are distinguishable or practically equal."""
        from scipy.special import ndtri

        order = np.argsort(-values, kind="stable")
        apart, error = -np.diff(values[order]), np.hypot(errors[order][1:], errors[order][:-1])
        reach = float(ndtri(1 - (1 - sure) / max(1, len(apart)))) * error
        alike = apart + reach <= _ALIKE * np.maximum(values, 0.0).sum()
        return bool(((apart >= reach) | alike).all())

    return settled


def _shares(weights: ArrayLike, n: int) -> Floats:
    """Return the weights ``[n]``, none below a millionth of the mean, summing to 1. Raises ValueError."""
    given = np.asarray(weights, dtype=np.float64)
    if given.shape != (n,):
        raise ValueError(f"weights has shape {given.shape}; allowed: ({n},), one for each player")
    bad = np.flatnonzero(~(np.isfinite(given) & (given >= 0)))
    if bad.size:
        raise ValueError(f"weights[{bad[0]}] is {given[bad[0]]}; allowed: finite numbers, at least 0")
    if not given.any():
        return np.full(n, 1 / n)
    scaled = given / given.max()  # huge weights would overflow in their sum
    raised = np.maximum(scaled, _SMALLEST * scaled.mean())
    return np.asarray(raised / raised.sum())


def _grams(grams: Sequence[ArrayLike], n: int) -> list[Floats]:
    """Return the Gram matrices to try, each scaled to trace n. Raises ValueError."""
    if isinstance(grams, np.ndarray) and grams.ndim == 2:
        raise ValueError(f"grams is one array of shape {grams.shape}; allowed: a list of Gram matrices ({n}, {n})")
    matrices = []
    for place, given in enumerate(grams):
        gram = np.asarray(given, dtype=np.float64)
        if gram.shape != (n, n):
            raise ValueError(f"grams[{place}] has shape {gram.shape}; allowed: ({n}, {n})")
        if not np.isfinite(gram).all():
            raise ValueError(f"grams[{place}] has numbers that are not finite; allowed: finite numbers")
        largest = float(np.abs(gram).max())
        if largest == 0:
            continue
        gram = gram / largest
        if np.abs(gram - gram.T).max() > _ROUNDING:
            raise ValueError(f"grams[{place}] is not symmetric; allowed: a Gram matrix")
        if np.linalg.eigvalsh(gram)[0] < -_ROUNDING * n:
            raise ValueError(f"grams[{place}] is not positive semidefinite; allowed: a Gram matrix")
        matrices.append(gram * (n / np.trace(gram)))
    if len(matrices) > 1:
        total = np.sum(matrices, axis=0)
        matrices.append(total * (n / np.trace(total)))
    return [np.eye(n), *matrices]


def _mixtures(members: Bools, weights: Floats, game: Game) -> Floats:
    """Return the mixtures ``[c, n]`` of coalitions ``members [c, n]``, none of them empty."""
    x = members * weights
    return np.asarray(x / x.sum(axis=1, keepdims=True)) if game == "average" else x
