"""Loads sources once for many runs in this process and the processes that it forks.

A grid of experiments often reads the same source in every run. Within :func:`keeping`, loaders that go through
:func:`once` read it a single time. Outside of it nothing is cached, so a single run can free its data.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

T = TypeVar("T")
_kept: dict[Hashable, Any] | None = None  # None: every run loads its own


@contextmanager
def keeping() -> Iterator[None]:
    """Cache the results of :func:`once` until the (outermost) block ends. All runs share the
    samples, so nobody may write to them.
    """
    global _kept
    before = _kept
    _kept = {} if before is None else before
    try:
        yield
    finally:
        _kept = before


def once(key: Hashable, make: Callable[[], T]) -> T:
    """Return ``make()``. Inside :func:`keeping`, the result is cached by ``key``."""
    if _kept is None:
        return make()
    if key not in _kept:
        _kept[key] = make()
    kept: T = _kept[key]
    return kept
