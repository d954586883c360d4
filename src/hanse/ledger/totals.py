"""What the transactions of a book add up to: balances, who paid whom, and what each kind of transaction moved."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from hanse.core.entry import MINT
from hanse.ledger.store import Record

MOST_KINDS = 100  # kinds of transactions that are told apart


def net_of(postings: Sequence[tuple[str, int]]) -> dict[str, int]:
    """Return what one transaction moved, net, in units by account; what is held in escrow for a client is the
    client's.
    """
    net: dict[str, int] = {}
    for account, units in postings:
        owner = account.replace("escrow/", "client/", 1) if account.startswith("escrow/") else account
        net[owner] = net.get(owner, 0) + units
    return {account: units for account, units in net.items() if units}


def flows_of(net: Mapping[str, int]) -> list[tuple[str, str, float]]:
    """Return who paid whom in one transaction, ``(from, to, units)``; a grant (from the mint) is nobody's payment.

    With one payer or one receiver that is what the postings say. With several of both each receiver is taken to be paid
    by all payers in proportion, which may be parts of units: good for a picture, and for nothing else.
    """
    if MINT in net:
        return []
    total = sum(units for units in net.values() if units > 0)
    return [
        (source, target, -paid * received / total if -paid * received % total else -paid * received // total)
        for source, paid in net.items()
        if paid < 0
        for target, received in net.items()
        if received > 0
    ]


@dataclass
class Totals:
    """Sums over ``count`` transactions of a book, the last of ``round``.

    ``balances`` in units by account, ``flows`` in units by (from, to), ``traded`` in units by account (paid, received;
    escrow counted with its client, grants left out), ``kinds`` units that came to accounts by each kind of transaction,
    without grants. ``moved`` are the accounts that changed since the reader emptied it.
    """

    balances: dict[str, int] = field(default_factory=dict)
    flows: dict[tuple[str, str], float] = field(default_factory=dict)
    traded: dict[str, tuple[int, int]] = field(default_factory=dict)
    kinds: dict[str, int] = field(default_factory=dict)
    moved: set[str] = field(default_factory=set)
    count: int = 0
    round: int = -1

    def add(self, record: Record) -> None:
        """Take in the next transaction."""
        postings, kind = record.transaction.postings, record.transaction.kind
        self.count, self.round = record.number, record.round
        for account, units in postings:
            self.balances[account] = self.balances.get(account, 0) + units
            self.moved.add(account)
        net = net_of(postings)
        if MINT in net:
            return
        if kind in self.kinds or len(self.kinds) < MOST_KINDS:
            self.kinds[kind] = self.kinds.get(kind, 0) + sum(units for _, units in postings if units > 0)
        for account, units in net.items():
            paid, received = self.traded.get(account, (0, 0))
            self.traded[account] = (paid - units, received) if units < 0 else (paid, received + units)
            self.moved.add(account)
        for source, target, moved in flows_of(net):
            self.flows[source, target] = self.flows.get((source, target), 0) + moved

    def biggest(self, most: int) -> list[tuple[str, str, float]]:
        """Return the ``most`` largest flows, ``(from, to, units)``, the largest first."""
        found = heapq.nlargest(most, self.flows.items(), key=lambda item: item[1])
        return [(source, target, units) for (source, target), units in found]

    def rows(self, accounts: Iterable[str]) -> dict[str, list[int]]:
        """Return balance, paid and received of these accounts, in units."""
        return {a: [self.balances.get(a, 0), *self.traded.get(a, (0, 0))] for a in accounts}
