"""A run whose ledger lies outside its folder: in a backup the book travels as lines and is posted again."""

import io
import json
import struct
import tarfile
import tomllib
from pathlib import Path

import pytest
from ledger_cases import book_of, history, play

from hanse.base.errors import UserError
from hanse.core.entry import Transaction
from hanse.ledger import archive
from hanse.ledger.export import write_journal
from hanse.ledger.place import heads_said, open_ledger, place_of
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


def test_the_book_is_posted_again_where_the_user_says(folder: Path, books: Path, tmp_path: Path) -> None:
    url = f"sqlite:///{books}"
    head = archive.backup(folder, tmp_path / "backup.tar.gz", url)
    assert head == book_of(TOLD).head
    with tarfile.open(tmp_path / "backup.tar.gz") as packed:
        assert sorted(packed.getnames()) == ["config.toml", "hanse-backup.json", "ledger.json", "ledger.jsonl"]
    books.unlink()
    again = tmp_path / "again"
    assert archive.restore(tmp_path / "backup.tar.gz", again, url).head == head
    assert sorted(p.name for p in again.iterdir()) == ["config.toml", "ledger.json"]
    with open_ledger(again, url) as ledger:
        assert ledger.as_book() == book_of(TOLD)
    # the book is there already: nothing is posted twice
    assert archive.restore(tmp_path / "backup.tar.gz", tmp_path / "third", url).head == head
    with open_ledger(again, url) as ledger:
        assert ledger.count() == book_of(TOLD).count


def test_a_book_from_elsewhere_is_restored_into_the_run_directory(folder: Path, books: Path, tmp_path: Path) -> None:
    """Attack 9: the archive's own config.toml named a database, and restore wrote into it."""
    head = archive.backup(folder, tmp_path / "backup.tar.gz", f"sqlite:///{books}")
    books.write_bytes(b"another program's")
    told: list[str] = []
    again = tmp_path / "again"
    assert archive.restore(tmp_path / "backup.tar.gz", again, said=told.append).head == head
    assert books.read_bytes() == b"another program's"
    assert sorted(p.name for p in again.iterdir()) == ["config.toml", "ledger.db", "ledger.json"]
    assert told == [f"its books were at sqlite:///{books}; they are at {again / 'ledger.db'} now, as config.toml says"]
    assert tomllib.loads((again / "config.toml").read_text()) == {"mechanism": {"name": "pifl"}, "ledger": {}}
    with open_ledger(again) as ledger:
        assert ledger.as_book() == book_of(TOLD)


def test_books_outside_the_run_directory_are_not_opened_on_its_word(folder: Path, books: Path) -> None:
    with pytest.raises(UserError, match=f"ledger.url: sqlite:///{books}: is not in the run directory"):
        open_ledger(folder)
    for url in ("postgresql://me:secret@127.0.0.1:1/books", "sqlite://", "sqlite:///../books.db", "elsewhere.db"):
        (folder / "config.toml").write_text(f'[ledger]\nurl = "{url}"\n')
        with pytest.raises(UserError, match="is not in the run directory") as wrong:
            place_of(folder)
        assert "secret" not in str(wrong.value)
    (folder / "config.toml").write_text(f'[ledger]\nurl = "sqlite:///{folder}/own.db"\n')
    assert place_of(folder) == (folder / "own.db", "b1")


def test_another_book_of_the_same_name_is_told_apart(folder: Path, books: Path, tmp_path: Path) -> None:
    url = f"sqlite:///{books}"
    archive.backup(folder, tmp_path / "backup.tar.gz", url)
    books.unlink()
    with Ledger.open(books, book="b1") as ledger:
        ledger.post(0, [Transaction("odd", "x", (("mint", -5), ("client/0", 5)))])
    with pytest.raises(UserError, match="has another book of this name"):
        archive.restore(tmp_path / "backup.tar.gz", tmp_path / "again", url)
    assert not (tmp_path / "again").exists()


def test_an_archive_may_hold_folders(folder: Path, books: Path, tmp_path: Path) -> None:
    archive.backup(folder, tmp_path / "backup.tar.gz", f"sqlite:///{books}")
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


def test_the_lines_of_a_run_name_heads_too(folder: Path, books: Path) -> None:
    first, last = book_of(TOLD[:1]), book_of(TOLD)
    lines = [json.dumps({"round": 0, "ledger/head": first.head}), json.dumps({"round": 1})]
    (folder / "metrics.jsonl").write_text("".join(f"{line}\n" for line in lines))
    size = (folder / "metrics.jsonl").stat().st_size
    with (folder / "metrics.jsonl").open("a") as file:  # behind the checkpoint: not part of the run
        file.write(json.dumps({"round": 2, "ledger/head": "f" * 64}) + "\n")
    book = {"head": last.head, "count": last.count, "floor": last.floor}
    notes = {"round": 5, "lengths": {"metrics.jsonl": size}, "book": book, "pending": []}
    header = json.dumps({"__metadata__": {"notes": json.dumps(notes)}}).encode()
    (folder / "checkpoints").mkdir()
    (folder / "checkpoints" / "00005.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    with open_ledger(folder, str(books)) as ledger:
        assert heads_said(folder, ledger) == {first.head: "metrics of round 0", last.head: "checkpoint of round 5"}


def test_a_journal_begins_with_what_its_numbers_mean(folder: Path, books: Path) -> None:
    out = io.StringIO()
    with open_ledger(folder, str(books)) as ledger:
        write_journal(ledger, [], out)
    lines = out.getvalue().splitlines()
    assert lines[0].startswith("; book b1, amounts in tokens; a round is a day from ")
    assert lines[1:] == ["commodity 1000.000000 tok", ""]
