"""Speed of iPFL's market: Algorithm 2 against a plain double loop, and graph with payments for many clients.

Run: python benchmarks/market.py [--large]
"""

from __future__ import annotations

import math
import resource
import sys
import time
from collections.abc import Callable

import numpy as np
import torch

from hanse.games import market
from hanse.games.market import Market, prices
from hanse.games.market_models import distances

Floats = np.ndarray


def plain(d: list[list[float]], n: list[float], c: list[float], K: list[float], lam: float) -> list[list[int]]:
    """Algorithm 2 as one would write it down: a bisection for each threshold, a loop over the clients."""
    m = len(n)
    A = [[0] * m for _ in range(m)]
    for i in range(m):

        def g(x: float, i: int = i) -> float:
            return math.sqrt(K[i] / n[i]) - math.sqrt(K[i] / (n[i] + x))

        limit = [0.0] * m
        for j in range(m):
            if j == i:
                continue
            r = c[j] + lam * n[j] / n[i] * d[i][j]
            low, high = n[j] - n[i] + 1e-9, 1e12
            for _ in range(100):
                middle = (low + high) / 2
                low, high = (middle, high) if g(middle) - g(middle - n[j]) > r else (low, middle)
            limit[j] = low
        total = 0.0
        for j in sorted((j for j in range(m) if j != i), key=lambda j: -limit[j]):
            if total + n[j] < limit[j]:
                A[i][j] = 1
                total += n[j]
    return A


def case(m: int, seed: int = 0) -> Market:
    """A market at the paper's scale (Table 6, lambda 2): distances of groups that are near or far."""
    rng = np.random.default_rng(seed)
    group = rng.integers(0, max(1, m // 10), m)
    d = np.where(group[:, None] == group[None, :], 0.3, 0.9) + 0.1 * rng.random((m, m))
    d = (d + d.T) / 2
    np.fill_diagonal(d, 0)
    K = np.where(rng.random(m) < 0.3, 0.0, rng.uniform(3e5, 6e5, m))
    return Market.of(d, rng.integers(2500, 5500, m), rng.uniform(0.5, 1, m), K, 2.0)


def clock(work: Callable[[], object], times: int = 3) -> float:
    """Return the least wall-clock seconds of some tries."""
    best = math.inf
    for _ in range(times):
        begun = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - begun)
    return best


def main() -> None:
    """Print a line for each target."""
    for m in (100, 300):
        given = case(m)
        args = given.distance, given.sizes, given.costs, given.eagerness, given.lam
        lists = [a.tolist() if isinstance(a, np.ndarray) else a for a in args]
        slow = clock(lambda x=lists: plain(*x), 1)
        fast = clock(lambda x=args: market.learn_graph(*x))
        assert market.learn_graph(*args).tolist() == plain(*lists)
        print(f"Algorithm 2, m={m}: {1e3 * fast:.2f} ms, plain loop {1e3 * slow:.0f} ms: {slow / fast:.0f} times")
    models = torch.randn(1000, 100_000)
    given = case(1000)
    rest = given.sizes, given.costs, given.eagerness, given.lam
    gram = clock(lambda: distances(models), 2)

    def all_of_it() -> None:
        d = distances(models)
        market.payments(market.learn_graph(d, *rest), d, *rest)

    print(f"m=1000, P=1e5: graph and payments {clock(all_of_it, 2):.2f} s, of which distances {gram:.2f} s")
    if "--large" in sys.argv:
        given = case(10_000)
        args = given.distance, given.sizes, given.costs, given.eagerness, given.lam
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        begun = time.perf_counter()
        graph = market.learn_graph(*args)
        learnt = time.perf_counter() - begun
        paid = prices(given, graph)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(
            f"m=10000 given distances: graph {learnt:.1f} s, with payments {time.perf_counter() - begun:.1f} s; "
            f"{int(graph.sum())} edges, {paid.sum():.0f} paid; peak {peak:.0f} MB ({before:.0f} MB before)"
        )


if __name__ == "__main__":
    main()
