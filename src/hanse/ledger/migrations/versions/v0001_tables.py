"""The tables: books, accounts, transactions, postings."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Make the four tables."""
    key = sa.BigInteger().with_variant(sa.Integer, "sqlite")
    op.create_table(
        "books",
        sa.Column("id", key, primary_key=True),
        sa.Column("name", sa.Text, nullable=False, unique=True),
        sa.Column("floor", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "accounts",
        sa.Column("id", key, primary_key=True),
        sa.Column("book_id", key, sa.ForeignKey("books.id"), nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("floor", sa.BigInteger),
        sa.Column("balance", sa.BigInteger, nullable=False, server_default="0"),
        sa.UniqueConstraint("book_id", "name"),
    )
    op.create_table(
        "transactions",
        sa.Column("id", key, primary_key=True),
        sa.Column("book_id", key, sa.ForeignKey("books.id"), nullable=False),
        sa.Column("number", sa.BigInteger, nullable=False),
        sa.Column("round", sa.BigInteger, nullable=False),
        sa.Column("step", sa.Text, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("memo", sa.Text, nullable=False),
        sa.Column("previous", sa.Text, nullable=False),
        sa.Column("hash", sa.Text, nullable=False),
        sa.Column("sealed", sa.Boolean, nullable=False, server_default=sa.false()),
        sa.UniqueConstraint("book_id", "number"),
        sa.UniqueConstraint("book_id", "round", "step"),
    )
    op.create_table(
        "postings",
        sa.Column("transaction_id", key, sa.ForeignKey("transactions.id"), primary_key=True, autoincrement=False),
        sa.Column("line", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("account_id", key, sa.ForeignKey("accounts.id"), nullable=False),
        sa.Column("amount", sa.BigInteger, nullable=False),
        sa.CheckConstraint("amount <> 0", name="postings_amount_nonzero"),
        sqlite_with_rowid=False,
    )
    op.create_index("postings_by_account", "postings", ["account_id", "transaction_id"])


def downgrade() -> None:
    """Refuse: books are not thrown away."""
    raise NotImplementedError("the ledger has no way back to an older schema; restore a backup")
