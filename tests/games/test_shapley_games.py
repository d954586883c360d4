"""Games whose values are known in closed form, and brute force."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from games_cases import by_definition, close, game

from hanse.games import shapley


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 6])
def test_exact_is_the_mean_over_all_orders(n: int) -> None:
    v = np.random.default_rng(n).normal(size=2**n).tolist()
    assert close(shapley.exact(game(v), n), by_definition(game(v), n), 1e-13)


@pytest.mark.parametrize("n", [1, 2, 4, 5])
def test_tables_against_sums_over_coalitions(n: int) -> None:
    v = np.random.default_rng(10 + n).integers(-9, 9, size=2**n).tolist()
    value = game(v)
    for weigh, values in [
        (lambda s: Fraction(1, n * math.comb(n - 1, s)), shapley.shapley_from_table(v)),
        (lambda s: Fraction(1, 2 ** (n - 1)), shapley.banzhaf_from_table(v)),
        (lambda s: Fraction(s == n - 1), shapley.semivalue_from_table(v, [0.0] * (n - 1) + [1.0])),
    ]:
        for i in range(n):
            others = [k for k in range(n) if k != i]
            total = sum(
                weigh(size) * (value(frozenset(c) | {i}) - value(frozenset(c)))
                for size in range(n)
                for c in itertools.combinations(others, size)
            )
            assert close(values[i], float(total), 1e-13)


def test_monte_carlo_finds_the_value_within_its_standard_errors() -> None:
    v = np.random.default_rng(5).normal(size=32).tolist()
    result = shapley.monte_carlo_result(game(v), 5, 4000, seed=11)
    gap = np.abs(result.values - shapley.exact(game(v), 5))
    assert (gap < 4 * result.standard_errors).all()
    assert (result.standard_errors < 0.05).all()
    assert (result.evaluations, result.distinct, result.permutations) == (1 + 4000 * 5, 32, 4000)


def test_standard_errors_of_monte_carlo_by_hand() -> None:
    # Unanimity of two: a player's marginals are 0 and 1 in the two orders; s.d. sqrt(1/2), n = 2.
    result = shapley.monte_carlo_result(lambda c: float(len(c) == 2), 2, [[0, 1], [1, 0]])
    assert close(result.values, [0.5, 0.5], 1e-15)
    assert close(result.standard_errors, [0.5, 0.5], 1e-15)
    single = shapley.monte_carlo_result(lambda c: float(len(c) == 2), 2, [[0, 1]])
    assert np.isnan(single.standard_errors).all()


def test_a_seed_is_a_key_and_a_generator_is_used_as_it_is() -> None:
    v = np.random.default_rng(3).normal(size=64).tolist()
    draws = [shapley.monte_carlo(game(v), 6, 5, seed=s) for s in (0, 0, 1)]
    assert draws[0].tolist() == draws[1].tolist() == shapley.monte_carlo(game(v), 6, 5).tolist()
    assert draws[0].tolist() != draws[2].tolist()
    own = [shapley.monte_carlo(game(v), 6, 5, seed=np.random.default_rng(9)) for _ in range(2)]
    assert own[0].tolist() == own[1].tolist()
    assert shapley.gtg(game(v), 6, seed=2).values.tolist() == shapley.gtg(game(v), 6, seed=2).values.tolist()
    assert shapley.gtg(game(v), 6, seed=2).values.tolist() != shapley.gtg(game(v), 6, seed=3).values.tolist()
