"""Sums of values over rounds: what is sure of them is the near end of the 95 % interval."""

import numpy as np
import pytest
from scipy.stats import t

from hanse.games.jackknife import SURE
from hanse.mechanisms.value_sums import ValueSums


def sums(worth: list[float], error: float, without: list[list[float]] | None, rounds: int = 1) -> ValueSums:
    """Return the sums after ``rounds`` equal rounds in which each of m clients had a seat."""
    arrays = {"value": np.array(worth), "value_error": np.full(len(worth), error)}
    arrays |= {} if without is None else {"value_without_block": np.array(without)}
    found = ValueSums.nothing(len(worth))
    for _ in range(rounds):
        found = found.plus(np.arange(len(worth)), arrays)
    return found


@pytest.mark.parametrize("rounds", [1, 4])
def test_errors_of_sampling_add_up_as_variances(rounds: int) -> None:
    """A worth that comes again grows with the rounds, its error with their root."""
    found = sums([1.0, 0.1, -1.0], 0.1, [[1.0] * 4, [0.1] * 4, [-1.0] * 4], rounds)
    error = SURE * 0.1 * np.sqrt(rounds)
    np.testing.assert_allclose(found.sure(), [rounds - error, max(0, 0.1 * rounds - error), -rounds + error])


def test_the_draw_of_samples_counts_by_blocks_as_a_jackknife() -> None:
    without = np.array([1.0, 1.2, 0.8, 1.0])
    error = np.sqrt(3 / 4 * ((without - 1) ** 2).sum()) * t.ppf(0.975, 3)
    np.testing.assert_allclose(sums([1.0], 0.0, [without.tolist()], 3).sure(), [3 - 3 * error])


@pytest.mark.parametrize(("error", "without"), [(np.inf, [[1.0] * 4]), (np.nan, [[1.0] * 4]), (0.0, None)])
def test_without_errors_nothing_is_sure(error: float, without: list[list[float]] | None) -> None:
    assert sums([1.0], error, without).sure().tolist() == [0.0]


def test_several_clients_of_one_member_have_one_sum() -> None:
    found = sums([1.0, -3.0, 5.0], 0.1, [[1.0, 1.2], [-3.0, -2.8], [5.0, 5.0]]).of_all(np.array([0, 1]))
    assert (found.worth.tolist(), found.variance.round(9).tolist()) == ([-2.0], [0.02])
    np.testing.assert_allclose(found.without, [[-2.0, -1.6]])
