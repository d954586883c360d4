"""Follows the books of a run that goes on."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from hanse.base.errors import UserError
from hanse.base.files import opened
from hanse.core.book import LedgerError
from hanse.ledger.place import open_ledger
from hanse.ledger.store import Ledger
from hanse.ledger.totals import Totals

__all__ = ["LiveBooks"]

CHUNK = 1000  # transactions that are read at a time


@dataclass
class LiveBooks:
    """A run's books so far, as ``totals``. ``trouble`` is why they cannot be read, if they cannot."""

    folder: Path
    ledger_url: str | None = None  # where the user says that the books are
    totals: Totals = field(default_factory=Totals)
    trouble: str | None = None
    behind: bool = False  # the last read left something unread
    _ledger: Ledger | None = None
    _made: bytes = b""  # what ledger.json said when the ledger was opened

    def read(self) -> bool:
        """Take in the next transactions, at most a thousand, and say whether there were any."""
        if not self._open():
            return False
        assert self._ledger is not None
        try:
            with closing(self._ledger.history(after=self.totals.count, chunk=CHUNK)) as history:
                records = list(islice(history, CHUNK))
        except LedgerError as wrong:
            self.trouble, self.behind = str(wrong), False
            self._shut()
            return False
        self.trouble, self.behind = None, len(records) == CHUNK
        for record in records:
            self.totals.add(record)
        return bool(records)

    def _open(self) -> bool:
        """Say whether the ledger is open; a ledger that was made anew is read from its beginning."""
        file = self.folder / "ledger.json"
        try:
            with opened(file) as blob:
                made = blob.read(1 << 16)
        except OSError:  # a run without payments, or one that is being made anew
            made = b""
        if made != self._made:
            self.close()
            self._made = made
        if not made:
            return False
        if self._ledger is None:
            try:
                self._ledger = open_ledger(self.folder, self.ledger_url)
            except UserError as wrong:
                # a run's first moments: the book is named, but nothing is in it yet
                self.trouble = str(wrong)
                return False
        return True

    def _shut(self) -> None:
        if self._ledger is not None:
            self._ledger.close()
            self._ledger = None

    def close(self) -> None:
        """Close the ledger and forget what was read."""
        self._shut()
        self.totals, self.trouble, self.behind = Totals(), None, False
