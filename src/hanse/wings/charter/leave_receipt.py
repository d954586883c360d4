"""The receipt of a client that has left a run: what the operator has said, provable without the run.

It has three things: a statement; the hashes that lead from the line of the book's log with the statement's hash to a
head of the log; and that head, with the operator's signature if it has a key.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import NotRequired

from typing_extensions import TypedDict

from hanse.base.errors import UserError
from hanse.base.files import read_text
from hanse.base.merkle import as_text
from hanse.core.declared import Count, Declared, Int64
from hanse.core.entry import LEAVE, Transaction, left_behind
from hanse.flower.leave import place_of, signed_leave
from hanse.ledger.log import LogHead
from hanse.ledger.note import fingerprint
from hanse.ledger.store import Ledger

LONGEST = 2000  # bytes of a receipt


class LeaveStatement(TypedDict):
    """What is said of a client that has left after so many rounds, ``round``: on a network, before those in which it
    was there no more.

    Of its account, in units: what it was granted, received and paid besides, and has. ``escrow`` is held back: bids,
    bonds, what has not vested; in a run that is ``open``, with rounds or the last settlement to come, its rule still
    decides on that. ``ungranted`` are the parts of its grant that had not vested. By what was agreed for leaving it got
    ``returned`` of a bond and ``lost`` to the mint. No update of it came from the round ``since`` on.

    Of the models: ``lineage`` is the root of the tree over a line for each round (:mod:`hanse.wings.charter.lineage`),
    ``rows`` how many of the table hold its updates, ``may`` how many others may, ``of`` how many there are, and
    ``given`` to how many other clients one of these was given. ``signed`` is the SHA-256 of the member's word that it
    leaves, on a network (:mod:`hanse.flower.leave`). ``retrained`` says by how much the others do better
    without it, by training anew: the "mean", the 95 % interval from "low" to "high", and the number of "starts".
    """

    client: Count
    round: Count
    since: NotRequired[Count]
    open: bool
    granted: Int64
    received: Int64
    paid: Int64
    balance: Int64
    escrow: Int64
    ungranted: Int64
    returned: NotRequired[Count]
    lost: NotRequired[Count]
    lineage: str
    rows: Count
    may: Count
    of: Count
    given: Count
    signed: NotRequired[str]
    retrained: NotRequired[dict[str, float]]


STATEMENT = Declared[LeaveStatement](LeaveStatement)


def leave_line(statement: str) -> Transaction:
    """Return the line of the log that says that a client has left, with the hash of its statement."""
    said, hashed = STATEMENT.canonical(statement), as_text(hashlib.sha256(statement.encode()).digest())
    moved = left_behind(said["client"], said.get("returned", 0), said.get("lost", 0))
    return Transaction(f"{LEAVE}/{said['client']}", LEAVE, moved, f"statement {hashed}")


def hash_of_word(word: str) -> str:
    """Return SHA-256 of a member's word that it leaves, as a statement names it."""
    return as_text(hashlib.sha256(word.encode()).digest())


def unsigned(folder: Path, client: int, line: Transaction) -> str:
    """Return why a line of the log of a run on a network does not let this client leave, or "".

    Args:
        folder: the run directory.
        client: the client.
        line: the line of the log.
    """
    file, word = place_of(folder, client, "-statement.json"), signed_leave(folder, client)
    if not word:
        return f"client {client} has not signed that it leaves"
    try:
        text = read_text(file)
        said, of_line = STATEMENT.canonical(text), leave_line(text)
    except (ValueError, UserError) as wrong:
        return f"its statement cannot be read: {wrong}"
    if of_line != line or said.get("signed") != hash_of_word(word):
        return f"is not the leave that client {client} has signed, with the statement in {file.name}"
    return ""


@dataclass(frozen=True)
class LeaveReceipt:
    """What a client that has left can show.

    Attributes:
        statement: a line of JSON with the fields of :class:`LeaveStatement`.
        proof: the hashes that lead from the line of the log, its last one then, to the head, in base64.
        head: the head of the log, a note that the operator has signed if it has a key.
    """

    statement: str
    proof: str
    head: str

    @staticmethod
    def of(ledger: Ledger, statement: str) -> LeaveReceipt:
        """Return a client's receipt from a log.

        Raises:
            LedgerError: the log is not sound.
            UserError: the log has no line of its leaving, or one with another statement.
        """
        walk, line, before = ledger.walk(), leave_line(statement), tuple[bytes, ...]()
        for record in walk.records():
            if record.transaction == line and walk.head is not None and walk.count == record.number:
                return LeaveReceipt(statement, as_text(*reversed(before)), walk.head.note())
            before = tuple(walk.tally.peaks)
        raise UserError(f"{ledger.file}: has no '{line.step}' with its statement: bring back a backup of it")

    @staticmethod
    def read(file: Path) -> LeaveReceipt:
        """Return the receipt in a file; its proof is not checked. Raises UserError if it is none."""
        text = read_text(file, LONGEST).rstrip("\n")
        try:
            found = _RECEIPT.read(text)
            _ = found.note, found.said
        except ValueError as wrong:
            other = "that of a round: 'hanse receipt verify FILE'"
            raise UserError(f"{file}: is not the receipt of a client that has left ({wrong}); {other}") from None
        return found

    @cached_property
    def said(self) -> LeaveStatement:
        """What the statement says. Raises ValueError if it is none, or not written as one is."""
        return STATEMENT.canonical(self.statement)

    @cached_property
    def note(self) -> LogHead:
        """The head of the log, with its signature unchecked. Raises ValueError if it is none."""
        return LogHead.read(self.head)

    def wrong(self, public: bytes | None = None) -> str:
        """Return what does not hold, or "".

        Args:
            public: the operator's key (32 bytes), which must have signed the head. None: signatures are not checked.

        Raises:
            UserError: the package ``cryptography`` is needed but not installed.
        """
        if not self.note.proves(leave_line(self.statement), self.proof):
            return "its proof does not lead to its head"
        if public is not None and not self.note.by(public):
            return f"its head is not signed by the operator's key, {fingerprint(public)}"
        return ""

    def as_json(self) -> str:
        """Return the receipt as a line of JSON, without the newline."""
        return json.dumps(asdict(self), separators=(",", ":"), ensure_ascii=False)


_RECEIPT = Declared[LeaveReceipt](LeaveReceipt)
