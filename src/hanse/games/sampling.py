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

__all__ = ["Estimate", "monte_carlo", "monte_carlo_result", "walk"]

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
    """

    values: Floats
    standard_errors: Floats
    evaluations: int
    distinct: int
    permutations: int


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
    marginals = np.concatenate(
        [walk(memo, rows[i : i + _BATCH], empty, full, eps=0.0)[0] for i in range(0, len(rows), _BATCH)]
    )
    m = len(rows)
    errors = marginals.std(axis=0, ddof=1) / math.sqrt(m) if m > 1 else np.full(n, np.nan)
    return Estimate(marginals.mean(axis=0), errors, 1 + m * n, memo.distinct, m)


def walk(memo: Memo, rows: NDArray[np.int64], empty: float, full: float, eps: float) -> tuple[Floats, int]:
    """Return the marginals along permutations ``rows [m, n]``, by player ``[m, n]``, and the requests made.

    All permutations advance together, one player a level, so that a level costs one batch. A permutation
    whose value is nearer than ``eps`` to ``full`` is truncated: the players left in it contribute 0.
    """
    reached = np.full(len(rows), empty)
    marginals = np.zeros(rows.shape)
    prefixes: list[Coalition] = [frozenset()] * len(rows)
    requests = 0
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
        requests += live.size
    return marginals, requests
