"""Backups of a run whose ledger lies outside its folder: the book travels as lines and is posted again."""

import tarfile
from pathlib import Path

import pytest
from ledger_cases import book_of, history, play

from hanse.errors import UserError
from hanse.ledger import archive
from hanse.ledger.entry import Transaction
from hanse.ledger.place import open_ledger
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
