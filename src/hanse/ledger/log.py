"""The two files of a book, and the one way to read them: :class:`Walk` checks each transaction as it reads it.

The log has a line for each transaction. The lines are the leaves of a Merkle tree (RFC 9162). The file of heads next to
it has a note after each posting. A note has the number of transactions and the tree's root, and is signed if the
operator has a key. Lines after the last complete note are not part of the book.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import BinaryIO

from hanse.base.files import LONGEST, opened
from hanse.base.merkle import as_text, hashes_of, root_from
from hanse.base.plain_text import quantity
from hanse.core.book import DamagedError, LedgerError, MutableBook
from hanse.core.entry import CLOSE, MINT, Transaction, leaf
from hanse.ledger.note import DASH, PrivateKey, fingerprint, is_signed, sign

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
        >>> from hanse.ledger.log import read_line
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

    def signed(self, key: PrivateKey | None) -> LogHead:
        """Return the head with only the operator's signature, or with none if there is no key."""
        return replace(self, signatures=() if key is None else (sign(self.text, self.origin, key),))

    def by(self, public: bytes) -> bool:
        """Return whether the operator with this key (32 bytes) has signed the head."""
        return any(is_signed(self.text, line, self.origin, public) for line in self.signatures)

    def proves(self, line: Transaction, proof: str) -> bool:
        """Return whether hashes, in base64, lead from a line of the log, its last one then, to this head."""
        with suppress(ValueError):  # they are none
            hashes = hashes_of(proof)
            return root_from(leaf(self.count, self.round, line), self.count - 1, self.count, hashes) == self.root
        return False

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
            f"{quantity(head.count, 'transaction')} in round {head.round} with the root {head.root.hex()}"
            for head in (self, other)
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


LINES = 5  # of a note, without its signatures
MARK = DASH.encode()  # how the line of a signature begins
NOTE = 4096  # bytes of a line of a note; a longer one is damage


def heads_of(log: Path) -> Path:
    """Return the file with the heads of a log."""
    return log.with_suffix(".heads")


@dataclass
class Walk:
    """A position in a log, between two transactions, and the book up to that position.

    Attributes:
        file: the log.
        book: the book's name.
        tally: what the transactions so far add up to.
        lines: how many bytes of the log were read up to the last head that was reached.
        notes: how many bytes of the file of heads were read.
        count: how many transactions there were at that head.
        postings: how many postings were met.
        minted: the units that transactions of each kind took from the mint.
        head: the last head that was reached.
        before: if the last transaction is the close of a round, the peaks of the tree without it.
        public: the operator's key (32 bytes), which must have signed every head. None: heads need no signature.
        checked: whether signatures are verified. If not, they only have to be there.
    """

    file: Path
    book: str
    tally: MutableBook = field(default_factory=MutableBook)
    lines: int = 0
    notes: int = 0
    count: int = 0
    postings: int = 0
    minted: Counter[str] = field(default_factory=Counter)
    head: LogHead | None = None
    before: tuple[bytes, ...] | None = None
    public: bytes | None = None
    checked: bool = False

    def records(self) -> Iterator[Record]:
        """Walk to the present end of the log, and yield each transaction once it is checked.

        A transaction is compared with its head only when the walk reaches that head. This is when ``tally.count``
        equals ``count``.

        Raises:
            DamagedError: the files are not what was written, or the transactions break a rule of the book.
            OSError: the files cannot be read.
        """
        try:
            with opened(heads_of(self.file)) as notes, opened(self.file) as lines:
                end = os.fstat(notes.fileno()).st_size
                notes.seek(self.notes)
                lines.seek(self.lines)
                while notes.tell() < end and (head := self._head(notes)) is not None:
                    while self.tally.count < head.count:
                        record = self._next(lines, head)
                        if self.tally.count == head.count:
                            self._reached(head)
                            self.lines, self.notes, self.count = lines.tell(), notes.tell(), head.count
                            self.head = head
                        yield record
        except FileNotFoundError as lost:
            raise DamagedError(f"{lost.filename}: is gone") from None

    def _head(self, notes: BinaryIO) -> LogHead | None:
        """Return the next head; None if the note is not whole, as an interrupted posting leaves it."""
        found = [notes.readline(NOTE) for _ in range(LINES)]
        while (line := notes.readline(NOTE)).startswith(MARK):
            found.append(line)
        torn = MARK.startswith(line) and line != b""
        notes.seek(-len(line), os.SEEK_CUR)  # it belongs to the next note
        ends = torn or line == b""
        where = f"the head after transaction {self.tally.count}"
        try:
            head = LogHead.read(b"".join(found).decode())
        except ValueError as wrong:
            if ends and not found[-1].endswith(b"\n"):
                return None
            raise DamagedError(f"{where}: {wrong}") from None
        if self.public is not None and not head.signatures and ends:
            return None
        if head.book != self.book:
            raise DamagedError(f"{where}: is of the book '{head.book}', not of '{self.book}'")
        if head.count <= self.tally.count:
            raise DamagedError(f"{where}: speaks of {quantity(head.count, 'transaction')}: must be more")
        if self.public is not None and not (head.by(self.public) if self.checked else head.signatures):
            raise DamagedError(f"{where}: is not signed by the operator's key, {fingerprint(self.public)}")
        return head

    def _next(self, lines: BinaryIO, head: LogHead) -> Record:
        """Return the next transaction, added to the tally."""
        number = self.tally.count + 1
        line = lines.readline(LONGEST)
        if not line.endswith(b"\n"):
            raise DamagedError(f"transaction {number}: is missing; the head says that there are {head.count}")
        line = line[:-1]
        try:
            record = read_line(line)
            if record.number != number or type(record.number) is not int:
                raise LedgerError(f"has the number {record.number!r}")
            self.before = tuple(self.tally.peaks) if record.transaction.kind == CLOSE else None
            self.tally.add(record.round, record.transaction, line)
        except LedgerError as wrong:
            raise DamagedError(f"transaction {number}: {wrong}") from None
        self.postings += len(record.transaction.postings)
        if (taken := -sum(units for account, units in record.transaction.postings if account == MINT)) > 0:
            self.minted[record.transaction.kind] += taken
        return record

    def _reached(self, head: LogHead) -> None:
        """Compare the tree with a head. Raises DamagedError if they differ."""
        where = f"transactions {self.count + 1} to {head.count}"
        if self.tally.head != head.root.hex():
            raise DamagedError(f"{where}: lead to the root {self.tally.head}; the head has {head.root.hex()}")
        if head.round != self.tally.round:
            raise DamagedError(f"{where}: end in round {self.tally.round}; the head has {head.round}")
