"""What reports, statements and the end of a run say first: no surer than the numbers, and in few words."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from forging import recorded
from reports_cases import metric, seat, write_run
from scipy import stats

from hanse.reports.answers import answers, between, rounded
from hanse.reports.contributions import Standings
from hanse.reports.groups import SeedGroup, group_runs
from hanse.reports.statement import statement
from hanse.reports.statement_contributed import Contributed
from hanse.reports.statement_fit import ModelQuality
from hanse.reports.statement_models import Models
from hanse.reports.statement_short import in_short
from hanse.reports.statement_verdict import verdict_of
from hanse.runs.run_record import load_runs


def played(path: Path, accuracy: list[float], mechanism: str = "fedavg", **values: list[float]) -> Path:
    """A run of one round after which every client has this accuracy on 400 test samples of its own; with ``worth`` and
    ``error`` two of updates that were valued.
    """
    worth, error = values.get("worth", []), values.get("error", [])
    rounds = range(2)
    seats = [seat(r, c, v / 2, value_error=error[c] / 2**0.5) for r in rounds for c, v in enumerate(worth)]
    lines = [
        metric(r, **{"seats": 6, "client/test_loss": 1.0, "client/test_accuracy": float(np.mean(accuracy))})
        for r in rounds
    ]
    changes = {"mechanism": {"name": mechanism}, "data": {"client_test": 0.2}, "run": {"rounds": 2}}
    write_run(path, lines, seats, changes)
    for r in rounds:
        recorded(
            path,
            r,
            test_accuracy=np.array(accuracy),
            test_samples=np.full(len(accuracy), 400),
            test_loss=np.full(len(accuracy), 1.0),
        )
    return path


def groups(*paths: Path) -> list[SeedGroup]:
    return group_runs(load_runs(paths))


def test_joining_is_counted_by_verdict_and_measured_over_clients(tmp_path: Path) -> None:
    ours, alone = [0.9, 0.9, 0.7, 0.8, 0.8, 0.8], [0.7, 0.8, 0.9, 0.8, 0.79, 0.81]
    run, local = played(tmp_path / "run", ours), played(tmp_path / "local", alone, "local")
    told = answers(groups(run)).joining
    points = 100 * (np.array(ours) - alone)
    half = stats.t.ppf(0.975, 5) * points.std(ddof=1) / 6**0.5
    assert told == (
        "Joining paid for 2 of 6 clients and not for 1; 3 unclear. "
        f"Clients' mean accuracy (own tests): +2 points against alone (95 % interval {points.mean() - half:.0f} to "
        f"{points.mean() + half:.0f})."
    )
    assert answers(groups(run, local)).joining == told  # the run alone may be reported on, too
    assert answers(groups(local)).joining == "Nobody joins here: every client trains alone."


def test_what_is_not_known_is_not_claimed(tmp_path: Path) -> None:
    run = played(tmp_path / "run", [0.9] * 6)
    found = answers(groups(run))
    assert found.joining == "Whether joining paid is not known: there is no run of each client alone."
    assert found.contributed == "What each contributed is not known: nobody's updates were valued."
    assert found.next == f"Compare with training alone (hanse statement {run} --all --train-alone)."
    assert found.picture is None
    bare = write_run(tmp_path / "bare", [metric(0, 0.5)], changes={"run": {"rounds": 1}})
    assert "clients kept" in answers(groups(bare)).joining
    assert "client_test = 0.2" in answers(groups(bare)).next
    stopped = write_run(tmp_path / "stopped", [metric(0, 0.5)])
    assert answers(groups(stopped)).next == f"Let it finish (hanse resume {stopped})."


@pytest.mark.parametrize(
    ("worth", "error", "told", "drawn"),
    [
        # 5, 4.9 and 4.8 are one group, 1 and -3 one each
        ([5.0, 4.9, 4.8, 1.0, -3.0], [0.2] * 5, "Client 0, 1 or 2 contributed most (together 94 % of helpful "
         "contributions). Client 4 clearly did harm.", {"group A": 3, "group B": 1, "group C": 1}),
        ([5.0, 1.0, 1.1], [0.1] * 3, "Client 0 contributed most (70 % of helpful contributions).",
         {"group A": 1, "group B": 2}),
        # 0 is apart from 2, but 1 from neither
        ([3.0, 2.0, 1.0], [0.5] * 3, "Client 0 or 1 contributed most (together 83 % of helpful contributions).",
         {"may be the highest": 2, "surely not the highest": 1}),
        ([3.0, 2.0, 1.0], [9.0] * 3, "No client clearly contributed most.", {"may be the highest": 3}),
        ([3.0, 2.0, 1.0], [0.1] * 3, "Client 0 contributed most (50 % of helpful contributions).", {"contribution": 3}),
    ],
)  # fmt: skip
def test_who_contributed_is_said_and_drawn_in_groups(
    worth: list[float], error: list[float], told: str, drawn: dict[str, int], tmp_path: Path
) -> None:
    path = played(tmp_path / "run", [0.8] * 6, "greedyfed", worth=worth, error=error)
    found = answers(groups(path))
    assert found.contributed == told
    assert "crosses" in found.picture.caption
    marks = found.picture.marks
    assert {series.name: int(np.isfinite(series.values).sum()) for series in marks.series} == drawn
    for series in marks.series:  # whiskers are 95 % intervals
        np.testing.assert_allclose(series.errors[np.isfinite(series.values)], 1.96 * error[0])
    assert sum(np.isfinite(series.values) for series in marks.series).tolist() == [1] * len(worth)


def test_any_two_clients_of_different_groups_can_be_told_apart() -> None:
    draw = np.random.default_rng(0)
    several = 0
    for _ in range(50):
        n = int(draw.integers(2, 9))
        found = Standings(np.arange(n), draw.normal(0, 3, n), draw.uniform(0.1, 1, n), np.zeros((n, 0)))
        parts = found.groups()
        assert sorted(np.concatenate(parts).tolist()) == list(range(n))
        several += len(parts) > 1
        for g, part in enumerate(parts):
            others = {c for other in parts[:g] + parts[g + 1 :] for c in other.tolist()}
            for client in part.tolist():
                assert not others & set(found.tied(client).tolist())
            above = [found.totals[parts[g - 1]].min()] if g else []
            assert all(least > found.totals[part].max() for least in above)
    assert several > 10


def test_the_best_experiment_is_named(tmp_path: Path) -> None:
    worse = played(tmp_path / "a", [0.6] * 6)
    better = played(tmp_path / "b", [0.9] * 6, "greedyfed", worth=[5.0, 1.0], error=[0.1, 0.1])
    played(tmp_path / "local", [0.7] * 6, "local")
    found = answers(groups(worse, better))
    assert found.joining.startswith("With greedyfed, joining paid for all 6 clients.")
    assert "20.0 points" in found.joining  # for each alike, so without an interval
    assert (
        found.next
        == f"Try other seeds (hanse sweep {better}/config.toml --seeds 5), then give clients their statements."
    )
    assert found.contributed.startswith("In greedyfed: Client 0 contributed most (83 % of helpful contributions).")


def test_numbers_have_the_digits_that_their_errors_bear() -> None:
    assert (rounded(0.7034, 0.17), rounded(-8.93, 12.9, sign=True)) == ("0.7", "-9")
    assert (rounded(8.93, 0.4, sign=True), rounded(-0.04, 1.0, sign=True)) == ("+8.9", "0")
    assert (rounded(0.7034), rounded(1234.5), rounded(85.333, most=2), rounded(0.0)) == ("0.703", "1234", "85", "0.00")
    assert between(-8.9, 12.9) == "-22 to 4"


def test_an_interval_without_zero_has_no_end_that_reads_as_zero() -> None:
    assert between(-21.72, 21.6) == "-43 to -0.1"
    assert between(-0.43, 0.4) == "-0.8 to -0.03"
    assert between(21.72, 21.6, sign=True) == "+0.1 to +43"
    assert between(-21.5, 21.6) == "-43 to 0"


@pytest.mark.parametrize("better", [True, False])
def test_a_clear_difference_on_few_samples_is_no_ground_for_a_decision(better: bool) -> None:
    ours, alone = (1.0, 2 / 14) if better else (2 / 14, 1.0)
    few = ModelQuality((7,), (ours,), (0.3,), 14, alone="alone", alone_accuracy=alone, alone_loss=0.5)
    assert "14 test" in verdict_of(few, None, Models(1, 1, 1, 1, 1)).headline
    said = in_short(few, Contributed(rounds=()), net=5)["What next"]
    assert said == "see whether it holds with other test rows before deciding; 14 are few."


def test_a_run_alone_that_lies_beside_counts_only_if_it_trained_for_as_long(tmp_path: Path) -> None:
    run, longer = played(tmp_path / "run", [0.9] * 6), played(tmp_path / "local", [0.7] * 6, "local")
    assert "6 clients" in answers(groups(run)).joining.lower()
    config = (longer / "config.toml").read_text()
    (longer / "config.toml").write_text(config.replace("rounds = 2", "rounds = 3"))
    assert "there is no run of each client alone" in answers(groups(run)).joining
    assert "alone 70 %" in statement(run, 0, alone=longer).short["Its model"]  # by name it may be any
