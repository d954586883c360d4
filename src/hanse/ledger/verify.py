"""Reads a whole book, checks everything in it, and says whether it is sound, or else what is wrong first.

Reading checks the lines against the heads and the rules (:mod:`hanse.ledger.log`). That a book was cut off, or
rewritten consistently, cannot be detected from the book itself. It is found by comparison with ``receipts`` or
``heads`` from outside.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from hanse.core.book import DamagedError, LedgerError, MutableBook
from hanse.core.entry import Transaction
from hanse.ledger.closing import Closes
from hanse.ledger.log import Walk
from hanse.ledger.receipts import Receipt, ReceiptCheck
from hanse.ledger.record import Record


@dataclass(frozen=True)
class VerifyResult:
    """What was checked, and the first fault, if any. The counts cover what was checked before it.

    Attributes:
        transactions: how many transactions were checked and found right.
        postings: how many postings these transactions have.
        accounts: how many accounts these transactions touch.
        head: the recomputed root of the tree over these transactions.
        wrong: the first fault in words. None: the book is sound.
    """

    transactions: int
    postings: int
    accounts: int
    head: str
    wrong: str | None = None

    @property
    def ok(self) -> bool:
        """Whether the book holds."""
        return self.wrong is None


class _BrokenError(Exception):
    """Ends the check at the first claim that does not hold, which is its text."""


def verify(
    walk: Walk,
    receipts: Iterable[Receipt] = (),
    heads: Mapping[str, str] | None = None,
    lacking: Callable[[int], Iterable[tuple[int, Transaction]]] = lambda count: (),
    closes: Closes | None = None,
) -> VerifyResult:
    """Read a book to its end and compare it with receipts, heads and records.

    Memory grows with the number of accounts and receipts, not with the length of the history.

    Args:
        walk: stands at the beginning of the book. If it knows the operator's key, each head must be signed by it.
        receipts: what participants were told. Each must agree with the book at the place that it names.
        heads: heads that the book must have had after one of its postings. Each comes with who names it, such as a
            checkpoint, for the message.
        lacking: a function of a number of transactions. It returns the transactions, each with its round, that may
            still be missing after so many, because a checkpoint is written before its transactions. Heads that the book
            would have with them count as met.
        closes: the object that compares the closes of rounds with the run's records. None: there is no run.

    Returns:
        The verdict. A fault is never raised but reported in ``VerifyResult.wrong``.

    Raises:
        UserError: heads are signed and the package ``cryptography`` is not installed; or a record is damaged.
        OSError: a file cannot be read.
    """
    claims, wrong = _Claims(receipts, heads or {}, walk.book, walk.public, closes), None
    walk.checked = True
    try:
        claims.reached(walk)
        for record in walk.records():
            claims.reached(walk, record)
        claims.left(walk.tally, lacking(walk.tally.count))
    except (_BrokenError, DamagedError) as first:
        wrong = str(first)
    tally = walk.tally
    return VerifyResult(tally.count, walk.postings, len(tally.balances), tally.head, wrong)


class _Claims:
    """What others say about the book: receipts, and heads by who names them.

    Claims are ticked off while the walk passes the place that they speak of; what remains at the end speaks of
    something that the book does not have.
    """

    def __init__(
        self,
        receipts: Iterable[Receipt],
        heads: Mapping[str, str],
        book: str,
        public: bytes | None,
        closes: Closes | None,
    ) -> None:
        self.heads, self.closes = dict(heads), closes
        self.wrong: str | None = None  # the first receipt that is not of this book; reported after faults in rows
        ours = []
        for receipt in receipts:
            if (strange := receipt.wrong(book, public)) is None:
                ours.append(receipt)
            elif self.wrong is None:
                self.wrong = f"{_named(receipt)}: {strange}"
        self.receipts = ReceiptCheck(ours)

    def reached(self, walk: Walk, record: Record | None = None) -> None:
        """Compare what is said about the place that the walk has reached with what is there. Raises _BrokenError.

        Args:
            walk: stands behind the record.
            record: the last transaction; None: the walk begins.
        """
        tally, before = walk.tally, walk.before
        if tally.count == walk.count and self.heads:  # heads are those of whole postings
            self.heads.pop(tally.head, None)
        if self.closes and record and (wrong := self.closes.wrong(record, tally, before)):
            raise _BrokenError(wrong)
        for d in () if record is None else self.receipts.reached(record, lambda: tally.head):
            raise _BrokenError(
                f"{_named(d.receipt)}: {d.field} after transaction {tally.count}: it says {d.said}, the book "
                f"{d.found}: the book was written anew"
            )

    def left(self, tally: MutableBook, lacking: Iterable[tuple[int, Transaction]]) -> None:
        """Raise _BrokenError if a claim is left over: a receipt or a head of something that the book does not have."""
        if self.wrong is not None:
            raise _BrokenError(self.wrong)
        if unmet := self.receipts.unmet():
            first = min(unmet, key=lambda receipt: receipt.count)  # it names the earliest missing transaction
            raise _BrokenError(
                f"{_named(first)}: saw {first.count} transactions, the book has {tally.count}: its tail is cut"
            )
        after = tally.copy()
        with suppress(LedgerError):  # if they cannot follow, the heads after them are left over
            for round, transaction in lacking:
                after.add(round, transaction)
                self.heads.pop(after.head, None)
        for head, who in self.heads.items():
            raise _BrokenError(f"{who}: head {head} is not in the book: its tail is cut, or it was written anew")


def _named(receipt: Receipt) -> str:
    return f"receipt of client {receipt.client}, round {receipt.round}"
