"""The books on a disk: a double-entry ledger in SQLite or PostgreSQL.

What is posted is checked twice, here with the rules of :mod:`hanse.core.book` and by the database's triggers; it is
written whole or not at all, on the disk when the call returns, and each transaction once, however often it is sent.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from sqlalchemy import ColumnElement, Connection, Engine, Row, insert, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import URL

from hanse.base.errors import UserError
from hanse.core.book import Book, LedgerError, check
from hanse.core.entry import GENESIS, MINT, Transaction, digest, is_account
from hanse.ledger.connect import as_url, open_engine, session
from hanse.ledger.tables import accounts, books, postings, transactions

if TYPE_CHECKING:
    from hanse.ledger.receipts import Receipt
    from hanse.ledger.verify import Verdict

CHUNK = 2000  # transactions that are read at a time
FEW = 400  # accounts that are looked up by name; more are read all at once


@dataclass(frozen=True)
class Record:
    """A transaction as it stands in the book: its place (1, 2, ...), its round, and its link of the hash chain."""

    number: int
    round: int
    transaction: Transaction
    previous: str
    hash: str


def as_dict(record: Record) -> dict[str, Any]:
    """Return a record as JSON knows it; amounts are units."""
    transaction = record.transaction
    return {
        "number": record.number,
        "round": record.round,
        "step": transaction.step,
        "kind": transaction.kind,
        "memo": transaction.memo,
        "postings": [list(posting) for posting in transaction.postings],
        "previous": record.previous,
        "hash": record.hash,
    }


@dataclass(frozen=True)
class Tail:
    """Where a book ends: its last transaction's place, hash and round."""

    number: int = 0
    hash: str = GENESIS
    round: int = 0


