"""The versions of the ledger's schema, in the layout that alembic expects.

:mod:`hanse.ledger.connect` runs them when a ledger is opened for writing.
"""
