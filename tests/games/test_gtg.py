"""GTG-Shapley step by step: truncation, stop rule, limits, batches."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import pytest
from games_cases import Batched, close, game

from hanse.games import shapley


def additive(c: frozenset[int]) -> float:
    return float(sum(i + 1 for i in c))


def swings(c: frozenset[int]) -> float:
    """Marginals of player 0 alternate between large and small, so its mean is slow to settle."""
    return 100.0 * (0 in c and 1 in c) - 99.0 * (0 in c and 2 in c) + 1.0 * len(c)


@pytest.mark.parametrize(("n", "used"), [(1, 19), (2, 20), (3, 21), (5, 20), (19, 19), (20, 20), (30, 30)])
def test_it_stops_after_the_first_complete_sweep_with_twenty_stored_values(n: int, used: int) -> None:
    # Running means of an additive game are right at once (the initial 0 has left the last ten by then).
    result = shapley.gtg(additive, n)
    assert result.converged
    assert result.permutations == used
    assert close(result.values, np.arange(1, n + 1), 1e-12)
    assert result.evaluations <= 2 + used * n


def test_values_are_unbiased_where_the_literal_recursion_is_not() -> None:
    v = np.random.default_rng(1).normal(size=16).tolist()
    right = shapley.exact(game(v), 4)
    for running, biased in (("permutation", False), ("sweep_literal", True)):
        one = partial(shapley.gtg, game(v), 4, eps=0.0, max_permutations=8, running=running)
        found = np.array([one(seed=s).values for s in range(800)])
        bias = np.abs(found.mean(axis=0) - right) / (found.std(axis=0) / math.sqrt(800))
        assert bias.max() > 6 if biased else bias.max() < 4


def test_a_negative_value_has_to_converge_too() -> None:
    # With a signed denominator, as the authors' code has it, a negative value would pass at once.
    signs = shapley.gtg(lambda c: -swings(c), 3, eps=0.0, max_permutations=60)
    same = shapley.gtg(swings, 3, eps=0.0, max_permutations=60)
    assert signs.permutations == same.permutations > 21
    assert signs.values.tolist() == (-same.values).tolist()


def test_limits_are_in_permutations_and_a_begun_sweep_is_finished() -> None:
    assert {shapley.gtg(swings, 3, eps=0.0, max_permutations=most).permutations for most in (4, 6)} == {6}
    noisy = np.random.default_rng(2).normal(size=16)
    noisy[-1] = noisy[0] + 0.01  # values near 0 do not settle to 1%
    result = shapley.gtg(game(noisy.tolist()), 4, eps=0.0)
    assert not result.converged
    assert result.permutations == 200


def test_given_sweeps_run_out() -> None:
    sweep = [[0, 1, 2], [1, 2, 0], [2, 0, 1]]
    for most, used in ((None, 6), (3, 3), (300, 6)):
        assert shapley.gtg(swings, 3, sweeps=[sweep] * 2, max_permutations=most).permutations == used


def test_between_round_truncation() -> None:
    result = shapley.gtg(lambda c: 5.0 + (len(c) == 1), 3)
    assert result.truncated_between
    assert result.values.tolist() == [0, 0, 0]
    assert (result.evaluations, result.distinct, result.permutations) == (2, 2, 0)
    assert not result.converged
    # The threshold is strict.
    assert not shapley.gtg(lambda c: float(len(c) == 2), 2, eps=1.0).truncated_between


def test_truncated_players_get_nothing_and_are_not_evaluated() -> None:
    value = Batched(lambda c: 1.0 if c else 0.0)
    result = shapley.gtg(value, 4, max_permutations=4)
    assert close(result.values, [0.25] * 4, 1e-15)
    assert result.evaluations == 2 + 4
    assert (result.distinct, result.cut) == (2 + 4, 4)  # the single players, nobody and everybody
    assert max(len(c) for batch in value.batches[1:] for c in batch) == 1


def test_a_truncated_value_is_not_remembered_for_its_coalition() -> None:
    # Player 0 alone is within eps of everybody; {1, 0} is not known from it, and is worth something else.
    v = {frozenset(): 0.0, frozenset({0}): 1.0, frozenset({1}): 0.0, frozenset({0, 1}): 1.05}
    result = shapley.gtg(v.__getitem__, 2, eps=0.1, max_permutations=2)
    assert close(result.values, [(1.0 + 1.05) / 2, 0.0], 1e-15)
    assert result.cut == 0  # of the one that is left it is known: less than eps


def test_one_call_a_level_for_all_sweeps_that_are_sure_to_be_needed() -> None:
    value = Batched(additive)
    result = shapley.gtg(value, 3)
    # Seven sweeps of 3 reach 20 stored values: v(empty) and v(full), the singles, the pairs.
    assert result.permutations == 21
    assert [sorted(map(len, batch)) for batch in value.batches] == [[0, 3], [1, 1, 1], [2, 2, 2]]


@pytest.mark.parametrize(
    ("rule", "given", "batches"),
    [
        (shapley.exact, (5,), [32]), (shapley.exact, (13,), [4096, 4096]), (shapley.leave_one_out, (5,), [6]),
        (shapley.monte_carlo, (4, 500), [2, 4, 6, 4]),
    ],
)  # fmt: skip
def test_exact_and_monte_carlo_batches(rule: Any, given: tuple[int, ...], batches: list[int]) -> None:
    value = Batched(additive)
    rule(value, *given)
    assert [len(batch) for batch in value.batches] == batches


@pytest.mark.parametrize(("n", "used"), [(3, 21), (7, 21), (20, 20)])
def test_the_mean_over_clients_settles_at_the_first_check(n: int, used: int) -> None:
    """As the authors' code stops: a permutation's values sum to v(N) - v({}), so their mean never moves."""
    draw = np.random.default_rng(n)
    gains = draw.normal(size=n)

    def worth(coalition: frozenset[int]) -> float:
        return float(sum(gains[list(coalition)])) ** 3 if coalition else 0.0

    one = shapley.gtg(worth, n, eps=0.0, seed=1, stop="mean")
    assert (one.permutations, one.converged) == (used, True)
    assert shapley.gtg(worth, n, eps=0.0, seed=1, max_permutations=40 * n).permutations > used
    with pytest.raises(ValueError, match="stop is 'first'; allowed: every, mean"):
        shapley.gtg(worth, n, stop="first")  # type: ignore[arg-type]
