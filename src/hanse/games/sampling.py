"""Shapley values by sampled permutations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hanse.games.coalitions import (
    Coalition,
    Floats,
    Memo,
    Utility,
    generator,
    permutation_rows,
    players,
    whole_number,
)

_BATCH = 4096  # permutations that walk together


@dataclass(frozen=True, eq=False)
class Estimate:
    """A sampled value and what it cost.

    Attributes:
        values: ``[n]``, float64.
        standard_errors: ``[n]``, of ``values``; nan where fewer than two independent samples were taken.
        evaluations: utility requests as the algorithm makes them, ``v({})`` and ``v(N)`` included, without
            memory.
        distinct: different coalitions really evaluated.
        permutations: permutations used.
        walks: the permutations themselves and the coalitions met along them; None if nothing was sampled.
    """

    values: Floats
    standard_errors: Floats
    evaluations: int
    distinct: int
    permutations: int
    walks: Walks | None


@dataclass(frozen=True, eq=False)
class Walks:
    """Permutations ``rows [m, n]``, and ``places [m, n + 1]``: where the coalition before the first player, after the
    first one, .. stands in the order of evaluation. Where a permutation was truncated the last place is repeated.
    """

    rows: NDArray[np.int64]
    places: NDArray[np.int64]

    def values(self, worth: Floats) -> Floats:
        """Return the mean marginals ``[n, ...]`` of another utility on the same walks.

        Args:
            worth: ``[distinct, ...]``, that utility's value of each coalition, in the order of evaluation.
        """
        steps = np.diff(worth[self.places], axis=1)
        total = np.zeros((self.rows.shape[1], *worth.shape[1:]))
        np.add.at(total, self.rows.ravel(), steps.reshape(-1, *worth.shape[1:]))
        return np.asarray(total / len(self.rows))


def monte_carlo(
    value: Utility,
    n: int,
    permutations: int | Sequence[Sequence[int]],
    seed: int | np.random.Generator = 0,
) -> Floats:
    """Return the mean marginal contribution over permutations, ``[n]``: it estimates the Shapley value.

    Args:
        value: the utility; ``many``, if it has it, is used.
        n: number of players.
        permutations: how many to draw, or the permutations of ``0..n-1`` themselves.
        seed: keys the draw; a numpy generator is used as it is.

    Raises:
        ValueError: ``n < 1``, no permutation, something that is not a permutation, a utility that is not
            finite.
    """
    return monte_carlo_result(value, n, permutations, seed).values


def monte_carlo_result(
    value: Utility,
    n: int,
    permutations: int | Sequence[Sequence[int]],
    seed: int | np.random.Generator = 0,
) -> Estimate:
    """Do as :func:`monte_carlo`, and return its standard errors and counts beside the values."""
    n = players(n)
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
    marginals = np.concatenate([found for found, _, _ in walked])
    m = len(rows)
    errors = marginals.std(axis=0, ddof=1) / math.sqrt(m) if m > 1 else np.full(n, np.nan)
    walks = Walks(rows, np.concatenate([places for _, _, places in walked]))
    return Estimate(marginals.mean(axis=0), errors, 1 + m * n, memo.distinct, m, walks)


def walk(
    memo: Memo, rows: NDArray[np.int64], empty: float, full: float, eps: float
) -> tuple[Floats, int, NDArray[np.int64]]:
    """Return the marginals along permutations ``rows [m, n]``, by player ``[m, n]``, the requests made, and the places
    ``[m, n + 1]`` of the coalitions met (see :class:`Walks`).

    All permutations advance together, one player a level, so that a level costs one batch. A permutation
    whose value is nearer than ``eps`` to ``full`` is truncated: the players left in it contribute 0.
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
        places[live, level + 1 :] = np.array(memo.places(wanted))[:, None]
        requests += live.size
    return marginals, requests, places
