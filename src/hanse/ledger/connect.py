"""Opens the ledger's database: SQLite or PostgreSQL, for writing or for reading only, at the right schema."""

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

WAIT_S = 60  # for another writer
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)

# PostgreSQL: one process makes the tables, the others wait; any constant will do
_MAKING = 7221436650


def as_url(url: str | Path) -> URL:
    """Return the URL of a database; a path means an SQLite file. Raises UserError if it is neither."""
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
    """Return an engine for a ledger whose schema is the newest, made or migrated if ``read_only`` does not forbid it.

    Raises UserError for a driver that is not installed, and LedgerError for a database that cannot be opened, that
    holds no ledger (when reading), or that a newer version wrote.
    """
    try:
        engine = _sqlite(url, read_only) if url.get_backend_name() == "sqlite" else _postgresql(url, read_only)
    except (ModuleNotFoundError, NoSuchModuleError) as missing:
        raise UserError(f"ledger.url: {url.drivername}: {missing}; 'pip install hanse[postgres]'") from None
    try:
        with session(engine, url, writing=not read_only) as connection:
            _settle_schema(connection, url, read_only)
    except BaseException:
        engine.dispose()
        raise
    return engine


@contextmanager
def session(engine: Engine, url: URL, *, writing: bool) -> Iterator[Connection]:
    """Yield a connection inside one database transaction; what the database refuses becomes a LedgerError."""
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
        damaged = getattr(wrong.orig, "sqlite_errorcode", 0) & 0xFF in _DAMAGED
        raise (DamagedError if damaged else LedgerError)(f"{url.render_as_string()}: {said}") from wrong
    except UnicodeDecodeError as wrong:  # SQLite's driver, when a damaged schema is quoted in its message
        raise DamagedError(f"{url.render_as_string()}: the database is damaged") from wrong


def _sqlite(url: URL, read_only: bool) -> Engine:
    file = url.database
    if file in (None, "", ":memory:"):
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
            # threads take turns through the pool, so that a connection may change hands
            creator=lambda: sqlite3.connect(uri, uri=True, timeout=WAIT_S, check_same_thread=False),
        )

    @event.listens_for(engine, "connect")
    def settings(connection: Any, _: object) -> None:
        connection.isolation_level = None  # the driver is not to begin transactions of its own
        connection.execute("PRAGMA foreign_keys = ON")
        if read_only:
            connection.execute("PRAGMA query_only = ON")
        else:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")  # a commit is on the disk when it returns

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        # a writer takes its turn before it reads, so that what it read still holds when it writes
        writing = connection.get_execution_options().get("ledger_writing", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writing else "BEGIN")

    return engine


def _mode(file: Path, read_only: bool) -> str:
    if not read_only:
        return "?mode=rwc"
    # reading a WAL database makes files beside it; on a read-only medium it must be said that nobody else writes
    still = not os.access(file.absolute().parent, os.W_OK) and not file.with_name(file.name + "-wal").exists()
    return "?mode=ro&immutable=1" if still else "?mode=ro"


def _postgresql(url: URL, read_only: bool) -> Engine:
    engine = create_engine(url, isolation_level="READ COMMITTED", pool_pre_ping=True)  # writers lock their book
    return engine.execution_options(postgresql_readonly=True) if read_only else engine


def _only_tables(connection: Connection, where: str) -> None:
    """Raise LedgerError for a file with views or generated tables in it: a view may be a query without an end."""
    for kind, name, made in connection.execute(text("SELECT type, name, sql FROM sqlite_master")):
        if kind == "view" or (kind == "table" and str(made or "").upper().lstrip().startswith("CREATE VIRTUAL")):
            raise LedgerError(f"{where}: is no ledger of hanse's: '{str(name)[:40]}' is a {kind} of another kind")


def _settle_schema(connection: Connection, url: URL, read_only: bool) -> None:
    """Leave the schema at the newest version, or say why it cannot be."""
    where = url.render_as_string()
    if connection.dialect.name == "postgresql" and not read_only:
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _MAKING})
    if read_only and connection.dialect.name == "sqlite":
        _only_tables(connection, where)
    found = None
    if inspect(connection).has_table(VERSION_TABLE):
        found = connection.execute(text(f"SELECT version_num FROM {VERSION_TABLE}")).scalar()
    if found == SCHEMA:
        return
    if read_only:
        if found is None:
            raise LedgerError(f"{where}: there is no ledger here")
        if found < SCHEMA:
            raise LedgerError(f"{where}: schema {found} is older than {SCHEMA}: 'hanse ledger migrate' brings it up")
    if found is not None and found > SCHEMA:
        raise LedgerError(f"{where}: schema {found} was written by a newer hanse; this one knows {SCHEMA}")

    from alembic import command  # slow to import, and rarely needed
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations").replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    command.upgrade(config, SCHEMA)
