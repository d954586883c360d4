"""A run whose ledger lies outside its folder: in a backup the book travels as lines and is posted again."""

import io
import json
import struct
import tarfile
from pathlib import Path

import pytest
from ledger_cases import book_of, history, play

from hanse.errors import UserError
from hanse.ledger import archive
from hanse.ledger.entry import Transaction
from hanse.ledger.export import write_journal
from hanse.ledger.place import heads_said, open_ledger
from hanse.ledger.store import Ledger

TOLD = history(5, 3, seed=2)


@pytest.fixture
def books(tmp_path: Path) -> Path:
    return tmp_path / "office" / "books.db"


@pytest.fixture
def folder(tmp_path: Path, books: Path) -> Path:
    run = tmp_path / "run"
    (run / "rounds").mkdir(parents=True)
    books.parent.mkdir()
    (run / "config.toml").write_text(f'[mechanism]\nname = "pifl"\n[ledger]\nurl = "sqlite:///{books}"\n')
    (run / "ledger.json").write_text('{"book": "b1"}\n')
    with Ledger.open(books, book="b1") as ledger:
        play(ledger, TOLD)
    return run


def test_the_book_is_posted_again_where_it_was(folder: Path, books: Path, tmp_path: Path) -> None:
    head = archive.backup(folder, tmp_path / "backup.tar.gz")
    assert head == book_of(TOLD).head
    with tarfile.open(tmp_path / "backup.tar.gz") as packed:
        assert sorted(packed.getnames()) == ["config.toml", "hanse-backup.json", "ledger.json", "ledger.jsonl"]
    books.unlink()
    again = tmp_path / "again"
    assert archive.restore(tmp_path / "backup.tar.gz", again).head == head
    assert sorted(p.name for p in again.iterdir()) == ["config.toml", "ledger.json"]
    with open_ledger(again) as ledger:
        assert ledger.as_book() == book_of(TOLD)
    # the book is there already: nothing is posted twice
    assert archive.restore(tmp_path / "backup.tar.gz", tmp_path / "third").head == head
    with open_ledger(again) as ledger:
        assert ledger.count() == book_of(TOLD).count


def test_another_book_of_the_same_name_is_told_apart(folder: Path, books: Path, tmp_path: Path) -> None:
    archive.backup(folder, tmp_path / "backup.tar.gz")
    books.unlink()
    with Ledger.open(books, book="b1") as ledger:
        ledger.post(0, [Transaction("odd", "x", (("mint", -5), ("client/0", 5)))])
    with pytest.raises(UserError, match="is another one"):
        archive.restore(tmp_path / "backup.tar.gz", tmp_path / "again")
    assert not (tmp_path / "again").exists()


def test_an_archive_may_hold_folders(folder: Path, tmp_path: Path) -> None:
    archive.backup(folder, tmp_path / "backup.tar.gz")
    kind = tarfile.TarInfo("rounds/old")
    kind.type = tarfile.DIRTYPE
    kind.mode = 0o755
    with tarfile.open(tmp_path / "backup.tar.gz") as packed, tarfile.open(tmp_path / "more.tar.gz", "w:gz") as written:
        for member in packed:
            written.addfile(member, packed.extractfile(member))
        written.addfile(kind)
        written.addfile(kind)  # twice, as some archivers write them
    archive.restore(tmp_path / "more.tar.gz", tmp_path / "again")
    assert (tmp_path / "again" / "rounds" / "old").is_dir()


def test_the_lines_of_a_run_name_heads_too(folder: Path) -> None:
    first, last = book_of(TOLD[:1]), book_of(TOLD)
    lines = [json.dumps({"round": 0, "ledger/head": first.head}), json.dumps({"round": 1})]
    (folder / "metrics.jsonl").write_text("".join(f"{line}\n" for line in lines))
    size = (folder / "metrics.jsonl").stat().st_size
    with (folder / "metrics.jsonl").open("a") as file:  # behind the checkpoint: not part of the run
        file.write(json.dumps({"round": 2, "ledger/head": "f" * 64}) + "\n")
    book = {"head": last.head, "count": last.count}
    notes = {"round": 5, "lengths": {"metrics.jsonl": size}, "book": book, "pending": []}
    header = json.dumps({"__metadata__": {"notes": json.dumps(notes)}}).encode()
    (folder / "checkpoints").mkdir()
    (folder / "checkpoints" / "00005.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    with open_ledger(folder) as ledger:
        assert heads_said(folder, ledger) == {first.head: "metrics of round 0", last.head: "checkpoint of round 5"}


def test_a_journal_begins_with_what_its_numbers_mean(folder: Path) -> None:
    out = io.StringIO()
    with open_ledger(folder) as ledger:
        write_journal(ledger, [], out)
    lines = out.getvalue().splitlines()
    assert lines[0].startswith("; book b1, amounts in tokens; a round is a day from ")
    assert lines[1:] == ["commodity 1000.000000 tok", ""]
