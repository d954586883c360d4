"""Posted prices: the buyer's set against brute force, and what lies bring beside eq. (10)."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, product

import numpy as np
import pytest
from scipy.optimize import minimize_scalar

from hanse.games.market import Market, best_imports, gain, prices, utilities_of
from hanse.games.market_posted import Tariff, best_purchase, sold


def random_market(draw: np.random.Generator, m: int = 8) -> Market:
    """A market of the paper's ranges; four in five clients buy."""
    distance = np.triu(draw.uniform(0, 1, (m, m)), 1)
    eagerness = np.where(draw.random(m) < 0.8, draw.uniform(3e5, 6e5, m), 0.0)
    return Market.of(
        distance + distance.T, draw.uniform(2500, 5500, m).round(), draw.uniform(0.5, 1, m), eagerness, 2.0
    )


def posted_imports(market: Market, tariff: Tariff, buyer: int | None = None) -> np.ndarray:
    """Who imports whose model, with what share of its size, if everybody acts on the true numbers."""
    sizes = market.sizes
    offered = np.where(market.costs <= tariff.price(sizes), tariff.flat, np.inf)
    bought = [
        best_purchase(
            sizes[i], market.eagerness[i], sizes, np.where(np.arange(market.size) == i, np.inf, offered),
            market.distance[i], market.lam, per_sample=tariff.per_sample, least=market.costs,
        )
        for i in (range(market.size) if buyer is None else (buyer,))
    ]  # fmt: skip
    return sold(np.array(bought) / sizes, sizes, tariff, market.costs)


def utility(market: Market, truth: Market, graph: np.ndarray, paid: np.ndarray) -> np.ndarray:
    """True utilities, less what eq. (8) says that far models take away."""
    apart = np.where(graph != 0, truth.similarity(slice(0, truth.size)), 0.0).sum(axis=1)
    return utilities_of(graph, paid, truth.sizes, truth.costs, truth.eagerness) - apart


def test_a_lie_about_cost_pays_under_eq_10_and_never_at_posted_prices() -> None:
    """Sizes are committed, and eagerness is not declared: the cost is what is left to lie about."""
    pays = 0
    for seed in range(10):
        truth, tariff = random_market(np.random.default_rng(100 + seed)), Tariff()
        graph = posted_imports(truth, tariff)
        honest = utility(truth, truth, graph, tariff.due(graph, truth.sizes))
        marginal = utility(truth, truth, best_imports(truth), prices(truth, best_imports(truth)))
        assert (honest >= -1e-9).all()  # nobody honest loses
        for who in range(8):
            for factor in (0.1, 0.5, 0.8, 1.25, 2.0, 10.0):
                costs = truth.costs.copy()
                costs[who] *= factor
                said = replace(truth, costs=costs)
                graph = posted_imports(said, tariff)
                assert utility(said, truth, graph, tariff.due(graph, truth.sizes))[who] <= honest[who] + 1e-9
                graph = best_imports(said)
                pays += utility(said, truth, graph, prices(said, graph))[who] > marginal[who] * 1.01
    assert pays > 20


def best_by_brute_force(market: Market, i: int, price: np.ndarray, offers: list[int], per_sample: float = 0.0) -> float:
    """What the best set at its best weights brings buyer i: for each set the best total, filled nearest first."""
    n, far, best = market.sizes, market.lam * market.distance[i] / market.sizes[i] + per_sample, 0.0
    for some in (s for k in range(1, len(offers) + 1) for s in combinations(sorted(offers, key=lambda j: far[j]), k)):

        def loses(total: float, some: tuple[int, ...] = some) -> float:
            filled = np.clip(total - np.cumsum([0.0, *n[list(some)]])[:-1], 0, n[list(some)])
            return float((far[list(some)] * filled).sum()) - float(gain(n[i], total, market.eagerness[i]))

        most, paid = float(n[list(some)].sum()), float(price[list(some)].sum())
        found = minimize_scalar(loses, bounds=(0, most), method="bounded", options={"xatol": 1e-6})
        best = max(best, -found.fun - paid, -loses(most) - paid)
    return best


def wide_market(draw: np.random.Generator) -> Market:
    """Sizes within a factor of 35, so that many models are too large for those who are far from them."""
    market = random_market(draw, 6)
    return replace(market, sizes=np.exp(draw.uniform(np.log(200), np.log(7000), 6)))


