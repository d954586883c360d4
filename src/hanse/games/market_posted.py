"""A market at posted prices: the operator says what a model costs, sellers accept or not, and each buyer chooses.

No paper has it: it is hanse's own, in the place of iPFL's eqs (9) and (10). Gains stay those of its eq. (2).

Under iPFL's eq. (10) a price depends on what buyer and seller say of themselves, and saying something false pays
(benchmarks/RESULTS.md, "Does a lie pay?"). Here whoever imports a model with the weight ``w``, at most its number of
samples, pays ``flat + per_thousand w / 1000`` tokens. A seller offers its model or does not. A buyer takes the set of
offers that is best for itself, so nobody asks for its eagerness or its own size. For a single trade, posted prices are
essentially all that is truthful, voluntary and balanced at once (Hagerty and Rogerson 1987). The seller's size remains
something to lie about. :mod:`hanse.data.commitment` lets an auditor count it.

A price by size would let a seller find one more buyer by claiming less. By weight it cannot: who takes ``w`` samples of
a model pays the same whatever its size. Nor is anything gained by splitting, as long as ``flat`` is no more than a sale
costs. A sale may then bring less than it costs. So sellers say the lowest price at which they sell, and buyers leave
what would bring less. Buyers do not take more of it instead, because asking for more than a sale costs would then pay.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hanse.base.factories import Weight
from hanse.games.market import Floats, Market, marginal, prices

__all__ = ["APART", "Tariff", "best_purchase", "due", "on_sale", "sold"]

APART = 1e9
"""The distance from which on two clients do not trade."""

Pricing = Literal["marginal", "posted"]
"""A market's price rule: iPFL's eq. (10), or a tariff."""


@dataclass(frozen=True)
class Tariff:
    """What a model costs at posted prices.

    The defaults are for costs of sharing between .5 and 1 token and some thousands of samples. The flat part should be
    the lowest cost of sharing that any client has.

    Attributes:
        flat: tokens for any model.
        per_thousand: tokens for each thousand samples of the weight with which its buyer imports it.

    Examples:
        >>> Tariff().price([0, 1000, 5000]).tolist()
        [0.5, 0.6, 1.0]
    """

    flat: Weight = 0.5
    per_thousand: Weight = 0.1

    @property
    def per_sample(self) -> float:
        """Tokens for each sample of the weight with which a buyer imports a model."""
        return self.per_thousand / 1000

    def price(self, weights: ArrayLike) -> Floats:
        """Return the price in tokens of models imported with so many samples, of the shape of ``weights``."""
        return np.asarray(self.flat + self.per_thousand * np.asarray(weights, np.float64) / 1000)

    def due(self, graph: NDArray[np.generic], sizes: ArrayLike) -> Floats:
        """Return what i pays j, ``[m, m]`` in tokens.

        Args:
            graph: ``[m, m]``, with what share of its size who (row) imports whose model.
            sizes: ``[m]``, the numbers of samples behind the models.
        """
        shares = np.asarray(graph, np.float64)
        return np.where(shares != 0, self.price(shares * np.asarray(sizes, np.float64)[None, :]), 0.0)


def due(market: Market, graph: NDArray[np.generic], tariff: Tariff | None) -> Floats:
    """Return what i pays j, ``[m, m]`` in tokens: by the tariff, or without one by iPFL's eq. (10).

    Args:
        market: what was declared, with the distances.
        graph: ``[m, m]``, who (row) imports whose model, at posted prices with what share of its size.
        tariff: the posted prices, if any.
    """
    return prices(market, graph) if tariff is None else tariff.due(graph, market.sizes)


def best_purchase(
    own: float,
    eagerness: float,
    sizes: ArrayLike,
    prices: ArrayLike,
    distance: ArrayLike,
    lam: float,
    budget: float = np.inf,
    per_sample: float = 0.0,
    least: ArrayLike = 0.0,
) -> Floats:
    """Return with how many samples one buyer best imports each offer, ``[m]``; 0 for offers that it leaves.

    The buyer gains by iPFL's eq. (2), pays the prices, and loses ``lambda w_j/n_i d_ij`` by the models' difference, as
    in eq. (8) with the weight ``w_j`` that it imports a model with, up to its size. The best weights for a set of
    offers are exact. The nearest models come first, each until one more sample would cost more than it brings. The set
    itself grows and changes by single additions, removals and exchanges while that brings more. Offers that bring least
    for their price are dropped until the budget suffices. If samples are priced too, the rest of the budget limits the
    weights. If the owner of a model would not sell it at such a weight, it is left, and the rest is chosen anew without
    it.

    Args:
        own: the buyer's own number of samples.
        eagerness: K of eq. (2), in samples.
        sizes: ``[m]``, the numbers of samples behind the offers.
        prices: ``[m]``, in tokens, whatever the weight. They are infinite for models that are not offered.
        distance: ``[m]``, from the buyer's model, at least 0.
        lam: lambda, the weight of the distance.
        budget: the most that the buyer spends, in tokens, at least 0.
        per_sample: tokens for each sample of the weights, besides the prices, at least 0.
        least: ``[m]``, or one number for all, in tokens: a seller does not sell unless it is paid at least this.

    Raises:
        ValueError: numbers that no market can have (see :meth:`hanse.games.market.Market.of`).

    Examples:
        A model that is far away is worth its price at a part of its weight:

        >>> best_purchase(100, 1e4, sizes=[300, 300, 10], prices=[2.0, 9.0, 1.0], distance=[0.5] * 3, lam=1.0).tolist()
        [300.0, 0.0, 0.0]
        >>> best_purchase(100, 1e4, sizes=[300], prices=[2.0], distance=[1.0], lam=1.0).round().tolist()
        [192.0]
    """
    n, p, d = (np.asarray(a, np.float64) for a in (sizes, prices, distance))
    if n.ndim != 1 or p.shape != n.shape or d.shape != n.shape:
        raise ValueError(f"sizes, prices, distance: {n.shape}, {p.shape}, {d.shape}: must be [m] each")
    if not (budget >= 0 and 0 <= per_sample < np.inf):
        raise ValueError(f"budget, per_sample: {budget}, {per_sample}: must be at least 0, per_sample finite")
    m = len(n)
    apart = np.broadcast_to(np.r_[0.0, d], (m + 1, m + 1))  # only the buyer's row is read
    market = Market.of(apart, np.r_[own, n], np.r_[np.inf, p], np.r_[eagerness, np.zeros(m)], lam)
    minimum = np.r_[0.0, np.broadcast_to(np.asarray(least, np.float64), m)]
    while True:
        weights = _Buyer.of(market, per_sample).bought(budget)
        short = (weights > 0) & (market.costs + per_sample * weights < minimum)
        if not short.any():
            return weights[1:]
        market = replace(market, costs=np.where(short, np.inf, market.costs))


def on_sale(market: Market) -> NDArray[np.bool_]:
    """Return whose model (column) is on sale to whom (row), ``[m, m]``.

    A model is on sale if it is another client's, is offered, and is nearer than :data:`APART`.

    Args:
        market: its costs are infinite for models that are not offered.
    """
    offered = np.isfinite(market.costs)[None, :] & (market.distance < APART)
    return np.asarray(offered & ~np.eye(market.size, dtype=bool))


def sold(graph: Floats, sizes: Floats, tariff: Tariff, least: Floats) -> Floats:
    """Return the purchases without those that bring a seller less than the least it sells for.

    Args:
        graph: ``[k, m]``, with what share of its size each buyer wants each model.
        sizes: ``[m]``, the numbers of samples behind the models.
        tariff: the prices.
        least: ``[m]``, the lowest price of each seller, in tokens.
    """
    return np.where(tariff.due(graph, sizes) < least, 0.0, graph)


@dataclass(frozen=True)
class _Buyer:
    """One buyer before the offers of a market, nearest first; sets of offers name them by their places.

    Attributes:
        own: its number of samples.
        eagerness: K.
        clients: how many clients there are at the market.
        who: the offers' owners, ``[k]``.
        sizes: ``[k + 1]``, the last one 0, so that the place -1 is nobody.
        prices: ``[k + 1]``, likewise.
        loss: ``[k + 1]``, what each sample takes away by the distance and, where that is priced, costs.
        per_sample: what each costs.
    """

    own: float
    eagerness: float
    clients: int
    who: NDArray[np.int64]
    sizes: Floats
    prices: Floats
    loss: Floats
    per_sample: float

    @staticmethod
    def of(market: Market, per_sample: float) -> _Buyer:
        """Return the first client of a market as a buyer; costs are prices, infinite for what is not on sale."""
        own, K = float(market.sizes[0]), float(market.eagerness[0])
        # its own price is infinite; without eagerness nothing brings it anything
        who = np.flatnonzero(np.isfinite(market.costs) & (market.sizes > 0) & (K > 0))
        who = who[np.argsort(market.distance[0, who], kind="stable")]
        near = market.lam * market.distance[0, who] / own + per_sample if len(who) else np.zeros(0)
        sizes, prices, loss = (np.append(a, 0.0) for a in (market.sizes[who], market.costs[who], near))
        return _Buyer(own, K, market.size, who, sizes, prices, loss, per_sample)

    def weighed(self, some: NDArray[np.int64]) -> tuple[Floats, Floats]:
        """Return the best weights ``[c, k]`` of sets of places ``[c, k]``, nearest first, and what they bring."""
        size, loss = self.sizes[some], self.loss[some]
        with np.errstate(divide="ignore"):  # where the gain of one more sample, sqrt(K) y^-1.5 / 2, is its loss
            enough = np.cbrt((np.sqrt(self.eagerness) / 2 / loss) ** 2)
        weights = np.clip(enough - (self.own + np.cumsum(size, axis=1) - size), 0.0, size)
        lost = np.where(weights > 0, weights * loss, 0.0).sum(axis=1)
        brings = marginal(self.own, weights.sum(axis=1), self.eagerness)
        return weights, brings - self.prices[some].sum(axis=1) - lost

    def bought(self, budget: float) -> Floats:
        """Return the weights ``[clients]`` that bring it most."""
        held, now = np.zeros(0, np.int64), 0.0
        while True:
            for near in (_added, _exchanged):  # exchanges, of which there are many, only where nothing else brings more
                some = near(held, np.delete(np.arange(len(self.who)), held))
                worth = self.weighed(some)[1]
                if len(worth) and worth.max() > now + 1e-12 * (1 + abs(now)):
                    best = int(np.argmax(worth))
                    held, now = some[best][some[best] >= 0], float(worth[best])
                    break
            else:
                break
        while self.prices[held].sum() > budget:
            priced = np.flatnonzero(self.prices[held] > 0)
            without = np.array([np.delete(held, k) for k in priced])
            worth = self.weighed(without)[1]
            leaves = int(np.argmin((now - worth) / self.prices[held[priced]]))
            held, now = without[leaves], float(worth[leaves])
        found = np.zeros(self.clients)
        found[self.who[held]] = self._within(budget, held, self.weighed(held[None])[0][0])
        return found

    def _within(self, budget: float, held: NDArray[np.int64], weights: Floats) -> Floats:
        """Return the weights as far as the budget goes, nearest first; none at all if they then bring less than 0."""
        left = budget - float(self.prices[held].sum())
        if self.per_sample * weights.sum() <= left:
            return weights
        weights = np.clip(left / self.per_sample - (np.cumsum(weights) - weights), 0.0, weights)
        taken = held[weights > 0]
        brings = float(marginal(self.own, weights.sum(), self.eagerness))
        return np.asarray(weights * (brings > self.prices[taken].sum() + weights @ self.loss[held]))


def _added(held: NDArray[np.int64], others: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the sets with one more or one less, ``[c, k]`` in order; -1 is nobody."""
    more = np.column_stack((np.tile(held, (len(others), 1)), others))
    less = np.where(np.eye(len(held), dtype=bool), -1, held)
    return np.sort(np.vstack((more, np.column_stack((np.full(len(held), -1), less)))), axis=1)


def _exchanged(held: NDArray[np.int64], others: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the sets with one exchanged, ``[c, k]`` in order."""
    sets = np.tile(held, (len(held), len(others), 1))
    for k in range(len(held)):
        sets[k, :, k] = others
    return np.sort(sets.reshape(len(held) * len(others), len(held)), axis=1)
