"""Opens the ledger's database, SQLite or PostgreSQL, and brings its schema to the newest version.

:class:`hanse.ledger.store.Ledger` is the only caller that most readers need. Come here for what is particular to a
database: how writers take turns, when a commit is on disk, how a read-only medium is opened, and how errors of the
drivers become :class:`LedgerError`.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event, inspect, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError
from sqlalchemy.pool import StaticPool

from hanse.base.errors import UserError
from hanse.core.book import DamagedError, LedgerError
from hanse.ledger.tables import SCHEMA, VERSION_TABLE

WAIT_S = 60  # seconds that SQLite waits for another writer before it gives up
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)

# PostgreSQL: the key of the advisory lock under which one process makes the tables while others wait. Any number does.
_MAKING = 7221436650


def as_url(url: str | Path) -> URL:
    """Return the URL of a database. A path, or text without ``://``, means an SQLite file.

    A plain ``postgresql://`` URL gets the driver psycopg; one that names a driver keeps it.

    Raises:
        UserError: it is not a URL, or one of another kind of database.
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


def open_engine(url: URL, *, read_only: bool) -> Engine:
    """Return an SQLAlchemy engine for a ledger whose schema is the newest.

    Tables are created, and an older schema is migrated, unless ``read_only``.

    Raises:
        UserError: the database's driver is not installed.
        LedgerError: the database cannot be opened, a newer version of hanse wrote it, or ``read_only`` is set and it
            holds no ledger or one with an older schema.
    """
    try:
        engine = _sqlite(url, read_only) if url.get_backend_name() == "sqlite" else _postgresql(url, read_only)
    except (ModuleNotFoundError, NoSuchModuleError) as missing:
        needed = "pip install '.[postgres]' in a clone of hanse"
        raise UserError(f"ledger.url: {url.drivername}: {missing}; {needed}") from None
    try:
        with session(engine, url, writing=not read_only) as connection:
            _settle_schema(connection, url, read_only)
    except BaseException:
        engine.dispose()
        raise
    return engine


@contextmanager
def session(engine: Engine, url: URL, *, writing: bool) -> Iterator[Connection]:
    """Yield a connection inside one database transaction, which is committed at the end and rolled back on an error.

    Args:
        engine: from :func:`open_engine`.
        url: named in messages (without its password).
        writing: in SQLite, take the writer's turn at once, not at the first statement that writes. In PostgreSQL, see
            what others have committed meanwhile; otherwise all statements see one moment.

    Raises:
        DamagedError: the SQLite file is damaged, or is no database.
        LedgerError: the database refuses a statement for any other reason.
    """
    try:
        with engine.connect() as connection:
            if writing:
                connection = connection.execution_options(ledger_writing=True)
            elif connection.dialect.name == "postgresql":  # all statements see the same moment, as they do in SQLite
                connection = connection.execution_options(isolation_level="REPEATABLE READ")
            with connection.begin():
                yield connection
    except DBAPIError as wrong:
        said = (str(wrong.orig).strip() or type(wrong.orig).__name__).splitlines()[0]
        # the low byte is SQLite's primary error code; the rest only refines it
        damaged = getattr(wrong.orig, "sqlite_errorcode", 0) & 0xFF in _DAMAGED
        raise (DamagedError if damaged else LedgerError)(f"{url.render_as_string()}: {said}") from wrong
    except UnicodeDecodeError as wrong:  # raised by SQLite's driver when its message quotes a damaged schema
        raise DamagedError(f"{url.render_as_string()}: the database is damaged") from wrong


