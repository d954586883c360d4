"""What the transactions of a book add up to: balances, who paid whom, and how much each kind of transaction moved.

The report draws its money charts from :class:`Totals`, which takes one record after another.
:func:`net_of` and :func:`flows_of` do the arithmetic of a single transaction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hanse.core.entry import MINT
from hanse.ledger.log import Record


def net_of(postings: Sequence[tuple[str, int]]) -> dict[str, int]:
    """Return how much each account gained (or lost, if negative) by one transaction, in units.

    Units in escrow still belong to the client that put them there, so an escrow account counts as its client's account.
    Accounts whose sum is zero are left out.

    Args:
        postings: pairs ``(account, units)``.
    """
    net: dict[str, int] = {}
    for account, units in postings:
        owner = account.replace("escrow/", "client/", 1) if account.startswith("escrow/") else account
        net[owner] = net.get(owner, 0) + units
    return {account: units for account, units in net.items() if units}


def flows_of(net: Mapping[str, int]) -> list[tuple[str, str, float]]:
    """Return who paid whom in one transaction, as triples ``(payer, receiver, units)``.

    With one payer or one receiver the postings determine the flows. If there are several of both, they do not. Each
    receiver then counts as paid by all payers, in proportion to what they paid. Such flows may be fractions of units
    and are only for charts. A grant from the mint is nobody's payment and gives no flows.

    Args:
        net: units by account, from :func:`net_of`.
    """
    if MINT in net:
        return []
    total = sum(units for units in net.values() if units > 0)
    return [
        # integer division where it comes out even: as floats, amounts above 2**53 units would lose digits
        (source, target, -paid * received / total if -paid * received % total else -paid * received // total)
        for source, paid in net.items()
        if paid < 0
        for target, received in net.items()
        if received > 0
    ]


@dataclass
class Totals:
    """Running sums over the transactions of a book. Feed it with :meth:`add`, in the book's order.

    Attributes:
        balances: units by account, with escrow accounts listed separately.
        flows: units by (payer, receiver); see :func:`flows_of`.
        moved: the accounts that changed. The reader may clear it to see what changes next.

    Examples:
        >>> from hanse.core.entry import MINT, Transaction
        >>> from hanse.ledger.store import Ledger
        >>> ledger = Ledger.open("book.jsonl")
        >>> [record] = ledger.post(0, [Transaction("grant/0", "grant", ((MINT, -5), ("client/0", 5)))])
        >>> totals = Totals()
        >>> totals.add(record)
        >>> totals.balances["client/0"], totals.moved == {"mint", "client/0"}
        (5, True)
    """

    balances: dict[str, int] = field(default_factory=dict)
    flows: dict[tuple[str, str], float] = field(default_factory=dict)
    moved: set[str] = field(default_factory=set)

    def add(self, record: Record) -> None:
        """Add the next transaction to all sums."""
        postings = record.transaction.postings
        for account, units in postings:
            self.balances[account] = self.balances.get(account, 0) + units
            self.moved.add(account)
        net = net_of(postings)
        if MINT in net or not postings:
            return
        for source, target, moved in flows_of(net):
            self.flows[source, target] = self.flows.get((source, target), 0) + moved
