"""Charts of tokens and tiers, from a run's directory."""

from pathlib import Path

import numpy as np
import pytest

import hanse
from hanse.core.entry import TOKEN, client, escrow
from hanse.ledger.run_ledger import open_ledger
from hanse.reports.groups import group_runs
from hanse.reports.money import read_books, token_charts
from hanse.runs.run_record import load_run


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokens") / "run"
    experiment = hanse.Experiment(
        data={
            "clients": 12,
            "partition": {"name": "mixture", "mix": "10:90"},
            "client_test": 0.2,
            "client_validation": 0.1,
        },
        model={"name": "logistic"},
        mechanism={"name": "pifl", "by_contribution": 3, "at_random": 1},
        train={"lr": 0.1},
        behaviour={"free_rider": {"fraction": 0.25}},
        engine={"train": "stacked", "threads": 1},
        run={"rounds": 5, "seed": 2},
    )
    hanse.run(experiment, out=path)
    return path


def test_balances_are_what_the_books_say(folder: Path) -> None:
    """To the unit, and with the settlement after the last round, which stands at the last round played."""
    run = load_run(folder)
    with open_ledger(folder) as ledger:
        assert [record.round for record in ledger.history()][-1] == 5
        units = np.array([ledger.balance(client(c)) + ledger.balance(escrow(c)) for c in range(12)])
    groups = group_runs([run])
    held = read_books(run)
    assert held.rounds.tolist() == [0, 1, 2, 3, 4]
    np.testing.assert_array_equal(np.round(held.held[-1] * TOKEN), units)
    [lines] = [c.marks.lines for c in token_charts(groups) if c.key.startswith("balances")]
    assert {line.x[-1] for line in lines} == {5}
