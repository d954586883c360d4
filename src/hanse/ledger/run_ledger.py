"""Finds the ledger of a run directory, and what the rest of the directory says about it.

Code that looks at a finished or running run (the report, a statement, ``hanse ledger``) opens its ledger with
:func:`reading` or :func:`open_ledger`. The last checkpoint names the head of the book (:func:`latest_claim`), and the
book has the hash of each round's record. :func:`verify_run` compares them.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NotRequired

from typing_extensions import TypedDict

from hanse.base.errors import UserError
from hanse.base.files import going_on, in_order, json_lines, opened, read_json, read_toml, run_folder, table
from hanse.base.merkle import EMPTY, root_of
from hanse.base.plain_text import quantity
from hanse.core.book import DamagedError, LedgerError
from hanse.core.declared import Declared, Units
from hanse.core.entry import CLOSE, LEAVE, LOG, NO_PAYMENTS, TOKEN, Transaction
from hanse.ledger.log import Record
from hanse.ledger.receipts import METRICS, SEATS, Closes, Receipt, Records
from hanse.ledger.store import Ledger, VerifyResult

COSIGNED = "cosigned.jsonl"  # in a run directory: the heads that witnesses have cosigned
HOW_TO_PAY = "a run with payments has one: --set mechanism=ipfl, --set mechanism=pifl, or a part in mechanism.settle"
NOTES = 1 << 28  # bytes (256 MiB) that a checkpoint's header may have; a longer one is taken for damage


class _Books(TypedDict):
    """The state of the books in a checkpoint: the peaks of the tree, and the number of transactions."""

    peaks: list[str]
    count: Units


Row = tuple[Units, str, str, str, Sequence[tuple[str, int]]]  # of "pending": round, step, kind, memo, postings


class _Notes(TypedDict):
    """The parts of a checkpoint's metadata that are read here. Lengths are bytes by file."""

    round: Units
    book: _Books
    lengths: dict[str, Units]
    pending: list[Row]
    finished: NotRequired[bool]
    settings: NotRequired[str]


_NOTES = Declared[_Notes](_Notes)


def rows_of(pending: Iterable[tuple[int, Transaction]]) -> list[Row]:
    """Return the rows in which a checkpoint has pending transactions, each with its round."""
    return [(r, t.step, t.kind, t.memo, t.postings) for r, t in pending]


def pending_in(rows: Iterable[Row]) -> tuple[tuple[int, Transaction], ...]:
    """Return the transactions in rows of :func:`rows_of`, each with its round."""
    return tuple((r, Transaction(s, k, tuple((name, units) for name, units in moved), m)) for r, s, k, m, moved in rows)


@dataclass(frozen=True)
class BooksAtCheckpoint:
    """What a checkpoint says about the books. The defaults describe the start of a run.

    Attributes:
        round: the checkpoint's round; None for the start of the run.
        count: how many transactions there are.
        head: the root of the tree over the transactions.
        pending: the last transactions, each with its round. The ledger may not have these yet, because the checkpoint
            is written first.
        lines: how many bytes of ``metrics.jsonl`` belong to the checkpoint.
        finished: whether the last round is settled.
        settings: the experiment that was played, as TOML; "": not said.
    """

    round: int | None = None
    count: int = 0
    head: str = EMPTY.hex()
    pending: Sequence[tuple[int, Transaction]] = ()
    lines: int = 0
    finished: bool = False
    settings: str = ""

    @property
    def heads(self) -> dict[str, str]:
        """The head that the ledger must have had, and who names it. It is empty if there are no transactions."""
        return {self.head: self.who} if self.count else {}

    @property
    def who(self) -> str:
        """Who makes the claim, in words for a message."""
        return "start of the run" if self.round is None else f"checkpoint of round {self.round}"

    def lacking(self, count: int) -> Sequence[tuple[int, Transaction]]:
        """Return the transactions of ``pending`` that a ledger with ``count`` transactions does not have yet."""
        # the test for > 0 matters: [-0:] would be all of them
        return self.pending[-missing:] if (missing := self.count - count) > 0 else ()


