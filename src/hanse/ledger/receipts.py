"""Receipts: what a participant keeps of each round, to check the ledger later.

The tree of hashes shows that nothing inside a book was changed. The book does not show whether its end was cut off, or
whether the operator has rewritten all of it. A receipt has three things: the statement that a round's close makes of
one client, the hashes that lead from it to a head of the log, and that head with the operator's signature. Even without
the book, a receipt therefore proves what the operator has said of the round. A book without this head is a different
book. Participants keep their receipts where the operator cannot write.

:class:`hanse.ledger.store.Issuer` makes the receipts of a run from its log, and :func:`write_receipts` stores them.
Later :func:`read_receipts` reads a folder of them, and :meth:`hanse.ledger.store.Ledger.verify` looks for the head of
each in the book.

A round's close is one line of the log that moves nothing. Its memo has two hashes. The first is that of the round's
record: its line of ``metrics.jsonl`` without clock, memory and bytes sent (it has the hash of the round's file in
``rounds/``), and its lines of ``clients.jsonl``, which have the values. The second is the root of a Merkle tree over
the participants' statements, in the order of their numbers: what each has after the round, what the round moved, what
its updates were worth, and how much of its privacy budget it says it has spent. The loop closes a round with
:func:`close`; :class:`Closes` compares a log with what :func:`close` gives.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, NotRequired

from pydantic_core import from_json
from typing_extensions import TypedDict

from hanse.base.errors import UserError
from hanse.base.files import LONGEST, cut_torn, opened, read_json
from hanse.base.merkle import Tree, as_text, hashes_of, path_length, root_from
from hanse.base.plain_text import quantity
from hanse.core.book import Book, MutableBook
from hanse.core.declared import Declared, Digest, Int64, Units
from hanse.core.entry import CLOSE, LEAVE, Transaction, client, escrow, owner_of
from hanse.ledger.log import LogHead, Record
from hanse.ledger.note import fingerprint

METRICS, SEATS = "metrics.jsonl", "clients.jsonl"  # in a run directory: a line per round, and a line a seat
AGREEMENT = "agreement"  # of a round on a network: the hash of what the participants agreed to
SPENT = "fit/epsilon"  # of a seat: what its client says that it has spent of its privacy budget
CLOCK = ("time/", "memory/", "bytes/")  # metrics that differ from run to run, or where an answer was lost on its way
RECEIPT = 2000  # bytes that a receipt may have
FRAME = 900  # of these, what it needs beside proofs and postings
HASH = 43  # characters of a hash of a proof, in base64

_encode = json.JSONEncoder(separators=(",", ":")).encode
Line = tuple[str, str, int]  # a posting: step, account, units


@dataclass(frozen=True)
class RecordDigest:
    """What the record of a round says.

    Attributes:
        record: the record's hash, 32 bytes.
        values: what the updates of each client were worth, summed over its seats. Clients without a value are left out.
        spent: the epsilon that each client says it has spent. Clients that do not say it are left out.
        agreement: the hash of what the participants agreed to. "": there is no agreement.
    """

    record: bytes
    values: Mapping[int, float]
    spent: Mapping[int, float] = field(default_factory=dict)
    agreement: str = ""

    @staticmethod
    def of(metrics: Mapping[str, Any], seats: Sequence[Mapping[str, Any]]) -> RecordDigest:
        """Return the facts of a round's lines.

        Args:
            metrics: the round's line of ``metrics.jsonl``.
            seats: the round's lines of ``clients.jsonl``, in their order.

        Examples:
            >>> facts = RecordDigest.of({"round": 0, "time/round_s": 0.1}, [{"round": 0, "client": 3, "value": 0.25}])
            >>> facts.values, facts == RecordDigest.of({"round": 0}, [{"round": 0, "client": 3, "value": 0.25}])
            ({3: 0.25}, True)
        """
        plain = {name: value for name, value in metrics.items() if not name.startswith(CLOCK)}
        said = _encode([plain, list(seats)])
        values: dict[int, float] = {}
        spent: dict[int, float] = {}
        for seat in seats:  # a line that was edited may have anything, which the digest tells
            if isinstance(seat.get("value"), int | float):
                values[seat["client"]] = values.get(seat["client"], 0.0) + seat["value"]
            if isinstance(seat.get(SPENT), int | float):
                spent[seat["client"]] = max(spent.get(seat["client"], 0.0), seat[SPENT])
        return RecordDigest(hashlib.sha256(said.encode()).digest(), values, spent, str(metrics.get(AGREEMENT, "")))


NOTHING = RecordDigest.of({}, [])  # of a round that has no record, such as the last settlement


def moved_in(transactions: Iterable[Transaction]) -> dict[int, list[Line]]:
    """Return the postings to each client's account and escrow, in the book's order, by client. What moves when a client
    leaves stands in a receipt of its own.
    """
    moved: dict[int, list[Line]] = {}
    for transaction in (one for one in transactions if one.kind != LEAVE):
        for account, units in transaction.postings:
            if (owner := owner_of(account)) is not None:
                moved.setdefault(owner, []).append((transaction.step, account, units))
    return moved


def shortened(lines: Sequence[Line]) -> dict[str, Any]:
    """Return the number and the SHA-256 of postings, which replace them in a statement if there are too many."""
    said = _encode(lines)
    return {"count": len(lines), "sha256": as_text(hashlib.sha256(said.encode()).digest())}


def statements(
    round: int, balances: Mapping[str, int], peaks: int, moved: Mapping[int, Sequence[Line]], facts: RecordDigest
) -> dict[int, bytes]:
    """Return the statement of every client that has an account, by client number, as compact JSON.

    Args:
        round: the round.
        balances: units by account after the round's transactions.
        peaks: how many peaks the log's tree has before the close. As many hashes lead from the close to the head.
        moved: the round's postings; see :func:`moved_in`.
        facts: what the round's record says.
    """
    clients = sorted(int(name[7:]) for name in balances if name.startswith("client/"))
    proofs = peaks + path_length(0, max(1, len(clients)))
    agreed = {AGREEMENT: facts.agreement} if facts.agreement else {}
    room = RECEIPT - FRAME - HASH * proofs - (len(json.dumps(json.dumps(agreed))) if agreed else 0)
    found = {}
    for c in clients:
        lines = moved.get(c, ())
        # as a text in a text, in which quotes and backslashes are two characters
        size = len(written := _encode(lines)) + 2 + written.count('"') + written.count("\\")
        said: dict[str, Any] = {
            "round": round,
            "client": c,
            "balance": balances[client(c)],
            "escrow": balances.get(escrow(c), 0),
            "postings": lines if size <= room else shortened(lines),
        }
        if c in facts.values:
            said["value"] = facts.values[c]
        if c in facts.spent:
            said["epsilon"] = facts.spent[c]
        said |= agreed
        found[c] = _encode(said).encode()
    return found


def close(round: int, book: Book, posted: Iterable[Transaction], facts: RecordDigest = NOTHING) -> Transaction:
    """Return the close of a round.

    Args:
        round: the round.
        book: the book with everything that was ``posted`` in the round.
        posted: the round's transactions.
        facts: what the round's record says. Default: there is no record.

    Examples:
        >>> grant = Transaction("grant/0", "grant", (("mint", -5), ("client/0", 5)))
        >>> book = Book().post(0, [grant])
        >>> closing = close(0, book, [grant])
        >>> closing.postings, book.post(0, [closing]).count
        ((), 2)
    """
    said = statements(round, book.balances, len(book.peaks), moved_in(posted), facts)
    return closing_line(facts.record, Tree(list(said.values())).root())


def closing_line(record: bytes, root: bytes) -> Transaction:
    """Return the close that commits to the hash of a record and to the root of the tree over the statements."""
    return Transaction(CLOSE, CLOSE, (), f"record {as_text(record)} statements {as_text(root)}")


class Records:
    """Reads a run's line files round by round, also while they grow.

    Args:
        folder: the run directory.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._at, self._last = folder, {METRICS: 0, SEATS: 0}, {METRICS: -1, SEATS: -1}
        self._met: dict[str, set[int]] = {METRICS: set(), SEATS: set()}

    def of(self, round: int) -> RecordDigest:
        """Return a round's facts, :data:`NOTHING` if it has no line. Rounds must be asked for in ascending order.

        Raises:
            UserError: a line is damaged.
        """
        metrics = self._lines(METRICS, round)
        if len(metrics) > 1:
            raise UserError(f"{self._folder / METRICS}: is damaged: round {round} has {quantity(len(metrics), 'line')}")
        return RecordDigest.of(metrics[0] if metrics else {}, self._lines(SEATS, round))

    def rounds(self, name: str) -> set[int]:
        """Read a file to its end, and return the rounds that it has lines of, asked for or not.

        Raises:
            UserError: a line is damaged.
        """
        self._lines(name, sys.maxsize)
        return self._met[name]

    def _lines(self, name: str, round: int) -> list[dict[str, Any]]:
        """Return a file's lines of a round, and stay behind them."""
        found, file = list[dict[str, Any]](), self._folder / name
        try:
            with opened(file) as lines:
                lines.seek(self._at[name])
                while (line := lines.readline(LONGEST)).endswith(b"\n"):
                    fields = from_json(line)
                    if fields["round"] < self._last[name]:
                        raise ValueError(f"round {fields['round']} comes after round {self._last[name]}")
                    if fields["round"] > round:
                        break
                    self._last[name] = fields["round"]
                    self._met[name].add(fields["round"])
                    self._at[name] += len(line)
                    if fields["round"] == round:
                        found.append(fields)
        except FileNotFoundError:
            return []
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as wrong:
            raise UserError(f"{file}: a line behind byte {self._at[name]} is damaged ({wrong})") from None
        return found


