"""Recomputes a whole book from its rows and says whether it holds, naming the first row that is wrong.

``hanse ledger verify``, ``rebuild``, ``backup`` and ``restore`` all rely on :func:`verify`. It trusts nothing that the
database says about itself: balances, hashes and sums are computed anew from the postings, and the result is compared
with what the rows claim. What it cannot see from inside, a book that was cut off or rewritten consistently, it finds
where it is given ``receipts`` or ``heads`` from outside.
"""

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
    """What was checked, and the first thing that is wrong, if anything is. The counts reach as far as the check got.

    Attributes:
        transactions: how many transactions were checked and found right.
        postings: how many postings they have.
        accounts: how many accounts they touch.
        head: the recomputed hash of the last of them.
        wrong: the first fault in words; None if the book holds.
    """

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
    """Ends the check at the first fault, which is its text."""


@dataclass
class _Walk:
    """How far the walk along the chain has come, and what the postings up to there add up to.

    Attributes:
        floor: the book's floor, in units.
        number: the number of the last transaction that was checked.
        postings: how many postings were met.
        head: the recomputed hash of that transaction.
        round: its round.
        held: units by account id. There is one entry for each account, however long the history.
    """

    floor: int
    number: int = 0
    postings: int = 0
    head: str = GENESIS
    round: int = 0
    held: dict[int, int] = field(default_factory=dict)