def open_ledger(folder: str | Path, *, read_only: bool = True) -> Ledger:
    """Open the ledger of a run directory.

    The name of the book and the operator's key come from ledger.json, the floor from config.toml.

    Args:
        folder: the run directory.
        read_only: see :meth:`Ledger.open`.

    Raises:
        UserError: it is not a run directory, the run has no payments, its ledger.json is malformed, or the ledger
            cannot be opened.
    """
    folder = run_folder(folder)
    config = read_toml(folder / "config.toml")
    if not (folder / "ledger.json").exists():
        if has_books(folder):
            raise UserError(f"{folder / 'ledger.json'}: is gone: bring back a backup of it")
        raise UserError(f"{folder}: this run has no ledger, because nobody pays in it; {HOW_TO_PAY}")
    book, public = name_and_key(folder / "ledger.json")
    floor = table(config, "ledger").get("floor", 0)
    if not isinstance(floor, int | float) or not -1e12 <= floor <= 0:
        raise UserError(f"{folder / 'config.toml'}: ledger.floor: {floor!r}: must be a number from -1e12 to 0")
    try:
        units = round(floor * TOKEN)
        return Ledger.open(folder / LOG, book=book, floor=units, read_only=read_only, public=public)
    except LedgerError as wrong:
        raise UserError(str(wrong)) from None


def has_books(folder: Path, metrics: Iterable[Mapping[str, Any]] | None = None) -> bool:
    """Return whether a run has books, or had: ``ledger.json``, a log, or a head in its ``metrics`` (None: its file)."""
    lines = json_lines(folder / METRICS) if metrics is None else metrics
    files = any((folder / name).exists() for name in ("ledger.json", LOG))
    return files or any("ledger/head" in line for line in lines)


def name_and_key(file: Path) -> tuple[str, bytes | None]:
    """Return what a run's ``ledger.json`` says: the book's name, and the operator's key (32 bytes) if heads are signed.

    Raises:
        UserError: the file is damaged or cannot be read.
    """
    named = read_json(file)
    book, key = (named.get(name) if isinstance(named, dict) else None for name in ("book", "key"))
    if not isinstance(book, str) or not (key is None or (isinstance(key, str) and re.fullmatch("[0-9a-f]{64}", key))):
        raise UserError(f'{file}: must be {{"book": NAME}}, with "key": 64 hexadecimal digits where heads are signed')
    return book, None if key is None else bytes.fromhex(key)


@contextmanager
def reading(folder: Path) -> Iterator[Ledger]:
    """Open a run's ledger for reading.

    Raises UserError if it cannot be opened, and for any LedgerError inside the ``with`` statement.
    """
    ledger = open_ledger(folder)
    try:
        yield ledger
    except DamagedError as wrong:
        raise UserError(f"{folder}: the books do not hold: {wrong} ('hanse ledger verify' checks them)") from None
    except LedgerError as wrong:
        raise UserError(str(wrong)) from None


def latest_claim(folder: Path) -> BooksAtCheckpoint | None:
    """Return what the newest readable checkpoint says about the books, or None if there is no such checkpoint.

    Only the header of the checkpoint's file is read. The file's checksum is not verified here. This is done when a run
    is resumed from the file.
    """
    for path in reversed(in_order(folder / "checkpoints", ".safetensors")):
        try:
            with opened(path) as file:
                # a safetensors file starts with the length of its JSON header (8 bytes, little endian)
                (length,) = struct.unpack("<Q", file.read(8))
                if length > NOTES:
                    continue
                notes = _NOTES.read(json.loads(file.read(length))["__metadata__"]["notes"])
            book, lines = notes["book"], notes["lengths"][METRICS]
            head = root_of([bytes.fromhex(peak) for peak in book["peaks"]]).hex()
        except (OSError, ValueError, KeyError, TypeError, RecursionError, struct.error):
            continue
        pending, finished = pending_in(notes["pending"]), notes.get("finished", False)
        return BooksAtCheckpoint(
            notes["round"], book["count"], head, pending, lines, finished, notes.get("settings", "")
        )
    return None