@dataclass(frozen=True)
class Closed:
    """A round whose close was met in a log.

    Attributes:
        round: the round's number.
        line: the close that the log should have there.
        record: the hash of the round's record.
        statements: each client's statement, in the order of client numbers.
        before: the peaks of the log's tree without the close.
    """

    round: int
    line: Transaction
    record: bytes
    statements: Mapping[int, bytes]
    before: Sequence[bytes]


@dataclass
class Closes:
    """Recomputes the closes of a log's rounds, while somebody walks along the log.

    Attributes:
        records: the run's records.
        first: the first round that is checked.
        seen: the rounds whose closes were met.
    """

    records: Records
    first: int = 0
    seen: set[int] = field(default_factory=set)
    _new: list[tuple[int, Transaction]] = field(default_factory=list)  # not closed so far

    def reached(self, record: Record, tally: MutableBook, before: Sequence[bytes] | None) -> Closed | None:
        """Take in the next line of the log, and return the round that it closes, or None if it closes no round.

        Args:
            record: the line.
            tally: the book up to this line.
            before: the peaks of the tree without the line, if the line closes a round; else None.
        """
        if before is None:
            self._new.append((record.round, record.transaction))
            return None
        new, self._new = self._new, []
        self.seen.add(record.round)
        if record.round < self.first:
            return None
        moved, facts = moved_in(t for r, t in new if r == record.round), self.records.of(record.round)
        said = statements(record.round, tally.balances, len(before), moved, facts)
        line = closing_line(facts.record, Tree(list(said.values())).root())
        return Closed(record.round, line, facts.record, said, before)

    def wrong(self, record: Record, tally: MutableBook, before: Sequence[bytes] | None) -> str | None:
        """Take in the next line of the log, and return what is wrong with it, or None if it is right."""
        due, found = self.reached(record, tally, before), record.transaction
        if due is None or due.line == found:
            return None
        where = f"round {record.round}"
        if due.line.memo.split()[:2] != found.memo.split()[:2]:
            return f"{where}: its lines in {METRICS} and {SEATS} are not those of which the book has the hash"
        return f"{where}: the statements that its close stands for do not follow from the book"


