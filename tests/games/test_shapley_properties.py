"""The axioms of the Shapley value, and what sampling and batching must not change."""

from __future__ import annotations

import numpy as np
from games_cases import Batched, close, game
from hypothesis import given, settings
from hypothesis import strategies as st

from hanse.games import shapley

numbers = st.floats(-100, 100, allow_nan=False)


@st.composite
def tables(draw: st.DrawFn, min_players: int = 1, max_players: int = 5) -> list[float]:
    n = draw(st.integers(min_players, max_players))
    return draw(st.lists(numbers, min_size=2**n, max_size=2**n))


def size(v: list[float]) -> int:
    return len(v).bit_length() - 1


@given(tables())
def test_efficiency(v: list[float]) -> None:
    assert close(shapley.exact(game(v), size(v)).sum(), v[-1] - v[0], 1e-10)


@given(tables(min_players=2), st.data())
def test_symmetry(v: list[float], data: st.DataObject) -> None:
    i, j = data.draw(st.permutations(range(size(v))))[:2]

    def swap(mask: int) -> int:
        a, b = mask >> i & 1, mask >> j & 1
        return mask & ~(1 << i) & ~(1 << j) | b << i | a << j

    even = [(v[mask] + v[swap(mask)]) / 2 for mask in range(len(v))]
    for values in (shapley.exact(game(even), size(v)), shapley.banzhaf(game(even), size(v))):
        assert close(values[i], values[j], 1e-10)


@given(tables(), st.data())
def test_null_player(v: list[float], data: st.DataObject) -> None:
    i = data.draw(st.integers(0, size(v) - 1))
    without = [v[mask & ~(1 << i)] for mask in range(len(v))]
    for rule in (shapley.exact, shapley.banzhaf, shapley.leave_one_out):
        assert rule(game(without), size(v))[i] == 0


@given(tables(), numbers, numbers, st.integers(0, 2**32))
def test_linearity(v: list[float], a: float, b: float, seed: int) -> None:
    n = size(v)
    w = np.random.default_rng(seed).normal(size=len(v))
    mixed = (a * np.array(v) + b * w).tolist()
    for rule in (shapley.exact, shapley.banzhaf, shapley.leave_one_out):
        apart = a * rule(game(v), n) + b * rule(game(w.tolist()), n)
        assert np.abs(rule(game(mixed), n) - apart).max() < 1e-8


@given(tables(), st.data())
def test_anonymity(v: list[float], data: st.DataObject) -> None:
    n = size(v)
    names = data.draw(st.permutations(range(n)))
    renamed = shapley.exact(lambda c: game(v)(frozenset(names[i] for i in c)), n)
    assert close(renamed, shapley.exact(game(v), n)[list(names)], 1e-10)


@given(tables(), st.data())
def test_every_permutation_shares_out_the_whole(v: list[float], data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(size(v))))
    assert close(shapley.monte_carlo(game(v), size(v), [order]).sum(), v[-1] - v[0], 1e-10)


@settings(max_examples=40, deadline=None)
@given(tables(), st.floats(0, 50), st.integers(0, 2**32), st.integers(1, 40))
def test_gtg_shares_out_the_whole_up_to_eps(v: list[float], eps: float, seed: int, limit: int) -> None:
    n = size(v)
    result = shapley.gtg(game(v), n, eps=eps, max_permutations=limit, seed=seed)
    assert abs(result.values.sum() - (v[-1] - v[0])) <= eps + 1e-9
    assert result.truncated_between is (abs(v[-1] - v[0]) < eps)
    if not result.truncated_between:
        assert result.permutations % n == 0
        assert result.permutations < limit + n
        assert result.converged or result.permutations >= limit


@settings(max_examples=40, deadline=None)
@given(tables(), st.sampled_from([0.0, 1e-4, 1.0, 30.0]), st.integers(0, 2**32))
def test_batches_change_nothing(v: list[float], eps: float, seed: int) -> None:
    n, value, batched = size(v), game(v), Batched(game(v))
    for rule in (shapley.exact, shapley.banzhaf, shapley.leave_one_out):
        assert rule(batched, n).tolist() == rule(value, n).tolist()
    sampled = [shapley.monte_carlo_result(u, n, 7, seed) for u in (batched, value)]
    guided = [shapley.gtg(u, n, eps=eps, max_permutations=30, seed=seed) for u in (batched, value)]
    for together, apart in (sampled, guided):
        assert together.values.tolist() == apart.values.tolist()
        assert together.evaluations == apart.evaluations
        assert together.distinct == apart.distinct
        assert together.permutations == apart.permutations
    assert guided[0].converged is guided[1].converged


@given(tables(min_players=2), st.integers(0, 2**32))
def test_sampling_evaluates_no_coalition_twice(v: list[float], seed: int) -> None:
    for run in (
        lambda u: shapley.monte_carlo_result(u, size(v), 20, seed),
        lambda u: shapley.gtg(u, size(v), max_permutations=20, seed=seed),
    ):
        value = Batched(game(v))
        result = run(value)
        assert len(value.asked) == len(set(value.asked)) == result.distinct


@given(tables(), st.integers(0, 2**32))
def test_first_order_is_linear_in_the_gradient_and_sums_to_zero(v: list[float], seed: int) -> None:
    draw = np.random.default_rng(seed)
    S, P = size(v), 6
    grad, other, W = draw.normal(size=P), draw.normal(size=P), draw.normal(size=(S, P))
    lam = draw.dirichlet(np.ones(S))
    values = shapley.first_order(grad, W, lam)
    assert abs(values.sum()) < 1e-12
    both = shapley.first_order(grad + other, W, lam)
    assert close(both, values + shapley.first_order(other, W, lam), 1e-12)
    # Eq. (2), unlike eq. (1), does not depend on the origin of the parameters.
    assert close(shapley.first_order(grad, W + 3.0, lam), values, 1e-11)
