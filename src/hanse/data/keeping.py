"""Sources that are loaded once for many runs: those of this process, and of the processes that it forks.

A grid of experiments often reads the same source in every run. Within :func:`keeping`, loaders that go through
:func:`once` read it a single time. Outside of it nothing is kept, so that a single run can free its data.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from hanse.data.dataset import Dataset
from hanse.data.samples import Samples

T = TypeVar("T")
_kept: dict[Hashable, Any] | None = None  # None: every run loads its own


@contextmanager
def keeping() -> Iterator[None]:
    """Keep what :func:`once` and :func:`of_kept` make until the block ends.

    Inside another such block, it is kept until that one ends. Samples are in memory once, however many runs there are,
    so nobody may write to them.
    """
    global _kept
    before = _kept
    _kept = {} if before is None else before
    try:
        yield
    finally:
        _kept = before


def once(key: Hashable, make: Callable[[], T]) -> T:
    """Return what ``make`` returns; within :func:`keeping` it is made once for each ``key``."""
    if _kept is None:
        return make()
    if key not in _kept:
        _kept[key] = make()
    found: T = _kept[key]
    return found


def of_kept(samples: Samples, what: str, make: Callable[[], T]) -> T:
    """Return what ``make`` works out of ``samples`` alone, once if these belong to a data set that is kept.

    Args:
        samples: compared by identity with the train and test samples of data sets that are kept.
        what: tells apart several things that are worked out of the same samples.
        make: does the work.
    """
    kept = (one for one in (_kept or {}).values() if isinstance(one, Dataset))
    if any(samples is share for one in kept for share in (one.train, one.test)):
        return once((what, id(samples)), make)  # the number is theirs as long as the data set is kept
    return make()
