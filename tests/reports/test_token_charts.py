"""Charts of tokens and tiers, from a run's directory."""

from pathlib import Path

import numpy as np
import pytest

import hanse
from hanse.ledger.entry import TOKEN
from hanse.reports.chart import Lines
from hanse.reports.load import group_runs, load_run
from hanse.reports.tokens import balances, free_riders, token_charts


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokens") / "run"
    experiment = hanse.Experiment(
        data={"clients": 12, "partition": "mixture", "mix": "10:90", "client_test": 0.2, "client_validation": 0.1},
        model={"name": "logistic"},
        mechanism={"name": "pifl", "by_contribution": 3, "at_random": 1},
        train={"lr": 0.1},
        behaviour={"free_rider": {"fraction": 0.25}},
        engine={"train": "stacked", "threads": 1},
        run={"rounds": 5, "seed": 2},
    )
    hanse.run(experiment, out=path)
    return path


def test_balances_are_those_of_the_books(folder: Path) -> None:
    run = load_run(folder)
    found = balances(run)
    assert found is not None
    rounds, held = found
    assert rounds.tolist() == [0, 1, 2, 3, 4]
    assert held.shape == (5, 12)
    assert (held[0] == 100).all()
    # selected bids are still in escrow: what clients hold and what they bid is all that there is
    bids = run.arrays(4)["bids"].sum()
    assert 1200 - bids <= held[4].sum() <= 1200
    assert held[4].sum() * TOKEN == run.arrays(4)["balances"].sum()
    assert len(free_riders(run)) == 3


def test_the_charts(folder: Path) -> None:
    charts = {c.key.split("-")[0]: c for c in token_charts(group_runs([load_run(folder)]))}
    assert set(charts) == {"balances", "riders", "tiers", "own"}
    marks = charts["own"].marks
    assert isinstance(marks, Lines)
    [line] = marks.lines
    assert line.y[-1] == 1.0
    assert (np.diff(line.x) >= 0).all()
    riders = charts["riders"].marks
    assert isinstance(riders, Lines)
    assert [line.name for line in riders.lines] == ["honest, seed 2", "free riders, seed 2"]
