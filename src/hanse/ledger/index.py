"""The index of a book in a database (SQLite or PostgreSQL): for queries, reports, and the operator's own tools.

The log is the book (:mod:`hanse.ledger.store`). The index is made from the log and never trusted: hanse reads the
tables only to compare them with the log. An index that lags behind is completed. One that differs is written anew, and
so is a run's own file that is damaged or another version's. One database can hold any number of books.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby, islice
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    Connection,
    Engine,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
    create_engine,
    event,
    func,
    inspect,
    select,
    text,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError

from hanse.base.errors import MachineError, UserError
from hanse.core.book import LedgerError
from hanse.core.entry import Transaction
from hanse.ledger.log import Record
from hanse.ledger.store import Ledger

CHUNK = 10_000  # transactions written or compared at a time
FULL = {sqlite3.SQLITE_FULL, "53100"}  # what SQLite and PostgreSQL say where the disk is full
BROKEN = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}  # what SQLite says of a damaged file
WAIT_S = 5  # seconds that SQLite waits for another writer

metadata = MetaData()


class UnfitError(LedgerError):
    """What is there is damaged, another version's, or no index: another try would not help."""


books = Table("books", metadata, Column("name", Text, primary_key=True), Column("floor", BigInteger, nullable=False))
accounts = Table(
    "accounts",
    metadata,
    Column("book", Text, ForeignKey("books.name"), primary_key=True),
    Column("name", Text, primary_key=True),
    Column("balance", BigInteger, nullable=False),
    sqlite_with_rowid=False,
)
transactions = Table(
    "transactions",
    metadata,
    Column("book", Text, ForeignKey("books.name"), primary_key=True),
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("round", BigInteger, nullable=False),
    Column("step", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("memo", Text, nullable=False),
    sqlite_with_rowid=False,
)
postings = Table(
    "postings",
    metadata,
    Column("book", Text, primary_key=True),
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("line", Integer, primary_key=True, autoincrement=False),
    Column("account", Text, nullable=False),
    Column("amount", BigInteger, nullable=False),
    ForeignKeyConstraint(["book", "number"], ["transactions.book", "transactions.number"]),
    Index("postings_by_account", "book", "account", "number"),
    sqlite_with_rowid=False,
)


def as_url(url: str | Path) -> URL:
    """Return the URL of a database. A path, or text without ``://``, means an SQLite file.

    A plain ``postgresql://`` URL gets the driver psycopg. A URL that names a driver keeps it.

    Raises:
        UserError: the text is not a URL, or names another kind of database.
    """
    if isinstance(url, Path) or "://" not in url:
        return URL.create("sqlite", database=str(url))
    try:
        parsed = make_url(url)
    except ArgumentError:
        raise UserError(f"ledger.url: '{url}': is not a database URL") from None
    if parsed.get_backend_name() not in ("sqlite", "postgresql"):
        raise UserError(f"ledger.url: {parsed.render_as_string()}: must be sqlite:///FILE or postgresql://...")
    if parsed.drivername == "postgresql":
        parsed = parsed.set(drivername="postgresql+psycopg")
    return parsed


def follow(url: str | Path, ledger: Ledger, *, anew: bool = False) -> int:
    """Bring the index of a book up to date with the log, and return how many transactions were written.

    An index with more transactions than the log is written anew, and so is a run's own file that is unfit.

    Args:
        url: the database, its URL or the file name of an SQLite file. A ``Path`` is the run's own file, which has
            nothing but the index.
        ledger: the book. If it was read exactly as far as the index goes, it is not read again.
        anew: whether to write the index anew, whatever there is.

    Raises:
        UserError: the URL is not one, or the database's driver is not installed.
        MachineError: the database's disk is full. The log has all that the index lacks.
        LedgerError: the database cannot be reached, or refuses a statement; or the book is not sound.
        UnfitError: the database, which is not the run's own file, is damaged or has other tables with the same names.
    """
    try:
        with _opened(url, writing=True) as connection:
            _enter(connection, ledger)
            there = None if anew else _count(connection, ledger)
            written = _completed(connection, ledger, there)
            return written if there is None or there <= ledger.as_book().count else _completed(connection, ledger, None)
    except UnfitError:
        if not isinstance(url, Path):
            raise
        url.unlink()
        return follow(url, ledger)


def _completed(connection: Connection, ledger: Ledger, there: int | None) -> int:
    """Write what the log has behind the transaction ``there``; None: all of it, in the place of what there is."""
    if there is None:
        for table in (postings, transactions, accounts, books):
            connection.execute(table.delete().where(_mine(table, ledger)))
        _enter(connection, ledger)
    written, records = 0, ledger.history(after=there or 0)
    while some := list(islice(records, CHUNK)):
        _write(connection, ledger.book, some)
        written += len(some)
    return written


def difference(url: str | Path, ledger: Ledger) -> str | None:
    """Return the first difference between a book's index and its log, in words, or None if there is none.

    An index that only lacks the last transactions does not count as different: they are added when the run continues.

    Args:
        url: the database, its URL or the path of an SQLite file. Nothing is written into it.
        ledger: the book, which must be sound.

    Raises:
        UserError: the URL is not one, or the database's driver is not installed.
    """
    try:
        with _opened(url, writing=False) as connection:
            apart = _difference(connection, ledger)
    except LedgerError as wrong:
        apart = str(wrong)
    return f"the index differs from the books: {apart}; 'hanse ledger rebuild' writes it anew" if apart else None


@contextmanager
def _opened(url: str | Path, *, writing: bool) -> Iterator[Connection]:
    """Yield a connection to an index, inside one transaction of the database. A writer makes the tables if there are
    none. Raises as :func:`follow`.
    """
    parsed = as_url(url)
    where = parsed.render_as_string()
    where = where if isinstance(url, Path) or "://" not in url else f"ledger.url: {where}"
    try:
        engine = _sqlite(parsed, writing) if parsed.get_backend_name() == "sqlite" else create_engine(parsed)
    except (ModuleNotFoundError, NoSuchModuleError) as missing:
        needed = "pip install '.[postgres]' in a clone of hanse"
        raise UserError(f"ledger.url: {parsed.drivername}: {missing}; {needed}") from None
    try:
        with engine.begin() as connection:
            _settle(connection, where, writing)
            yield connection
    except DBAPIError as wrong:
        if FULL & {getattr(wrong.orig, name, None) for name in ("sqlite_errorcode", "sqlstate")}:
            raise MachineError(f"{where}: disk full; free some space") from wrong
        said = (str(wrong.orig).strip() or type(wrong.orig).__name__).splitlines()[0]
        if parsed.get_backend_name() == "sqlite" and not (folder := Path(parsed.database or "").parent).is_dir():
            said += f": there is no folder {folder}"
        broken = getattr(wrong.orig, "sqlite_errorcode", 0) & 0xFF in BROKEN  # above it: which of its structures
        raise (UnfitError if broken else LedgerError)(f"{where}: {said}") from wrong
    except UnicodeDecodeError as wrong:  # the driver's message quotes a damaged page
        raise UnfitError(f"{where}: the database is damaged") from wrong
    finally:
        engine.dispose()


def _sqlite(url: URL, writing: bool) -> Engine:
    """Return an engine for an SQLite file, in which a writer takes its turn at once."""
    file = f"file:{quote(url.database or '')}?mode={'rwc' if writing else 'ro'}"
    engine = create_engine("sqlite://", creator=lambda: sqlite3.connect(file, timeout=WAIT_S, uri=True))

    @event.listens_for(engine, "connect")
    def _connected(connection: sqlite3.Connection, _: Any) -> None:
        connection.isolation_level = None  # transactions begin below, not where the driver thinks
        connection.execute("PRAGMA synchronous = OFF")  # what is lost is made again from the log

    @event.listens_for(engine, "begin")
    def _begun(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writing else "BEGIN")

    return engine


def _settle(connection: Connection, where: str, writing: bool) -> None:
    """Make the tables. Raises UnfitError if others of these names are there, or anything that is not a plain table."""
    if connection.dialect.name == "sqlite":
        # The file may come from a stranger: a view or a trigger may be a query that never ends.
        for kind, name, made in connection.execute(text("SELECT type, name, sql FROM sqlite_master")):
            if kind in ("view", "trigger") or str(made or "").upper().lstrip().startswith("CREATE VIRTUAL"):
                raise UnfitError(f"{where}: is not an index: it has '{str(name)[:40]}', which is no plain table")
    found = inspect(connection)
    for table in metadata.sorted_tables:
        if found.has_table(table.name):
            columns = {column["name"] for column in found.get_columns(table.name)}
            if columns != {column.name for column in table.columns}:
                raise UnfitError(f"{where}: its table '{table.name}' is not this hanse's; drop it, or name another")
        elif not writing:
            raise LedgerError(f"{where}: has no table '{table.name}'")
    if writing:
        metadata.create_all(connection)


def _mine(table: Table, ledger: Ledger) -> ColumnElement[bool]:
    """Return the condition that a row of a table is of this book."""
    return (table.c.name if table is books else table.c.book) == ledger.book


def _upsert(connection: Connection, table: Table) -> Any:
    """Return an insertion that may say what happens to rows that are there."""
    return (postgresql if connection.dialect.name == "postgresql" else sqlite).insert(table)


def _enter(connection: Connection, ledger: Ledger) -> None:
    """Enter a book if it is not there, and hold its row until the end, so that its writers take turns."""
    made = _upsert(connection, books).values(name=ledger.book, floor=ledger.floor)
    connection.execute(made.on_conflict_do_nothing())
    connection.execute(select(books).where(_mine(books, ledger)).with_for_update())


def _count(connection: Connection, ledger: Ledger) -> int:
    """Return the number of the last transaction of a book in the index."""
    last = func.coalesce(func.max(transactions.c.number), 0)
    return int(connection.execute(select(last).where(_mine(transactions, ledger))).scalar_one())


def _write(connection: Connection, book: str, records: Sequence[Record]) -> None:
    """Write transactions behind the last one, and move the balances."""
    moved: dict[str, int] = {}
    rows, lines = [], []
    for record in records:
        of, now = {"book": book, "number": record.number}, record.transaction
        rows.append({**of, "round": record.round, "step": now.step, "kind": now.kind, "memo": now.memo})
        for line, (name, units) in enumerate(now.postings):
            moved[name] = moved.get(name, 0) + units
            lines.append({**of, "line": line, "account": name, "amount": units})
    new = _upsert(connection, accounts)
    sums = {"balance": accounts.c.balance + new.excluded.balance}
    more = new.on_conflict_do_update(index_elements=["book", "name"], set_=sums)
    connection.execute(transactions.insert(), rows)
    if lines:  # the close of a round moves nothing
        connection.execute(more, [{"book": book, "name": name, "balance": units} for name, units in moved.items()])
        connection.execute(postings.insert(), lines)


def _difference(connection: Connection, ledger: Ledger) -> str:
    """Return the first thing in which the index of a book differs from the log, or ""."""
    floor = connection.execute(select(books.c.floor).where(_mine(books, ledger))).first()
    if floor is None:
        return ""
    if floor[0] != ledger.floor:
        return f"the floor is {ledger.floor} units, and {floor[0]!a} by the index"
    held: dict[str, int] = {}
    for record, found in zip(ledger.history(), _indexed(connection, ledger), strict=False):
        if found != record:
            return f"transaction {record.number} (round {record.round}, step {record.transaction.step!a})"
        for name, units in record.transaction.postings:
            held[name] = held.get(name, 0) + units
    if _count(connection, ledger) > (count := ledger.as_book().count):
        return f"transaction {count + 1}: the log ends before it"
    a, p, t = accounts.c, postings.c, transactions.c
    every = connection.execute(select(a.name, a.balance).where(_mine(accounts, ledger)))
    listed = {row.name: row.balance for row in every}
    for name in sorted(held.keys() | listed.keys()):
        if listed.get(name) != held.get(name) or type(listed.get(name)) is not int:
            return f"account {name!a}: holds {held.get(name)} units by the log, {listed.get(name)!a} by the index"
    stray = select(p.number).where(~select(t.number).where((t.book == p.book) & (t.number == p.number)).exists())
    if connection.execute(stray.limit(1)).first() is not None:
        return "a posting that belongs to no transaction"
    return ""


def _indexed(connection: Connection, ledger: Ledger) -> Iterator[Record]:
    """Yield the transactions of a book as the index has them; the types of their values are whatever it holds."""
    p, t = postings.c, transactions.c
    wanted = (
        select(t.number, t.round, t.step, t.kind, t.memo, p.line, p.amount, p.account)
        .select_from(transactions)
        .outerjoin(postings, (p.book == t.book) & (p.number == t.number))
        .where(_mine(transactions, ledger))
        .order_by(t.number, p.line)
    )
    rows = connection.execution_options(stream_results=True, max_row_buffer=CHUNK).execute(wanted)
    for _, lines in groupby(rows, key=lambda row: row.number):
        first, *others = lines
        moved = []
        # a close has no postings: one row without a line
        for place, row in enumerate(() if first.line is None and not others else (first, *others)):
            whole = row.line == place and type(row.amount) is int
            moved.append((row.account, row.amount) if whole else ("", 0))
        yield Record(first.number, first.round, Transaction(first.step, first.kind, tuple(moved), first.memo))
