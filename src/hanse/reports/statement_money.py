"""What a participant was granted, paid and earned: every figure with the transactions behind it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from hanse.core.entry import client as account_of
from hanse.core.entry import escrow
from hanse.ledger.place import reading
from hanse.ledger.rows import Record

__all__ = ["Figure", "Line", "Money", "money_of", "own_lines"]


@dataclass(frozen=True)
class Line:
    """One posting of the client's account or escrow. ``number`` is the transaction's in the ledger, ``round`` counts
    from 0, ``units`` are signed, ``holds`` is what both accounts hold together after the transaction. ``others`` names
    who else the transaction moves, where the run allows names.
    """

    number: int
    round: int
    step: str
    kind: str
    memo: str
    account: str
    units: int
    holds: int
    others: tuple[str, ...] = ()


@dataclass(frozen=True)
class Figure:
    """The sum of one kind of posting: units that came ``in`` and went ``out`` of the account, and the numbers of the
    transactions that made it. ``within``: between the client's own account and its escrow.
    """

    kind: str
    what: str
    received: int
    paid: int
    transactions: tuple[int, ...]
    within: bool = False


@dataclass(frozen=True)
class Money:
    """A participant's books, in units: what it was ``granted``, what it ``received`` and ``paid`` beside that, what its
    account and its escrow hold now. ``head`` is the hash of the book's last transaction of ``count``.
    """

    book: str
    count: int
    head: str
    floor: int
    granted: int
    received: int
    paid: int
    balance: int
    escrow: int
    figures: tuple[Figure, ...]
    lines: tuple[Line, ...]

    @property
    def net(self) -> int:
        """What taking part changed: all that came in less all that went out, the grant left aside."""
        return self.received - self.paid


def money_of(
    folder: Path,
    client: int,
    *,
    kinds: Mapping[str, str] | None = None,
    names: bool = False,
    ledger_url: str | None = None,
) -> Money | None:
    """Return the books of a client, or None if nobody pays in this run. ``kinds``: what the kinds of transactions are
    called on the page; one that is not there keeps its own name. Raises UserError for books that are not there or
    cannot be read.
    """
    if not (folder / "ledger.json").exists():
        return None
    mine, kept = account_of(client), escrow(client)
    with reading(folder, ledger_url) as ledger:
        # the rest is read of one moment: a run may be writing
        book = ledger.as_book()
        records = {r.number: r for name in (mine, kept) for r in ledger.history(name) if r.number <= book.count}
    lines = own_lines([records[n] for n in sorted(records)], client, names=names)
    figures = _figures(lines, kinds or {})
    outside = [f for f in figures if not f.within and f.kind != "grant"]
    return Money(
        ledger.book,
        book.count,
        book.head,
        book.floor,
        sum(f.received - f.paid for f in figures if f.kind == "grant"),
        sum(f.received for f in outside),
        sum(f.paid for f in outside),
        book.balance(mine),
        book.balance(kept),
        figures,
        lines,
    )


def own_lines(records: Iterable[Record], client: int, *, names: bool = False) -> tuple[Line, ...]:
    """Return the postings of a client's two accounts among ``records`` (in order of their numbers)."""
    own = (account_of(client), escrow(client))
    found = [(r, name, units) for r in records for name, units in r.transaction.postings if name in own]
    holds = accumulate(units for _, _, units in found)
    return tuple(
        Line(
            r.number, r.round, r.transaction.step, r.transaction.kind, r.transaction.memo, name, units, held,
            _others(r, own) if names else (),
        )
        for (r, name, units), held in zip(found, holds, strict=True)
    )  # fmt: skip


def _others(record: Record, own: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for name, _ in record.transaction.postings if name not in own))


def _figures(lines: Sequence[Line], kinds: Mapping[str, str]) -> tuple[Figure, ...]:
    """Return a figure a kind, in order of appearance. A bid is no expense before it wins a seat: movements between the
    two accounts are shown, and counted in no sum.
    """
    net = Counter[int]()  # of the two accounts together, by transaction
    for line in lines:
        net[line.number] += line.units
    found = []
    for kind in dict.fromkeys(line.kind for line in lines):
        here = [line for line in lines if line.kind == kind]
        within = not any(net[line.number] for line in here)
        counted = [line for line in here if line.account.startswith("client/")] if within else here
        found.append(
            Figure(
                kind,
                kinds.get(kind, kind),
                sum(line.units for line in counted if line.units > 0),
                -sum(line.units for line in counted if line.units < 0),
                tuple(dict.fromkeys(line.number for line in here)),
                within,
            )
        )
    return tuple(found)
