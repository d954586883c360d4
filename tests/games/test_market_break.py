"""Algorithm 2 as it is printed: the visit ends at the first seller that does not pay."""

from __future__ import annotations

import numpy as np
import pytest

from hanse.games.market import Market, learn_graph, local_optimality, marginal, threshold


def visited(market: Market, i: int) -> list[int]:
    """Algorithm 2 for one buyer, line by line."""
    n, K, price = market.sizes, market.eagerness[i], market.price(slice(0, market.size))[i]
    others = [j for j in range(market.size) if j != i and n[j] > 0] if K > 0 else []
    at = {j: float(threshold(n[i], n[j], K, price[j])) if np.isfinite(price[j]) else -np.inf for j in others}
    imported, bought = 0.0, []
    for j in sorted(others, key=lambda j: (-at[j], j)):
        if not float(marginal(n[i] + imported, n[j], K)) > price[j]:
            break
        imported += n[j]
        bought.append(j)
    return sorted(bought)


@pytest.mark.parametrize("seed", range(20))
def test_the_graph_is_the_printed_loops(seed: int) -> None:
    draw = np.random.default_rng(seed)
    m = int(draw.integers(2, 12))
    sizes = np.round(10 ** draw.uniform(1, 4, m))
    costs = np.where(draw.random(m) < 0.2, np.inf, draw.uniform(0, 2, m))
    eager = np.where(draw.random(m) < 0.2, 0.0, 10 ** draw.uniform(3, 6, m))
    market = Market.of(draw.uniform(0, 1.5, (m, m)), sizes, costs, eager, 2.0)
    graph = learn_graph(market.distance, sizes, costs, eager, 2.0, "break")
    assert [np.flatnonzero(row).tolist() for row in graph] == [visited(market, i) for i in range(m)]
    assert local_optimality(market, graph)[0] <= 1e-9  # no import too many, though there may be one too few


def test_a_large_seller_that_never_pays_ends_the_visit() -> None:
    # client 0 would buy the small model of client 1; the large one of client 2 has the higher threshold and never pays
    distance, sizes, costs = np.zeros((3, 3)), [100, 50, 10000], [0.1, 1.0, 10.0]
    eager = [1e4, 0, 0]
    assert learn_graph(distance, sizes, costs, eager, 1.0).tolist() == [[0, 1, 0], [0, 0, 0], [0, 0, 0]]
    assert learn_graph(distance, sizes, costs, eager, 1.0, "break").sum() == 0