MOST_BYTES = 4096  # bytes of a receipt; a longer one is none


class _Short(TypedDict):
    """What stands for postings that have no room in a receipt."""

    count: Units
    sha256: str


class ClosingStatement(TypedDict):
    """What a round's close says of a client: what it has after the round, in units, and what the round moved.

    Postings are (step, account, units) in the book's order. If there are many, there are only their number and hash.
    ``value`` is what the client's updates were worth, and is left out if there is no value. ``epsilon`` is how much of
    its privacy budget the client said it has spent, and is left out if it said nothing. ``agreement`` is the hash of
    what participants on a network agreed to.
    """

    round: Units
    client: Units
    balance: Int64
    escrow: Int64
    postings: list[tuple[str, str, Int64]] | _Short
    value: NotRequired[float]
    epsilon: NotRequired[float]
    agreement: NotRequired[Digest]


_STATEMENT = Declared[ClosingStatement](ClosingStatement)


@dataclass(frozen=True)
class Receipt:
    """What one client was told about the book at the end of a round, with the proof.

    Attributes:
        statement: the client's statement: a line of JSON, with the fields of :class:`ClosingStatement`.
        index: the statement's place among the round's statements.
        of: how many statements there are.
        path: the hashes that lead from the statement to the root of the statements, one after the other in base64.
        record: the hash of the round's record, in base64.
        proof: the hashes that lead from the round's close, which is the last line of the log, to the log's head; in
            base64.
        head: the head of the log, a note that the operator has signed if it has a key.

    Examples:
        >>> from hanse.core.entry import MINT, Transaction
        >>> from hanse.ledger.store import Issuer
        >>> from hanse.ledger.store import Ledger
        >>> ledger = Ledger.open("mine.jsonl", book="mine")
        >>> _ = ledger.post(0, [Transaction("grant/0", "grant", ((MINT, -5), ("client/0", 5)))])
        >>> _ = ledger.close_round(0)
        >>> [receipt] = Issuer(ledger, Path()).new()
        >>> receipt.client, receipt.said["balance"], receipt.wrong("mine")
        (0, 5, None)
    """

    statement: str
    index: Units
    of: Units
    path: str
    record: str
    proof: str
    head: str

    @staticmethod
    def read(line: bytes) -> Receipt:
        """Return the receipt on a line of JSON. Its proof is not checked.

        Raises:
            ValueError: the line is none.
        """
        if len(line) > MOST_BYTES:
            raise ValueError(f"{len(line)} bytes: a receipt has at most {MOST_BYTES}")
        found = _RECEIPT.read(line.decode())
        if found.as_json().encode() != line.rstrip(b"\n"):
            raise ValueError("is not written as a receipt is: other programs may read it otherwise")
        if len(found.note.signatures) > 1:
            raise ValueError("its head has more than one signature")
        _ = found.said
        return found

    @cached_property
    def said(self) -> ClosingStatement:
        """What the statement says. Raises ValueError if it is not a statement, or not written in the canonical form."""
        return _STATEMENT.canonical(self.statement)

    @cached_property
    def note(self) -> LogHead:
        """The head of the log, with its signature unchecked."""
        return LogHead.read(self.head)

    @property
    def book(self) -> str:
        """The book's name."""
        return self.note.book

    @property
    def round(self) -> int:
        """The round."""
        return self.said["round"]

    @property
    def who(self) -> str:
        """How a message names it."""
        return f"receipt of client {self.client}, round {self.round}"

    @property
    def client(self) -> int:
        """The client's number."""
        return self.said["client"]

    @property
    def count(self) -> int:
        """How many transactions the book had."""
        return self.note.count

    @property
    def root(self) -> str:
        """The root of the tree over the book's transactions, 64 hexadecimal digits."""
        return self.note.root.hex()

    def holds(self) -> bool:
        """Return whether the hashes lead from the statement to the head; the signature is not checked."""
        try:
            record, path = _one(self.record), hashes_of(self.path)
        except ValueError:
            return False
        root = root_from(self.statement.encode(), self.index, self.of, path)
        if root is None or self.round != self.note.round:
            return False
        return self.note.proves(closing_line(record, root), self.proof)

    def wrong(self, book: str, public: bytes | None = None) -> str | None:
        """Return why this is not a receipt of a book, or None if it is one.

        Args:
            book: the book's name.
            public: the operator's key (32 bytes), which must have signed the head. None: signatures are not checked.

        Raises:
            UserError: the package ``cryptography`` is needed but not installed.
        """
        if self.book != book:
            return f"is of another book, '{self.book}'"
        if not self.holds():
            return "its proof does not lead to its head"
        if public is not None and not self.note.by(public):
            return f"its head is not signed by the operator's key, {fingerprint(public)}"
        return None

    def as_json(self) -> str:
        """Return the receipt as a line of JSON, without the newline."""
        return json.dumps(asdict(self), separators=(",", ":"), ensure_ascii=False)


