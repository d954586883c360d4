"""Sums of values over rounds: what is sure of them is the near end of the 95 % interval, and may alone be paid."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from experiments import digits
from hypothesis import given, settings
from hypothesis import strategies as some
from scipy.stats import t

import hanse
from hanse.core.entry import TOKEN
from hanse.core.part import Context
from hanse.games.jackknife import SURE
from hanse.ledger.run_ledger import reading, wrong_in
from hanse.mechanisms.by_value import ByValue
from hanse.mechanisms.value_sums import ValueSums, matched
from hanse.runs.recomputable import validation_file
from hanse.runs.recompute import recompute
from hanse.runs.replay import Examined


def of_round(worth: Any, error: float, without: Any = None, blocks: int = 4) -> ValueSums:
    """Return what m clients with a seat each were worth; ``blocks`` of samples say nothing else."""
    worth = np.array(worth, float)
    without = np.repeat(worth[:, None], blocks, axis=1) if without is None else np.array(without)
    arrays = {"value": worth, "value_error": np.full(len(worth), error), "value_without_block": without}
    return ValueSums.of_round(np.arange(len(worth)), arrays, len(worth))


def sums(one: ValueSums, rounds: int = 1) -> ValueSums:
    found = ValueSums.nothing(1)
    for _ in range(rounds):
        found = found.plus(one)
    return found


@pytest.mark.parametrize("rounds", [1, 4])
def test_errors_of_sampling_add_up_as_variances(rounds: int) -> None:
    """A worth that comes again grows with the rounds, its error with their root."""
    error = SURE * 0.1 * np.sqrt(rounds)
    found = sums(of_round([1.0, 0.1, -1.0], 0.1), rounds).sure()
    np.testing.assert_allclose(found, [rounds - error, max(0, 0.1 * rounds - error), -rounds + error])


def test_the_error_of_a_difference_from_the_mean() -> None:
    """Three members, errors of .1 each: .1 sqrt(1 - 1/3). Who is alone is above nobody."""
    one, error = of_round([1.0, 0.0, -1.0, 7.0], 0.1), SURE * 0.1 * np.sqrt(2 / 3)
    np.testing.assert_allclose(one.above_mean(np.arange(3)).sure(), [1 - error, 0, -1 + error, 0])
    assert not one.above_mean(np.array([3])).worth.any()


def test_the_draw_of_samples_counts_by_blocks_as_a_jackknife() -> None:
    without = np.array([1.0, 1.2, 0.8, 1.0])
    error = np.sqrt(3 / 4 * ((without - 1) ** 2).sum()) * t.ppf(0.975, 3)
    np.testing.assert_allclose(sums(of_round([1.0], 0.0, [without]), 3).sure(), [3 - 3 * error])


@pytest.mark.parametrize(("error", "blocks"), [(np.inf, 4), (np.nan, 4), (0.0, 0)])
def test_without_errors_nothing_is_sure(error: float, blocks: int) -> None:
    one = of_round([1.0, 0.0], error, blocks=blocks)
    assert (one.sure()[0], one.above_mean(np.arange(2)).sure().tolist()) == (0.0, [0.0, 0.0])


def test_several_clients_of_one_member_have_one_sum() -> None:
    found = of_round([1.0, -3.0, 5.0], 0.1, [[1.0, 1.2], [-3.0, -2.8], [5.0, 5.0]]).of_all(np.array([0, 1]))
    assert (found.worth.tolist(), found.variance.round(9).tolist()) == ([-2.0], [0.02])
    np.testing.assert_allclose(found.without, [[-2.0, -1.6]])


def test_chance_is_not_paid() -> None:
    """Members of equal worth, whose values differ by their errors alone: 5 % are paid in a single round."""
    draws = np.random.default_rng(0).normal(0, 0.1, (2000, 2))
    sure = [of_round(row, 0.1).above_mean(np.arange(2)).sure().any() for row in draws]
    assert np.mean(sure) == pytest.approx(0.05, abs=0.015)


def test_only_what_somebody_surely_owes_is_paid_within_the_limits() -> None:
    most = np.full(3, 1.5)
    assert matched(np.array([2.0, 0.0, 1.0]), -most, most).tolist() == [0.0] * 3
    np.testing.assert_allclose(matched(np.array([2.0, -5.0, 1.0]), -most, most), [0.9, -1.5, 0.6])


@settings(max_examples=80, deadline=None)
@given(
    some.lists(some.floats(-5, 5), min_size=1, max_size=10),
    some.floats(0, 2),
    some.floats(1e-3, 1e3),
    some.integers(1, 10**7),
)
def test_nobody_pays_more_than_its_stake_or_than_is_sure_and_the_rest_is_carried_over(
    worth: list[float], error: float, rate: float, most: int
) -> None:
    players, rule = np.arange(len(worth)), ByValue(rate, most / TOKEN, "sure")
    valued: Any = of_round(worth, error)
    units, after = rule.amounts(players, np.full(len(worth), 10**12), valued, rule.init(Context.tiny(len(worth))))
    due = valued.above_mean(players)
    assert sum(units) == 0
    assert max(map(abs, units)) <= most
    sure = due.sure() * rate * TOKEN
    assert all(abs(u) <= abs(s) + 2 and (s * u >= 0 or abs(u) <= 1) for s, u in zip(sure, units, strict=True))
    np.testing.assert_allclose(after["worth"] + np.array(units) / (rate * TOKEN), due.worth, atol=1e-9)


def test_a_run_pays_what_is_sure_an_auditor_finds_the_same_and_a_resume_too(tmp_path: Path) -> None:
    behaviour = {"attacker": {"clients": [2], "kind": "flip"}}
    mechanism = {"name": "fedavg", "value": "path", "settle": {"name": "by_value", "pays_when": "sure"}}
    experiment = digits(mechanism, 5, 5, run={"recomputable": True}, behaviour=behaviour, train={"steps": 5})
    folder, cut = tmp_path / "run", tmp_path / "cut"
    whole = hanse.run(experiment, out=folder)
    assert (recompute(folder, validation_file(folder)).unlike, wrong_in(folder)) == (None, None)
    found = Examined(folder)
    assert (found.failed(), found.again.rounds) == (None, 5)
    with reading(folder) as ledger:
        held = [ledger.as_book().balance(f"client/{c}") / TOKEN for c in range(5)]
    assert sum(held) == 500
    assert held[2] < 100 < max(held)
    shutil.copytree(folder, cut)
    for file in sorted((cut / "checkpoints").glob("*.safetensors"))[1:]:
        file.unlink()
    assert hanse.resume(cut).clients == whole.clients
    assert any(seat["by_value_carried"] != 0 for seat in whole.clients)
