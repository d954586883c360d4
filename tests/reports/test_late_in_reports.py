"""What reports and statements say of updates that their round did not wait for."""

from pathlib import Path
from typing import Any

import hanse
from hanse.reports.compare import run_row
from hanse.reports.facts import facts
from hanse.runs.run_record import STILL, load_run


def played(folder: Path, **federation: Any) -> Path:
    """Client 2 is asked in rounds 0 and 4; with late = "next" its first update joins round 3."""
    experiment = hanse.Experiment(
        data={"clients": 3, "partition": {"samples_per_client": 20}}, model={"name": "logistic"},
        mechanism={"name": "fedavg", "clients_per_round": 3}, behaviour={"speed": {"seconds": [1, 1, 3.5]}},
        federation={"enough": 2, **federation}, engine={"train": "sequential", "threads": 1}, run={"rounds": 5},
    )  # fmt: skip
    return hanse.run(experiment, out=folder).path


def test_late_updates_that_are_mixed_later_are_neither_refused_nor_asked_for_twice(tmp_path: Path) -> None:
    run = load_run(played(tmp_path / "next", late="next"))
    assert not [note for note in facts(run).notes if note.code == "refusals"]
    assert run_row(run)["refused"] == 0
    [late] = [note.fields for note in facts(run).notes if note.code == "late"]
    assert (late["late"], late["asked"], late["joined"]) == (2, 12, 1)
    row = facts(run).clients[2]
    assert (row.asked, row.answered) == (2, 1)


def test_late_updates_that_are_dropped_are_refused(tmp_path: Path) -> None:
    run = load_run(played(tmp_path / "drop"))
    assert [note.fields["reasons"] for note in facts(run).notes if note.code == "refusals"] == [{STILL: 2}]
    assert run_row(run)["refused"] == 2
    assert facts(run).clients[2].asked == 2
