"""The one error that a user can mend: it carries a line that names the field, the value and what is allowed."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

__all__ = ["UserError", "nearest"]


class UserError(ValueError):
    """A mistake in what the user gave; the command line prints its lines and exits with 2, without a traceback."""

    def __init__(self, *lines: str) -> None:
        self.lines: Sequence[str] = lines
        super().__init__("\n".join(lines))


def nearest(word: str, allowed: Iterable[str]) -> str:
    """Return ``"; did you mean 'x'?"`` for the nearest allowed word, or the whole list if none is near."""
    names = sorted(allowed)
    close = difflib.get_close_matches(word, names, n=1, cutoff=0.5)
    return f"; did you mean '{close[0]}'?" if close else f"; allowed: {', '.join(names)}"
