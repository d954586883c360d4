"""Follows the books of a run that goes on: balances, and who paid whom."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sqlalchemy import select

from hanse.base.errors import UserError
from hanse.base.files import opened
from hanse.core.book import LedgerError
from hanse.core.entry import MINT
from hanse.ledger.place import open_ledger
from hanse.ledger.rows import lines_of
from hanse.ledger.store import Ledger
from hanse.ledger.tables import transactions

__all__ = ["Books", "flows_of", "net_of"]

MOST_KINDS = 100  # kinds of transactions that are told apart
CHUNK = 1000  # transactions that are read at a time


def net_of(postings: Sequence[tuple[str, int]]) -> dict[str, int]:
    """Return what one transaction moved, net, by account; what is held in escrow for a client is the client's."""
    net: dict[str, int] = {}
    for account, units in postings:
        owner = account.replace("escrow/", "client/", 1) if account.startswith("escrow/") else account
        net[owner] = net.get(owner, 0) + units
    return {account: units for account, units in net.items() if units}


def flows_of(net: Mapping[str, int]) -> list[tuple[str, str, int]]:
    """Return who paid whom in one transaction, ``(from, to, units)``; a grant (from the mint) is nobody's payment.

    With one payer or one receiver that is what the postings say. With several of both each payer's units are split over
    the receivers in proportion, rounded down: good for a picture, and for nothing else.
    """
    if MINT in net:
        return []
    total = sum(units for units in net.values() if units > 0)
    return [
        (source, target, part)
        for source, paid in net.items()
        if paid < 0
        for target, received in net.items()
        if received > 0 and (part := -paid * received // total)
    ]


@dataclass
class Books:
    """A run's books so far. ``trouble`` is why they cannot be read, if they cannot.

    ``balances`` in units by account, ``flows`` in units by (from, to), ``traded`` in units by account (paid, received;
    escrow counted with its client, grants left out), ``count`` transactions, the last of ``round``. ``moved`` are the
    accounts that changed since the reader emptied it.
    """

    folder: Path
    ledger_url: str | None = None  # where the user says that the books are
    balances: dict[str, int] = field(default_factory=dict)
    flows: dict[tuple[str, str], int] = field(default_factory=dict)
    traded: dict[str, tuple[int, int]] = field(default_factory=dict)
    moved: set[str] = field(default_factory=set)
    count: int = 0
    round: int = -1
    kinds: dict[str, int] = field(default_factory=dict)  # units that came to accounts, by kind; no grants
    trouble: str | None = None
    behind: bool = False  # the last read left something unread
    _ledger: Ledger | None = None
    _made: bytes = b""  # what ledger.json said when the ledger was opened

    def read(self) -> bool:
        """Take in the next transactions, at most a thousand, and say whether there were any."""
        if not self._open():
            return False
        assert self._ledger is not None
        t = transactions.c
        try:
            with self._ledger.begin() as connection:
                rows = connection.execute(
                    select(t.id, t.number, t.round, t.kind)
                    .where(t.book_id == self._ledger.id, t.number > self.count)
                    .order_by(t.number)
                    .limit(CHUNK)
                ).all()
                lines = lines_of(connection, [row.id for row in rows])
        except LedgerError as wrong:
            self.trouble, self.behind = str(wrong), False
            self._shut()
            return False
        self.trouble, self.behind = None, len(rows) == CHUNK
        for id_, number, round_, kind in rows:
            self._add(lines.get(id_, ()), kind)
            self.count, self.round = number, round_
        return bool(rows)

    def _add(self, postings: Sequence[tuple[str, int]], kind: str) -> None:
        for account, units in postings:
            self.balances[account] = self.balances.get(account, 0) + units
            self.moved.add(account)
        net = net_of(postings)
        if MINT not in net:
            if kind in self.kinds or len(self.kinds) < MOST_KINDS:
                came = sum(units for _, units in postings if units > 0)
                self.kinds[kind] = self.kinds.get(kind, 0) + came
            for account, units in net.items():
                paid, received = self.traded.get(account, (0, 0))
                self.traded[account] = (paid - units, received) if units < 0 else (paid, received + units)
                self.moved.add(account)
        for source, target, units in flows_of(net):
            self.flows[source, target] = self.flows.get((source, target), 0) + units

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

    def biggest(self, most: int) -> list[tuple[str, str, int]]:
        """Return the ``most`` largest flows, ``(from, to, units)``, the largest first."""
        found = heapq.nlargest(most, self.flows.items(), key=lambda item: item[1])
        return [(source, target, units) for (source, target), units in found]

    def rows(self, accounts: Iterable[str]) -> dict[str, list[int]]:
        """Return balance, paid and received of these accounts, in units."""
        return {a: [self.balances.get(a, 0), *self.traded.get(a, (0, 0))] for a in accounts}

    def _shut(self) -> None:
        if self._ledger is not None:
            self._ledger.close()
            self._ledger = None

    def close(self) -> None:
        """Close the ledger and forget what was read."""
        self._shut()
        self.balances, self.flows, self.traded, self.moved, self.kinds = {}, {}, {}, set(), {}
        self.count, self.round, self.trouble, self.behind = 0, -1, None, False
