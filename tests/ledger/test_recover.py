"""A ledger that is lost, damaged or behind is rebuilt to the head of the checkpoint, or a line says why not."""

import json
import shutil
import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

import hanse
from hanse.base.errors import MachineError
from hanse.cli import entry as cli
from hanse.ledger.place import open_ledger
from hanse.ledger.store import Record
from hanse.runs.runbooks import RunBooks

HERE = Path(__file__).parent
JOURNAL = "transactions.jsonl"


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(HERE.parent))


def experiment(rounds: int = 4) -> hanse.Experiment:
    return hanse.Experiment(
        data={"clients": 5},
        mechanism={"name": "paying:paying", "clients_per_round": 2},
        clients={"grant": 7.0},
        engine={"train": "stacked", "threads": 1},
        run={"rounds": rounds, "seed": 1},
    )


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run; ``two`` beside it is its ledger as it was after two rounds."""
    folder = tmp_path_factory.mktemp("played")

    class Copy:
        def on_start(self, *_: object) -> None: ...
        def on_end(self, *_: object) -> None: ...
        def on_round(self, metrics: dict, _: object) -> None:
            if metrics["round"] == 1:
                copy_database(folder / "run" / "ledger.db", folder / "two.db")

    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(HERE.parent))
        hanse.run(experiment(), out=folder / "run", observers=[Copy()])
    return folder / "run"


def copy_database(source: Path, target: Path) -> None:
    with closing(sqlite3.connect(source)) as one, closing(sqlite3.connect(target)) as other:
        one.backup(other)


def gone(file: Path) -> None:
    file.unlink()


def empty(file: Path) -> None:
    file.write_bytes(b"")


def half(file: Path) -> None:
    blob = file.read_bytes()
    file.write_bytes(blob[: len(blob) // 2])


def no_database(file: Path) -> None:
    file.write_bytes(b"x" * 5000)


def behind(file: Path) -> None:
    shutil.copy(file.parent.parent / "two.db", file)


DAMAGE = [gone, empty, half, no_database, behind]


@pytest.fixture
def run(played: Path, tmp_path: Path) -> Path:
    """A copy of the finished run, its ledger in one file."""
    shutil.copytree(played, tmp_path / "run")
    shutil.copy(played.parent / "two.db", tmp_path)
    for left in (tmp_path / "run").glob("ledger.db*"):
        left.unlink()
    copy_database(played / "ledger.db", tmp_path / "run" / "ledger.db")
    return tmp_path / "run"


def history(folder: Path) -> list[Record]:
    with open_ledger(folder) as ledger:
        assert ledger.verify().ok
        return list(ledger.history())


def code_of(args: list[str | Path], monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(sys, "argv", ["hanse", *map(str, args)])
    with pytest.raises(SystemExit) as end:
        cli.main()
    return int(end.value.code or 0)


@pytest.mark.parametrize("harm", DAMAGE)
def test_resume_mends_the_ledger_to_the_last_posting(
    harm: Callable[[Path], None], run: Path, played: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    harm(run / "ledger.db")
    assert code_of(["resume", run, "--explain"], monkeypatch) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert f"from {JOURNAL}" in said
    assert history(run) == history(played)
    aside = list(run.glob("ledger.db.damaged-1"))
    assert len(aside) == (harm in (half, no_database))  # what was damaged is kept


@pytest.mark.parametrize("harm", DAMAGE)
def test_the_command_rebuilds_it_without_the_data(
    harm: Callable[[Path], None], run: Path, played: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    harm(run / "ledger.db")
    assert code_of(["ledger", "rebuild", run], monkeypatch) == 0
    assert f"from {JOURNAL}" in capsys.readouterr().out
    assert history(run) == history(played)
    assert code_of(["ledger", "rebuild", run], monkeypatch) == 0
    assert capsys.readouterr().out == "The books hold; nothing was changed.\n"


def test_a_row_that_was_changed_is_found_by_the_command_and_made_good(run: Path, played: Path) -> None:
    from hanse.ledger.recover import rebuild_run

    with closing(sqlite3.connect(run / "ledger.db")) as database:
        database.execute("UPDATE accounts SET balance = balance + 1 WHERE name = 'client/0'")
        database.commit()
    [said] = rebuild_run(run)
    assert "its postings sum to" in said
    assert (run / "ledger.db.damaged-1").exists()
    assert history(run) == history(played)


def cut(journal: Path) -> None:
    lines = journal.read_text().splitlines(keepends=True)
    journal.write_text("".join(lines[:-1]))


def other_amount(journal: Path) -> None:
    journal.write_text(journal.read_text().replace("7000000", "8000000"))


def written_anew(journal: Path) -> None:
    """A chain that holds in itself, of other payments."""
    from hanse.core.book import Book
    from hanse.ledger.export import from_dict, line_of

    text, head = "", Book().head
    for number, line in enumerate(journal.read_text().splitlines(), 1):
        fields = json.loads(line.replace("7000000", "8000000"))
        record = from_dict(fields)
        after, [hash_] = Book(head=head, floor=-(10**12)).chain(record.round, [record.transaction])
        text += line_of(Record(number, record.round, record.transaction, head, hash_))
        head = after.head
    journal.write_text(text)


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (gone, r"transactions.jsonl is not there \(an older hanse kept none\)"),
        (cut, r"transactions.jsonl ends after (\d+) of \d+ transactions"),
        (other_amount, "transactions.jsonl is damaged in line 1"),
        (written_anew, "transactions.jsonl leads to the head [0-9a-f]{64}, the checkpoint of round 4 has [0-9a-f]{64}"),
    ],
)
def test_what_does_not_lead_to_the_checkpoints_head_is_refused_and_changes_nothing(
    harm: Callable[[Path], None], said: str, run: Path
) -> None:
    from hanse.ledger.recover import rebuild_run

    (run / "ledger.db").unlink()
    harm(run / JOURNAL)
    for rebuild in (rebuild_run, hanse.resume):
        with pytest.raises(
            MachineError, match=rf"ledger.db: is gone; it cannot be rebuilt: .*{said}; 'hanse ledger re"
        ):
            rebuild(run)
    assert not list(run.glob("ledger.db*"))


def test_a_ledger_of_other_payments_is_not_gone_on_with(run: Path, tmp_path: Path) -> None:
    hanse.run(experiment().model_copy(update={"clients": experiment().clients.model_copy(update={"grant": 8.0})}),
              out=tmp_path / "other")  # fmt: skip
    (run / "ledger.json").write_text((tmp_path / "other" / "ledger.json").read_text())
    (run / "ledger.db").unlink()
    copy_database(tmp_path / "other" / "ledger.db", run / "ledger.db")
    with pytest.raises(MachineError, match=r"is not this run's: its transaction \d+ has the hash"):
        hanse.resume(run)


def test_a_journal_that_is_lost_is_written_again_from_the_ledger(run: Path, played: Path) -> None:
    (run / JOURNAL).unlink()  # as in a run that an older hanse began
    hanse.resume(run)
    assert (run / JOURNAL).read_bytes() == (played / JOURNAL).read_bytes()


def test_the_journal_is_what_export_prints(played: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from hanse.cli.ledger import export

    export(played, "json")
    assert capsys.readouterr().out == (played / JOURNAL).read_text()


@pytest.mark.parametrize(
    ("content", "said"), [(None, "ledger.json: is gone; it must be"), ("{", "ledger.json: is damaged; it must be")]
)
def test_the_name_of_the_book_is_needed(content: str | None, said: str, run: Path) -> None:
    (run / "ledger.json").unlink() if content is None else (run / "ledger.json").write_text(content)
    with pytest.raises(MachineError, match=said):
        hanse.resume(run)
    with pytest.raises(MachineError, match=said):  # whoever opens the books alone is told the same
        RunBooks.open(run, hanse.Experiment.read(run / "config.toml"), None)
