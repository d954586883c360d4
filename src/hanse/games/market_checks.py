"""Tests on a market's numbers whether iPFL's eq. (9), local optimality, holds."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hanse.games.market import Market
from hanse.games.market_numbers import marginal, totals_without


def local_optimality(market: Market, graph: NDArray[np.generic]) -> tuple[float, float]:
    """Return two numbers that say by how much single imports violate iPFL eq. (9), if at all.

    Args:
        market: the market.
        graph: ``[m, m]``: 1 if the row's client imports the column's model, else 0.

    Returns:
        The largest ``phi(A) - phi(A - E_j)`` over edges, and the largest ``phi(A) - phi(A + E_j)`` over pairs without
        an edge. Eq. (9) holds if the first is negative and the second at most 0. A number is minus infinity if there
        are no such pairs.
    """
    picked = np.asarray(graph) != 0
    n, K = market.sizes, market.eagerness[:, None]
    price = market.price(slice(0, market.size))
    total = n + picked @ n
    without = totals_without(n, np.where(picked, n[None, :], 0.0))
    removal = price - marginal(without, n[None, :], K)
    addition = marginal(total[:, None], n[None, :], K) - price
    others = ~picked & ~np.eye(len(n), dtype=bool)
    return float(removal[picked].max(initial=-np.inf)), float(addition[others].max(initial=-np.inf))
