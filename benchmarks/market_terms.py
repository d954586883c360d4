"""Why a claim of fewer samples than one has can pay at posted prices, and what would be left under a freer rule.

    python benchmarks/market_terms.py [MARKETS [paper|wide]]    # default 200 wide, seed 2026

A seller that says less is cheaper, and weighs less in eq. (8), so small buyers lose less by the distance. Each claim of
hanse.lab.attack_markets is played as it is, with the lower price alone, with the lower weight alone, and under a rule
by which every buyer imports a model at any weight up to its size for its whole price. Then a claim of less can only
take choices from a buyer, but for the price. Prints Markdown: for how many clients, and in how many markets, such a
claim brings more than 1 %, and the welfare net of distance beside today's rule.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from hanse.games.market import Market
from hanse.games.market_posted import Tariff, best_purchase
from hanse.lab.attack import LEAST
from hanse.lab.attack_markets import CLIENTS, FACTORS, KINDS, random_market

Floats = NDArray[np.float64]
Sets = list[dict[int, float]]  # of each buyer, by seller, with how many samples its model is imported
TARIFF = Tariff()


def offered(market: Market, price: Floats) -> Floats:
    """Return the prices of those who sell, infinite for the others."""
    return np.where(market.costs <= price, price, np.inf)


def taken(market: Market, price: Floats) -> Sets:
    """Return what everybody buys under today's rule."""
    found = []
    for i, n in enumerate(market.sizes):
        others = np.where(np.arange(market.size) == i, np.inf, price)
        buys = best_purchase(n, market.eagerness[i], market.sizes, others, market.distance[i], market.lam)
        found.append({j: float(market.sizes[j]) for j in np.flatnonzero(buys & np.isfinite(others)).tolist()})
    return found


def weighed(market: Market, buyer: int, price: Floats, sellers: tuple[int, ...]) -> tuple[float, dict[int, float]]:
    """Return what a set brings at its best weights, and these: the nearest models first, each while it pays."""
    n, K = market.sizes[buyer], market.eagerness[buyer]
    loss = market.lam * market.distance[buyer] / n  # a sample
    total, paid, weights = n, 0.0, {}
    for j in sorted(sellers, key=lambda j: loss[j]):
        enough = (0.5 * np.sqrt(K) / loss[j]) ** (2 / 3)  # where the gain of one more sample is its loss
        weights[j] = float(min(market.sizes[j], max(0.0, enough - total)))
        total, paid = total + weights[j], paid + price[j] + loss[j] * weights[j]
    return float(np.sqrt(K / n) - np.sqrt(K / total) - paid), weights


def taken_freely(market: Market, price: Floats) -> Sets:
    """Return what everybody buys where it chooses the weights, by single additions, removals and exchanges."""
    found: Sets = []
    for i in range(market.size):
        sellers = [j for j in range(market.size) if j != i and np.isfinite(price[j])] if market.eagerness[i] else []
        held: tuple[int, ...] = ()
        best, weights = 0.0, dict[int, float]()
        while True:
            options = [(weighed(market, i, price, some), some) for some in _near(held, sellers)]
            (now, after), some = max(options, key=lambda one: one[0][0], default=((best, weights), held))
            if now <= best + 1e-9:
                break
            held, best, weights = some, now, after
        found.append(weights)
    return found


def _near(held: tuple[int, ...], sellers: list[int]) -> Iterator[tuple[int, ...]]:
    """Yield the sets with one more, one less, and one exchanged."""
    for j in (None, *(j for j in sellers if j not in held)):
        for k in (None, *held):
            if (j, k) != (None, None):
                yield (*(one for one in held if one != k), *(() if j is None else (j,)))


def sales(found: Sets, price: Floats, market: Market, who: int) -> float:
    """Return what a seller earns less its costs."""
    buyers = sum(who in one for i, one in enumerate(found) if i != who)
    return buyers * float(price[who] - market.costs[who]) if buyers else 0.0


def utilities(found: Sets, price: Floats, market: Market) -> Floats:
    """Return everybody's utility net of distance, ``[m]``."""
    worth = np.zeros(market.size)
    for i, held in enumerate(found):
        n, K = market.sizes[i], market.eagerness[i]
        far = sum(price[j] + market.lam * market.distance[i, j] * w / n for j, w in held.items())
        worth[i] = np.sqrt(K / n) - np.sqrt(K / (n + sum(held.values()))) - far + sales(found, price, market, i)
    return worth


def main(markets: int = 200, kind: str = "wide") -> None:
    """Print the table."""
    draw, pays, touched, welfare = np.random.default_rng(2026), np.zeros(4), np.zeros(4), np.zeros(2)
    [named] = [one for one in KINDS if one == kind]
    for _ in range(markets):
        truth = random_market(named, draw)
        price = offered(truth, TARIFF.price(truth.sizes))
        before, free = taken(truth, price), taken_freely(truth, price)
        honest, freely = utilities(before, price, truth), utilities(free, price, truth)
        welfare += honest.sum(), freely.sum()
        paid = np.zeros((4, CLIENTS), bool)
        for who in range(CLIENTS):
            for factor in (f for f in FACTORS if f < 1):
                sizes = truth.sizes.copy()
                sizes[who] *= factor
                told, cheap = replace(truth, sizes=sizes), offered(truth, TARIFF.price(sizes))
                if not np.isfinite(cheap[who]):
                    continue
                now = [(taken(told, cheap), cheap), (taken(truth, cheap), cheap), (taken(told, price), price)]
                gains = [sales(one, p, truth, who) - sales(before, price, truth, who) for one, p in now]
                gains.append(sales(taken_freely(told, cheap), cheap, truth, who) - sales(free, price, truth, who))
                base = np.abs([honest[who]] * 3 + [freely[who]])
                paid[:, who] |= np.array(gains) > LEAST * base + 1e-9
        pays, touched = pays + paid.sum(axis=1), touched + paid.any(axis=1)
    print(f"\n| {markets} {kind} markets | clients | markets |\n|---|---|---|")
    for name, clients, some in zip(("claims", "price alone", "weight alone", "any weight"), pays, touched, strict=True):
        print(f"| {name} | {100 * clients / markets / CLIENTS:.2f} % | {some:.0f} |")
    print(f"\nWelfare at any weight: {100 * welfare[1] / welfare[0]:.1f} % of today's.")


if __name__ == "__main__":
    main(*(int(word) if word.isdigit() else word for word in sys.argv[1:3]))  # type: ignore[arg-type]