@pytest.mark.parametrize("tariff", [Tariff(), Tariff(0.3, 0.4), Tariff(0.8, 0.0)])
def test_weights_are_the_best_by_brute_force(tariff: Tariff) -> None:
    parts = 0
    for seed, i in product(range(6), range(6)):
        market = wide_market(np.random.default_rng(seed))
        offers = [j for j in range(6) if j != i and market.costs[j] <= tariff.price(market.sizes)[j]]
        asked, each = np.full(6, tariff.flat), tariff.per_sample
        prices = np.where(np.isin(np.arange(6), offers), asked, np.inf)
        buyer = market.sizes[i], market.eagerness[i], market.sizes, prices, market.distance[i], 2.0
        w = best_purchase(*buyer, per_sample=each)
        graph = w / market.sizes
        brings = float(gain(market.sizes[i], w.sum(), market.eagerness[i]))
        paid = tariff.due(graph[None], market.sizes).sum()
        assert paid == pytest.approx(asked[w > 0].sum() + each * w.sum())
        net = brings - paid - market.lam * float(w @ market.distance[i]) / market.sizes[i]
        assert net == pytest.approx(best_by_brute_force(market, i, asked, offers, each), abs=1e-5)
        graph = posted_imports(market, tariff)
        parts += int(((graph[i] > 0) & (graph[i] < 1)).sum())
    assert parts > 2


def test_a_budget_is_kept_and_the_best_for_the_money_stays() -> None:
    bought = best_purchase(100, 1e4, [300, 300], [2.0, 1.0], [0.0, 0.0], 1.0, budget=2.5)
    assert bought.tolist() == [0.0, 300.0]
    assert not best_purchase(100, 1e4, [300, 300], [2.0, 1.0], [0.0, 0.0], 1.0, budget=0.0).any()
    assert best_purchase(100, 1e4, [300], [0.0], [0.0], 1.0, budget=0.0).all()
    # by weight, 2 tokens buy 1 + 1,000 / 1,000 of the larger one; 1.01 buy 10 samples, which do not bring that much
    both = ([300, 3000], [1.0, 1.0], [0.0, 0.0], 1.0)
    assert best_purchase(100, 1e4, *both, budget=2.0, per_sample=1e-3) == pytest.approx([0.0, 1000.0])
    assert not best_purchase(100, 1e4, *both, budget=1.01, per_sample=1e-3).any()
    # what the budget leaves nothing for is not paid for: 10 samples bring .47, and one flat price is .3
    both = ([300, 500], [0.3, 0.3], [0.0, 0.0], 1.0)
    assert best_purchase(100, 1e4, *both, budget=0.61, per_sample=1e-3) == pytest.approx([10.0, 0.0])
    assert best_purchase(100, 1e4, [300], [0.0], [0.0], 1.0, budget=0.1, per_sample=1e-3) == pytest.approx([100.0])
    with pytest.raises(ValueError, match="must be"):
        best_purchase(100, 1e4, [300, 300], [2.0], [0.0, 0.0], 1.0)


def test_what_would_not_be_sold_is_left_and_the_best_of_the_rest_is_bought() -> None:
    """Nobody is baited by a seller whose least price is just below the full one, and nobody buys more to reach it."""
    tariff, baits = Tariff(), 0
    for seed in range(20):
        truth = wide_market(np.random.default_rng(seed))
        for i in range(6):
            wants = posted_imports(replace(truth, costs=np.zeros(6)), tariff, i)[0]
            for j in np.flatnonzero((wants > 0) & (wants < 1)):
                least = np.where(np.arange(6) == j, 0.999 * tariff.price(truth.sizes), 0.0)
                without = np.where(np.arange(6) == j, np.inf, 0.0)
                if tariff.due(wants[None], truth.sizes)[0, j] < least[j]:
                    rest = posted_imports(replace(truth, costs=without), tariff, i)[0]
                    assert posted_imports(replace(truth, costs=least), tariff, i)[0].tolist() == rest.tolist()
                    baits += 1
    assert baits > 10


@pytest.mark.parametrize("tariff", [Tariff(), Tariff(0.75, 0.0)])
def test_no_claim_of_less_sells_more_and_no_least_price_but_the_cost_pays(tariff: Tariff) -> None:
    """A smaller size takes choices from buyers and changes no price; whom a least price turns away is gone."""
    refused = 0
    for seed in range(8):
        truth = wide_market(np.random.default_rng(seed))

        def earns(said: Market, who: int, truth: Market = truth) -> float:
            graph = posted_imports(said, tariff)
            graph[who] = 0.0
            due = tariff.due(graph, said.sizes)[:, who]
            return float(due.sum() - truth.costs[who] * (due > 0).sum())

        for who in range(6):
            honest = earns(truth, who)
            assert honest >= 0
            here = np.arange(6) == who
            for factor in (0.1, 0.3, 0.5, 0.8, 0.95):
                said = replace(truth, sizes=np.where(here, factor * truth.sizes, truth.sizes))
                assert earns(said, who) <= honest + 1e-9
            for factor in (0.0, 0.5, 0.9, 1.1, 1.5, 3.0):
                said = replace(truth, costs=np.where(here, factor * truth.costs, truth.costs))
                assert earns(said, who) <= honest + 1e-9
        free = posted_imports(replace(truth, costs=np.zeros(6)), tariff) > 0
        refused += int((free & (posted_imports(truth, tariff) == 0)).sum())
    assert refused > 2
