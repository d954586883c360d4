"""The tables of the ledger as SQLAlchemy sees them, after the newest migration (a test compares the two).

One database holds any number of books, one for each run. Rules that column types and constraints cannot express are
enforced by triggers, which ``migrations/versions/v0002_guards.py`` creates. ``docs/ledger.md`` describes the columns.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    false,
)

SCHEMA = "0002"  # the newest migration; versions are compared as text, so they keep their four digits
VERSION_TABLE = "ledger_version"  # where alembic notes the version that a database has

metadata = MetaData()
_Id = BigInteger().with_variant(Integer, "sqlite")  # SQLite numbers rows by itself only in a plain INTEGER key

# A book is what one run writes. Its rows are never changed.
books = Table(
    "books",
    metadata,
    Column("id", _Id, primary_key=True),
    Column("name", Text, nullable=False, unique=True),
    Column("floor", BigInteger, nullable=False),
)

# An account belongs to one book. It repeats the book's floor so that a trigger needs no join to check it.
accounts = Table(
    "accounts",
    metadata,
    Column("id", _Id, primary_key=True),
    Column("book_id", _Id, ForeignKey("books.id"), nullable=False),
    Column("name", Text, nullable=False),
    Column("floor", BigInteger),  # units; NULL for the mint, which may go below any floor
    Column("balance", BigInteger, nullable=False, server_default="0"),  # units; only sealing a transaction changes it
    UniqueConstraint("book_id", "name"),
)

# A transaction is a link of its book's hash chain. It is inserted open and sealed once its postings are in.
transactions = Table(
    "transactions",
    metadata,
    Column("id", _Id, primary_key=True),
    Column("book_id", _Id, ForeignKey("books.id"), nullable=False),
    Column("number", BigInteger, nullable=False),  # 1, 2, 3, ... in its book
    Column("round", BigInteger, nullable=False),
    Column("step", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("memo", Text, nullable=False),
    Column("previous", Text, nullable=False),
    Column("hash", Text, nullable=False),
    Column("sealed", Boolean, nullable=False, server_default=false()),
    UniqueConstraint("book_id", "number"),
    UniqueConstraint("book_id", "round", "step"),  # the key under which a transaction can be sent again
)

# A posting is one line of a transaction: an account, and the units that it gains (or loses, if negative).
postings = Table(
    "postings",
    metadata,
    Column("transaction_id", _Id, ForeignKey("transactions.id"), primary_key=True, autoincrement=False),
    Column("line", Integer, primary_key=True, autoincrement=False),  # 0, 1, 2, ... in its transaction
    Column("account_id", _Id, ForeignKey("accounts.id"), nullable=False),
    Column("amount", BigInteger, CheckConstraint("amount <> 0", name="postings_amount_nonzero"), nullable=False),
    Index("postings_by_account", "account_id", "transaction_id"),  # for the history of one account
    sqlite_with_rowid=False,  # rows lie in the order of the primary key, which is the order of reading
)
