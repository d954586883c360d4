"""A participant's dispute: compares its receipts and the rounds' records with the books, one by one.

:func:`replay` is what ``hanse statement --check-receipts`` does. A book whose hashes are right may still have been
rewritten. A receipt that the participant has kept shows what the book was when the receipt was issued. Every difference
is a :class:`Dispute` with both sides.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hanse.base.errors import UserError
from hanse.base.files import read_arrays
from hanse.core.book import DamagedError, Tally
from hanse.core.entry import client as account_of
from hanse.ledger.receipts import Comparison, Difference, Receipt, read_receipts
from hanse.ledger.record import Record
from hanse.ledger.run_ledger import open_ledger, reading, verify_run
from hanse.ledger.store import Ledger
from hanse.runs.recorded_market import NEEDED, market_of
from hanse.runs.round_record import lost_rounds, rounds_of


@dataclass(frozen=True)
class Dispute:
    """One difference between what a receipt or a record says and what the book has.

    Attributes:
        who: the receipt or record, such as "receipt of round 3".
        what: the name of what differs, such as "balance (units)".
        said: what the receipt or the record says.
        found: what the book has.
    """

    who: str
    what: str
    said: str
    found: str


@dataclass(frozen=True)
class Replay:
    """The result of comparing the book with receipts and records.

    Attributes:
        receipts: how many receipts of the client were compared.
        signed: how many of them have a head that the operator has signed.
        records: how many figures of the rounds' records were compared.
        book: what is wrong with the book itself; "" if it verifies.
        disputes: every difference.
    """

    receipts: int
    signed: int
    records: int
    book: str
    disputes: tuple[Dispute, ...]

    @property
    def holds(self) -> bool:
        """Whether the book verifies and nothing differs."""
        return not self.book and not self.disputes

    def as_json(self) -> dict[str, Any]:
        """Return everything as plain values."""
        return {"holds": self.holds, **asdict(self)}


def replay(folder: Path, client: int, receipts: Path) -> Replay:
    """Compare what a run's books say of a client with its receipts and with the records of the rounds.

    The mechanism's decisions are not computed anew; for a market, :mod:`hanse.reports.audit` does that.

    Args:
        folder: the run directory.
        client: the client's number.
        receipts: the folder that has its receipts. The participant's own copies prove more than those in the run
            directory, which the operator can change.

    Raises:
        UserError: there is no run, there are no books, or no receipt of this client.
    """
    open_ledger(folder)  # says so if there are no books
    if not receipts.is_dir():
        raise UserError(f"--receipts {receipts}: there is no such folder")
    mine = [r for r in read_receipts(receipts) if r.client == client]
    if not mine:
        raise UserError(f"--receipts {receipts}: has no receipt of client {client}")
    with reading(folder) as ledger:
        wrong = verify_run(folder, ledger).wrong or ""
        try:
            disputes = list(_walked(ledger, mine))
            records, against = _records(folder, ledger, client)
        except DamagedError:  # as ``wrong`` says; there is nothing to compare with
            disputes, records, against = [], 0, []
    return Replay(len(mine), sum(bool(r.note.signatures) for r in mine), records, wrong, (*disputes, *against))


_NAMES = {
    "count": "number of transactions until its round ended",
    "root": "head of the book",
    "balance": "balance (units)",
    "escrow": "escrow (units)",
}


def _walked(ledger: Ledger, receipts: Sequence[Receipt]) -> Iterator[Dispute]:
    """Yield where the book differs from what each receipt saw when the book had as many transactions as it names."""
    strange = [(r, r.wrong(ledger.book, ledger.public)) for r in receipts]
    for r, why in strange:
        if why is not None:
            yield Dispute(_named(r), "receipt", "of this book", why)
    comparison, number = Comparison(r for r, why in strange if why is None), 0
    tally, found = Tally(floor=ledger.floor), list[Difference]()
    for record in ledger.history():
        number = record.number
        tally.add(record.round, record.transaction)
        found += comparison.reached(record, lambda: tally.head)
    for d in found:
        yield from _disputed(d)
    for r in comparison.unmet():
        yield Dispute(_named(r), "number of transactions", str(r.count), f"{number}: the book's end was cut off")


def _disputed(d: Difference) -> Iterator[Dispute]:
    """Yield a difference in words; one of postings line by line, those that only one side has."""
    who = _named(d.receipt)
    if d.field in _NAMES:
        yield Dispute(who, _NAMES[d.field], str(d.said), str(d.found))
        return
    if not isinstance(d.said, tuple):
        yield Dispute(who, "postings", _short(d.said), _short(d.found))
        return
    for line in (line for line in d.said if line not in d.found):
        yield Dispute(who, "posting", _told(line), "not in the book")
    for line in (line for line in d.found if line not in d.said):
        yield Dispute(who, "posting", "not on the receipt", _told(line))


def _told(line: tuple[str, str, int]) -> str:
    step, account, units = line
    return f"{step}: {account} {units:+d} units"


def _short(told: Mapping[str, Any]) -> str:
    return f"{told['count']}, SHA-256 {told['sha256']}"


def _named(receipt: Receipt) -> str:
    return f"receipt of round {receipt.round}"


def _records(folder: Path, ledger: Ledger, client: int) -> tuple[int, list[Dispute]]:
    """Return how many figures of the records were compared with the book, and where they differ.

    Records have a market's bills and sales, and balances after an auction.
    """
    account = account_of(client)
    balance, moved = _by_round(ledger.history(account), account)
    lost, checked, latest = lost_rounds(folder), 0, 0
    found = [Dispute(f"record of round {number}", "file", "as it was written", why) for number, why in lost.items()]
    for number, file in rounds_of(folder):
        if number in lost:
            continue
        latest = balance.get(number, latest)  # a round that moved nothing leaves the balance of the one before
        record = read_arrays(file, (*NEEDED, "balances"))
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
