"""What reports and statements say of updates that their round did not wait for."""

from pathlib import Path
from typing import Any

from experiments import digits

import hanse
from hanse.reports.compare import run_row
from hanse.runs.run_record import STILL, load_run


def played(folder: Path, **federation: Any) -> Path:
    """Client 2 is asked in rounds 0 and 4; with late = "next" its first update joins round 3."""
    sections = {"data": {"partition": {"samples_per_client": 20}}, "behaviour": {"speed": {"seconds": [1, 1, 3.5]}}}
    sections |= {"federation": {"enough": 2, **federation}, "engine": {"train": "sequential"}}
    return hanse.run(digits({"name": "fedavg", "clients_per_round": 3}, 3, 5, **sections), out=folder).path


def test_late_updates_that_are_mixed_later_are_neither_refused_nor_asked_for_twice(tmp_path: Path) -> None:
    run = load_run(played(tmp_path / "next", late="next"))
    assert not [note for note in hanse.facts(run).notes if note.code == "refusals"]
    assert run_row(run)["refused"] == 0
    [late] = [note.fields for note in hanse.facts(run).notes if note.code == "late"]
    assert (late["late"], late["asked"], late["joined"]) == (2, 12, 1)
    row = hanse.facts(run).clients[2]
    assert (row.asked, row.answered) == (2, 1)


def test_late_updates_that_are_dropped_are_refused(tmp_path: Path) -> None:
    run = load_run(played(tmp_path / "drop"))
    assert [note.fields["reasons"] for note in hanse.facts(run).notes if note.code == "refusals"] == [{STILL: 2}]
    assert run_row(run)["refused"] == 2
    assert hanse.facts(run).clients[2].asked == 2
