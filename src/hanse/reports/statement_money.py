"""What a client was granted, paid and earned (:func:`money_of`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from pathlib import Path

from hanse.base.errors import UserError
from hanse.core.entry import client as account_of
from hanse.core.entry import escrow
from hanse.ledger.record import Record
from hanse.ledger.run_ledger import reading, wrong_in
from hanse.runs.names import client_names


@dataclass(frozen=True, kw_only=True)
class Posting:
    """One line of the client's account or of its escrow.

    Attributes:
        number: the number of its transaction in the ledger.
        round: the round in which it was posted, from 0.
        step: the name of the transaction's step, which is unique in its round.
        kind: what kind of transaction it is, such as "grant" or "bid".
        memo: the purpose of the posting, in words.
        account: "client/N" or "escrow/N".
        units: the amount, above zero if the account received it (1 token is 1,000,000 units).
        holds: what account and escrow have together after the posting, in units.
        others: the other accounts that the transaction moves. It is empty unless the run allows names.
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
class PostingSum:
    """The sum of all postings of one kind.

    Attributes:
        kind: the kind, as the ledger calls it.
        what: the name of this kind on the page.
        received: the units that came in.
        paid: the units that went out.
        transactions: the numbers of the transactions that make up the sum.
        within: whether they only move units between the client's own account and its escrow.
    """

    kind: str
    what: str
    received: int
    paid: int
    transactions: tuple[int, ...]
    within: bool = False


@dataclass(frozen=True, kw_only=True)
class Money:
    """A participant's books. Amounts are units; 1 token is 1,000,000 units.

    Attributes:
        book: the name of the book.
        count: how many transactions the book has.
        head: the hash of the last posting. With it, a receipt can be compared with the book.
        floor: the balance below which no account may fall.
        granted: what the mint gave the client.
        received: what the client received besides its grant.
        paid: what the client paid.
        balance: what is on the client's account.
        escrow: what is in the client's escrow.
        figures: the sums by kind, in order of appearance.
        lines: every posting.
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
    figures: tuple[PostingSum, ...]
    lines: tuple[Posting, ...]

    @property
    def net(self) -> int:
        """What taking part brought or cost, in units: what was received less what was paid, without the grant."""
        return self.received - self.paid


def money_of(
    folder: Path,
    client: int,
    *,
    kinds: Mapping[str, str] | None = None,
    names: bool = False,
) -> Money | None:
    """Return the books of a client, or None if nobody pays in this run.

    Args:
        folder: the run directory.
        client: the client's number.
        kinds: the names of kinds of transactions on the page. A kind without an entry keeps its own name.
        names: whether postings name the other accounts of their transactions.

    Raises:
        UserError: the books are missing, cannot be read, or do not verify.
    """
    if not (folder / "ledger.json").exists():
        return None
    mine, kept = account_of(client), escrow(client)
    with reading(folder) as ledger:
        # the run may be posting meanwhile: what comes after this moment is left out, so all sums agree
        book = ledger.as_book()
        records = [
            r for r in ledger.history() if r.number <= book.count and {mine, kept} & {*dict(r.transaction.postings)}
        ]
    if wrong := _wrong_in(folder, book.head):
        raise UserError(
            f"{folder}: no statement of books that do not hold: {wrong} ('hanse ledger verify' checks them)"
        )
    called = client_names(folder) if names else None
    lines = _own_lines(records, client, called)
    figures = _figures(lines, kinds or {})
    outside = [f for f in figures if not f.within and f.kind != "grant"]
    return Money(
        book=ledger.book,
        count=book.count,
        head=book.head,
        floor=book.floor,
        granted=sum(f.received - f.paid for f in figures if f.kind == "grant"),
        received=sum(f.received for f in outside),
        paid=sum(f.paid for f in outside),
        balance=book.balance(mine),
        escrow=book.balance(kept),
        figures=figures,
        lines=lines,
    )


@lru_cache(maxsize=8)
def _wrong_in(folder: Path, head: str) -> str | None:
    """Return what is wrong with a run's books, None if they hold. Statements of many clients ask once for each head."""
    return wrong_in(folder)


def _own_lines(records: Iterable[Record], client: int, called: Mapping[int, str] | None = None) -> tuple[Posting, ...]:
    """Return the postings of a client's account and escrow among ``records``, which come in order of their numbers.

    ``called`` has the clients' names; with it the other accounts of each transaction are listed. None lists none.
    """

    def named(account: str) -> str:
        """Return an account with its owner's name behind it, if that is known."""
        kind, _, number = account.partition("/")
        name = (called or {}).get(int(number)) if kind in ("client", "escrow") and number.isdecimal() else None
        return account if name is None else f"{account} ({name})"

    own = (account_of(client), escrow(client))
    found = [(r, name, units) for r in records for name, units in r.transaction.postings if name in own]
    holds = accumulate(units for _, _, units in found)
    return tuple(
        Posting(
            number=r.number,
            round=r.round,
            step=r.transaction.step,
            kind=r.transaction.kind,
            memo=r.transaction.memo,
            account=name,
            units=units,
            holds=held,
            others=tuple(dict.fromkeys(named(n) for n, _ in r.transaction.postings if n not in own))
            if called is not None
            else (),
        )
        for (r, name, units), held in zip(found, holds, strict=True)
    )


def _figures(lines: Sequence[Posting], kinds: Mapping[str, str]) -> tuple[PostingSum, ...]:
    """Return the sums of postings by kind, in order of appearance.

    Units that only move between the client's two accounts, as a bid does before it wins a seat, are not an expense:
    such a kind is marked as ``within`` and shows what moved on the account itself.
    """
    net = Counter[int]()  # what each transaction changes of both accounts together
    for line in lines:
        net[line.number] += line.units
    found = []
    for kind in dict.fromkeys(line.kind for line in lines):
        here = [line for line in lines if line.kind == kind]
        within = not any(net[line.number] for line in here)
        counted = [line for line in here if line.account.startswith("client/")] if within else here
        found.append(
            PostingSum(
                kind,
                kinds.get(kind, kind),
                sum(line.units for line in counted if line.units > 0),
                -sum(line.units for line in counted if line.units < 0),
                tuple(dict.fromkeys(line.number for line in here)),
                within,
            )
        )
    return tuple(found)
