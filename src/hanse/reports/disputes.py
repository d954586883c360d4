"""A participant's dispute: its receipts, and the records of the rounds, held against the books, one by one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hanse.base.errors import UserError
from hanse.base.files import read_arrays
from hanse.core.entry import GENESIS
from hanse.core.entry import client as account_of
from hanse.ledger.place import heads_said, place_of, reading
from hanse.ledger.receipts import Comparison, Difference, Receipt, foreign, read_receipts
from hanse.ledger.store import Ledger, Record
from hanse.ledger.verify import verify
from hanse.runs.record import MARKET, market_of, rounds_of


@dataclass(frozen=True)
class Dispute:
    """Something that the receipts or the records say (``said``, by ``who``) and the book does not (``found``)."""

    who: str
    what: str
    said: str
    found: str


@dataclass(frozen=True)
class Replay:
    """How many ``receipts`` and ``records`` of rounds were held against the book, whether the book holds in itself
    (``book``: what is wrong with it, or ""), and every ``disputes``.
    """

    receipts: int
    signed: int
    records: int
    book: str
    disputes: tuple[Dispute, ...]

    @property
    def holds(self) -> bool:
        """Whether everything agrees."""
        return not self.book and not self.disputes

    def as_json(self) -> dict[str, Any]:
        """Return everything as plain values."""
        return {"holds": self.holds, **asdict(self)}


def replay(folder: Path, client: int, receipts: Path, ledger_url: str | None = None) -> Replay:
    """Go along the books of the run in ``folder`` and compare what they say of a client with each of its receipts (in
    the folder ``receipts``) and with what each round's record says it was to pay or to hold.

    ``ledger_url``: where the books are, if not in the folder. Raises UserError: no run, no books, or no receipt of this
    client.
    """
    place_of(folder, ledger_url)  # says so if there are no books
    if not receipts.is_dir():
        raise UserError(f"--receipts {receipts}: there is no such folder")
    mine = [r for r in read_receipts(receipts) if r.client == client]
    if not mine:
        raise UserError(f"--receipts {receipts}: has no receipt of client {client}")
    with reading(folder, ledger_url) as ledger:
        wrong = verify(ledger, (), heads_said(folder, ledger)).wrong or ""
        disputes = list(_walked(ledger, mine))
        records, against = _records(folder, ledger, client)
    return Replay(len(mine), sum(bool(r.signature) for r in mine), records, wrong, (*disputes, *against))


_NAMES = {"head": "head of the chain", "balance": "balance (units)", "escrow": "escrow (units)"}


def _walked(ledger: Ledger, receipts: Sequence[Receipt]) -> Iterator[Dispute]:
    """Walk along the book and yield where it differs from what a receipt saw at that place."""
    for d in (d for receipt in receipts for d in foreign(receipt, ledger.book)):
        yield Dispute(_named(d.receipt), d.field, d.said, d.found)
    comparison, number = Comparison(r for r in receipts if r.book == ledger.book), 0
    found = comparison.reached(0, -1, GENESIS)
    for record in ledger.history():
        number, transaction = record.number, record.transaction
        found += comparison.reached(number, record.round, record.hash, transaction.step, transaction.postings)
    for d in found:
        yield from _disputed(d)
    for r in comparison.unmet():
        yield Dispute(_named(r), "number of transactions", str(r.count), f"{number}: the book's end was cut off")


def _disputed(d: Difference) -> Iterator[Dispute]:
    who = _named(d.receipt)
    if d.field in _NAMES:
        yield Dispute(who, _NAMES[d.field], str(d.said), str(d.found))
        return
    for line in (line for line in d.said if line not in d.found):
        yield Dispute(who, "posting", _told(line), "not in the book")
    for line in (line for line in d.found if line not in d.said):
        yield Dispute(who, "posting", "not on the receipt", _told(line))


def _told(line: tuple[str, str, int]) -> str:
    step, account, units = line
    return f"{step}: {account} {units:+d} units"


def _named(receipt: Receipt) -> str:
    return f"receipt of round {receipt.round}"


def _records(folder: Path, ledger: Ledger, client: int) -> tuple[int, list[Dispute]]:
    """Compare the book with the rounds' records: a market's bills and sales, and balances after an auction."""
    account = account_of(client)
    balance, moved = _by_round(ledger.history(account), account)
    checked, found = 0, []
    latest = 0
    for number, file in rounds_of(folder):
        latest = balance.get(number, latest)
        record = read_arrays(file, (*MARKET, "balances"))
        market = market_of(number, file, record)
        noted = record.get("balances")
        who = f"record of round {number}"
        if market is not None:
            checked += 1
            net = market.money.sum(axis=0) - market.money.sum(axis=1)
            expected, posted = int(net[market.clients == client].sum()), moved.get(number, 0)
            if posted != expected:
                found.append(Dispute(who, "market, sales less bills (units)", str(expected), str(posted)))
        if noted is not None and client < len(noted):
            checked += 1
            if int(noted[client]) != latest:
                found.append(Dispute(who, "balance (units)", str(int(noted[client])), str(latest)))
    return checked, found


def _by_round(records: Iterator[Record], account: str) -> tuple[dict[int, int], dict[int, int]]:
    """Return the account's balance at the end of each round that moved it, and what markets moved in each round."""
    total, balance, market = 0, dict[int, int](), dict[int, int]()
    for record in records:
        units = sum(amount for name, amount in record.transaction.postings if name == account)
        total += units
        balance[record.round] = total
        if record.transaction.kind == "market":
            market[record.round] = market.get(record.round, 0) + units
    return balance, market
