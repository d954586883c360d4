"""The ledger: a double-entry account book in an append-only log, and everything that checks, copies or witnesses it.

Start with :class:`hanse.ledger.store.Ledger`, which opens a book, posts transactions and reads them back. ``verify``
recomputes the whole book, and ``closing`` ties the records of rounds to it. ``receipts`` and ``witness`` let
participants check it. ``index`` writes it into a database, and ``export`` and ``totals`` make it readable for people.
``docs/ledger.md`` explains what the ledger promises and what it does not.
"""
