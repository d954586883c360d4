"""Goes through a whole book and says whether it holds, naming the first row that is wrong."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, Row, func, select, text
from sqlalchemy.exc import DatabaseError

from hanse.core.entry import GENESIS, MINT, Transaction, digest, is_account
from hanse.ledger.receipts import Comparison, Receipt, foreign
from hanse.ledger.tables import accounts, postings, transactions

if TYPE_CHECKING:
    from hanse.ledger.store import Ledger


@dataclass(frozen=True)
class Verdict:
    """What was gone through, and the first thing that is wrong with it, if anything is."""

    transactions: int
    postings: int
    accounts: int
    head: str
    wrong: str | None = None

    @property
    def ok(self) -> bool:
        """Whether the book holds."""
        return self.wrong is None


class _BrokenError(Exception):
    """The first wrong row."""


@dataclass
class _Walk:
    """Where the walk along the chain is: what the books hold so far, computed from the postings alone."""

    floor: int
    number: int = 0
    postings: int = 0
    head: str = GENESIS
    round: int = 0
    held: dict[int, int] = field(default_factory=dict)  # by account's id: one entry an account, whatever the history


def verify(ledger: Ledger, receipts: Iterable[Receipt] = (), heads: Mapping[str, str] | None = None) -> Verdict:
    """Recompute the hash chain, the sums, the floors and the balances, and look at the database itself.

    ``receipts`` and ``heads`` (a head of the chain, and who says so) must agree with the book; they show a tail that
    was cut off, or books that were written anew. Memory grows with the accounts and the receipts, not with the history.
    """
    claims = _Claims(receipts, heads or {}, ledger.book)
    with ledger.begin() as connection:
        walk = _Walk(ledger.floor)
        wrong = None
        try:
            _walk(connection, ledger, walk, claims)
            _accounts(connection, ledger.id, walk)
            claims.left(walk)
            _strays(connection)
            _database(connection)
        except _BrokenError as first:
            wrong = str(first)
        except DatabaseError as broken:  # pages that cannot be read
            wrong = f"the database is damaged after transaction {walk.number}: {broken.orig}"
        except UnicodeDecodeError:  # the driver's message quotes a page's bytes
            wrong = f"the database is damaged after transaction {walk.number}"
        return Verdict(walk.number, walk.postings, len(walk.held), walk.head, wrong)


def _walk(connection: Connection, ledger: Ledger, walk: _Walk, claims: _Claims) -> None:
    t = transactions.c
    total = connection.execute(
        select(func.count()).select_from(transactions).where(t.book_id == ledger.id)
    ).scalar_one()
    claims.reached(walk)
    while walk.number < total:
        rows = _rows(connection, ledger, walk.number)
        if not rows:
            raise _BrokenError(f"transaction {walk.number + 1}: is missing ({total} are in the book)")
        for _, lines in groupby(rows, key=lambda row: (row.id, row.number)):
            _one(ledger.id, walk, list(lines), claims)


def _rows(connection: Connection, ledger: Ledger, after: int) -> Sequence[Row[Any]]:
    """Return what :meth:`Ledger.rows` does, also where a text in the database is no text any more."""
    try:
        return ledger.rows(connection, after)
    except DatabaseError as broken:
        if "decode" not in str(broken.orig):
            raise
    # read it in a form that keeps its bytes, so that its row can be named
    driver: Any = connection.connection.dbapi_connection
    driver.text_factory = lambda raw: raw.decode(errors="surrogateescape")
    try:
        return ledger.rows(connection, after)
    finally:
        driver.text_factory = str


def _one(book: int, walk: _Walk, rows: Sequence[Row[Any]], claims: _Claims) -> None:
    """Check one transaction, whose rows are its postings in order, and take it into the walk."""
    first = rows[0]
    number, round_, step, hash_ = first.number, first.round, first.step, first.hash
    where = f"transaction {walk.number + 1}"
    if number != walk.number + 1:
        raise _BrokenError(f"{where}: is missing; the next row (id {first.id}) has the number {number!r}")
    where = f"transaction {number} (id {first.id}, round {round_!r}, step {_shown(step)})"
    if first.previous != walk.head:
        raise _BrokenError(f"{where}: follows {_shown(first.previous)}, but the transaction before it has {walk.head}")
    lines: list[tuple[str, int]] = []
    for i, row in enumerate(rows):
        amount, account_id = row.amount, row.account_id
        if row.line is None:
            raise _BrokenError(f"{where}: has no postings")
        if row.line != i:
            raise _BrokenError(f"{where}: posting {i} is missing")
        if row.owner != book or not is_account(row.name):
            raise _BrokenError(f"{where}: posting {i}: account {account_id!r} is not one of this book")
        if type(amount) is not int:
            raise _BrokenError(f"{where}: posting {i}: amount {_shown(amount)} is not an integer")
        lines.append((row.name, amount))
        walk.held[account_id] = walk.held.get(account_id, 0) + amount
    total = sum(amount for _, amount in lines)
    if total:
        raise _BrokenError(f"{where}: its postings sum to {total}, not to 0")
    try:
        right = digest(walk.head, round_, Transaction(step, first.kind, tuple(lines), first.memo))
    except TypeError:  # bytes where text was
        right = "another hash"
    if right != hash_:
        raise _BrokenError(f"{where}: its content has the hash {right}, but the row says {_shown(hash_)}")
    if first.sealed is not True:
        raise _BrokenError(f"{where}: is not sealed")
    if round_ < walk.round:
        raise _BrokenError(f"{where}: comes after one of round {walk.round}")
    for row in rows:
        held = walk.held[row.account_id]
        if row.amount < 0 and row.name != MINT and held < walk.floor:
            raise _BrokenError(f"{where}: posting {row.line}: {row.name} pays and holds {held}, below {walk.floor}")
    walk.number, walk.head, walk.round = number, right, round_
    walk.postings += len(lines)
    claims.reached(walk, step, lines)


def _accounts(connection: Connection, book: int, walk: _Walk) -> None:
    a = accounts.c
    held = dict(walk.held)
    for id_, name, floor, balance in connection.execute(
        select(a.id, a.name, a.floor, a.balance).where(a.book_id == book).order_by(a.id)
    ):
        where = f"account {_shown(name)} (id {id_})"
        if id_ not in held:
            raise _BrokenError(f"{where}: no posting opened it")
        right = held.pop(id_)
        if balance != right or type(balance) is not int:
            raise _BrokenError(f"{where}: its postings sum to {right}, but the row says {_shown(balance)}")
        if floor != (None if name == MINT else walk.floor):
            raise _BrokenError(f"{where}: floor {_shown(floor)}: the book's is {walk.floor}")


def _strays(connection: Connection) -> None:
    """Look for postings of no transaction: nothing that walks along a book would see them."""
    t, p = transactions.c, postings.c
    strays = select(p.transaction_id, p.line).where(~select(t.id).where(t.id == p.transaction_id).exists()).limit(1)
    for transaction, line in connection.execute(strays):
        raise _BrokenError(f"posting {line} of transaction id {transaction}: there is no such transaction")


def _database(connection: Connection) -> None:
    """Look at the database itself: its pages and indices, and the triggers that guard it."""
    from hanse.ledger.migrations.versions import v0002_guards as guards

    if connection.dialect.name == "sqlite":
        for row in connection.execute(text("PRAGMA integrity_check(1)")).all():
            if row[0] != "ok":
                raise _BrokenError(f"the database is damaged: {row[0]}")
        sound = {row[0] for row in connection.execute(text("SELECT sql FROM sqlite_master WHERE type = 'trigger'"))}
        there = {guards.name_of(sql) for sql in guards.SQLITE if sql in sound}
        needed = [guards.name_of(sql) for sql in guards.SQLITE]
    else:
        active = text(
            "SELECT tgname FROM pg_trigger JOIN pg_class ON pg_class.oid = tgrelid "
            "WHERE relnamespace = current_schema()::regnamespace AND NOT tgisinternal AND tgenabled IN ('O', 'A')"
        )
        there = {row[0] for row in connection.execute(active)}
        needed = [guards.name_of(sql) for sql in guards.POSTGRESQL if guards.name_of(sql)]
    for name in needed:
        if name not in there:
            raise _BrokenError(f"trigger {name}: is missing or was changed; the rows themselves hold")


class _Claims:
    """What others say of the book: their receipts, and heads of the chain by who names them."""

    def __init__(self, receipts: Iterable[Receipt], heads: Mapping[str, str], book: str) -> None:
        self.heads = {head: who for head, who in heads.items() if head != GENESIS}
        self.wrong: str | None = None
        ours = []
        for receipt in receipts:
            if not (strange := foreign(receipt, book)):
                ours.append(receipt)
            elif self.wrong is None:
                what = (
                    f"is of another book, '{receipt.book}'" if strange[0].field == "book" else "its signature is wrong"
                )
                self.wrong = f"{_named(receipt)}: {what}"
        self.receipts = Comparison(ours)

    def reached(self, walk: _Walk, step: str = "", lines: Sequence[tuple[str, int]] = ()) -> None:
        """Compare what is said of this place in the chain with what is there. Raises _BrokenError."""
        self.heads.pop(walk.head, None)
        for d in self.receipts.reached(walk.number, walk.round, walk.head, step, lines):
            raise _BrokenError(
                f"{_named(d.receipt)}: {d.field} after transaction {walk.number}: it says {d.said}, the book "
                f"{d.found}: the book was written anew"
            )

    def left(self, walk: _Walk) -> None:
        """Raise _BrokenError if something is said of what the book does not have."""
        if self.wrong is not None:
            raise _BrokenError(self.wrong)
        if unmet := self.receipts.unmet():
            first = min(unmet, key=lambda receipt: receipt.count)
            raise _BrokenError(
                f"{_named(first)}: saw {first.count} transactions, the book has {walk.number}: its tail is cut"
            )
        for head, who in self.heads.items():
            raise _BrokenError(f"{who}: head {head} is not in the book: its tail is cut, or it was written anew")


def _named(receipt: Receipt) -> str:
    return f"receipt of client {receipt.client}, round {receipt.round}"


def _shown(value: object) -> str:
    return ascii(value)