def movements(records: Iterable[Record]) -> Iterator[tuple[int, Transaction]]:
    """Yield the transactions of a book that move something, and who has left, each with its round."""
    return ((r.round, r.transaction) for r in records if r.transaction.kind not in NO_PAYMENTS - {LEAVE})


def wrong_in(folder: Path) -> str | None:
    """Return in a few words what ``hanse ledger verify`` finds wrong with a run's books, or None if they are right.

    Every transaction is read, about 0.02 ms each. Raises UserError: the books or the run's metrics cannot be read.
    """
    return verify_run(folder, open_ledger(folder)).wrong


def verify_run(
    folder: Path,
    ledger: Ledger,
    receipts: Iterable[Receipt] = (),
    heads: Mapping[str, str] | None = None,
    met: Callable[[Record], object] = lambda record: None,
) -> VerifyResult:
    """Verify a run's ledger, and compare it with the records of its rounds and with the head in its last checkpoint.

    Args:
        folder: the run directory.
        ledger: the run's open ledger.
        receipts: what participants kept of the book.
        heads: further heads that the book must have had, each with who names it, such as a witness.
        met: is called with each transaction that was found right.

    Returns:
        What was found; its ``wrong`` is None if the books hold, else it says what does not.

    Raises:
        UserError: the metrics are damaged.
    """
    claim, closes = latest_claim(folder) or BooksAtCheckpoint(), Closes(Records(folder))
    said = claim.heads | dict(heads or {})
    verdict = ledger.verify(receipts, heads=said, lacking=claim.lacking, closes=closes, met=met)
    due = claim.count - verdict.transactions
    written = closes.seen | {round for round, _ in claim.pending[-due:] if due > 0}
    played = 1 + max((line["round"] for line in json_lines(folder / METRICS, ("round",))), default=-1)
    planned = table(read_toml(folder / "config.toml"), "run").get("rounds")
    over = claim.finished or (isinstance(planned, int) and 0 < planned <= played)
    # behind the checkpoint of a run that goes on, lines are written before the book
    ended = claim.finished or (over and claim.round is None)
    if verdict.ok:
        lines = () if ended else json_lines(folder / METRICS, ("round",), until=claim.lines)
        rounds = closes.records.rounds(METRICS) | closes.records.rounds(SEATS) if ended else {n["round"] for n in lines}
        if lacking := rounds - written:
            return replace(verdict, wrong=f"round {min(lacking)}: the book has no close of it")
    # a run that pays settles once more after its last round; a book without payments needs no more
    if verdict.ok and over and played not in closes.seen and verdict.postings:
        lacks = f"{quantity(played, 'round was', 'rounds were')} played, and the book lacks the last settlement"
        return replace(verdict, wrong=f"{lacks}; if the run was interrupted, '{going_on(folder)}' writes it")
    return verdict


def is_settled(folder: Path, ledger: Ledger) -> bool:
    """Return whether the run's last checkpoint says it is over, and the ledger has all transactions named there."""
    claim = latest_claim(folder)
    return claim is not None and claim.finished and ledger.as_book().count >= claim.count


def closed_in(records: Iterable[Record]) -> frozenset[int]:
    """Return the rounds that transactions of a book close."""
    return frozenset(record.round for record in records if record.transaction.kind == CLOSE)


def unbooked(folder: Path, closed: Collection[int]) -> range:
    """Return the rounds of the records that the book has not closed, from the first such round on.

    Rounds after the last checkpoint have lines in the records before they are in the book. A killed run may leave them
    in this state. If there are none, the range is empty and begins after the last round.

    Args:
        folder: the run directory.
        closed: the rounds that its whole book has closed.
    """
    rounds = [int(line["round"]) for line in json_lines(folder / METRICS, ("round",))]
    end = max(rounds, default=-1) + 1
    return range(next((number for number in rounds if number not in closed), end), end)


def beyond_the_book(rounds: range) -> str:
    """Return a sentence on the rounds that are in a run's records and not in its book; "" if there are none."""
    if not rounds:
        return ""
    which, them = (
        (f"Round {rounds[0]} is", "it") if len(rounds) == 1 else (f"Rounds {rounds[0]} to {rounds[-1]} are", "them")
    )
    return f"{which} not in the book: nothing proves what the records say of {them}."
