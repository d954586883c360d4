"""iPFL's theorems on random markets, under the readings' conditions; bad input."""

from __future__ import annotations

import numpy as np
import pytest
from games_cases import best_graph

from hanse.games import market
from hanse.games.market import Market, local_optimality


def random_market(rng: np.random.Generator, m: int) -> Market:
    """All kinds: the paper's scale, mixed sizes, free sellers, buyers who never sell, equal models."""
    small = rng.random() < 0.3
    n = np.ceil(np.exp(rng.uniform(0, 5, m))) if small else rng.integers(500, 6000, m).astype(float)
    K = np.where(rng.random(m) < 0.25, 0.0, n.mean() * rng.uniform(20, 150, m))
    c = np.where(rng.random(m) < 0.2, np.inf, rng.choice([0.0, 0.5, 1.0, 2.0], m) * rng.random(m))
    d = rng.random((m, m)) * rng.choice([0.2, 1.0, 2.0])
    d = np.where(rng.random((m, m)) < 0.1, 0.0, (d + d.T) / 2)
    np.fill_diagonal(d, 0.0)
    return Market.of(d, n, c, K, float(rng.choice([0.0, 0.1, 1.0, 2.0])))


def parts(given: Market) -> tuple:
    return given.distance, given.sizes, given.costs, given.eagerness, given.lam


def check(given: Market, rng: np.random.Generator) -> None:
    args = d, n, c, K, lam = parts(given)
    graph = market.learn_graph(*args)
    paid = market.payments(graph, *args)
    scale = 1e-9 * (1 + np.sqrt(K / n).sum())
    utility = market.utilities(graph, *args)
    assert (utility >= -scale).all()  # Theorem 1
    bound = np.where(graph, given.similarity(slice(0, len(n))), 0.0).sum(axis=1)
    assert (utility >= bound - scale).all()  # papers.md I7
    assert (paid >= np.where(graph, np.where(np.isinf(c), 0, c)[None, :], 0.0) - scale).all()
    assert abs(utility.sum() - market.social_welfare(graph, n, c, K)) <= scale  # budget balance, eq. (3)
    removal, addition = local_optimality(given, graph)
    assert removal < scale
    assert addition <= scale
    np.testing.assert_array_equal(market.learn_graph(d, 2.0**-20 * n, c, 2.0**-20 * K, lam), graph)  # in other units
    liar = int(rng.integers(len(n)))
    claimed = c.copy()
    claimed[liar] = c[liar] + rng.exponential(0.5) if rng.random() < 0.8 else np.inf
    lied = market.learn_graph(d, n, claimed, K, lam)
    assert (lied[:, liar] <= graph[:, liar]).all()  # Lemma 2
    kept = lied[:, liar] == graph[:, liar]
    assert (lied[kept] == graph[kept]).all()  # eq. (15)
    lying = market.utilities_of(lied, market.payments(lied, d, n, claimed, K, lam), n, c, K)
    assert lying[liar] <= utility[liar] + scale  # Theorem 3
    huge = n.copy()
    huge[liar] = 1e15
    apart = d.copy()
    apart[:, liar] = np.maximum(d[:, liar], 1e-3)
    absurd = market.learn_graph(apart, huge, c, K, max(lam, 0.1))
    assert not np.delete(absurd[:, liar], liar).any()  # Theorem 4


def test_theorems_on_random_markets() -> None:
    rng = np.random.default_rng(7)
    for _ in range(250):
        check(random_market(rng, int(rng.integers(1, 11))), rng)


@pytest.mark.parametrize(
    "part", [pytest.param(i, marks=pytest.mark.slow if i < 4 else pytest.mark.soak) for i in range(20)]
)
def test_theorems_on_100_000_random_markets(part: int) -> None:
    rng = np.random.default_rng([8, part])
    for _ in range(5_000):
        check(random_market(rng, int(rng.integers(1, 11))), rng)


