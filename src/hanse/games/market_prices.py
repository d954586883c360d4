"""The price rules of a market of models, and the choice of one, for the market and for its audits."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hanse.games.market import Floats, Market, best_imports, prices
from hanse.games.market_numbers import marginal, threshold_total
from hanse.games.market_posted import Tariff

Pricing = Literal["marginal", "critical", "posted"]


def due(pricing: str, market: Market, graph: NDArray[np.generic], tariff: Tariff | None = None) -> Floats:
    """Return what i pays j, ``[m, m]`` in tokens.

    Args:
        pricing: the rule: "marginal" is iPFL's eq. (10), "critical" is :func:`critical_prices`, and "posted" is the
            tariff.
        market: what was declared, with the distances.
        graph: ``[m, m]``: 1 if the row's client imports the column's model, else 0.
        tariff: the posted prices. They are needed only for "posted".

    Raises:
        ValueError: there is no such rule, or no tariff.
    """
    if pricing == "marginal":
        return prices(market, graph)
    if pricing == "critical":
        return critical_prices(market, graph)
    if pricing == "posted" and tariff is not None:
        return tariff.due(graph, market.sizes)
    raise ValueError(f"pricing {pricing!r}: must be 'marginal', 'critical', or 'posted' with a tariff")


def critical_prices(market: Market, graph: NDArray[np.generic] | None = None) -> Floats:
    """Return, for every import, the highest cost that seller j could report and still sell to i, ``[m, m]``.

    If this is paid instead of eq. (10), there is no motive to misreport the cost in either direction. A higher reported
    cost only loses imports (Lemma 2), and the price does not depend on it (Myerson 1981; Vickrey 1961). The price is
    never above eq. (10), so buyers still gain, and never below the cost.

    Args:
        market: the market.
        graph: ``[m, m]``: 1 if the row's client imports the column's model, else 0. Default: the graph of
            :func:`hanse.games.market.best_imports`.
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
