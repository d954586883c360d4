"""Threads: PyTorch's intra-op threads for a block of code, and crews of threads that use one each.

Intra-op threads split a single operator, such as a matrix product. A :class:`Crew` instead distributes a list of items
over threads; engines and scorers use one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from queue import SimpleQueue
from typing import TypeVar

import torch

T = TypeVar("T")


@contextmanager
def intra_op(threads: int | None) -> Iterator[None]:
    """Run a block with this number of intra-op threads, then restore the old one; None changes nothing."""
    before = torch.get_num_threads()
    if threads is None or threads == before:
        yield
        return
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class Crew:
    """Threads, each with one intra-op thread, that share a list of work.

    Operators that take a millisecond release Python's lock long enough for such threads to run in parallel. An operator
    split over threads waits for the slowest one; a crew does not, and so copes better with other processes on the same
    cores.

    Args:
        workers: how many threads; with 1 the caller's own thread does the work.
    """

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._executor: ThreadPoolExecutor | None = None

    def deal(self, work: Callable[[int, T], None], items: Sequence[T]) -> None:
        """Call ``work(worker, item)`` for every item, and return when all are done.

        Args:
            work: a function that is given the number of the worker, from 0, and an item. Calls of the same worker never
                overlap.
            items: the items, which are started in this order.

        Raises:
            Exception: whatever a call of ``work`` raised; if several did, that of the lowest worker.
        """
        if self.workers == 1 or len(items) < 2:
            with intra_op(1 if self.workers > 1 else None):
                for item in items:
                    work(0, item)
            return
        if self._executor is None:
            self._executor = ThreadPoolExecutor(self.workers, "hanse-crew")
        queue: SimpleQueue[T | None] = SimpleQueue()
        for item in items:
            queue.put(item)
        for _ in range(self.workers):  # each worker ends at the first None that it takes
            queue.put(None)

        def take(worker: int) -> None:
            torch.set_num_threads(1)  # each thread has this setting for itself
            while (item := queue.get()) is not None:
                work(worker, item)

        # new threads take over the number that was set last; the caller gets its own back afterwards
        with intra_op(1):
            futures = [self._executor.submit(take, worker) for worker in range(self.workers)]
            errors = [error for future in futures if (error := future.exception()) is not None]
        if errors:
            raise errors[0]

    def close(self) -> None:
        """End the threads; the next :meth:`deal` starts new ones."""
        if self._executor is not None:
            self._executor.shutdown()
            self._executor = None


@cache
def shared_crew(workers: int) -> Crew:
    """Return this process's shared crew with this many threads, for short work. It is never closed."""
    return Crew(workers)


if hasattr(os, "register_at_fork"):  # a forked process has none of these threads: it must make crews of its own
    os.register_at_fork(after_in_child=shared_crew.cache_clear)