class Ledger:
    """One book (a run's) in a database. Use :meth:`open`; it is a context manager, or call :meth:`close`.

    Several processes may write to one book: they take turns. ``id`` is the book's number in the database (``book_id``
    of its rows).
    """

    def __init__(self, engine: Engine, url: URL, book: str, book_id: int, floor: int, read_only: bool) -> None:
        self._engine, self.id = engine, book_id
        self.url, self.book, self.floor, self.read_only = url, book, floor, read_only

    @staticmethod
    def open(url: str | Path, *, book: str = "main", floor: int | None = None, read_only: bool = False) -> Ledger:
        """Open a book, made if it is not there (unless ``read_only``).

        ``url`` is a path (SQLite) or a database URL, ``sqlite:///FILE`` or ``postgresql://...``. ``floor`` is what no
        account but the mint may go below, in units (a new book: 0); an existing book keeps the floor that it has.
        Raises LedgerError if the book has another floor, or the database cannot be opened.
        """
        parsed = as_url(url)
        if not book or not book.isprintable():
            raise UserError(f"book: {book!r}: must be a line of text, not empty")
        engine = open_engine(parsed, read_only=read_only)
        try:
            with session(engine, parsed, writing=not read_only) as connection:
                wanted = select(books.c.id, books.c.floor).where(books.c.name == book)
                found = connection.execute(wanted).one_or_none()
                if found is None and read_only:
                    raise LedgerError(f"{parsed.render_as_string()}: has no book '{book}'")
                if found is None:
                    dialect = postgresql if connection.dialect.name == "postgresql" else sqlite
                    made = dialect.insert(books).values(name=book, floor=floor or 0)
                    connection.execute(made.on_conflict_do_nothing())  # another process may be making the same book
                    found = connection.execute(wanted).one()
            if floor is not None and floor != found.floor:
                raise LedgerError(f"floor: {floor}: book '{book}' was made with the floor {found.floor}")
        except BaseException:
            engine.dispose()
            raise
        return Ledger(engine, parsed, book, found.id, found.floor, read_only)

    def close(self) -> None:
        """Close the database."""
        self._engine.dispose()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @contextmanager
    def begin(self, *, writing: bool = False) -> Iterator[Connection]:
        """Yield a connection inside one database transaction; what the database refuses becomes a LedgerError.

        One that is not ``writing`` sees the book at one moment and stands in nobody's way.
        """
        with session(self._engine, self.url, writing=writing) as connection:
            yield connection

    # ---- writing

    def post(self, round: int, new: Iterable[Transaction]) -> list[Record]:
        """Write a round's transactions, all of them or none, and return how they stand in the book.

        (book, round, step) is a transaction's key. One that the book has already, with the same content, is not
        written again: its first record is returned. So a round can be sent again after a crash.

        Raises LedgerError (nothing is written) for a malformed transaction, a key that the book has with other
        content, a new transaction of a round before the last one, or a database that cannot write; OverdraftError
        where an account would end below its floor.
        """
        if self.read_only:
            raise LedgerError(f"{self.url.render_as_string()}: is open for reading only")
        wanted: dict[str, Transaction] = {}
        order = []
        for transaction in new:
            check(transaction)
            order.append(transaction.step)
            if wanted.setdefault(transaction.step, transaction) != transaction:
                raise LedgerError(f"transaction '{transaction.step}': comes twice with different content")
        if type(round) is not int or round < 0:
            raise LedgerError(f"round {round!r}: must be an integer, at least 0")
        with self.begin(writing=True) as connection:
            if connection.dialect.name == "postgresql":  # writers to a book take turns; SQLite's begin has seen to it
                connection.execute(select(books.c.id).where(books.c.id == self.id).with_for_update())
            known = _known(connection, self.id, round, wanted)
            fresh = [t for step, t in wanted.items() if step not in known]
            if fresh:
                written = _append(connection, self.id, self.floor, round, fresh)
                known |= {record.transaction.step: record for record in written}
        return [known[step] for step in order]

    def post_rounds(self, new: Iterable[tuple[int, Transaction]]) -> str:
        """Write transactions, ``(round, transaction)`` in the order of their rounds, round by round (see :meth:`post`),
        and return how the last one stands in the book: its hash; of none, that of the beginning.
        """
        last = GENESIS
        for round, same in groupby(new, key=lambda one: one[0]):
            last = self.post(round, [transaction for _, transaction in same])[-1].hash
        return last

    def transfer(
        self,
        source: str,
        target: str,
        units: int,
        *,
        round: int,
        step: str,
        kind: str = "transfer",
        memo: str = "",
    ) -> Record:
        """Move ``units`` (a positive integer) between two accounts that the book has; see :meth:`post`.

        Raises LedgerError for an account that nothing was ever posted to (the mint is always there).
        """
        if type(units) is not int or units <= 0:
            raise LedgerError(f"transaction '{step}': amount {units!r}: must be a positive integer number of units")
        for account in (source, target):
            if account != MINT and not self.has(account):
                raise LedgerError(f"transaction '{step}': account '{account}': the book has no such account")
        return self.post(round, [Transaction(step, kind, ((source, -units), (target, units)), memo)])[0]

    # ---- reading

    def head(self) -> str:
        """Return the hash of the last transaction."""
        with self.begin() as connection:
            return tail_of(connection, self.id).hash

    def count(self) -> int:
        """Return the number of transactions."""
        with self.begin() as connection:
            return tail_of(connection, self.id).number

    def has(self, account: str) -> bool:
        """Say whether anything was ever posted to this account."""
        a = accounts.c
        with self.begin() as connection:
            wanted = select(a.id).where(a.book_id == self.id, a.name == account)
            return connection.execute(wanted).one_or_none() is not None

    def balance(self, account: str) -> int:
        """Return an account's units; 0 if nothing was ever posted to it. Raises LedgerError for no account's name."""
        if not is_account(account):
            raise LedgerError(f"account {account!r}: must be mint, client/N, escrow/N or pool/NAME")
        a = accounts.c
        with self.begin() as connection:
            found = connection.execute(select(a.balance).where(a.book_id == self.id, a.name == account)).scalar()
        return 0 if found is None else int(found)

    def balances(self) -> dict[str, int]:
        """Return the units of every account that was ever posted to, in the order in which they were opened."""
        with self.begin() as connection:
            return _balances(connection, self.id)

    def as_book(self) -> Book:
        """Return the book as a value, as it stands now."""
        t = transactions.c
        with self.begin() as connection:
            tail = tail_of(connection, self.id)
            steps = connection.execute(select(t.step).where(t.book_id == self.id, t.round == tail.round)).scalars()
            balances = _balances(connection, self.id)
            return Book(balances, tail.hash, tail.number, self.floor, tail.round, frozenset(steps))

    def history(
        self, account: str | None = None, *, round: int | None = None, after: int = 0, chunk: int = CHUNK
    ) -> Generator[Record, None, None]:
        """Yield the book's transactions in order: all, or those that touch an account, or those of a round; only those
        with a higher number than ``after``.

        They are read in one database transaction, ``chunk`` at a time, so that memory stays constant and a writer does
        not disturb what is seen. Close the iterator (or exhaust it) to end that transaction.
        """
        a, t, p = accounts.c, transactions.c, postings.c
        wanted: list[ColumnElement[bool]] = []
        if round is not None:
            wanted.append(t.round == round)
        if account is not None:
            touching = select(p.transaction_id).join(accounts, a.id == p.account_id)
            wanted.append(t.id.in_(touching.where(a.book_id == self.id, a.name == account)))
        with self.begin() as connection:
            while rows := self.rows(connection, after, chunk, wanted):
                for _, lines in groupby(rows, key=lambda row: row.number):
                    first, *others = lines
                    moved = tuple((row.name, row.amount) for row in (first, *others) if row.line is not None)
                    transaction = Transaction(first.step, first.kind, moved, first.memo)
                    yield Record(first.number, first.round, transaction, first.previous, first.hash)
                after = rows[-1].number

    def rows(
        self, connection: Connection, after: int, chunk: int = CHUNK, wanted: Sequence[ColumnElement[bool]] = ()
    ) -> Sequence[Row[Any]]:
        """Return the next ``chunk`` transactions behind number ``after``, those that meet all conditions ``wanted``.

        There is a row a posting, in order: the transaction's columns, the posting's, and its account's ``name`` and
        book (``owner``); a transaction without postings has one row, in which these are None.
        """
        a, t, p = accounts.c, transactions.c, postings.c
        some = (
            select(transactions).where(t.book_id == self.id, t.number > after, *wanted).order_by(t.number).limit(chunk)
        )
        page = some.subquery()
        joined = select(page, p.line, p.amount, p.account_id, a.name, a.book_id.label("owner")).select_from(page)
        joined = joined.outerjoin(postings, p.transaction_id == page.c.id).outerjoin(accounts, a.id == p.account_id)
        return connection.execute(joined.order_by(page.c.number, p.line)).all()

    def verify(self, receipts: Iterable[Receipt] = ()) -> Verdict:
        """Go through the whole book and say whether it holds; see :func:`hanse.ledger.verify.verify`."""
        from hanse.ledger.verify import verify

        return verify(self, receipts)


