"""What keeps a run directory from being made or written, as one line with the next command."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from hanse.base.errors import MachineError, UserError
from hanse.core.book import LedgerError

__all__ = ["making", "storing"]

FULL = (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def making(path: Path) -> Iterator[None]:
    """Turn what keeps a directory from being made into a UserError (a place that cannot be written, a database that
    cannot be opened) or a MachineError (no space).
    """
    try:
        yield
    except LedgerError as wrong:
        raise UserError(str(wrong)) from None
    except OSError as wrong:
        if wrong.errno in FULL:
            raise MachineError(f"--out {path}: disk full: {wrong.strerror}; free some space") from None
        raise UserError(f"--out {path}: cannot be written: {wrong.strerror}") from None


@contextmanager
def storing(path: Path, kept: Callable[[], int]) -> Iterator[None]:
    """Turn what the machine cannot do for a run into a MachineError that says how many rounds are ``kept`` and how to
    go on.
    """
    try:
        yield
    except (OSError, LedgerError) as wrong:
        what = (wrong.strerror if isinstance(wrong, OSError) else None) or str(wrong)
        full = getattr(wrong, "errno", None) in FULL or "disk is full" in what
        where = f"{getattr(wrong, 'filename', None) or path}: " if isinstance(wrong, OSError) else ""
        raise MachineError(
            f"{where}{'disk full: ' if full else ''}{what}; {kept()} rounds of the run are kept; "
            f"{'free some space' if full else 'mend that'}, then 'hanse resume {path}'"
        ) from wrong
