"""What the transactions of a book add up to: what each client was granted, received and paid, and what it holds.

Of many books that are looked at together these sums are kept, and not the transactions (:class:`BookSums`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from hanse.core.entry import LEAVE, owner_of
from hanse.ledger.log import Record


@dataclass
class PostingSum:
    """The sum of all postings of one kind on a client's account and its escrow.

    Units that only move between these two, as a bid does before it wins a seat, are not an expense: a kind whose
    transactions do nothing else is marked as ``within``, and shows what moved on the account itself.

    Attributes:
        kind: the kind, as the ledger calls it.
        what: the name of this kind on the page.
        received: the units that came in.
        paid: the units that went out.
        transactions: the numbers of the transactions that make up the sum.
        within: whether they only move units between the client's own account and its escrow.
    """

    kind: str
    what: str = ""
    received: int = 0
    paid: int = 0
    transactions: list[int] = field(default_factory=list)
    within: bool = True

    @property
    def net(self) -> int:
        """What came in less what went out, in units."""
        return self.received - self.paid

    def take(self, number: int, moved: Sequence[tuple[str, int]]) -> None:
        """Add what a transaction moves on the client's account and its escrow, as (account, units)."""
        self.transactions.append(number)
        stays = len(moved) > 1 and not sum(units for _, units in moved) and len({name for name, _ in moved}) == 2
        if self.within and not stays:
            self.received, self.paid, self.within = 0, 0, False
        if stays:
            moved = [posting for posting in moved if self.within and posting[0].startswith("client/")]
        for _, units in moved:
            if units > 0:
                self.received += units
            else:
                self.paid -= units


@dataclass
class Account:
    """What a client was granted, received and paid, and what it holds at the end, in units."""

    balance: int = 0
    escrow: int = 0
    kinds: dict[str, PostingSum] = field(default_factory=dict)

    def take(self, number: int, kind: str, moved: Sequence[tuple[str, int]]) -> None:
        """Add what a transaction moves on the client's account and its escrow, as (account, units)."""
        for name, units in moved:
            if name.startswith("escrow/"):
                self.escrow += units
            else:
                self.balance += units
        if kind not in self.kinds:
            self.kinds[kind] = PostingSum(kind)
        self.kinds[kind].take(number, moved)

    @property
    def totals(self) -> dict[str, int]:
        """What was granted, received and paid besides, and what account and escrow hold, in units. What went back when
        it left counts as not granted, as far as it was.
        """
        counted = [one for kind, one in self.kinds.items() if kind != "grant" and not one.within]
        received, paid = sum(one.received for one in counted), sum(one.paid for one in counted)
        granted, left = self.kinds.get("grant", PostingSum("grant")).received, self.kinds.get(LEAVE, PostingSum(LEAVE))
        back = max(0, min(granted, -left.net))
        sums = {"granted": granted - back, "received": received, "paid": paid - back}
        return {**sums, "balance": self.balance, "escrow": self.escrow}


@dataclass
class BookSums:
    """The sums of a run's book.

    Attributes:
        accounts: what each client that has an account was granted, received and paid, by its number.
        held: what account and escrow of a client hold together, in units, by the round after which they do and by the
            client. Each round in which anything was posted is there, with the clients whose holdings it moved.
        left: the round under which the book says that a client left, by its number: the one that it did not play, or a
            later one behind the last settlement.

    Examples:
        >>> from hanse.core.entry import MINT, grant
        >>> sums = BookSums.of([Record(1, 0, grant(2, 5))])
        >>> sums.held, sums.accounts[2].totals["granted"]
        ({0: {2: 5}}, 5)
    """

    accounts: dict[int, Account] = field(default_factory=dict)
    held: dict[int, dict[int, int]] = field(default_factory=dict)
    left: dict[int, int] = field(default_factory=dict)

    @staticmethod
    def of(records: Iterable[Record]) -> BookSums:
        """Return the sums of transactions in their order."""
        sums = BookSums()
        for record in records:
            sums._take(record)
        return sums

    def _take(self, record: Record) -> None:
        """Add a transaction."""
        kind, held = record.transaction.kind, self.held.setdefault(record.round, {})
        for owner, postings in moved_by(record).items():
            account = self.accounts.setdefault(owner, Account())
            account.take(record.number, kind, postings)
            held[owner] = account.balance + account.escrow
        gone = owner_of(record.transaction.step.replace(LEAVE, "client")) if kind == LEAVE else None
        if gone is not None:
            self.left[gone] = record.round


def moved_by(record: Record) -> dict[int, list[tuple[str, int]]]:
    """Return the postings of a transaction on accounts and escrows of clients, by client."""
    moved = dict[int, list[tuple[str, int]]]()
    for posting in record.transaction.postings:
        if (owner := owner_of(posting[0])) is not None:
            moved.setdefault(owner, []).append(posting)
    return moved