_RECEIPT = Declared[Receipt](Receipt)


def _one(text: str) -> bytes:
    """Return the hash in a text. Raises ValueError if there is not exactly one."""
    [found] = hashes_of(text)
    return found


def write_receipts(folder: Path, receipts: Iterable[Receipt]) -> None:
    """Append each receipt to its client's file, ``client-N.jsonl`` in ``folder``.

    A receipt that is already among the last lines of the file is not written again. This happens when a round is sent
    again after a crash.

    Args:
        folder: the folder, which is created if it is missing.
        receipts: receipts of any clients and rounds, in order.
    """
    folder.mkdir(parents=True, exist_ok=True)
    by_client: dict[int, list[Receipt]] = {}
    for receipt in receipts:
        by_client.setdefault(receipt.client, []).append(receipt)
    for number, mine in by_client.items():
        path = folder / f"client-{number}.jsonl"
        there = _last(path, len(mine))
        new = [receipt for receipt in mine if receipt not in there]
        with path.open("a+b") as file:
            cut_torn(file)  # its receipt is sent again; another one would be glued to it
            file.writelines(f"{r.as_json()}\n".encode() for r in new)


def _last(path: Path, count: int | None) -> list[Receipt]:
    """Return the last ``count`` receipts of a file (None: all). Lines that are not receipts are skipped."""
    found: list[Receipt] = []
    if path.exists():
        with path.open("rb") as file:
            for line in deque(file, maxlen=count):
                with suppress(ValueError):  # a crash cut the line short
                    found.append(Receipt.read(line))
    return found


