"""``pays_when = "sure"``: what the interval supports is paid, and no more; the rest is carried over."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some
from scipy.stats import t
from typer.testing import CliRunner

import hanse
from hanse.cli import app
from hanse.core.entry import TOKEN
from hanse.ledger.run_ledger import reading, wrong_in
from hanse.mechanisms.by_value import rounded
from hanse.mechanisms.carried import SURE, Carried, CarriedValues, matched, sure_transfers
from hanse.runs.recomputable import validation_file
from hanse.runs.recompute import recompute
from hanse.runs.replay import replay_books

NUMBERS = some.lists(some.floats(-5, 5), min_size=2, max_size=10)


def valued(worth: list[float], error: float = 0.0, without: np.ndarray | None = None) -> CarriedValues:
    m = len(worth)
    blocks = np.repeat(np.array(worth)[:, None], 4, axis=1) if without is None else without
    return CarriedValues(np.array(worth), np.full(m, error), blocks)


def limits(m: int, most: float = 10.0) -> tuple[np.ndarray, np.ndarray]:
    return np.full(m, -most), np.full(m, most)


def test_what_is_paid_is_the_near_end_of_the_interval() -> None:
    """Three members, errors of .1 each: the error of a difference from the mean is .1 sqrt(1 - 1/3)."""
    after = Carried.nothing(3).with_round(np.arange(3), valued([1.0, 0.0, -1.0], error=0.1))
    error = SURE * 0.1 * np.sqrt(2 / 3)
    np.testing.assert_allclose(after.sure(np.arange(3)), [1 - error, 0, -1 + error])


def test_the_draw_of_samples_counts_by_blocks_as_a_jackknife() -> None:
    without = np.array([[1.0, 1.2, 0.8, 1.0], [-1.0, -1.0, -1.0, -1.0]])
    after = Carried.nothing(2).with_round(np.arange(2), valued([1.0, -1.0], without=without))
    half = without[0] - (without[0] + without[1]) / 2
    error = np.sqrt(3 / 4 * ((half - half.mean()) ** 2).sum()) * t.ppf(0.975, 3)
    np.testing.assert_allclose(after.sure(np.arange(2)), [1 - error, -1 + error])


def test_what_is_unsure_in_one_round_gets_sure_over_several() -> None:
    """A difference that comes again grows with the rounds, its error with their root."""
    carried, paid = Carried.nothing(2), []
    for _ in range(6):
        exact, after = sure_transfers(carried, np.arange(2), valued([0.1, -0.1], error=0.1), 1.0, *limits(2))
        carried = after.paid(np.arange(2), exact)
        paid.append(exact[0])
    due = 0.1 * np.arange(1, 7)
    error = SURE * 0.1 * np.sqrt(np.arange(1, 7) / 2)
    np.testing.assert_allclose(np.cumsum(paid), np.maximum.accumulate(np.maximum(due - error, 0)))
    assert paid[0] == 0 < sum(paid)


def test_chance_is_not_paid() -> None:
    """Members of equal worth, whose values differ by their errors alone: 5 % are paid in a single round."""
    rng = np.random.default_rng(0)
    looked = 2000
    draws = rng.normal(0, 0.1, (looked, 2))
    some_paid = [
        sure_transfers(Carried.nothing(2), np.arange(2), valued(row.tolist(), error=0.1), 1.0, *limits(2))[0].any()
        for row in draws
    ]
    assert np.mean(some_paid) == pytest.approx(0.05, abs=0.015)


@settings(max_examples=80, deadline=None)
@given(NUMBERS, some.floats(0, 2), some.floats(1e-3, 1e3), some.integers(1, 10**7))
def test_it_sums_to_nothing_and_nobody_pays_more_than_its_stake_or_than_is_sure(
    worth: list[float], error: float, rate: float, most: int
) -> None:
    players = np.arange(len(worth))
    exact, after = sure_transfers(
        Carried.nothing(0), players, valued(worth, error), rate * TOKEN, *limits(len(worth), most)
    )
    units = rounded(exact.tolist())
    assert sum(units) == 0
    assert min(units) >= -most
    sure = after.sure(players) * rate * TOKEN
    assert all(abs(u) <= abs(s) + 2 and (s * u >= 0 or abs(u) <= 1) for s, u in zip(sure, units, strict=True))


def test_without_errors_nothing_is_sure() -> None:
    none = CarriedValues(np.array([1.0, 0.0]), np.zeros(2), np.zeros((2, 0)))
    exact, after = sure_transfers(Carried.nothing(2), np.arange(2), none, 1.0, *limits(2))
    assert not exact.any()
    np.testing.assert_allclose(after.due, [0.5, -0.5])
    unknown = valued([1.0, 0.0], error=np.inf)
    assert not sure_transfers(Carried.nothing(2), np.arange(2), unknown, 1.0, *limits(2))[0].any()


def test_who_is_alone_is_owed_nothing() -> None:
    exact, after = sure_transfers(Carried.nothing(1), np.arange(1), valued([3.0], error=np.inf), 1.0, *limits(1))
    assert exact.tolist() == [0.0]
    assert after.due.tolist() == [0.0]


def test_only_what_somebody_surely_owes_is_paid() -> None:
    assert matched(np.array([2.0, 0.0]), *limits(2, 1)).tolist() == [0.0, 0.0]
    # nobody gets or pays more than 1.5 in a round: 1.5 and 1 are left to share what is paid
    np.testing.assert_allclose(matched(np.array([2.0, -5.0, 1.0]), *limits(3, 1.5)), [0.9, -1.5, 0.6])


def experiment(rounds: int = 5, **mechanism: Any) -> hanse.Experiment:
    rule = {"name": "by_value", "pays_when": "sure", **mechanism}
    return hanse.Experiment(
        data={"source": "digits", "clients": 5},
        model="logistic",
        mechanism={"name": "fedavg", "value": "path", "settle": rule},
        behaviour={"attacker": {"clients": [2], "kind": "flip"}},
        train={"steps": 5},
        run={"rounds": rounds, "recomputable": True},
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("sure") / "run"
    hanse.run(experiment(), out=place)
    return place


def test_a_run_pays_what_is_sure_and_an_auditor_finds_the_same(folder: Path) -> None:
    found = recompute(folder, validation_file(folder))
    assert (found.unlike, wrong_in(folder)) == (None, None)
    with reading(folder) as ledger:
        assert (replay_books(folder, ledger).again, replay_books(folder, ledger).wrong) == (5, None)
        held = [ledger.as_book().balance(f"client/{c}") / TOKEN for c in range(5)]
    assert sum(held) == 500
    assert held[2] < 100 < max(held)
    assert CliRunner().invoke(app, ["ledger", "verify", str(folder)]).exit_code == 0


def test_what_is_carried_over_is_recorded_and_survives_a_resume(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "run")
    whole = hanse.load(folder)
    for file in sorted((tmp_path / "run" / "checkpoints").glob("*.safetensors"))[1:]:
        file.unlink()
    again = hanse.resume(tmp_path / "run")
    assert again.clients == whole.clients
    assert any(seat["by_value_carried"] != 0 for seat in again.clients)
