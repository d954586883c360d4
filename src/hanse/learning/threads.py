"""Threads: PyTorch's intra-op threads for a block of code, and crews of threads that use one intra-op thread each.

Intra-op threads split a single operator, such as a matrix product. A :class:`Crew` instead distributes a list of items
over threads; engines and scorers use one.
"""

from __future__ import annotations

import heapq
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from threading import Lock
from typing import TypeVar

from hanse.base.pytorch import torch

T = TypeVar("T")
R = TypeVar("R")


@contextmanager
def intra_op(threads: int | None) -> Iterator[None]:
    """Run a block of code with this number of intra-op threads, then restore the old number; None changes nothing."""
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
    that is split over threads waits for the slowest one. A crew does not, so it copes better with other processes on
    the same cores.

    Args:
        workers: how many threads. With 1, the caller's own thread does the work.
    """

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._executor: ThreadPoolExecutor | None = None

    def map(self, work: Callable[[int, T], R], items: Sequence[T]) -> list[R]:
        """Return ``work(worker, item)`` for every item, in the order of the items, when all are done.

        Args:
            work: a function that is given the number of the worker, from 0, and an item. Calls of the same worker never
                overlap.
            items: the items, which are started in this order.

        Raises:
            Exception: whatever a call of ``work`` raised. If several calls did, the exception of the lowest worker is
                raised.
        """
        if min(self.workers, len(items)) < 2:
            with intra_op(1 if self.workers > 1 else None):
                return [work(0, item) for item in items]
        done: dict[int, R] = {}

        def one(worker: int, place: int) -> None:
            done[place] = work(worker, items[place])

        self.relay(one, [[(place, place)] for place in range(len(items))])
        return [done[place] for place in range(len(items))]

    def relay(self, work: Callable[[int, T], None], chains: Sequence[Sequence[tuple[float, T]]]) -> None:
        """Call ``work(worker, item)`` for every item of every chain; an item waits for the earlier items of its chain.

        Args:
            work: as for :meth:`map`; what it returns is not kept.
            chains: each item with its rank. Of the items that need not wait, the one of lowest rank goes first.

        Raises:
            Exception: as :meth:`map`.
        """
        ready = [(chain[0][0], number, 0) for number, chain in enumerate(chains) if chain]
        heapq.heapify(ready)
        lock, gradients = Lock(), torch.is_grad_enabled()

        def run(worker: int) -> None:
            while True:
                with lock:
                    if not ready:  # who has an item in hand will go on with its chain
                        return
                    number, place = heapq.heappop(ready)[1:]
                work(worker, chains[number][place][1])
                if place + 1 < len(chains[number]):
                    with lock:
                        heapq.heappush(ready, (chains[number][place + 1][0], number, place + 1))

        def take(worker: int) -> None:
            torch.set_num_threads(1)  # each thread has these settings for itself
            with torch.set_grad_enabled(gradients):
                run(worker)

        many = min(self.workers, len(ready))
        # new threads take over the number that was set last; the caller gets its own back afterwards
        with intra_op(1 if self.workers > 1 else None):
            if many < 2:
                run(0)
                return
            if self._executor is None:
                self._executor = ThreadPoolExecutor(self.workers, "hanse-crew")
            futures = [self._executor.submit(take, worker) for worker in range(many)]
            errors = [error for future in futures if (error := future.exception()) is not None]
        if errors:
            raise errors[0]

    def close(self) -> None:
        """End the threads. The next work starts new ones."""
        if self._executor is not None:
            self._executor.shutdown()
            self._executor = None


def wrap_around(work: Sequence[float], workers: int) -> list[tuple[float, ...]]:
    """Split the work so that all workers can end together: each item is one part, or two parts that follow one another.

    McNaughton's wrap-around rule (1959): one worker after another is filled up. If an item does not fit, what is left
    of it becomes the first part of the next worker's work; of the item's two parts, it is also the one that runs first.
    """
    span = max(sum(work) / workers, max(work))
    rounding = 1e-9 * span
    parts: list[tuple[float, ...]] = []
    at = 0.0
    for much in work:
        rest = at + much - span
        parts.append((rest, span - at) if rest > rounding else (much,))
        at = max(rest, 0.0) if rest > -rounding else at + much
    return parts


@cache
def shared_crew(workers: int) -> Crew:
    """Return this process's shared crew with this many threads, for short work. It is never closed."""
    return Crew(workers)


if hasattr(os, "register_at_fork"):  # a forked process has none of these threads: it must make crews of its own
    os.register_at_fork(after_in_child=shared_crew.cache_clear)
