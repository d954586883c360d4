"""Shapley values from sampled permutations.

In a random order of all players, each player is credited with what it adds to its predecessors. The mean over all
orders is the Shapley value. :func:`monte_carlo` is the plain estimator. :func:`walk` processes many orders at once, for
:func:`monte_carlo` and for GTG-Shapley (:mod:`hanse.games.gtg`). :class:`Walks` keeps the orders, so that other
utilities can be valued along them without new draws.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hanse.games.game import Coalition, Floats, Memo, Utility, generator, permutation_rows, whole_number

_BATCH = 4096  # permutations that walk together


@dataclass(frozen=True, eq=False)
class Estimate:
    """A sampled value and its cost.

    Attributes:
        values: ``[n]``, float64.
        standard_errors: ``[n]``, the standard errors of ``values``. NaN: fewer than two independent samples were taken.
        evaluations: how many worths the algorithm requested, including ``v({})``, ``v(N)`` and repetitions:
            ``1 + n * permutations`` if no permutation was cut short.
        distinct: how many different coalitions were really evaluated.
        permutations: how many permutations were used.
        walks: the permutations, and the coalitions that were met along them. None: nothing was sampled.
    """

    values: Floats
    standard_errors: Floats
    evaluations: int
    distinct: int
    permutations: int
    walks: Walks | None

    def along(self, worth: Floats) -> Floats:
        """Return the values ``[n, B]`` of B other utilities along the same permutations; NaN if none was sampled.

        Args:
            worth: ``[distinct, B]``, the other utilities' worth of each coalition, in the order of evaluation.
        """
        return np.full((len(self.values), worth.shape[1]), np.nan) if self.walks is None else self.walks.values(worth)


@dataclass(frozen=True, eq=False)
class Walks:
    """Permutations, and the numbers that the coalitions along each of them have in the order of evaluation.

    Attributes:
        rows: ``[m, n]`` int64, the permutations.
        places: ``[m, n + 1]`` int64, the number of the empty coalition, of the first player, of the first two, and so
            on. Where a permutation was truncated, the last place is repeated.
    """

    rows: NDArray[np.int64]
    places: NDArray[np.int64]

    def values(self, worth: Floats) -> Floats:
        """Return the mean marginal contributions ``[n, ...]`` of another utility along the same permutations.

        Args:
            worth: ``[distinct, ...]``, the other utility's worth of each coalition, in the order of evaluation.
        """
        steps = np.diff(worth[self.places], axis=1)
        total = np.zeros((self.rows.shape[1], *worth.shape[1:]))
        np.add.at(total, self.rows.ravel(), steps.reshape(-1, *worth.shape[1:]))
        return np.asarray(total / len(self.rows))


def monte_carlo(
    value: Utility, n: int, permutations: int | Sequence[Sequence[int]], seed: int | np.random.Generator = 0
) -> Floats:
    """Return the mean marginal contribution over permutations, ``[n]``, which estimates the Shapley value.

    Args:
        value: the utility. Its method ``many`` is used if it has one.
        n: number of players.
        permutations: how many to draw, or the permutations of ``0..n-1`` themselves.
        seed: the seed of the draws, or a numpy generator to use.

    Raises:
        ValueError: ``n < 1``, there is no permutation, something is not a permutation, or a worth is not finite.

    Examples:
        >>> def pairs(coalition):  # player 0 has a left glove, players 1 and 2 have a right one each
        ...     return float(0 in coalition and len(coalition) > 1)
        >>> monte_carlo(pairs, 3, permutations=1000).round(1).tolist()  # exact: 2/3, 1/6, 1/6
        [0.7, 0.2, 0.2]
        >>> monte_carlo(pairs, 3, permutations=[[0, 1, 2], [1, 0, 2]]).tolist()  # who completes the pair in each order
        [0.5, 0.5, 0.0]
    """
    return monte_carlo_result(value, n, permutations, seed).values


def monte_carlo_result(
    value: Utility, n: int, permutations: int | Sequence[Sequence[int]], seed: int | np.random.Generator = 0
) -> Estimate:
    """Estimate as :func:`monte_carlo` does, and also return standard errors and counts.

    Args:
        value: the utility.
        n: number of players.
        permutations: how many to draw, or the permutations of ``0..n-1`` themselves.
        seed: the seed of the random draws.
    """
    n = whole_number("n", n)
    if isinstance(permutations, int | np.integer):
        count = whole_number("permutations", permutations)
        draw = generator(seed, "monte_carlo")
        rows = np.array([draw.permutation(n) for _ in range(count)], dtype=np.int64)
    else:
        rows = permutation_rows(permutations, n)
        if not len(rows):
            raise ValueError("permutations is empty; allowed: a number or a list of at least 1 permutation")
    memo = Memo(value)
    empty, full = memo.many([frozenset(), frozenset(range(n))])
    walked = [walk(memo, rows[i : i + _BATCH], empty, full, eps=0.0) for i in range(0, len(rows), _BATCH)]
    marginals = np.concatenate([estimate for estimate, _, _ in walked])
    # permutations are drawn independently, so that the errors are those of a plain mean
    m = len(rows)
    errors = marginals.std(axis=0, ddof=1) / math.sqrt(m) if m > 1 else np.full(n, np.nan)
    walks = Walks(rows, np.concatenate([places for _, _, places in walked]))
    return Estimate(marginals.mean(axis=0), errors, 1 + m * n, memo.distinct, m, walks)


def walk(
    memo: Memo, rows: NDArray[np.int64], empty: float, full: float, eps: float
) -> tuple[Floats, int, NDArray[np.int64]]:
    """Return the marginal contributions along permutations.

    All permutations advance together, one player at a time. Each step therefore costs one batch of evaluations. A
    permutation is truncated once its worth is within ``eps`` of ``full``: its remaining players contribute 0.

    Args:
        memo: the utility; it must have evaluated the empty coalition.
        rows: ``[m, n]``, the permutations.
        empty: the worth of the empty coalition.
        full: the worth of all players.
        eps: the truncation threshold; 0 never truncates.

    Returns:
        Three results: the marginals by player, ``[m, n]``; how many worths were asked for; and the places ``[m, n +
        1]`` of the coalitions that were met (see :class:`Walks`).
    """
    reached = np.full(len(rows), empty)
    marginals = np.zeros(rows.shape)
    prefixes: list[Coalition] = [frozenset()] * len(rows)
    requests = 0
    [start] = memo.places([frozenset()])
    places = np.full((len(rows), rows.shape[1] + 1), start)
    for level in range(rows.shape[1]):
        live = np.flatnonzero(np.abs(full - reached) >= eps)  # GreedyFed Alg. 2, line 11: strict <
        if not live.size:
            break
        joining = rows[live, level]
        wanted = [prefixes[p] | {k} for p, k in zip(live.tolist(), joining.tolist(), strict=True)]
        for p, coalition in zip(live.tolist(), wanted, strict=True):
            prefixes[p] = coalition
        worth = np.array(memo.many(wanted))  # GreedyFed Alg. 2, lines 14-16
        marginals[live, joining] = worth - reached[live]
        reached[live] = worth
        # to the end of the row: a permutation that is truncated later stays at this coalition
        places[live, level + 1 :] = np.array(memo.places(wanted))[:, None]
        requests += live.size
    return marginals, requests, places
