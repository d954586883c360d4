"""A log that is behind is completed to the head of the checkpoint; one that does not lead there is refused. An index
that is lost or damaged stops nothing, and is written anew.
"""

import logging
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from commands import run_hanse
from watching import After

import hanse
from hanse.base.errors import MachineError
from hanse.core.entry import LOG
from hanse.ledger.index import difference
from hanse.ledger.log import Record, heads_of
from hanse.ledger.run_ledger import latest_claim, open_ledger
from hanse.runs.rehearsal import small_experiment


def experiment(rounds: int = 4) -> hanse.Experiment:
    run = {"rounds": rounds, "seed": 1}
    return small_experiment("paying:paying", data={"clients": 5}, clients={"grant": 7.0}, run=run)


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run; ``two`` beside it is its index as it was after two rounds."""
    folder = tmp_path_factory.mktemp("played")
    copies = After(1, lambda: shutil.copy(folder / "run" / "ledger.db", folder / "two.db"))
    return hanse.run(experiment(), out=folder / "run", observers=[copies]).path


def gone(file: Path) -> None:
    file.unlink()


def empty(file: Path) -> None:
    file.write_bytes(b"")


def half(file: Path) -> None:
    blob = file.read_bytes()
    file.write_bytes(blob[: len(blob) // 2])


def other(file: Path) -> None:
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("ALTER TABLE books ADD COLUMN id")


def behind(file: Path) -> None:
    shutil.copy(file.parent.parent / "two.db", file)


@pytest.fixture
def run(played: Path, tmp_path: Path) -> Path:
    """A copy of the finished run."""
    shutil.copytree(played, tmp_path / "run")
    shutil.copy(played.parent / "two.db", tmp_path)
    return tmp_path / "run"


def history(folder: Path) -> list[Record]:
    ledger = open_ledger(folder)
    assert ledger.verify().ok
    return list(ledger.history())


def apart(folder: Path) -> str | None:
    return difference(folder / "ledger.db", open_ledger(folder))


@pytest.mark.parametrize("harm", [gone, empty, behind, half, other, lambda file: file.write_bytes(b"x" * 5000)])
def test_resume_completes_the_index_or_makes_it_anew(harm: Callable[[Path], None], played: Path, run: Path) -> None:
    harm(run / "ledger.db")
    hanse.resume(run)
    assert apart(run) is None
    assert history(run) == history(played)
    assert open_ledger(run).as_book().count == latest_claim(run).count  # type: ignore[union-attr]


@pytest.mark.parametrize("harm", [half, other, lambda file: file.write_bytes(b"x" * 5000)])
def test_the_command_writes_a_damaged_index_anew(harm: Callable[[Path], None], run: Path) -> None:
    harm(run / "ledger.db")
    code, _, err = run_hanse("ledger", "verify", run)
    assert (code, "index differs" in err) == (1, True)
    assert run_hanse("ledger", "rebuild", run)[:2] == (0, f"wrote {len(history(run))} transactions into the index\n")
    assert run_hanse("ledger", "verify", run)[0] == 0


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no database become larger than 8 KiB, as where the disk is full; the log still has room."""
    connect = sqlite3.connect

    def connected(*args: Any, **options: Any) -> sqlite3.Connection:
        connection = connect(*args, **options)
        connection.executescript("PRAGMA page_size = 512; PRAGMA max_page_count = 16")
        return connection

    monkeypatch.setattr(sqlite3, "connect", connected)


@pytest.mark.usefixtures("full")
def test_a_disk_that_is_full_for_the_index_loses_nothing_and_says_what_to_do(
    run: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = f"{run / 'ledger.db'}: disk full; free some space"
    with caplog.at_level(logging.WARNING):
        hanse.run(experiment(8), out=run, overwrite=True)
    [warning] = caplog.messages
    assert full in warning
    assert f"'hanse ledger rebuild {run}'" in warning
    log = history(run)
    code, _, err = run_hanse("ledger", "rebuild", run)
    assert (code, err) == (1, f"hanse: sqlite:///{full}\n")
    monkeypatch.undo()
    assert (history(run), apart(run)) == (log, None)  # what the index has is right, if not all
    assert run_hanse("ledger", "rebuild", run)[:2] == (0, f"wrote {len(log)} transactions into the index\n")
    assert run_hanse("ledger", "verify", run)[0] == 0


def cut_to(count: int) -> Callable[[Path], None]:
    """Leave the postings of which the heads speak up to so many from the end."""

    def cut(log: Path) -> None:
        notes = heads_of(log).read_text().split("\n\n")[:-1][:-count]
        lines = log.read_bytes().splitlines(keepends=True)[: int(notes[-1].split("\n")[1])]
        heads_of(log).write_text("".join(f"{note}\n\n" for note in notes))
        log.write_bytes(b"".join(lines))

    return cut


def test_what_a_kill_kept_from_the_log_is_appended(run: Path, played: Path) -> None:
    """The last checkpoint has the last round's transactions; the log is the same again, to the byte."""
    cut_to(1)(run / LOG)
    with (run / LOG).open("ab") as log:
        log.write(b'{"number":')  # and a torn line
    hanse.resume(run)
    for file in (LOG, heads_of(Path(LOG)).name):
        assert (run / file).read_bytes() == (played / file).read_bytes()


@pytest.mark.parametrize(
    ("harm", "said"), [(gone, "is gone, and with it the run's books"), (cut_to(3), "checkpoint of round 4: head ")]
)
def test_what_does_not_lead_to_the_checkpoints_head_is_refused_and_changes_nothing(
    harm: Callable[[Path], None], said: str, run: Path
) -> None:
    harm(run / LOG)
    before = {file: file.read_bytes() for file in run.glob("transactions.*")}
    with pytest.raises(MachineError, match=rf"transactions\.jsonl.*{said}.*heads back"):
        hanse.resume(run)
    assert {file: file.read_bytes() for file in run.glob("transactions.*")} == before


def test_rounds_that_are_played_again_after_a_checkpoint_was_lost_are_not_paid_twice(run: Path, played: Path) -> None:
    for file in sorted((run / "checkpoints").glob("*.safetensors"))[-2:]:
        file.write_bytes(b"damaged")
    hanse.resume(run)
    assert (run / LOG).read_bytes() == (played / LOG).read_bytes()
    assert apart(run) is None
