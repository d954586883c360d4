"""Version 0001: creates the tables for books, accounts, transactions and postings."""

from __future__ import annotations

from alembic import op

from hanse.ledger.tables import metadata

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Create the four tables.

    They are those of :mod:`hanse.ledger.tables`, because no later migration has changed them. The first migration that
    changes a table must copy the old definitions here.
    """
    metadata.create_all(op.get_bind())


def downgrade() -> None:
    """Refuse to go back, since that would throw the books away."""
    raise NotImplementedError("the ledger has no way back to an older schema; restore a backup")
