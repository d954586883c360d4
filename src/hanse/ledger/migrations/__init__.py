"""Versions of the ledger's schema, for alembic."""
