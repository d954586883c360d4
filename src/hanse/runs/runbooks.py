"""The books of a run directory: its log, and the log's index in a database.

:class:`hanse.runs.rundir.RunDir` opens them if the mechanism pays. Transactions are appended to the log after each
checkpoint, so the log is never ahead of the run. The index follows the log. If its database is unavailable, the run
continues with a warning.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hanse.base.errors import MachineError, UserError
from hanse.core.book import LedgerError
from hanse.core.entry import LEAVE, LOG, TOKEN, Transaction
from hanse.ledger.index import follow
from hanse.ledger.issuer import Issuer
from hanse.ledger.note import fingerprint, public_of
from hanse.ledger.receipts import write_receipts
from hanse.ledger.run_ledger import BooksAtCheckpoint, name_and_key
from hanse.ledger.store import Ledger
from hanse.runs.checkpoint import Snapshot
from hanse.runs.config import Experiment

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

log = logging.getLogger("hanse.ledger")


class RunBooks:
    """An open log and its index. Make one with :meth:`open`.

    Args:
        ledger: the open ledger.
        index: where the index is, a database's URL or the path of an SQLite file.

    Examples:
        The books of a new run, in a folder prepared by :class:`hanse.runs.rundir.RunDir`:

        >>> from hanse.runs.rehearsal import rehearse
        >>> small = rehearse("ipfl")
        >>> _ = Path("ledger.json").write_text('{"book": "mine"}')
        >>> books = RunBooks.open(Path(), small.experiment, None)
        >>> books.post([(0, one) for one in small.view.posted])
        >>> len(Path("transactions.jsonl").read_text().splitlines()) == len(small.view.posted)
        True
    """

    def __init__(self, ledger: Ledger, index: str | Path) -> None:
        self._ledger, self._index, self._away = ledger, index, False
        # a reader that stays where the index is, so what was written long ago is not read at each checkpoint
        self._followed = Ledger.open(
            ledger.file, book=ledger.book, floor=ledger.floor, read_only=True, public=ledger.public
        )

    @staticmethod
    def open(
        folder: Path, experiment: Experiment, snapshot: Snapshot | None, key: Ed25519PrivateKey | None = None
    ) -> RunBooks:
        """Open the log, and append those transactions of the checkpoint that it lacks.

        Args:
            folder: the run directory, which already has ``ledger.json`` with the book's name.
            experiment: the experiment, whose settings name the index and the floor.
            snapshot: the checkpoint from which the run continues. None: the run is new.
            key: the operator's key, which signs the heads of the log. None: they are not signed.

        Raises:
            LedgerError: the index of a new run cannot be created; a resumed run continues without.
            MachineError: the log does not lead to the checkpoint's head, or a client has left behind it; or
                ``ledger.json`` is gone, damaged or cannot be read, or names another key.
            OSError: the log cannot be written.
        """
        claim = BooksAtCheckpoint()
        if snapshot is not None:
            book = snapshot.state.book
            claim = BooksAtCheckpoint(snapshot.state.round, book.count, book.head, snapshot.pending)
        (name, public), file = _said_in(folder / "ledger.json"), folder / LOG
        if public != (None if key is None else public_of(key)):
            raise MachineError(f"{folder / 'ledger.json'}: {_other_key(public, key)}; go on with the key that it names")
        if claim.count > len(claim.pending) and not file.exists():
            raise MachineError(f"{file}: is gone, and with it the run's books; put a copy of it and of its heads back")
        ledger = Ledger.open(file, book=name, floor=round(experiment.ledger.floor * TOKEN), key=key)
        wrong = ledger.verify(heads=claim.heads, lacking=claim.lacking).wrong
        if wrong is not None:
            raise MachineError(f"{file}: {wrong}; put a copy of it and of its heads back")
        if gone := [r.transaction.step for r in ledger.history(after=claim.count) if r.transaction.kind == LEAVE]:
            raise MachineError(f"{file}: has '{gone[0]}' behind the {claim.who}; bring back a backup of the run")
        ledger.post_rounds(claim.lacking(ledger.count()))
        books = RunBooks(ledger, experiment.ledger.url or folder / "ledger.db")
        if snapshot is None:
            follow(books._index, books._followed)
        else:
            books._follow()
        return books

    def post(self, transactions: Sequence[tuple[int, Transaction]]) -> None:
        """Append transactions to the log in the order of their rounds, and update the index.

        Raises:
            LedgerError: the transactions cannot follow those in the log.
            OSError: the log cannot be written.
        """
        self._ledger.post_rounds(transactions)
        self._follow()

    def _follow(self) -> None:
        """Update the index from the log; if that fails, warn once, and try again next time."""
        try:
            follow(self._index, self._followed)
        except LedgerError as wrong:
            if not self._away:
                log.warning("the index of the books is not written: %s; the run goes on without it", wrong)
            self._away = True
            return
        if self._away:
            log.warning("the index of the books is written again, and whole")
        self._away = False

    def receipts(self, folder: Path) -> None:
        """Write the last receipt of each participant into ``receipts/`` of the finished run.

        Args:
            folder: the run directory.

        Raises:
            LedgerError: the log is damaged.
        """
        last = self._ledger.as_book().round
        write_receipts(folder / "receipts", Issuer(self._ledger, folder, last).new())


def _other_key(public: bytes | None, key: Ed25519PrivateKey | None) -> str:
    """Return the message that a run's heads are signed by another key than this one."""
    original = (
        "its heads are not signed" if public is None else f"its heads are signed by the key {fingerprint(public)}"
    )
    return f"{original}, and here is {'no key' if key is None else 'the key ' + fingerprint(public_of(key))}"


def _said_in(file: Path) -> tuple[str, bytes | None]:
    """Return the book's name and the operator's key in ``ledger.json``. Raises MachineError if it cannot be read."""
    if not file.exists():
        raise MachineError(f'{file}: is gone; it must be {{"book": NAME}}, with the name that receipts give')
    try:
        return name_and_key(file)
    except UserError as wrong:
        raise MachineError(f'{wrong}; it must be {{"book": NAME}}, with the name that receipts give') from None
