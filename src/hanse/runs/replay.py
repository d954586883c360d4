"""What a recorded market must have cost, computed anew from its record.

``hanse ledger verify`` and ``hanse audit`` use it to check the prices, the bills, what was delivered and what the
ledger moved, and whether the models of a run are those of its record by their hashes. It needs the files in ``rounds/``
of a run directory, the transactions of its ledger, and for models its checkpoint.

Each check returns "" if all is well, or a phrase that names the first thing that is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np

from hanse.core.entry import TOKEN, Transaction
from hanse.core.entry import client as account
from hanse.core.table import Table
from hanse.games.market import prices
from hanse.games.market_checks import critical_prices
from hanse.runs.record import Arrays, MarketRound, row_hash


def wrong_payments(r: MarketRound) -> str:
    """Return the first bill that is not its price rounded down to the unit, is nothing for a price above 0, or is below
    0.
    """
    due = critical_prices(r.market, r.graph) if r.pricing == "critical" else prices(r.market, r.graph)
    apart = np.abs(np.floor(np.maximum(due, 0) * TOKEN) - r.units)
    free = (r.graph != 0) & (due > 0) & (r.units == 0)
    bad = np.argwhere(~(apart <= 1) | free | (r.units < 0))  # a last bit may cross a unit
    if not len(bad):
        return ""
    i, j = bad[0]
    return (
        f"client {r.clients[i]} owed client {r.clients[j]} {due[i, j]:.6f} and was billed {r.units[i, j] / TOKEN:.6f}"
    )


def wrong_delivery(r: MarketRound) -> str:
    """Return who did not pay and yet got its centre, or paid and did not get it."""
    unpaid = np.sort(r.clients[~r.paid])
    # rows of one block lie in the order of the clients, wherever the block begins: both differ by one number
    if len(unpaid) == len(r.withheld) and len(np.unique(np.sort(r.withheld) - unpaid)) <= 1:
        return ""
    who = ", ".join(map(str, unpaid[:10].tolist())) or "nobody"
    return f"a model without payment: {len(r.withheld)} were withheld, and {len(unpaid)} were not paid (by {who})"


def unlike_books(
    rounds: Iterable[MarketRound], history: Iterable[tuple[int, Transaction]], through: int | None = None
) -> str:
    """Return the first payment in which the records and the ledger differ, or "".

    Args:
        rounds: the recorded markets.
        history: the ledger's transactions, each with its round.
        through: records of rounds from this one on are not in the ledger yet; None: all are.
    """
    owed: dict[tuple[int, str], dict[str, int]] = {}
    for r in rounds:
        if through is not None and r.round >= through:
            continue
        clients = r.clients.tolist()
        for buyer, bill in zip(clients, r.money.tolist(), strict=True):
            if any(bill):
                paid = {account(seller): units for seller, units in zip(clients, bill, strict=True) if units}
                owed[r.round, f"market/{buyer}"] = {account(buyer): -sum(bill)} | paid
    for number, transaction in history:
        if transaction.kind != "market":
            continue
        expected = owed.pop((number, transaction.step), None)
        payer = transaction.step.partition("/")[2]
        if expected is None:
            return f"round {number}: the ledger moved client {payer}'s units, and no record explains it"
        if dict(transaction.postings) != expected:
            units = max(0, -expected[account(int(payer))])
            return f"round {number}: the ledger moved client {payer}'s units otherwise than the record's {units}"
    for number, step in owed:
        return f"round {number}: client {step.partition('/')[2]} paid by the record, and the ledger has nothing of it"
    return ""


def unlike_rows(table: Table, record: Arrays) -> str:
    """Return the first row of a table that is not the one that its record has by its hash, or "".

    A row that was recorded neither by its weights nor by a hash is wrong, too. Rows that were withheld are passed over,
    since they stayed as they were.

    Args:
        table: the models after the round.
        record: the round's arrays.
    """
    withheld = record.get("withheld", ())
    made, hashes = (record[name].tolist() if name in record else [] for name in ("made_row", "made_hash"))
    if "W_shape" not in record:
        return "its round has no record"
    if bare := sorted(set(range(int(record["W_shape"][0]))) - set(record["W_row"].tolist()) - set(made)):
        return f"row {bare[0]} of the table was recorded neither by weights nor by its hash"
    for row, recorded in zip(made, hashes, strict=True):
        found = row_hash(table.rows[row]) if 0 <= row < table.size else "no row"
        if row not in withheld and found != recorded:
            return f"row {row} of the table is {found}, and was recorded as {recorded}"
    return ""


def first_wrong(
    rounds: Iterable[MarketRound], history: Iterable[tuple[int, Transaction]], through: int | None = None
) -> tuple[int, str | None]:
    """Replay all markets of a run, and hold the ledger against them.

    Args:
        rounds: the recorded markets.
        history: the ledger's transactions, each with its round.
        through: as in :func:`unlike_books`.

    Returns:
        How many markets there were, and the first thing that is wrong; None: all is well.
    """
    looks: tuple[Callable[[MarketRound], str], ...] = (wrong_payments, wrong_delivery)
    count, wrong = 0, list[str]()

    def seen() -> Iterator[MarketRound]:
        """Yield the markets while they are counted and checked, so that a long run is read once."""
        nonlocal count
        for r in rounds:
            count += 1
            wrong.extend(f"round {r.round}: {said}" for said in (look(r) for look in looks) if said)
            yield r

    unlike = unlike_books(seen(), history, through)
    return count, wrong[0] if wrong else unlike or None
