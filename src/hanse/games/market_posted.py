"""A market at posted prices: the operator says what a model costs, sellers accept or not, and each buyer chooses.

Under iPFL's eq. (10) a price depends on what buyer and seller say of themselves, and saying something else pays
(benchmarks/RESULTS.md, "Does a lie pay?"). Here a model of ``n`` samples costs ``flat + per_thousand n / 1000`` tokens,
whoever buys it. A seller offers its model or does not; a buyer takes the set of offers that is best for itself, so its
eagerness and its own size are never asked for. For a single trade, posted prices are essentially all that is truthful,
voluntary and balanced at once (Hagerty and Rogerson 1987). What remains to be lied about is the seller's size, which
:mod:`hanse.data.commitment` lets an auditor count.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hanse.base.factories import Weight
from hanse.games.market import Floats, Graph, Market, best_imports
from hanse.games.market_numbers import marginal

__all__ = ["Tariff", "best_purchase", "posted_imports"]


@dataclass(frozen=True)
class Tariff:
    """What a model costs at posted prices.

    The defaults are for costs of sharing between .5 and 1 token and some thousands of samples; the flat part should be
    the least that sharing a model costs anybody.

    Attributes:
        flat: tokens for any model.
        per_thousand: tokens for each thousand samples that it was trained on.

    Examples:
        >>> Tariff().price([0, 1000, 5000]).tolist()
        [0.5, 0.6, 1.0]
    """

    flat: Weight = 0.5
    per_thousand: Weight = 0.1

    def price(self, sizes: ArrayLike) -> Floats:
        """Return the price in tokens of models trained on so many samples, of the shape of ``sizes``."""
        return np.asarray(self.flat + self.per_thousand * np.asarray(sizes, np.float64) / 1000)

    def due(self, graph: NDArray[np.generic], sizes: ArrayLike) -> Floats:
        """Return what i pays j, ``[m, m]`` in tokens.

        Args:
            graph: ``[m, m]``, who (row) imports whose model.
            sizes: ``[m]``, the numbers of samples behind the models.
        """
        return np.where(np.asarray(graph) != 0, self.price(sizes)[None, :], 0.0)


def best_purchase(
    own: float,
    eagerness: float,
    sizes: ArrayLike,
    prices: ArrayLike,
    distance: ArrayLike,
    lam: float,
    budget: float = np.inf,
) -> NDArray[np.bool_]:
    """Return the set of offers that brings one buyer most, ``[m]``.

    The buyer gains by iPFL's eq. (2), pays the prices, and loses ``lambda n_j/n_i d_ij`` by the models' difference, as
    in eq. (8). Algorithm 2 makes the first set; offers are then added, dropped and exchanged one by one while that
    brings more. The dearest for what they bring are dropped until the budget suffices.

    Args:
        own: the buyer's own number of samples.
        eagerness: K of eq. (2), in samples.
        sizes: ``[m]``, the numbers of samples behind the offers.
        prices: ``[m]``, in tokens; infinite for what is not offered.
        distance: ``[m]``, from the buyer's model, at least 0.
        lam: lambda, the weight of the distance.
        budget: the most that the buyer spends, in tokens.

    Raises:
        ValueError: numbers that no market can have (see :meth:`hanse.games.market.Market.of`).

    Examples:
        >>> best_purchase(100, 1e4, sizes=[300, 300, 10], prices=[2.0, 9.0, 1.0], distance=[0.5] * 3, lam=1.0).tolist()
        [True, False, False]
    """
    n, p, d = (np.asarray(a, np.float64) for a in (sizes, prices, distance))
    if n.ndim != 1 or p.shape != n.shape or d.shape != n.shape:
        raise ValueError(f"sizes, prices, distance: {n.shape}, {p.shape}, {d.shape}: must be [m] each")
    m = len(n)
    apart = np.broadcast_to(np.r_[0.0, d], (m + 1, m + 1))  # only the buyer's row is read
    market = Market.of(apart, np.r_[own, n], np.r_[np.inf, p], np.r_[eagerness, np.zeros(m)], lam)
    return _improved(market, 0, best_imports(market, buyers=slice(0, 1))[0] != 0, budget)[1:]


def posted_imports(market: Market, tariff: Tariff, buyer: int | None = None) -> Graph:
    """Return who imports whose model at posted prices, ``[m, m]``, if everybody acts on what is true.

    A client whose cost of sharing is above the price of its model does not sell.

    Args:
        market: the true sizes, costs, eagerness and distances.
        tariff: the prices.
        buyer: the one whose row ``[1, m]`` is wanted; None: all.
    """
    price = tariff.price(market.sizes)
    offered = Market(
        market.distance,
        market.sizes,
        np.where(market.costs <= price, price, np.inf),
        market.eagerness,
        market.lam,
    )
    rows = range(market.size) if buyer is None else range(buyer, buyer + 1)
    first = best_imports(offered, buyers=None if buyer is None else slice(buyer, buyer + 1)) != 0
    return np.array([_improved(offered, i, one) for i, one in zip(rows, first, strict=True)]).astype(np.int8)


def _improved(market: Market, buyer: int, chosen: NDArray[np.bool_], budget: float = np.inf) -> NDArray[np.bool_]:
    """Return a buyer's set ``[m]`` after single additions, removals and exchanges that bring more, best first."""
    n, K, own = market.sizes, market.eagerness[buyer], market.sizes[buyer]
    cost = market.price(slice(buyer, buyer + 1))[0]
    allowed = np.isfinite(cost) & (n > 0) & (np.arange(market.size) != buyer)
    chosen = chosen & allowed
    if K == 0:  # nothing brings it anything
        return np.zeros_like(chosen)

    def worth(total: Floats | float, spent: Floats | float) -> Floats:
        return np.asarray(marginal(own, total, K) - spent)

    nobody, nothing = np.array([-1]), np.zeros(1)
    while True:
        total, spent = float(n[chosen].sum()), float(cost[chosen].sum())
        now = float(worth(total, spent))
        out, come = (np.concatenate((nobody, np.flatnonzero(some))) for some in (chosen, allowed & ~chosen))
        size_out, size_in = (np.concatenate((nothing, n[some[1:]])) for some in (out, come))
        cost_out, cost_in = (np.concatenate((nothing, cost[some[1:]])) for some in (out, come))
        after = worth(total - size_out[:, None] + size_in[None, :], spent - cost_out[:, None] + cost_in[None, :])
        a, b = np.unravel_index(int(np.argmax(after)), after.shape)
        if not after[a, b] > now + 1e-12 * (1 + abs(now)):
            break
        chosen = chosen.copy()
        if out[a] >= 0:
            chosen[out[a]] = False
        if come[b] >= 0:
            chosen[come[b]] = True
    while float(market.costs[chosen].sum()) > budget:
        held = np.flatnonzero(chosen)
        rest = n[held].sum() - n[held]
        lost = marginal(own + rest, n[held], K) - cost[held]
        price = market.costs[held]
        leaves = held[int(np.argmin(np.where(price > 0, lost / np.maximum(price, 1e-300), np.inf)))]
        chosen = chosen.copy()
        chosen[leaves] = False
    return chosen
