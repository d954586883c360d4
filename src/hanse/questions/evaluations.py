"""Evaluations of the user's function, which may take seconds each: remembered, counted, and shown as they go on."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hanse.base.errors import UserError
from hanse.games.coalitions import Coalition

if TYPE_CHECKING:
    from hanse.runs.observers import Told

Asked = tuple[Callable[[], str], Callable[[], float] | float]
"""A question to the user's function: what it is called in the cache, and the answer, which may be known."""
Cache = MutableMapping[str, float]


class Evaluations:
    """The worth of coalitions by the user's function: a utility for :mod:`hanse.games`.

    Args:
        ask: yields a question for each coalition, in their order.
        cache: the answers of earlier calls by what the questions are called; None: none are kept.
        told: is called after each evaluation, with how many there were, how many are expected, and a text.

    Attributes:
        evaluated: how often the user's function was called.
        seconds: how long that took.
        expected: how many evaluations there are going to be at most; None: not known.
        raised: what the user's function raised, to tell it from a mistake of the caller's.
    """

    def __init__(
        self,
        ask: Callable[[Sequence[Coalition]], Iterable[Asked]],
        cache: Cache | None,
        told: Told,
    ) -> None:
        self._ask, self._cache, self._told = ask, cache, told
        self.evaluated, self.seconds = 0, 0.0
        self.expected: float | None = None
        self.raised: Exception | None = None

    def __call__(self, coalition: Coalition) -> float:
        """Return the worth of one coalition."""
        return self.many([coalition])[0]

    def many(self, coalitions: Sequence[Coalition]) -> list[float]:
        """Return the worth of each coalition; those that the cache has are not evaluated."""
        found = [self._answer(*asked) for asked in self._ask(coalitions)]
        if self.evaluated and self.expected is not None and self.evaluated >= self.expected:
            self._told(self.evaluated, self.expected, "solving")
        return found

    def _answer(self, called: Callable[[], str], worth: Callable[[], float] | float) -> float:
        if not callable(worth):
            return worth
        key = called() if self._cache is not None else ""
        if self._cache is not None and key in self._cache:
            return float(self._cache[key])
        began = time.perf_counter()
        try:
            found = worth()
        except Exception as wrong:
            self.raised = wrong
            raise
        self.seconds += time.perf_counter() - began
        self.evaluated += 1
        if self._cache is not None:
            self._cache[key] = found
        self._told(self.evaluated, self.expected)
        return found


@dataclass(frozen=True)
class Limit:
    """How many evaluations fit into the time that the user gives.

    Attributes:
        seconds: the time in all; None: there is no limit.
        spent: what has gone already, evaluations and all.
        each: what one evaluation takes.
    """

    seconds: float | None
    spent: float = 0.0
    each: float = 0.0

    @property
    def most(self) -> float:
        """How many more evaluations fit; infinite where there is no limit."""
        if self.seconds is None or not self.each:
            return math.inf
        return max(0.0, self.seconds - self.spent) / self.each

    def fits(self, least: float, what: str) -> None:
        """Raise UserError if fewer than ``least`` more evaluations fit; ``what`` needs them."""
        if self.most < least:
            need = self.spent + least * self.each
            raise UserError(
                f"seconds: {self.seconds:g}: {what} needs {least:,.0f} more evaluations of about {self.each:.2g} s, "
                f"{need:,.3g} s in all: give more seconds, or take a method that needs fewer (docs: mechanisms/values)"
            )


def seconds_of(seconds: float | None) -> float | None:
    """Return a time budget. Raises UserError unless it is None or a finite number above 0."""
    if seconds is None:
        return None
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < math.inf:
        raise UserError(f"seconds: {seconds!r}: must be a number above 0")
    return float(seconds)


@contextmanager
def progress(wanted: bool | None, label: str) -> Iterator[Told]:
    """Show a bar on standard error, and give what tells it how many evaluations are done and how many there will be.

    Args:
        wanted: True: at once. None: after 2 seconds, in a terminal or a notebook. False: never.
        label: what stands before the bar.

    Raises:
        UserError: ``wanted`` is something else.
    """
    if wanted is not None and not isinstance(wanted, bool):
        raise UserError(f"progress: {wanted!r}: must be True, False or None")
    if wanted is False:
        yield lambda done, most, figure="": None
        return
    from hanse.runs.observers import counting, errors  # here: it takes longer to import than most games to solve

    with counting(label, errors(), at_once=bool(wanted), transient=False) as told:
        yield told
