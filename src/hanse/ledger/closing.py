"""The close of a round: one line of the log that commits to the round's record and to a statement for each participant.

A close moves nothing. Its memo has two hashes. The first is the hash of the round's record. This record is the round's
line of ``metrics.jsonl`` without clock, memory and bytes sent (the line contains the hash of the round's file in
``rounds/``), and its lines of ``clients.jsonl``, which have the values. The second is the root of a Merkle tree over
the participants' statements, in the order of their numbers. A statement says what the participant has after the round,
what the round moved, what its updates were worth, and how much of its privacy budget it says it has spent. A receipt
(:mod:`hanse.ledger.receipts`) leads from a statement to a head of the log.

The loop closes a round with :func:`close`; :class:`Closes` compares a log with what :func:`close` gives.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hanse.base.errors import UserError
from hanse.base.files import LONGEST, opened
from hanse.base.merkle import Tree, as_text, path_length
from hanse.core.book import MutableBook
from hanse.core.entry import CLOSE, Transaction, client, escrow
from hanse.ledger.log import Record

METRICS, SEATS = "metrics.jsonl", "clients.jsonl"  # in a run directory: a line per round, and a line a seat
AGREEMENT = "agreement"  # of a round on a network: the hash of what the participants agreed to
SPENT = "fit/epsilon"  # of a seat: what its client says that it has spent of its privacy budget
CLOCK = ("time/", "memory/", "bytes/")  # metrics that differ from run to run, or where an answer was lost on its way
RECEIPT = 2000  # bytes that a receipt may have
FRAME = 900  # of these, what it needs beside proofs and postings
HASH = 43  # characters of a hash of a proof, in base64

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
        said = json.dumps([plain, list(seats)], separators=(",", ":"))
        values: dict[int, float] = {}
        spent: dict[int, float] = {}
        for seat in seats:
            if seat.get("value") is not None:
                values[seat["client"]] = values.get(seat["client"], 0.0) + seat["value"]
            if seat.get(SPENT) is not None:
                spent[seat["client"]] = max(spent.get(seat["client"], 0.0), seat[SPENT])
        return RecordDigest(hashlib.sha256(said.encode()).digest(), values, spent, str(metrics.get(AGREEMENT, "")))


NOTHING = RecordDigest.of({}, [])  # of a round that has no record, such as the last settlement


def moved_in(transactions: Iterable[Transaction]) -> dict[int, list[Line]]:
    """Return the postings to each client's account and escrow, in the book's order, by client."""
    moved: dict[int, list[Line]] = {}
    for transaction in transactions:
        for account, units in transaction.postings:
            kind, _, number = account.partition("/")
            if kind in ("client", "escrow"):
                moved.setdefault(int(number), []).append((transaction.step, account, units))
    return moved


def shortened(lines: Sequence[Line]) -> dict[str, Any]:
    """Return the number and the SHA-256 of postings, which replace them in a statement if there are too many."""
    said = json.dumps([list(line) for line in lines], separators=(",", ":"))
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
        fits = len(json.dumps(json.dumps(lines, separators=(",", ":")))) <= room
        said: dict[str, Any] = {
            "round": round,
            "client": c,
            "balance": balances[client(c)],
            "escrow": balances.get(escrow(c), 0),
            "postings": lines if fits else shortened(lines),
        }
        if c in facts.values:
            said["value"] = facts.values[c]
        if c in facts.spent:
            said["epsilon"] = facts.spent[c]
        said |= agreed
        found[c] = json.dumps(said, separators=(",", ":")).encode()
    return found


def close(
    round: int, balances: Mapping[str, int], peaks: int, moved: Mapping[int, Sequence[Line]], facts: RecordDigest
) -> Transaction:
    """Return the close of a round; for the arguments see :func:`statements`.

    Examples:
        >>> from hanse.core.book import Book
        >>> book = Book().post(0, [Transaction("grant/0", "grant", (("mint", -5), ("client/0", 5)))])
        >>> closing = close(0, book.balances, len(book.peaks), {}, NOTHING)
        >>> closing.postings, book.post(0, [closing]).count
        ((), 2)
    """
    return closing_line(facts.record, Tree(list(statements(round, balances, peaks, moved, facts).values())).root())


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

    def of(self, round: int) -> RecordDigest:
        """Return a round's facts, :data:`NOTHING` if it has no line. Rounds must be asked for in ascending order.

        Raises:
            UserError: a line is damaged.
        """
        metrics = self._lines(METRICS, round)
        if len(metrics) > 1:
            raise UserError(f"{self._folder / METRICS}: is damaged: round {round} has {len(metrics)} lines")
        return RecordDigest.of(metrics[0] if metrics else {}, self._lines(SEATS, round))

    def _lines(self, name: str, round: int) -> list[dict[str, Any]]:
        """Return a file's lines of a round, and stay behind them."""
        found, file = list[dict[str, Any]](), self._folder / name
        try:
            with opened(file) as lines:
                lines.seek(self._at[name])
                while (line := lines.readline(LONGEST)).endswith(b"\n"):
                    fields = json.loads(line)
                    if fields["round"] < self._last[name]:
                        raise ValueError(f"round {fields['round']} comes after round {self._last[name]}")
                    if fields["round"] > round:
                        break
                    self._last[name] = fields["round"]
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
