"""The error of the draw of the validation samples: the jackknife against closed forms, and along sampled walks."""

import numpy as np
import pytest
from games_cases import Batched

from hanse.games import shapley
from hanse.games.jackknife import interval_errors, jackknife_errors


def test_of_a_mean_the_jackknife_is_the_textbook_standard_error() -> None:
    draw = np.random.default_rng(3)
    samples = draw.normal(size=400)
    blocks = samples.reshape(20, 20)
    without = (samples.sum() - blocks.sum(axis=1)) / 380
    # the standard error of a mean of 20 block means
    textbook = blocks.mean(axis=1).std(ddof=1) / np.sqrt(20)
    assert jackknife_errors(without) == pytest.approx(textbook, rel=1e-12)


def test_fewer_than_two_blocks_say_nothing() -> None:
    assert np.isnan(jackknife_errors(np.ones((3, 1)))).all()
    assert np.isnan(jackknife_errors(np.zeros((3, 0)))).all()


def squares(c: frozenset[int]) -> float:
    return sum((k + 1) ** 2 for k in c) + 0.1 * len(c) ** 2


@pytest.mark.parametrize("n", [1, 2, 5])
def test_another_utility_along_the_same_permutations_is_that_of_its_own_walk(n: int) -> None:
    permutations = [np.random.default_rng(p).permutation(n).tolist() for p in range(7)]
    game = Batched(lambda c: float(np.sqrt(sum(k + 1 for k in c))))
    found = shapley.monte_carlo_result(game, n, permutations)
    assert found.walks is not None
    worth = np.array([squares(c) for c in game.asked])
    want = shapley.monte_carlo(squares, n, permutations)
    np.testing.assert_allclose(found.walks.values(worth[: found.distinct]), want, rtol=1e-12)


def test_walks_of_gtg_give_its_own_values_and_keep_its_truncation() -> None:
    # the third player finds everything known already, so that permutations are cut short
    game = Batched(lambda c: min(len(c), 2) / 2 + 1e-6 * len(c))
    found = shapley.gtg(game, 4, eps=1e-3, seed=1)
    assert found.walks is not None
    values = found.walks.values(np.array([game.value(c) for c in game.asked]))
    np.testing.assert_allclose(values, found.values, rtol=0, atol=1e-12)
    assert found.distinct < 2**4  # some coalitions were never asked for
    assert found.cut == found.permutations


def test_an_interval_of_196_errors_covers_95_percent():
    # means of 20 blocks of standard normal numbers; 1.96 plain errors cover 93.5 % of them
    blocks = np.random.default_rng(0).normal(size=(40_000, 20))
    without = (blocks.sum(1, keepdims=True) - blocks) / 19
    covered = np.abs(blocks.mean(1)) <= 1.96 * interval_errors(without)
    assert covered.mean() == pytest.approx(0.95, abs=0.004)
    assert interval_errors(np.array([1.0, 3.0])) == pytest.approx(12.7062 / 1.96 * 1.0, rel=1e-4)
    assert np.isnan(interval_errors(np.ones((3, 1)))).all()
