"""The ledger: a double-entry account book in an append-only log, and everything that checks, copies or witnesses it.

Start with :class:`hanse.ledger.store.Ledger`, which opens a book, posts transactions and reads them back.
``verify`` recomputes the whole book, ``closing`` ties rounds' records to it, ``receipts`` and ``witness`` let
participants hold it to account, ``index`` writes it into a database, and ``export`` and ``totals`` are for people who
want to read it. ``docs/ledger.md`` explains what the ledger promises and what it does not.
"""
