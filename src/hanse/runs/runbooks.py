"""The books of a run directory: its ledger, and the journal beside it from which a lost one is rebuilt.

:class:`hanse.runs.rundir.RunDir` opens them if the mechanism pays. The journal (``transactions.jsonl``) is written with
each round, the ledger after each checkpoint, so the ledger is never ahead of the run.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from hanse.base.errors import MachineError
from hanse.core.book import Book
from hanse.core.entry import JOURNAL, TOKEN, Transaction, digest
from hanse.ledger.export import line_of
from hanse.ledger.place import Claim
from hanse.ledger.receipts import make_receipts, write_receipts
from hanse.ledger.recover import open_books, rewrite_journal
from hanse.ledger.store import Ledger, Record
from hanse.runs.checkpoint import Snapshot
from hanse.runs.config import Experiment


def books_url(folder: Path, experiment: Experiment) -> str:
    """Return where whoever plays an experiment keeps its books: the user named the place, or it is in the directory."""
    return experiment.ledger.url or f"sqlite:///{folder / 'ledger.db'}"


class RunBooks:
    """An open ledger and its journal. Make one with :meth:`open`.

    Args:
        folder: the run directory.
        ledger: its open ledger.
        claim: how many transactions the run has, and the hash of the last one.

    Examples:
        The books of a run that begins, in a folder where :class:`hanse.runs.rundir.RunDir` has named them:

        >>> from hanse.runs.rehearsal import rehearse
        >>> small = rehearse("ipfl")
        >>> _ = Path("ledger.json").write_text('{"book": "mine"}')
        >>> books, said = RunBooks.open(Path(), small.experiment, None)
        >>> len(books.lines(0, small.view.posted).splitlines()) == len(small.view.posted)
        True
        >>> books.post([(0, one) for one in small.view.posted])
        >>> books.close()
    """

    def __init__(self, folder: Path, ledger: Ledger, claim: Claim) -> None:
        self._folder, self._ledger = folder, ledger
        self._count, self._head = claim.count, claim.head

    @staticmethod
    def open(folder: Path, experiment: Experiment, snapshot: Snapshot | None) -> tuple[RunBooks, list[str]]:
        """Open the ledger as it was at the checkpoint, and see that the journal is whole.

        Args:
            folder: the run directory, which has its ``ledger.json`` with the book's name already.
            experiment: says where the ledger is, and its floor.
            snapshot: the checkpoint from which the run goes on; None: it begins.

        Returns:
            The books, and lines on what had to be mended.

        Raises:
            MachineError: something cannot be mended; also if ``ledger.json`` is gone, damaged or cannot be read.
            LedgerError: the database cannot be opened.
        """
        claim = Claim()
        if snapshot is not None:
            book = snapshot.state.book
            claim = Claim(snapshot.state.round, book.count, book.head, snapshot.pending)
        name = _name_in(folder / "ledger.json")
        url = books_url(folder, experiment)
        ledger, said = open_books(url, name, round(experiment.ledger.floor * TOKEN), claim, folder)
        journal = folder / JOURNAL
        size = journal.stat().st_size if journal.exists() else 0
        if snapshot is not None and size != snapshot.lengths.get(JOURNAL, -1):
            rewrite_journal(ledger, claim.count, journal)
            said.append(f"{JOURNAL}: was not whole, or an older hanse kept none; written again from the ledger")
        return RunBooks(folder, ledger, claim), said

    def lines(self, round: int, transactions: Sequence[Transaction]) -> str:
        """Return the journal's lines of a round's transactions, which come next in the book. Each has the hash of the
        one before.
        """
        found = []
        for transaction in transactions:
            before, self._head = self._head, digest(self._head, round, transaction)
            self._count += 1
            found.append(line_of(Record(self._count, round, transaction, before, self._head)))
        return "".join(found)

    def post(self, transactions: Sequence[tuple[int, Transaction]]) -> None:
        """Write transactions, in the order of their rounds, into the ledger. Raises LedgerError."""
        self._ledger.post_rounds(transactions)

    def receipts(self, round: int, book: Book) -> None:
        """Write what each participant keeps of the finished run into ``receipts/``, to hold the books against it
        later.

        Args:
            round: the last settlement's round.
            book: the books after it.
        """
        posted = [record.transaction for record in self._ledger.history(round=round)]
        write_receipts(self._folder / "receipts", make_receipts(self._ledger.book, round, book, posted, None))

    def close(self) -> None:
        """Close the ledger."""
        self._ledger.close()


def _name_in(file: Path) -> str:
    """Return the book's name in ``ledger.json``. Raises MachineError if it is not there."""
    try:
        return str(json.loads(file.read_text())["book"])
    except FileNotFoundError:
        why = "is gone"
    except OSError as wrong:
        why = f"cannot be read ({wrong.strerror})"
    except (ValueError, KeyError, TypeError):
        why = "is damaged"
    raise MachineError(f'{file}: {why}; it must be {{"book": NAME}}, with the name that receipts give')
