"""The tables of the ledger, as the newest migration leaves them (a test compares the two).

One database holds any number of books, a book a run. What the tables cannot say, triggers do: see
``migrations/versions``.
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

SCHEMA = "0002"  # the newest migration
VERSION_TABLE = "ledger_version"

metadata = MetaData()
_Id = BigInteger().with_variant(Integer, "sqlite")  # SQLite numbers rows by itself only in a plain INTEGER key

books = Table(
    "books",
    metadata,
    Column("id", _Id, primary_key=True),
    Column("name", Text, nullable=False, unique=True),
    Column("floor", BigInteger, nullable=False),
)

accounts = Table(
    "accounts",
    metadata,
    Column("id", _Id, primary_key=True),
    Column("book_id", _Id, ForeignKey("books.id"), nullable=False),
    Column("name", Text, nullable=False),
    Column("floor", BigInteger),  # none: the mint
    Column("balance", BigInteger, nullable=False, server_default="0"),  # moved by sealing alone
    UniqueConstraint("book_id", "name"),
)

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
    UniqueConstraint("book_id", "round", "step"),
)

postings = Table(
    "postings",
    metadata,
    Column("transaction_id", _Id, ForeignKey("transactions.id"), primary_key=True, autoincrement=False),
    Column("line", Integer, primary_key=True, autoincrement=False),  # 0, 1, 2, ... in its transaction
    Column("account_id", _Id, ForeignKey("accounts.id"), nullable=False),
    Column("amount", BigInteger, CheckConstraint("amount <> 0", name="postings_amount_nonzero"), nullable=False),
    Index("postings_by_account", "account_id", "transaction_id"),
    sqlite_with_rowid=False,
)
