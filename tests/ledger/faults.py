"""Makes a ledger's database fail at a chosen moment: before or after its n-th statement, or around a commit."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import event

from hanse.ledger.store import Ledger


class CrashError(Exception):
    """The process ends here, as far as the ledger can tell."""


@contextmanager
def crash_at(ledger: Ledger, moment: int) -> Iterator[list[int]]:
    """Raise CrashError at the ``moment``-th moment (none if negative); yields a list with the number of moments."""
    engine, seen = ledger._engine, [0]
    dialect: Any = engine.dialect
    real = dialect.do_commit

    def tick(*_: Any) -> None:
        seen[0] += 1
        if seen[0] == moment + 1:
            raise CrashError(f"moment {moment}")

    def commit(connection: Any) -> None:
        tick()
        real(connection)
        tick()  # written, but nobody was told

    event.listen(engine, "before_cursor_execute", tick)
    event.listen(engine, "after_cursor_execute", tick)
    dialect.do_commit = commit
    try:
        yield seen
    finally:
        dialect.do_commit = real
        event.remove(engine, "before_cursor_execute", tick)
        event.remove(engine, "after_cursor_execute", tick)
