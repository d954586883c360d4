"""Books that somebody edits behind the ledger's back: every reader finds it, and names the place."""

import json
import os
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from forging import receipt
from ledger_cases import book_of, grant, history, pay, play

from hanse.base.merkle import Tree
from hanse.core.book import DamagedError
from hanse.core.entry import Transaction, leaf
from hanse.ledger.log import LogHead, heads_of
from hanse.ledger.store import Ledger

TOLD = history(7, 4, seed=6)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("tamper") / "transactions.jsonl"
    play(Ledger.open(file, book="run"), TOLD)
    return file


@pytest.fixture
def file(written: Path, tmp_path: Path) -> Path:
    for one in (written, heads_of(written)):
        shutil.copy(one, tmp_path)
    return tmp_path / written.name


def found(file: Path) -> str | None:
    """What verify says; a reader of the balances is told the same."""
    ledger = Ledger.open(file, book="run", read_only=True)
    wrong = ledger.verify().wrong
    if wrong is None:
        ledger.as_book()
    else:
        with pytest.raises(DamagedError, match=re.escape(wrong)):
            ledger.as_book()
    return wrong


def line(number: int, change: Callable[[dict[str, Any]], Any]) -> Callable[[list[bytes]], None]:
    def edit(lines: list[bytes]) -> None:
        fields = json.loads(lines[number - 1])
        change(fields)
        lines[number - 1] = json.dumps(fields, separators=(",", ":")).encode()

    return edit


def posting(number: int, place: int, units: Any) -> Callable[[list[bytes]], None]:
    return line(number, lambda f: f["postings"][place].__setitem__(1, units))


# tests/flower/test_edits.py has more: what these add is what a line may be
EDITS: dict[str, tuple[Callable[[list[bytes]], Any], str]] = {
    "text": (posting(5, 1, "much"), ": amount 'much' for "),
    "account": (line(5, lambda f: f["postings"][0].__setitem__(0, "client/77")), "transaction"),
    "no field": (line(3, lambda f: f.pop("memo")), "transaction 3: is not a transaction"),
    "a field more": (line(3, lambda f: f.update(more=1)), "transaction 3: is not written as the log writes a "),
    "number of another type": (line(1, lambda f: f.update(number=True)), "transaction 1: has the number True"),
    "deep JSON": (lambda lines: lines.__setitem__(2, b"[" * 100_000), "transaction 3: is not a transaction"),
}


@pytest.mark.parametrize("case", EDITS)
def test_an_edit_is_named(file: Path, case: str) -> None:
    edit, said = EDITS[case]
    lines = file.read_bytes().splitlines()
    edit(lines)
    file.write_bytes(b"\n".join(lines) + b"\n")
    assert said in found(file)


def notes_of(file: Path) -> list[str]:
    return [f"{note}\n\n" for note in heads_of(file).read_text().split("\n\n")[:-1]]


NOTES: dict[str, tuple[Callable[[list[str]], Any], str]] = {
    "doubled": (lambda notes: notes.insert(2, notes[1]), "transactions: must be more"),
    "two change places": (lambda notes: notes.__setitem__(slice(2), notes[1::-1]), "speaks of 4 transactions: must be"),
    "of another book": (lambda notes: notes.__setitem__(1, notes[1].replace("run", "ruin")), "of the book 'ruin'"),
    "another round": (lambda notes: notes.__setitem__(1, notes[1].replace("round ", "round 9")), "the head has 9"),
    "no number": (lambda notes: notes.__setitem__(1, notes[1].replace("round ", "round I")), "is not a head of a log"),
    "cut": (lambda notes: notes.__setitem__(1, notes[1][:40] + "\n"), "is not a head of a log"),
}


@pytest.mark.parametrize("case", NOTES)
def test_an_edit_of_the_heads_is_named(file: Path, case: str) -> None:
    edit, said = NOTES[case]
    notes = notes_of(file)
    edit(notes)
    heads_of(file).write_text("".join(notes))
    assert said in (found(file) or "")


def test_a_missing_note_in_between_changes_nothing_and_one_at_the_end_is_found_by_who_knows_the_head(
    file: Path,
) -> None:
    notes = notes_of(file)
    heads_of(file).write_text("".join(notes[:2] + notes[3:]))
    assert found(file) is None
    heads_of(file).write_text("".join(notes[:-1]))
    assert found(file) is None
    reader, last = Ledger.open(file, book="run", read_only=True), book_of(TOLD).head
    wrong = reader.verify(heads={last: "checkpoint of round 7"}).wrong
    assert (wrong or "").startswith(f"checkpoint of round 7: head {last} is not in the book: its tail is cut")


def test_random_bytes_of_the_files(written: Path, file: Path) -> None:
    """Flip random bytes of the two files: each is found, by the files alone or by the last head."""
    draw = random.Random(1)
    last = {book_of(TOLD).head: "checkpoint"}
    for _ in range(int(os.environ.get("HANSE_SOAK_BYTES", "100"))):
        target = draw.choice([file, heads_of(file)])
        blob = bytearray(target.read_bytes())
        sound, place = bytes(blob), draw.randrange(len(blob))
        blob[place] ^= draw.randrange(1, 256)
        target.write_bytes(blob)
        assert Ledger.open(file, book="run", read_only=True).verify(heads=last).wrong is not None, (target, place)
        target.write_bytes(sound)
    assert Ledger.open(file, book="run", read_only=True).verify(heads=last).ok


@pytest.mark.parametrize(
    ("forged", "said"),
    [
        ((0, grant(2, 5)), "transaction 3: round 0: the book is in round 1 already"),
        ((1, pay(0, 1, 9)), "transaction 3: transaction 'pay/0/1': client/0 would hold -4 units; its floor is 0"),
        ((1, grant(1, 5)), "transaction 3: transaction 'grant/1': round 1 has one of this name already"),
    ],
)
def test_what_breaks_a_rule_is_named_though_every_hash_is_right(
    tmp_path: Path, forged: tuple[int, Transaction], said: str
) -> None:
    file = tmp_path / "forged.jsonl"
    lines = [leaf(i, *one) for i, one in enumerate([(0, grant(0, 5)), (1, grant(1, 5)), forged], 1)]
    file.write_bytes(b"".join(one + b"\n" for one in lines))
    heads_of(file).write_text(LogHead("run", 3, Tree(lines).root(), forged[0]).note())
    assert found(file) == said


@pytest.mark.parametrize(
    "change",
    [
        lambda line: (
            line[:-1] + b',"postings":[["mint",-9],["client/0",9]]}'
        ),  # which one another program reads is open
        lambda line: line[:-1] + b',"Memo":"you owe 9"}',
        lambda line: line.replace(b",", b", "),
        lambda line: line + b"\r",
        lambda line: line.decode().encode("utf-16"),
    ],
)
def test_a_line_is_written_in_one_way_though_every_hash_is_right(
    tmp_path: Path, change: Callable[[bytes], bytes]
) -> None:
    file, line = tmp_path / "forged.jsonl", change(leaf(1, 0, grant(0, 5)))
    file.write_bytes(line + b"\n")
    heads_of(file).write_text(LogHead("run", 1, Tree([line]).root(), 0).note())
    assert found(file) == "transaction 1: is not written as the log writes a transaction"


def test_a_receipt_of_another_book_is_named(tmp_path: Path) -> None:
    ledger = Ledger.open(tmp_path / "another.jsonl", book="run")
    play(ledger, TOLD)
    assert ledger.verify([receipt("another", 6)]).wrong == "receipt of client 1, round 6: is of another book, 'another'"