def tail_of(connection: Connection, book: int) -> Tail:
    """Return the last transaction's place, hash and round."""
    t = transactions.c
    wanted = select(t.number, t.hash, t.round).where(t.book_id == book)
    found = connection.execute(wanted.order_by(t.number.desc()).limit(1)).one_or_none()
    return Tail() if found is None else Tail(found.number, found.hash, found.round)


def hash_of(connection: Connection, book: int, number: int) -> str:
    """Return the hash of a book's ``number``-th transaction; of none before the first. The book must have as many."""
    t = transactions.c
    wanted = select(t.hash).where(t.book_id == book, t.number == number)
    return GENESIS if number == 0 else str(connection.execute(wanted).scalar_one())


def _balances(connection: Connection, book: int) -> dict[str, int]:
    """Return the units of every account, in the order in which they were opened."""
    a = accounts.c
    rows = connection.execute(select(a.name, a.balance).where(a.book_id == book).order_by(a.id))
    return {row.name: row.balance for row in rows}


def _known(connection: Connection, book: int, round: int, wanted: Mapping[str, Transaction]) -> dict[str, Record]:
    """Return the records, by step, of what the round has already. Raises LedgerError if its content differs."""
    t = transactions.c
    rows = connection.execute(select(t.number, t.step, t.previous, t.hash).where(t.book_id == book, t.round == round))
    known = {}
    for number, step, previous, hash_ in rows:
        if step in wanted:
            if digest(previous, round, wanted[step]) != hash_:
                raise LedgerError(f"transaction '{step}': round {round} has one of this name with other content")
            known[step] = Record(number, round, wanted[step], previous, hash_)
    return known


def _append(connection: Connection, book: int, floor: int, round: int, fresh: Sequence[Transaction]) -> list[Record]:
    """Write new transactions of a round behind the book's last one, with their hashes, and return their records.

    Accounts are opened with ``floor`` (units). Raises LedgerError for what cannot be posted.
    """
    a, t = accounts.c, transactions.c
    tail = tail_of(connection, book)
    names = {account for transaction in fresh for account, _ in transaction.postings}
    existing = select(a.name, a.id, a.balance).where(a.book_id == book)
    if len(names) <= FEW:
        existing = existing.where(a.name.in_(names))
    rows = connection.execute(existing).all()
    before = Book({name: balance for name, _, balance in rows}, tail.hash, tail.number, floor, tail.round)
    _, hashes = before.chain(round, fresh)

    number_of = {name: id_ for name, id_, _ in rows}
    if missing := sorted(names - number_of.keys()):
        connection.execute(
            insert(accounts),
            [
                {"book_id": book, "name": name, "floor": None if name == MINT else floor, "balance": 0}
                for name in missing
            ],
        )
        number_of = {name: id_ for name, id_, _ in connection.execute(existing)}
    records = [
        Record(tail.number + 1 + i, round, transaction, previous, hash_)
        for i, (transaction, previous, hash_) in enumerate(zip(fresh, [tail.hash, *hashes[:-1]], hashes, strict=True))
    ]
    connection.execute(
        insert(transactions),
        [
            {"book_id": book, "sealed": False} | {name: v for name, v in as_dict(r).items() if name != "postings"}
            for r in records
        ],
    )
    mine = (t.book_id == book) & (t.number > tail.number)
    id_of = {row.number: row.id for row in connection.execute(select(t.number, t.id).where(mine))}
    connection.execute(
        insert(postings),
        [
            {"transaction_id": id_of[r.number], "line": line, "account_id": number_of[name], "amount": units}
            for r in records
            for line, (name, units) in enumerate(r.transaction.postings)
        ],
    )
    connection.execute(update(transactions).where(mine).values(sealed=True))
    return records
