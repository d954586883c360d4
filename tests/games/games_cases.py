"""Helpers of the game tests: golden cases, games given by tables, utilities that record their batches."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from hanse.games.market import Market, marginal

GOLDEN = Path(__file__).resolve().parents[1] / "golden"


def golden(name: str) -> list[Any]:
    cases = json.loads((GOLDEN / f"{name}.json").read_text())["cases"]
    assert cases
    return list(cases)


def close(x: ArrayLike, y: ArrayLike, tol: float) -> bool:
    a, b = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    return a.shape == b.shape and bool(np.all(np.abs(a - b) <= tol * (1 + np.abs(b))))


def game(v: Sequence[float]) -> Callable[[frozenset[int]], float]:
    return lambda coalition: v[sum(1 << i for i in coalition)]


def by_definition(value: Callable[[frozenset[int]], float], n: int) -> np.ndarray:
    """The Shapley value as the mean over all orders of arrival."""
    total = np.zeros(n)
    for order in itertools.permutations(range(n)):
        for j, player in enumerate(order):
            total[player] += value(frozenset(order[: j + 1])) - value(frozenset(order[:j]))
    return total / math.factorial(n)


def best_graph(
    distance: ArrayLike, sizes: ArrayLike, costs: ArrayLike, eagerness: ArrayLike, lam: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return the graph that minimises iPFL eq. (8) for every client, by trying all sets of sellers.

    Ties go to the set that comes first by size, then by index.
    """
    market = Market.of(distance, sizes, costs, eagerness, lam)
    m = market.size
    graph, phi = np.zeros((m, m), np.int8), np.zeros(m)
    price = market.price(slice(0, m))
    for i in range(m):
        others = [j for j in range(m) if j != i and market.sizes[j] > 0 and np.isfinite(price[i, j])]
        for count in range(1, len(others) + 1):
            for some in itertools.combinations(others, count):
                chosen = list(some)
                worth = marginal(market.sizes[i], market.sizes[chosen].sum(), market.eagerness[i])
                value = float(price[i, chosen].sum() - worth)
                if value < phi[i]:
                    phi[i] = value
                    graph[i] = 0
                    graph[i, chosen] = 1
    return graph, phi


class Batched:
    """A utility with ``many``; remembers the batches it was asked for."""

    def __init__(self, value: Callable[[frozenset[int]], float]) -> None:
        self.value = value
        self.batches: list[list[frozenset[int]]] = []

    def __call__(self, coalition: frozenset[int]) -> float:
        raise AssertionError("a utility with many is asked in batches")

    @property
    def asked(self) -> list[frozenset[int]]:
        return [c for batch in self.batches for c in batch]

    def many(self, coalitions: Sequence[frozenset[int]]) -> list[float]:
        self.batches.append(list(coalitions))
        return [self.value(c) for c in coalitions]