def by_double_loop(given: Market, stop: str) -> np.ndarray:
    """Algorithm 2, one client and one seller at a time; as printed the visit ends ("break") where a seller does not
    pay.
    """
    d, n, c, K, lam = parts(given)
    m = len(n)
    A = np.zeros((m, m), int)
    for i in range(m):
        price = {j: c[j] + lam * n[j] / n[i] * d[i, j] for j in range(m) if j != i}
        limit = {j: float(market.threshold(n[i], n[j], K[i], r)) for j, r in price.items()}
        total = 0.0
        for j in sorted(limit, key=lambda j: (-limit[j], j)):
            worth = np.sqrt(K[i] / (n[i] + total)) - np.sqrt(K[i] / (n[i] + total + n[j]))
            if worth > price[j]:
                A[i, j] = 1
                total += n[j]
            elif stop == "break":
                break
    return A


@pytest.mark.parametrize("stop", ["skip", "break"])
def test_the_vectorised_graph_is_that_of_the_plain_loop(stop: market.Stop) -> None:
    rng = np.random.default_rng(10)
    for m in [2, 5, 20] * 10:
        given = random_market(rng, m)
        graph = market.learn_graph(*parts(given), stop)
        assert graph.tolist() == by_double_loop(given, stop).tolist()
        assert local_optimality(given, graph)[0] <= 1e-9  # no import too many; by "break" there may be one too few


def test_a_large_seller_that_never_pays_ends_the_visit() -> None:
    # client 0 would buy the small model of client 1; the large one of client 2 has the higher threshold and never pays
    args = np.zeros((3, 3)), [100, 50, 10000], [0.1, 1.0, 10.0], [1e4, 0, 0], 1.0
    assert market.learn_graph(*args).tolist() == [[0, 1, 0], [0, 0, 0], [0, 0, 0]]
    assert market.learn_graph(*args, "break").sum() == 0


def test_blocks_of_buyers_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    given = random_market(np.random.default_rng(11), 30)
    graph = market.learn_graph(*parts(given))
    paid = market.payments(graph, *parts(given))
    monkeypatch.setattr(market, "_BLOCK", 64)
    assert np.array_equal(market.learn_graph(*parts(given)), graph)
    assert np.array_equal(market.payments(graph, *parts(given)), paid)


def test_algorithm_2_against_brute_force() -> None:
    rng = np.random.default_rng(12)
    worse = found = 0
    lost = []
    for _ in range(60):
        given = random_market(rng, int(rng.integers(2, 8)))
        args = parts(given)
        phi = market.objective(market.learn_graph(*args), *args)
        best = best_graph(*args)[1]
        assert (best <= phi + 1e-9).all()
        assert (phi <= 1e-12).all()
        found += len(phi)
        worse += int((phi > best + 1e-9).sum())
        lost += [1 - p / b for p, b in zip(phi, best, strict=True) if b < -1e-9]
    assert worse / found < 0.15  # locally optimal, and mostly globally
    assert np.mean(lost) < 0.02


GOOD = {"distance": np.zeros((2, 2)), "sizes": [10, 20], "costs": [0, 1], "eagerness": [5, 5], "lam": 1.0}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"sizes": [-1, 20]}, "sizes: -1"), ({"costs": [0, -0.5]}, "costs: -0.5"), ({"lam": -1.0}, "lam: -1"),
        ({"eagerness": [5, -2]}, "eagerness: -2"), ({"distance": [[0, np.nan], [1, 0]]}, "distance: nan"),
        ({"lam": float("nan")}, "lam: nan"), ({"distance": [[0, -0.5], [1, 0]]}, "distance: -0.5"),
        ({"sizes": [0, 20]}, "at least 1"), ({"sizes": [np.inf, 20]}, "finite"), ({"distance": np.eye(3)}, "must be"),
    ],
)  # fmt: skip
def test_bad_input_is_refused_in_one_line(changed: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        market.learn_graph(**{**GOOD, **changed})
    assert "\n" not in str(caught.value)


def test_graphs_that_are_none_are_refused() -> None:
    with pytest.raises(ValueError, match="imports itself"):
        market.payments(np.eye(2), **GOOD)
    with pytest.raises(ValueError, match=r"must be \[2, 2\]"):
        market.utilities(np.zeros((3, 3)), **GOOD)
    with pytest.raises(ValueError, match=r"at least 1 sample|not defined"):
        market.gain(0, 10, 1.0)