def _sqlite(url: URL, read_only: bool) -> Engine:
    """Return an engine for an SQLite file or, without a file name, for a database in memory."""
    file = url.database
    if file in (None, "", ":memory:"):
        # each new connection would get an empty database of its own, so all share one
        engine = create_engine(url, poolclass=StaticPool, connect_args={"check_same_thread": False})
    else:
        assert file is not None
        if read_only and not Path(file).exists():
            raise LedgerError(f"{url.render_as_string()}: there is no ledger here")
        if not read_only and not Path(file).absolute().parent.is_dir():
            raise LedgerError(f"{url.render_as_string()}: there is no such folder")
        uri = Path(file).absolute().as_uri() + _mode(Path(file), read_only)
        engine = create_engine(
            url,
            # the pool lends a connection to one thread at a time, so it may be used by different threads in turn
            creator=lambda: sqlite3.connect(uri, uri=True, timeout=WAIT_S, check_same_thread=False),
        )

    @event.listens_for(engine, "connect")
    def settings(connection: Any, _: object) -> None:
        """Set up a new connection: foreign keys are enforced, and commits are durable."""
        connection.isolation_level = None  # the driver must not begin transactions by itself; ``begin`` below does
        connection.execute("PRAGMA foreign_keys = ON")
        if read_only:
            connection.execute("PRAGMA query_only = ON")
        else:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")  # a commit is on the disk when it returns

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        """Begin a transaction for reading or for writing."""
        # BEGIN IMMEDIATE takes the write lock before the first read, so that what was read still holds when writing
        writing = connection.get_execution_options().get("ledger_writing", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writing else "BEGIN")

    return engine


def _mode(file: Path, read_only: bool) -> str:
    """Return the query part of the URI with which an SQLite file is opened."""
    if not read_only:
        return "?mode=rwc"
    # Reading a database in WAL mode creates files beside it. In a folder that cannot be written to, SQLite must be told
    # that nobody else is writing (immutable), which a -wal file would contradict.
    still = not os.access(file.absolute().parent, os.W_OK) and not file.with_name(file.name + "-wal").exists()
    return "?mode=ro&immutable=1" if still else "?mode=ro"


def _postgresql(url: URL, read_only: bool) -> Engine:
    """Return an engine for PostgreSQL; in a reader's transactions the server refuses to write."""
    # READ COMMITTED is enough for writers, because each locks its book's row (Ledger.post). The ping replaces
    # connections that the server has closed.
    engine = create_engine(url, isolation_level="READ COMMITTED", pool_pre_ping=True)
    return engine.execution_options(postgresql_readonly=True) if read_only else engine


def _only_ours(connection: Connection, where: str, read_only: bool) -> None:
    """Raise DamagedError if an SQLite file has views or virtual tables or, for a writer, triggers that are not ours.

    The file may come from a stranger. A view under the name of one of our tables, or a trigger that fires when
    something is written, may be a query that never ends.
    """
    from hanse.ledger.migrations.versions.v0002_guards import SQLITE

    for kind, name, made in connection.execute(text("SELECT type, name, sql FROM sqlite_master")):
        odd = "view" if kind == "view" else ""
        if kind == "table" and str(made or "").upper().lstrip().startswith("CREATE VIRTUAL"):
            odd = "virtual table"
        if kind == "trigger" and not read_only and made not in SQLITE:
            odd = "trigger of its own"
        if odd:
            raise DamagedError(f"{where}: is not a ledger: it has a {odd}, '{str(name)[:40]}'")


def _settle_schema(connection: Connection, url: URL, read_only: bool) -> None:
    """Create the schema, or migrate it to the newest version. Raises LedgerError if that cannot or must not be done."""
    where = url.render_as_string()
    if connection.dialect.name == "postgresql" and not read_only:
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _MAKING})
    if connection.dialect.name == "sqlite":
        _only_ours(connection, where, read_only)
    found = None
    if inspect(connection).has_table(VERSION_TABLE):
        found = connection.execute(text(f"SELECT version_num FROM {VERSION_TABLE}")).scalar()
    if found == SCHEMA:
        return
    if read_only:
        if found is None:
            raise LedgerError(f"{where}: there is no ledger here")
        if found < SCHEMA:
            raise LedgerError(f"{where}: schema {found} is older than {SCHEMA}; 'hanse ledger migrate' upgrades it")
    if found is not None and found > SCHEMA:  # as text: versions have four digits each
        raise LedgerError(f"{where}: schema {found} was written by a newer hanse; this one knows {SCHEMA}")

    from alembic import command  # slow to import, and rarely needed
    from alembic.config import Config

    config = Config()
    # alembic reads options with configparser, to which a % sign means an interpolation
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations").replace("%", "%%"))
    config.set_main_option("path_separator", "os")  # silences a warning about the default, which is deprecated
    config.attributes["connection"] = connection
    command.upgrade(config, SCHEMA)
