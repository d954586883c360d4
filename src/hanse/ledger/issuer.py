"""Makes the receipts of a run from its log (:mod:`hanse.ledger.receipts`)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from hanse.base.merkle import Tree, as_text
from hanse.core.book import LedgerError
from hanse.ledger.closing import Closed, Closes, Records
from hanse.ledger.receipts import Receipt
from hanse.ledger.record import LogHead
from hanse.ledger.store import Ledger


def receipts_of(closed: Closed, head: LogHead) -> list[Receipt]:
    """Return the receipts of a round that was closed, sorted by client.

    Args:
        closed: the round.
        head: the head of the log that ends with the round's close.
    """
    tree, record = Tree(list(closed.statements.values())), as_text(closed.record)
    proof = as_text(*reversed(closed.before))
    return [
        Receipt(line.decode(), i, len(tree), as_text(*tree.inclusion(i)), record, proof, head.note())
        for i, line in enumerate(closed.statements.values())
    ]


class Issuer:
    """Makes the receipts of a run, round by round, from its log and its records.

    Args:
        ledger: the log.
        folder: the run directory, which has the records.
        first: the first round whose receipts are made.
    """

    def __init__(self, ledger: Ledger, folder: Path, first: int = 0) -> None:
        self._walk = ledger.walk()
        self._closes = Closes(Records(folder), first)

    def new(self) -> Iterator[Receipt]:
        """Yield the receipts of the rounds that were closed since the last call.

        Raises:
            LedgerError: the log is not sound, or a close does not follow from the records.
            UserError: a record is damaged.
        """
        walk = self._walk
        for record in walk.records():
            closed = self._closes.reached(record, walk.tally, walk.before)
            if closed is None:
                continue
            if closed.line != record.transaction or walk.head is None or walk.count != record.number:
                raise LedgerError(f"round {record.round}: its close is not what follows from the book and the records")
            yield from receipts_of(closed, walk.head)
