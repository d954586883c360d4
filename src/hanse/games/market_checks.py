"""What holds of a market, tested on its numbers: local and global optimality, and prices that make honesty pay.

The tests compare :mod:`hanse.games.market` with these; :func:`critical_prices` is also an option of iPFL.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hanse.games.market import Floats, Market, best_imports
from hanse.games.market_numbers import marginal, threshold_total, totals_without


def local_optimality(market: Market, graph: NDArray[np.generic]) -> tuple[float, float]:
    """Return by how much single imports could be wrong: iPFL eq. (9) as two numbers.

    Args:
        market: the market.
        graph: ``[m, m]``, who imports whose model.

    Returns:
        The largest ``phi(A) - phi(A - E_j)`` over edges, and the largest ``phi(A) - phi(A + E_j)`` over pairs without
        an edge. Eq. (9) holds if the first is negative and the second at most 0. Minus infinity where there are no such
        pairs.
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


def critical_prices(market: Market, graph: NDArray[np.generic] | None = None) -> Floats:
    """Return, on every edge, the highest cost that seller j could report and still be imported by i, ``[m, m]``.

    Paid instead of eq. (10), it leaves no motive to misreport the cost in either direction: whom i imports falls with
    the reported cost (Lemma 2), and the price does not depend on it (Myerson 1981; Vickrey 1961). It is never above eq.
    (10), so that buyers still gain, and never below the cost.

    Args:
        market: the market.
        graph: ``[m, m]``; default: that of :func:`hanse.games.market.best_imports`.
    """
    m = market.size
    if graph is None:
        graph = best_imports(market)
    found = np.zeros((m, m))
    price, similar = market.price(slice(0, m)), market.similarity(slice(0, m))
    for i in range(m):
        sold = np.flatnonzero(np.asarray(graph[i]) != 0)
        if len(sold):
            found[i, sold] = _critical(market, i, price[i], sold) - similar[i, sold]
    return found


def _critical(market: Market, i: int, price: Floats, sold: NDArray[np.int64]) -> Floats:
    """Return the highest price ``r`` at which each of the models ``sold`` is still imported by buyer i.

    Without seller j, the others are visited as in Algorithm 2. j comes in wherever its threshold is both among those
    still to be visited and above the total that it would make. The lowest such threshold is critical.
    """
    n, K = market.sizes, market.eagerness[i]
    total = threshold_total(n, K, price)
    others = np.flatnonzero((marginal(n[i], n, K) > price) & (np.arange(len(n)) != i))
    order = others[np.argsort(-total[others], kind="stable")]
    reached = np.full(len(sold), n[i])  # the total so far; a walk for each sold model, all at once
    open_ = np.ones(len(sold), bool)  # whose critical threshold is not found yet
    bound = np.full(len(sold), np.nan)
    for k in order:
        need = reached + n[sold]  # the threshold must be above this total
        skip = sold == k
        stops = open_ & ~skip & (total[k] <= need)
        bound[stops] = need[stops]
        open_ &= ~stops
        if not open_.any():
            break
        add = open_ & ~skip & (marginal(reached, n[k], K) > price[k])
        # behind k there is less room: if j no longer fits after it, k's threshold is critical
        after = reached + np.where(add, n[k], 0.0)
        full = add & (after + n[sold] >= total[k])
        bound[full] = total[k]
        open_ &= ~full
        reached = np.where(open_, after, reached)
    bound[open_] = (reached + n[sold])[open_]
    # back from thresholds to prices: r = sqrt(K/(y - n_j)) - sqrt(K/y)
    return marginal(bound - n[sold], n[sold], K)
