"""Jobs in worker processes of one thread each; a worker that dies costs its job and nobody else's."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from hanse.lab.jobs.job import Job, Step

__all__ = ["Work", "cores", "dead", "doing", "in_order", "in_processes"]

Work = Callable[[Job, Step], dict[str, Any]]
_ONE_THREAD = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return max(1, len(os.sched_getaffinity(0)))
    return os.cpu_count() or 1


def doing(work: Work, workers: int) -> Callable[..., Iterator[tuple[Job, dict[str, Any]]]]:
    """Return what does jobs: in this process for 1 of the ``workers``, else in so many of their own."""
    return partial(in_order, work=work) if workers == 1 else partial(in_processes, work=work, workers=workers)


def in_order(
    jobs: Sequence[Job], step: Callable[[Job, int], None], *, work: Work
) -> Iterator[tuple[Job, dict[str, Any]]]:
    """Do the jobs in this process, one after another, with one thread; yields each with its result."""
    from hanse.learning.threads import intra_op

    for job in jobs:
        with intra_op(1):

            def tell(rounds: int, job: Job = job) -> None:
                step(job, rounds)

            found = work(job, tell)
        yield job, found


def in_processes(
    jobs: Sequence[Job], step: Callable[[Job, int], None], *, work: Work, workers: int
) -> Iterator[tuple[Job, dict[str, Any]]]:
    """Do the jobs in ``workers`` processes, first jobs first; yields each with its result as it ends.

    ``work`` is a function of a module. When the iterator is closed, or raises, the processes are ended.
    """
    waiting = list(reversed(jobs))
    crew: list[_Worker] = []
    try:
        for _ in range(min(workers, len(jobs))):
            crew.append(_Worker.start(work))
            crew[-1].give(waiting.pop())
        while crew:
            for pipe in wait([worker.pipe for worker in crew]):
                worker = next(w for w in crew if w.pipe is pipe)
                job, message = worker.job, worker.hear()
                if isinstance(message, int):
                    step(job, message)
                    continue
                if message is None:
                    crew.remove(worker)
                    code = worker.end()
                    yield job, dead(job, f"its worker process ended with code {code}")
                    if waiting:
                        crew.append(_Worker.start(work))
                        crew[-1].give(waiting.pop())
                    continue
                if waiting:
                    worker.give(waiting.pop())
                else:
                    crew.remove(worker)
                    worker.end()
                yield job, message
    finally:
        for worker in crew:
            worker.end()


def dead(job: Job, error: str) -> dict[str, Any]:
    """Return the result of a job whose worker could not say what went wrong."""
    given = {"key": job.key, "label": job.label, "given": dict(job.sections)}
    return given | {"status": "failed", "error": error, "traceback": ""}


@dataclass
class _Worker:
    process: BaseProcess
    pipe: Connection
    job: Job

    @classmethod
    def start(cls, work: Work) -> _Worker:
        here, there = multiprocessing.Pipe()
        # a forked child would inherit torch's threads in an unusable state
        process = multiprocessing.get_context("spawn").Process(target=_serve, args=(there, work), daemon=True)
        with _one_thread():
            process.start()
        there.close()
        return cls(process, here, Job("", "", {}))

    def give(self, job: Job) -> None:
        self.job = job
        with suppress(OSError):  # it is dead: the next read says so
            self.pipe.send(job)

    def hear(self) -> int | dict[str, Any] | None:
        """Return rounds played, a result, or None if the process is gone."""
        try:
            message: int | dict[str, Any] = self.pipe.recv()
            return message
        except (EOFError, OSError):
            return None

    def end(self) -> int | None:
        """Close the pipe, upon which an idle process ends; end a busy one. Return its exit code."""
        self.pipe.close()
        self.process.join(0.5 if self.process.is_alive() else None)
        if self.process.is_alive():
            self.process.terminate()
            self.process.join()
        return self.process.exitcode


@contextmanager
def _one_thread() -> Iterator[None]:
    """Let new processes start numerical libraries with one thread."""
    before = {name: os.environ.get(name) for name in _ONE_THREAD}
    os.environ.update(dict.fromkeys(_ONE_THREAD, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _serve(pipe: Connection, work: Work) -> None:
    """Do jobs from the pipe until it closes."""
    import torch

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides what it means
    torch.set_num_threads(1)
    try:
        while True:
            pipe.send(work(pipe.recv(), pipe.send))
    except (EOFError, OSError):
        return  # the parent is done with us, or gone
