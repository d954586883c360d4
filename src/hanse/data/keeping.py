"""Sources that are loaded once for many runs: those of this process, and of the processes that it forks."""

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
    """Keep within the block what :func:`once` and :func:`of_kept` make; inside another such block, until that one ends.

    Samples are then in memory once, however many runs there are: nobody may write to them, as to any pool of samples.
    """
    global _kept
    before = _kept
    _kept = {} if before is None else before
    try:
        yield
    finally:
        _kept = before


def once(key: Hashable, make: Callable[[], T]) -> T:
    """Return what ``make`` returns; where things are kept, it is made once for each ``key``."""
    if _kept is None:
        return make()
    if key not in _kept:
        _kept[key] = make()
    found: T = _kept[key]
    return found


def of_kept(samples: Samples, what: str, make: Callable[[], T]) -> T:
    """Return what ``make`` works out of ``samples`` alone: once, if they are the train or test samples of a data set
    that is kept. ``what`` tells such things apart.
    """
    kept = (one for one in (_kept or {}).values() if isinstance(one, Dataset))
    if any(samples is share for one in kept for share in (one.train, one.test)):
        return once((what, id(samples)), make)  # the number is theirs as long as the data set is kept
    return make()
