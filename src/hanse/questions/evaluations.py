"""Caches and counts the calls of the user's function, which may take seconds each, and shows their progress."""

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
"""A question to the user's function: its cache key, and a call that returns the answer."""
Cache = MutableMapping[str, float]


class Evaluations:
    """A utility for :mod:`hanse.games` that calls the user's function.

    Args:
        ask: yields a question for each coalition, in their order.
        cache: the answers of earlier calls by cache key; None: no cache.
        told: called after each evaluation, with the number done, the number expected, and a text.

    Attributes:
        evaluated: number of calls of the user's function.
        seconds: the time that these calls took.
        expected: the largest possible number of evaluations; None: not known.
        raised: the exception of the user's function, to distinguish it from the caller's mistakes.
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
        """Return the worth of each coalition, from the cache if possible."""
        worths = [self._answer(*asked) for asked in self._ask(coalitions)]
        if self.evaluated and self.expected is not None and self.evaluated >= self.expected:
            self._told(self.evaluated, self.expected, "solving")
        return worths

    def _answer(self, called: Callable[[], str], worth: Callable[[], float] | float) -> float:
        if not callable(worth):
            return worth
        key = called() if self._cache is not None else ""
        if self._cache is not None and key in self._cache:
            return float(self._cache[key])
        began = time.perf_counter()
        try:
            answer = worth()
        except Exception as wrong:
            self.raised = wrong
            raise
        self.seconds += time.perf_counter() - began
        self.evaluated += 1
        if self._cache is not None:
            self._cache[key] = answer
        self._told(self.evaluated, self.expected)
        return answer


@dataclass(frozen=True)
class Limit:
    """The number of evaluations that fit into the user's time limit.

    Attributes:
        seconds: the total time; None: no limit.
        spent: the time already used.
        each: the time of one evaluation.
    """

    seconds: float | None
    spent: float = 0.0
    each: float = 0.0

    @property
    def most(self) -> float:
        """How many more evaluations fit; infinite if there is no limit."""
        if self.seconds is None or not self.each:
            return math.inf
        return max(0.0, self.seconds - self.spent) / self.each

    def fits(self, least: float, what: str) -> None:
        """Raise UserError if fewer than ``least`` more evaluations fit; ``what`` is the method that needs so many."""
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
    """Show a bar on standard error, and yield the function that updates it.

    Args:
        wanted: True: at once. None: after 2 seconds, in a terminal or a notebook. False: never.
        label: the label before the bar.

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