def newest(path: Path) -> Receipt | None:
    """Return the last whole receipt in a file, or None if there is none."""
    kept = _last(path, 2)  # the very last may be what a crash left
    return kept[-1] if kept else None


def contradiction(path: Path, told: Iterable[Receipt]) -> str:
    """Return why new receipts cannot follow those in a file, if the book only grows; "" if they can.

    Receipts that are already in the file are skipped: they are sent again if an answer was lost.

    Args:
        path: the client's file, as :func:`write_receipts` makes it.
        told: new receipts of the same client, in order.
    """
    told = list(told)
    kept = _last(path, len(told) + 1)
    if kept and any(receipt.count <= kept[-1].count for receipt in told):
        kept = _last(path, None)
    for receipt in told if kept else ():
        here, there = f"the receipt of round {receipt.round}", f"that of round {kept[-1].round}"
        if receipt.book != kept[-1].book:
            return f"{here} is of another book, '{receipt.book}'; {there} was of '{kept[-1].book}'"
        if receipt.count < kept[-1].count and receipt not in kept:
            return f"{here} says {quantity(receipt.count, 'transaction')}; {there} said {kept[-1].count}"
    return split_view([*kept, *told])


def split_view(receipts: Iterable[Receipt]) -> str:
    """Return why receipts of any clients cannot all come from books that only grow; "" if they can.

    They cannot if their heads contradict each other (:meth:`LogHead.contradicts`), or if one head comes with two
    different statements to the same client.

    Args:
        receipts: receipts with valid proofs, in any order.
    """
    ordered = sorted(receipts, key=lambda r: (r.book, r.count, r.round, r.client))
    for one, other in pairwise(ordered):  # what holds of neighbours holds of all
        if why := one.note.contradicts(other.note):
            return f"client {one.client} and client {other.client} were told of two: {why}"
        if (one.note.text, one.client) == (other.note.text, other.client) and one.statement != other.statement:
            return f"client {one.client} heard two things of round {one.round}: {one.statement}, and {other.statement}"
    return ""


def read_receipts(folder: Path, *, besides: bool = False) -> Iterator[Receipt]:
    """Yield all receipts in the ``*.jsonl`` files of a folder, as :func:`read_file` reads each.

    Args:
        folder: the folder.
        besides: whether it may have none, since there are other things in it.

    Raises:
        UserError: the folder has no such file, a file has no receipt, or a line is not a receipt.
    """
    files = sorted(folder.glob("*.jsonl"))
    if not files and not besides:
        raise UserError(f"--receipts {folder}: has no receipts (*.jsonl)")
    for path in files:
        yield from read_file(path)


def heads_of_leavers(folder: Path) -> dict[str, str]:
    """Return the roots that receipts of leavers (``*.json``) in a folder say that the book had, each with its file."""
    found = dict[str, str]()
    for path in sorted(folder.glob("*.json")):
        said = read_json(path)
        if isinstance(said, dict) and isinstance(said.get("head"), str):
            try:
                found[LogHead.read(said["head"]).root.hex()] = path.name
            except ValueError as wrong:
                raise UserError(f"{path}: its head is none ({wrong})") from None
    return found


def read_file(path: Path) -> Iterator[Receipt]:
    """Yield the receipts in a file, one on each line. A last line that a crash cut short is skipped.

    Raises:
        UserError: ``path`` is not a file, cannot be read, has no whole receipt, or a line is not a receipt.
    """
    if not path.is_file():
        raise UserError(f"{path}: is not a file of receipts")
    try:
        lines = path.open("rb")
    except OSError as wrong:
        raise UserError(f"{path}: cannot be read: {wrong.strerror}") from None
    number = 0
    with lines:
        for line in lines:
            if not line.endswith(b"\n"):
                break  # a crash cut the line short
            number += 1
            try:
                yield Receipt.read(line)
            except ValueError as wrong:
                other = "that of a leaver: 'hanse audit leave FILE'"
                raise UserError(f"{path}: line {number}: is not a receipt ({wrong}); {other}") from None
    if not number:
        raise UserError(f"{path}: has no whole receipt")
