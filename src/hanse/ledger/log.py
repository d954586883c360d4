"""The two files of a book, and the one way to read them: :class:`Walk` checks each transaction as it reads it.

The log has a line for each transaction. The lines are the leaves of a Merkle tree (RFC 9162). The file of heads next to
it has a note after each posting. A note has the number of transactions and the tree's root, and is signed if the
operator has a key. Lines after the last complete note are not part of the book.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from hanse.base.files import LONGEST, opened
from hanse.core.book import DamagedError, LedgerError, MutableBook
from hanse.core.entry import CLOSE
from hanse.ledger.note import DASH, fingerprint
from hanse.ledger.record import LogHead, Record, read_line

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
            raise DamagedError(f"{where}: speaks of {head.count} transactions: must be more")
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
        return record

    def _reached(self, head: LogHead) -> None:
        """Compare the tree with a head. Raises DamagedError if they differ."""
        where = f"transactions {self.count + 1} to {head.count}"
        if self.tally.head != head.root.hex():
            raise DamagedError(f"{where}: lead to the root {self.tally.head}; the head has {head.root.hex()}")
        if head.round != self.tally.round:
            raise DamagedError(f"{where}: end in round {self.tally.round}; the head has {head.round}")
