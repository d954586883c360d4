"""Reads transactions from lines of the log, and the notes that say where the log ends."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hanse.base.merkle import as_text, hashes_of
from hanse.core.book import LedgerError
from hanse.core.entry import Transaction, leaf
from hanse.ledger.note import DASH, is_signed, sign

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

ORIGIN = "hanse/"  # before the book's name, in the first line of a head


@dataclass(frozen=True)
class Record:
    """A transaction in the book, with its place.

    Attributes:
        number: the transaction's place in the book, counted from 1.
        round: the round that it belongs to.
        transaction: what was posted.

    Examples:
        >>> from hanse.core.entry import MINT, leaf
        >>> from hanse.ledger.record import read_line
        >>> grant = Transaction("grant/0", "grant", ((MINT, -5), ("client/0", 5)))
        >>> read_line(leaf(1, 0, grant)) == Record(1, 0, grant)
        True
    """

    number: int
    round: int
    transaction: Transaction


def read_line(line: bytes) -> Record:
    """Return the record on a line of the log. Only its form is checked.

    Raises:
        LedgerError: the line is not one of a log, or not written as :func:`hanse.core.entry.leaf` writes it. (If a
            field occurs twice, for example, other programs may read the other one.)
    """
    try:
        fields = json.loads(line)
        postings = tuple((account, units) for account, units in fields["postings"])
        transaction = Transaction(fields["step"], fields["kind"], postings, fields["memo"])
        record = Record(fields["number"], fields["round"], transaction)
        written = leaf(record.number, record.round, transaction)
    except (ValueError, KeyError, TypeError, RecursionError):
        raise LedgerError("is not a transaction") from None
    if written != line:
        raise LedgerError("is not written as the log writes a transaction")
    return record


@dataclass(frozen=True)
class LogHead:
    """The end of a log: how many transactions it has, and the root of the Merkle tree over their lines.

    Attributes:
        book: the book's name.
        count: how many transactions there are.
        root: the tree's root (RFC 9162).
        round: the round that was posted last.
        signatures: the lines under the text (:mod:`hanse.ledger.note`), the operator's first; none without a key.

    Examples:
        >>> print(LogHead("town", 0, bytes(32), 0).note(), end="")
        hanse/town
        0
        AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=
        round 0
        <BLANKLINE>
    """

    book: str
    count: int
    root: bytes
    round: int
    signatures: tuple[str, ...] = ()

    @property
    def origin(self) -> str:
        """The log's name, which is also the name of the operator's key."""
        return ORIGIN + self.book

    @property
    def text(self) -> str:
        """The text that is signed: a checkpoint of a transparency log (C2SP tlog-checkpoint), with the round as an
        extension line.
        """
        return f"{self.origin}\n{self.count}\n{as_text(self.root)}\nround {self.round}\n"

    def note(self) -> str:
        """Return the head as a signed note: the text, a blank line, the signatures."""
        return f"{self.text}\n{''.join(self.signatures)}"

    def signed(self, key: Ed25519PrivateKey | None) -> LogHead:
        """Return the head with only the operator's signature, or with none if there is no key."""
        return replace(self, signatures=() if key is None else (sign(self.text, self.origin, key),))

    def by(self, public: bytes) -> bool:
        """Return whether the operator with this key (32 bytes) has signed the head."""
        return any(is_signed(self.text, line, self.origin, public) for line in self.signatures)

    def contradicts(self, other: LogHead) -> str:
        """Return why this head and another cannot both belong to one log; "" if they can, or belong to different books.

        A log only grows, and each round is posted once. So each number of transactions has one root, each round one
        head, and a later round more transactions.
        """
        first, last = sorted((self, other), key=lambda head: (head.count, head.round))
        if first.book != last.book or first.text == last.text:
            return ""
        if first.count < last.count and first.round < last.round:
            return ""
        said = (
            f"{head.count} transactions in round {head.round} with the root {head.root.hex()}" for head in (self, other)
        )
        return f"the book '{self.book}' has two heads: {', and '.join(said)}"

    @staticmethod
    def read(note: str) -> LogHead:
        """Return the head in a note, with its signatures unchecked. Raises ValueError if the note does not have the
        form of :meth:`note`.
        """
        form = _NOTE.fullmatch(note)
        if form is None:
            raise ValueError("is not a head of a log")
        try:
            [root] = hashes_of(form[3])
        except ValueError:
            raise ValueError("is not a head of a log") from None
        return LogHead(form[1], int(form[2]), root, int(form[4]), tuple(form[5].splitlines(keepends=True)))


_COUNT = "(0|[1-9][0-9]{0,18})"
_NOTE = re.compile(rf"{ORIGIN}([^\n]+)\n{_COUNT}\n([^\n]{{44}})\nround {_COUNT}\n\n((?:{DASH}[^\s+]+ [^\s]+\n)*)")
