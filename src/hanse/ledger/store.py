"""The books on a disk: a double-entry ledger in SQLite or PostgreSQL.

What is posted is checked twice, here with the rules of :mod:`hanse.core.book` and by the database's triggers; it is
written whole or not at all, on the disk when the call returns, and each transaction once, however often it is sent.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from sqlalchemy import Connection, Engine, insert, select
from sqlalchemy.engine import URL

from hanse.base.errors import UserError
from hanse.core.book import Book, LedgerError, check
from hanse.core.entry import MINT, Transaction, is_account
from hanse.ledger.connect import as_url, open_engine, session
from hanse.ledger.rows import Record, append, balances_of, known_of, lines_of, tail_of
from hanse.ledger.tables import accounts, books, postings, transactions

if TYPE_CHECKING:
    from hanse.ledger.receipts import Receipt
    from hanse.ledger.verify import Verdict

__all__ = ["Ledger", "Record"]

CHUNK = 2000  # transactions that are read at a time


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
                    if connection.dialect.name == "postgresql":  # another process may be making the same book
                        from sqlalchemy.dialects.postgresql import insert as insert_unless_there

                        connection.execute(
                            insert_unless_there(books).values(name=book, floor=floor or 0).on_conflict_do_nothing()
                        )
                    else:
                        connection.execute(insert(books).values(name=book, floor=floor or 0))
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
            known = known_of(connection, self.id, round, wanted)
            fresh = [t for step, t in wanted.items() if step not in known]
            if fresh:
                written = append(connection, self.id, self.floor, round, fresh)
                known |= {record.transaction.step: record for record in written}
        return [known[step] for step in order]

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
            return balances_of(connection, self.id)

    def as_book(self) -> Book:
        """Return the book as a value, as it stands now."""
        t = transactions.c
        with self.begin() as connection:
            tail = tail_of(connection, self.id)
            steps = connection.execute(select(t.step).where(t.book_id == self.id, t.round == tail.round)).scalars()
            balances = balances_of(connection, self.id)
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
        wanted = [t.book_id == self.id]
        if round is not None:
            wanted.append(t.round == round)
        if account is not None:
            touching = select(p.transaction_id).join(accounts, a.id == p.account_id)
            wanted.append(t.id.in_(touching.where(a.book_id == self.id, a.name == account)))
        with self.begin() as connection:
            while True:
                rows = connection.execute(
                    select(t.id, t.number, t.round, t.step, t.kind, t.memo, t.previous, t.hash)
                    .where(*wanted, t.number > after)
                    .order_by(t.number)
                    .limit(chunk)
                ).all()
                if not rows:
                    return
                after = rows[-1].number
                lines = lines_of(connection, [row.id for row in rows])
                for id_, number, round_, step, kind, memo, previous, hash_ in rows:
                    transaction = Transaction(step, kind, tuple(lines.get(id_, ())), memo)
                    yield Record(number, round_, transaction, previous, hash_)

    def verify(self, receipts: Iterable[Receipt] = ()) -> Verdict:
        """Go through the whole book and say whether it holds; see :func:`hanse.ledger.verify.verify`."""
        from hanse.ledger.verify import verify

        return verify(self, receipts)
