"""The tables: books, accounts, transactions, postings."""

from __future__ import annotations

from alembic import op

from hanse.ledger.tables import metadata

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Make the four tables. No later migration has changed them; one that does writes them down here as they were."""
    metadata.create_all(op.get_bind())


def downgrade() -> None:
    """Refuse: books are not thrown away."""
    raise NotImplementedError("the ledger has no way back to an older schema; restore a backup")
