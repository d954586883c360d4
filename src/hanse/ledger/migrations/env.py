"""Alembic's entry point: runs the migrations on the connection that it is given, inside that connection's transaction.

Since the caller's transaction spans all migrations, a database is never left between two versions.
"""

from __future__ import annotations

from alembic import context

from hanse.ledger.tables import VERSION_TABLE, metadata

context.configure(
    connection=context.config.attributes["connection"], target_metadata=metadata, version_table=VERSION_TABLE
)
with context.begin_transaction():
    context.run_migrations()
