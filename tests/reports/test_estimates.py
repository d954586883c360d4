"""The picture of estimates against exact values."""

from pathlib import Path

import numpy as np

import hanse
from hanse.reports.contributions import estimate_charts
from hanse.reports.groups import group_runs
from hanse.reports.report import figures
from hanse.runs.run_record import load_runs


def run(folder: Path, check: bool) -> Path:
    experiment = hanse.Experiment(
        data={"clients": 6, "partition": {"alpha": 0.3}},
        model={"name": "logistic"},
        mechanism={"name": "greedyfed", "clients_per_round": 3, "value": {"check": check}},
        engine={"train": "stacked", "threads": 1},
        run={"rounds": 4},
    )
    hanse.run(experiment, out=folder)
    return folder


def test_every_seat_is_a_dot_near_the_line_of_agreement(tmp_path: Path) -> None:
    groups = group_runs(load_runs([run(tmp_path / "a", True)]))
    [chart] = estimate_charts(groups)
    dots, agreement = chart.marks.lines
    assert dots.dots
    assert len(dots.x) == 12
    np.testing.assert_array_equal(agreement.x, agreement.y)
    assert np.abs(dots.x - dots.y).max() < 0.2 * np.abs(dots.x).max()
    assert chart.key in {c.key for c in figures(groups)}


def test_a_run_without_exact_values_has_no_such_picture(tmp_path: Path) -> None:
    assert estimate_charts(group_runs(load_runs([run(tmp_path / "a", False)]))) == []
