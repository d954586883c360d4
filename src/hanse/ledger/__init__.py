"""The ledger: a double-entry account book in a database, and everything that checks, copies or rebuilds it.

Start with :class:`hanse.ledger.store.Ledger`, which opens a book, posts transactions and reads them back.
``verify`` recomputes the whole book, ``receipts`` lets participants hold it to account, ``recover`` and ``archive``
bring back a ledger that was lost, and ``export`` and ``totals`` are for people who want to read it.
``docs/ledger.md`` explains what the ledger promises and what it does not.
"""
