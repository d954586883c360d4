"""Runs the migrations on the connection that it is given, inside that connection's transaction."""

from __future__ import annotations

from alembic import context

from hanse.ledger.tables import VERSION_TABLE, metadata

context.configure(
    connection=context.config.attributes["connection"], target_metadata=metadata, version_table=VERSION_TABLE
)
with context.begin_transaction():
    context.run_migrations()
