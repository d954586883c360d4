"""The ledger: a double-entry account book in an append-only log, and everything that checks, copies or witnesses it.

Start with :class:`hanse.ledger.store.Ledger`, which opens a book, posts transactions and reads them back. Its
``verify`` recomputes the whole book. ``run_ledger`` opens a run's book, and compares it with the run's records.
``receipts`` and ``witness`` let participants check it. ``accounts`` adds it up, ``index`` writes it into a database,
and ``export`` makes it readable for people. ``docs/ledger.md`` explains what the ledger promises and what it does not.
"""
