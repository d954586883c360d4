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
from hanse.core.book import DamagedError, MutableBook
from hanse.ledger.receipts import Difference, Receipt, ReceiptCheck, read_receipts
from hanse.ledger.run_ledger import open_ledger, reading, verify_run
from hanse.ledger.store import Ledger
from hanse.runs.replay import Replayed, replay_books


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
        records: how many rounds the payment rule has settled again from their records.
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

    The payment rule is called again with what it was shown, as far as the rounds' records have it
    (:mod:`hanse.runs.replay`).

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
            again = Replayed() if wrong else replay_books(folder, ledger)
        except DamagedError:  # as ``wrong`` says; there is nothing to compare with
            disputes, again = [], Replayed()
    if again.wrong is not None:
        disputes.append(Dispute("records of the rounds", "payments", "what follows from them", again.wrong))
    return Replay(len(mine), sum(bool(r.note.signatures) for r in mine), again.again, wrong, tuple(disputes))


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
    comparison, number = ReceiptCheck(r for r, why in strange if why is None), 0
    tally, found = MutableBook(floor=ledger.floor), list[Difference]()
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