def verify(ledger: Ledger, receipts: Iterable[Receipt] = (), heads: Mapping[str, str] | None = None) -> Verdict:
    """Recompute the hash chain, the sums, the floors and the balances, and check the database itself.

    Memory grows with the number of accounts and receipts, not with the length of the history.

    Args:
        ledger: the book to check; it may be open for reading only.
        receipts: what participants were told. Each must agree with the book at the place that it names.
        heads: hashes that must occur in the chain, each with a word on who names it (for the message), for instance the
            head in a checkpoint.

    Returns:
        the verdict. A fault is never raised but reported in ``Verdict.wrong``.

    Raises:
        UserError: a receipt is signed and the package ``cryptography`` is not installed.
        LedgerError: the database is gone or cannot be opened.
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
            _database(connection)  # last: a fault in a row says more than a missing trigger
        except _BrokenError as first:
            wrong = str(first)
        except DatabaseError as broken:  # pages that cannot be read
            wrong = f"the database is damaged after transaction {walk.number}: {broken.orig}"
        except UnicodeDecodeError:  # the driver's message quotes a page's bytes
            wrong = f"the database is damaged after transaction {walk.number}"
        return Verdict(walk.number, walk.postings, len(walk.held), walk.head, wrong)


def _walk(connection: Connection, ledger: Ledger, walk: _Walk, claims: _Claims) -> None:
    """Check the transactions one after the other. Raises _BrokenError at the first that is wrong or missing."""
    t = transactions.c
    total = connection.execute(
        select(func.count()).select_from(transactions).where(t.book_id == ledger.id)
    ).scalar_one()
    claims.reached(walk)  # number 0: receipts and heads of the empty book
    while walk.number < total:
        rows = _rows(connection, ledger, walk.number)
        if not rows:
            raise _BrokenError(f"transaction {walk.number + 1}: is missing ({total} are in the book)")
        for _, lines in groupby(rows, key=lambda row: (row.id, row.number)):
            _one(ledger.id, walk, list(lines), claims)


def _rows(connection: Connection, ledger: Ledger, after: int) -> Sequence[Row[Any]]:
    """Return what :meth:`Ledger.rows` does, even where damaged bytes in a text column are not valid UTF-8."""
    try:
        return ledger.rows(connection, after)
    except DatabaseError as broken:
        if "decode" not in str(broken.orig):
            raise
    # Read the chunk again with undecodable bytes escaped. The walk then fails at the damaged row and can name it.
    driver: Any = connection.connection.dbapi_connection
    driver.text_factory = lambda raw: raw.decode(errors="surrogateescape")
    try:
        return ledger.rows(connection, after)
    finally:
        driver.text_factory = str


def _one(book: int, walk: _Walk, rows: Sequence[Row[Any]], claims: _Claims) -> None:
    """Check one transaction and add it to the walk.

    Args:
        book: the id of the book.
        walk: where the walk is; advanced by one transaction.
        rows: the transaction's rows, one for each posting, as :meth:`Ledger.rows` returns them.
        claims: asked whether anybody says otherwise about this place.
    """
    first = rows[0]
    number, round_, step, hash_ = first.number, first.round, first.step, first.hash
    where = f"transaction {walk.number + 1}"
    if number != walk.number + 1:
        raise _BrokenError(f"{where}: is missing; the next row (id {first.id}) has the number {number!r}")
    where = f"transaction {number} (id {first.id}, round {round_!r}, step {step!a})"
    if first.previous != walk.head:
        raise _BrokenError(f"{where}: follows {first.previous!a}, but the transaction before it has {walk.head}")
    lines: list[tuple[str, int]] = []
    # SQLite stores a value of any type in any column, so every type is checked before it is used
    for i, row in enumerate(rows):
        amount, account_id = row.amount, row.account_id
        if row.line is None:
            raise _BrokenError(f"{where}: has no postings")
        if row.line != i:
            raise _BrokenError(f"{where}: posting {i} is missing")
        if row.owner != book or not is_account(row.name):
            raise _BrokenError(f"{where}: posting {i}: account {account_id!r} is not one of this book")
        if type(amount) is not int:
            raise _BrokenError(f"{where}: posting {i}: amount {amount!a} is not an integer")
        lines.append((row.name, amount))
        walk.held[account_id] = walk.held.get(account_id, 0) + amount
    total = sum(amount for _, amount in lines)
    if total:
        raise _BrokenError(f"{where}: its postings sum to {total}, not to 0")
    try:
        right = digest(walk.head, round_, Transaction(step, first.kind, tuple(lines), first.memo))
    except TypeError:  # a column holds bytes instead of text
        right = "another hash"
    if right != hash_:
        raise _BrokenError(f"{where}: its content has the hash {right}, but the row says {hash_!a}")
    if first.sealed is not True:
        raise _BrokenError(f"{where}: is not sealed")
    if round_ < walk.round:
        raise _BrokenError(f"{where}: comes after one of round {walk.round}")
    # Only payers must stay above the floor, as in Book.post: receiving is allowed at any balance.
    for row in rows:
        held = walk.held[row.account_id]
        if row.amount < 0 and row.name != MINT and held < walk.floor:
            raise _BrokenError(f"{where}: posting {row.line}: {row.name} pays and holds {held}, below {walk.floor}")
    walk.number, walk.head, walk.round = number, right, round_
    walk.postings += len(lines)
    claims.reached(walk, step, lines)


def _accounts(connection: Connection, book: int, walk: _Walk) -> None:
    """Check the account rows against the balances that the walk computed. Raises _BrokenError."""
    a = accounts.c
    held = dict(walk.held)
    for id_, name, floor, balance in connection.execute(
        select(a.id, a.name, a.floor, a.balance).where(a.book_id == book).order_by(a.id)
    ):
        where = f"account {name!a} (id {id_})"
        if id_ not in held:
            raise _BrokenError(f"{where}: no posting opened it")
        right = held.pop(id_)
        if balance != right or type(balance) is not int:
            raise _BrokenError(f"{where}: its postings sum to {right}, but the row says {balance!a}")
        if floor != (None if name == MINT else walk.floor):
            raise _BrokenError(f"{where}: floor {floor!a}: the book's is {walk.floor}")


def _strays(connection: Connection) -> None:
    """Raise _BrokenError if a posting belongs to no transaction, since the walk would not see it."""
    t, p = transactions.c, postings.c
    strays = select(p.transaction_id, p.line).where(~select(t.id).where(t.id == p.transaction_id).exists()).limit(1)
    for transaction, line in connection.execute(strays):
        raise _BrokenError(f"posting {line} of transaction id {transaction}: there is no such transaction")


def _database(connection: Connection) -> None:
    """Check the database itself: in SQLite its pages and indices, everywhere the triggers that guard the rows."""
    from hanse.ledger.migrations.versions import v0002_guards as guards

    if connection.dialect.name == "sqlite":
        for row in connection.execute(text("PRAGMA integrity_check(1)")).all():
            if row[0] != "ok":
                raise _BrokenError(f"the database is damaged: {row[0]}")
        # SQLite keeps the statement that made a trigger, so a trigger that was replaced does not count as present
        sound = {row[0] for row in connection.execute(text("SELECT sql FROM sqlite_master WHERE type = 'trigger'"))}
        there = {guards.name_of(sql) for sql in guards.SQLITE if sql in sound}
        needed = [guards.name_of(sql) for sql in guards.SQLITE]
    else:
        # 'O' and 'A' are the states in which PostgreSQL fires a trigger in ordinary sessions
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
    """What others say about the book: receipts, and heads of the chain by who names them.

    Claims are ticked off while the walk passes the place that they speak of; what remains at the end speaks of
    something that the book does not have.
    """

    def __init__(self, receipts: Iterable[Receipt], heads: Mapping[str, str], book: str) -> None:
        self.heads = dict(heads)
        self.wrong: str | None = None  # the first receipt that is not of this book; reported after faults in rows
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
        """Compare what is said about the place that the walk has reached with what is there. Raises _BrokenError."""
        if walk.number:  # the hash before the first transaction is nobody's head
            self.heads.pop(walk.head, None)
        for d in self.receipts.reached(walk.number, walk.round, walk.head, step, lines):
            raise _BrokenError(
                f"{_named(d.receipt)}: {d.field} after transaction {walk.number}: it says {d.said}, the book "
                f"{d.found}: the book was written anew"
            )

    def left(self, walk: _Walk) -> None:
        """Raise _BrokenError if a claim is left over: a receipt or a head of something that the book does not have."""
        if self.wrong is not None:
            raise _BrokenError(self.wrong)
        if unmet := self.receipts.unmet():
            first = min(unmet, key=lambda receipt: receipt.count)  # it names the earliest missing transaction
            raise _BrokenError(
                f"{_named(first)}: saw {first.count} transactions, the book has {walk.number}: its tail is cut"
            )
        for head, who in self.heads.items():
            raise _BrokenError(f"{who}: head {head} is not in the book: its tail is cut, or it was written anew")


def _named(receipt: Receipt) -> str:
    return f"receipt of client {receipt.client}, round {receipt.round}"
