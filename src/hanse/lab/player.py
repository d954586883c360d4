"""Plays a list of jobs and keeps their results on disk.

:func:`play_all` is the entry point for sweeps and the papers' tables. It looks up each job among the kept results
(:mod:`hanse.lab.kept`), plays those that have none, and writes every result at once. One of three generators plays the
jobs, and yields each job with its result: :func:`in_order` in this process, :func:`in_processes` in worker processes,
:func:`in_ray` on a Ray cluster.

Every job runs with one thread, so its numbers do not depend on how many run in parallel. If a worker process dies, only
its current job fails.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import sys
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NoReturn

from joblib import cpu_count
from rich.console import Console
from threadpoolctl import threadpool_limits

from hanse.base.errors import UserError, collected, library
from hanse.base.plain_text import quantity
from hanse.base.pytorch import torch
from hanse.data.sources import SOURCES, Generated, keeping, load
from hanse.lab.job import Job, Step
from hanse.lab.kept import Results
from hanse.learning.threads import intra_op
from hanse.runs.observers import counting, untold

Work = Callable[[Job, Step], dict[str, Any]]
"""What plays one job and returns its result, such as :func:`hanse.lab.job.play`."""
_GRACE_S = 5.0  # how long a process that was told to end may take to clean up
_PATIENCE_S = 10.0  # how long a Ray cluster's address may take to answer


@dataclass(frozen=True)
class PlayedJobs:
    """The state of a list of jobs, during play or at the end.

    Attributes:
        results: the results of all finished jobs by key, including those of earlier calls.
        failures: the reason of each failure in this call by key, in one line.
        played: how many jobs had no finished result when this call began.
    """

    results: Mapping[str, Mapping[str, Any]]
    failures: Mapping[str, str]
    played: int


def play_all(
    jobs: Sequence[Job],
    store: Results,
    work: Work,
    *,
    workers: int | None,
    label: str,
    ray: str | None = None,
    gpus: float | None = None,
    console: Console | None = None,
    ended: Callable[[PlayedJobs], None] = lambda done: None,
) -> PlayedJobs:
    """Play the jobs without a finished result in ``store``, and store their results.

    Failures are also stored, and tried again by the next call.

    Args:
        jobs: the jobs, in the order in which they are started.
        store: where results are kept. Many lists of jobs may share it.
        work: the function that plays one job. Unless ``workers`` is 1, it is sent to other processes. It must therefore
            be a function of a module (or a ``functools.partial`` of one).
        workers: how many processes play, at least 1; with 1 it is this process. None: one for each core that this
            process may use, which may be fewer than exist in a container or a batch job. Not used on Ray.
        label: the text before the progress bar.
        ray: the address of a Ray cluster to use instead of processes (see :func:`in_ray`). None: no cluster.
        gpus: how many GPUs each job gets on Ray. With a fraction, jobs share one. None: none.
        console: where the progress bar is drawn, if there is anything to play. None: it is not drawn.
        ended: a function called after each job with the state so far.

    Returns:
        The results and failures of all ``jobs``.

    Raises:
        UserError: ``workers`` is below 1, a data source is missing and cannot be downloaded, or the cluster does not
            answer.
        MachineError: a result cannot be written. Earlier results are kept.
        KeyboardInterrupt: the user stopped it. What has ended by then is kept.
    """
    workers = cpu_count() if workers is None else workers
    if workers < 1:
        raise UserError(f"--workers {workers}: must be at least 1")
    results = {job.key: found for job in jobs if (found := store.read(job)) is not None}
    todo = [job for job in jobs if job.key not in results]
    failures, ended_jobs = dict[str, str](), 0
    rounds, whole = Counter[str](), sum(job.rounds for job in todo)

    def step(job: Job, more: int) -> None:
        """Show how many rounds were played; a job that ended counts with all of its rounds, however it ended."""
        rounds[job.key] += more
        failed = f", {len(failures)} failed" if failures else ""
        told(rounds.total(), whole, f"{ended_jobs}/{quantity(len(todo), 'run')}{failed}")

    with ExitStack() as until_the_end:
        until_the_end.enter_context(keeping())
        _check_sources(todo)
        # before the bar is drawn: its thread would forbid to fork
        doing = (
            in_ray(todo, step, work=work, address=ray, gpus=gpus) if ray is not None
            else in_order(todo, step, work=work) if workers == 1
            else in_processes(todo, step, work=work, workers=workers)
        )  # fmt: skip
        shown = counting(label, console, transient=False) if console is not None and todo else nullcontext(untold)
        told = until_the_end.enter_context(shown)
        for job, found in doing:
            ended_jobs += 1
            if found["status"] == "interrupted":
                raise KeyboardInterrupt
            store.write(job, found)
            if found["status"] == "done":
                results[job.key] = found
            else:
                failures[job.key] = found["error"]
            step(job, job.rounds - rounds[job.key])
            ended(PlayedJobs(results, failures, len(todo)))
    return PlayedJobs(results, failures, len(todo))


def _check_sources(jobs: Sequence[Job]) -> None:
    """Load each named data source of the jobs once, before any process starts.

    This downloads what is missing, so workers do not all download the same file. Inside a block of
    :func:`hanse.data.sources.keeping` the loaded samples stay in memory, where the jobs of this process and of forked
    ones find them. Sources given by import path are left to the jobs.

    Raises:
        UserError: a source cannot be loaded, with a line for each.
    """
    lines: list[str] = []
    specs = [job.experiment.data for job in jobs]
    loaded = [s for s in specs if s.source.name in SOURCES and not isinstance(s.source, Generated)]
    for source, path, download in dict.fromkeys((s.source, s.path, s.download) for s in loaded):
        # one thread: a fork has no copy of threads that PyTorch starts here, and would wait for them
        with collected(lines), intra_op(1):
            load(source, root=Path(path).expanduser() if path else None, download=download)
    if lines:
        raise UserError(*lines)


def in_order(
    jobs: Sequence[Job], step: Callable[[Job, int], None], *, work: Work
) -> Iterator[tuple[Job, dict[str, Any]]]:
    """Yield each job with its result, played in this process one after another and with one thread.

    Args:
        jobs: the jobs, in order.
        step: a function told of every finished round and the job that played it.
        work: plays one job.
    """
    for job in jobs:
        with intra_op(1):
            result = work(job, partial(step, job))
        yield job, result


def in_processes(
    jobs: Sequence[Job], step: Callable[[Job, int], None], *, work: Work, workers: int
) -> Iterator[tuple[Job, dict[str, Any]]]:
    """Start worker processes, and return an iterator that yields each job with its result as it ends.

    The processes start with this call, not with the first result. They end when the iterator is exhausted, closed, or
    raises.

    Args:
        jobs: the jobs, in the order in which they are started.
        step: a function told of every finished round and the job that played it.
        work: a function that plays one job. It must be a function of a module, because it is sent to the processes.
        workers: how many processes to start, at least 1; never more than there are jobs.
    """
    waiting = list(reversed(jobs))
    crew: list[_Worker] = []
    forked = may_fork(jobs)
    if forked:
        import_module("hanse.runs.experiment")  # every job needs it: imported before the fork, it is imported once
    try:
        for _ in range(min(workers, len(jobs))):
            crew.append(_Worker.start(work, crew, forked))
            crew[-1].give(waiting.pop())
    except BaseException:  # one could not be started, or Ctrl-C: nothing else would end those that run already
        for worker in crew:
            worker.end()
        raise
    return _heard(crew, waiting, step, work)


def _heard(
    crew: list[_Worker], waiting: list[Job], step: Callable[[Job, int], None], work: Work
) -> Iterator[tuple[Job, dict[str, Any]]]:
    """Receive the workers' messages, give them the ``waiting`` jobs (last one first), and yield each job that ended."""
    try:
        while crew:
            for pipe in wait([worker.pipe for worker in crew]):
                worker = next(w for w in crew if w.pipe is pipe)
                job, message = worker.job, worker.hear()
                if isinstance(message, int):  # rounds, from a job that goes on
                    step(job, message)
                    continue
                if message is None:
                    crew.remove(worker)
                    message = dead(job, f"its worker process ended with code {worker.end()}")
                    if waiting:
                        # never a fork: by now this process may have other threads, such as the progress bar's
                        crew.append(worker := _Worker.start(work, crew, forked=False))
                if waiting:
                    worker.give(waiting.pop())
                elif worker in crew:
                    crew.remove(worker)
                    worker.end()
                yield job, message
    finally:
        for worker in crew:
            worker.end()


def may_fork(jobs: Sequence[Job]) -> bool:
    """Return whether the worker processes for these jobs may be forks of this one.

    A fork starts at once, with everything imported and the samples shared. But it is not always safe:

    * If another thread holds a lock, it would stay locked in the fork for ever.
    * If PyTorch may have started its own threads (several threads per operator, or a user's training loop), the fork
      would lack these threads and wait for them.
    * A fork cannot use a graphics card that this process has used.

    Args:
        jobs: the jobs that the processes will play.
    """
    threads = (job.experiment.engine.threads for job in jobs)
    return (
        sys.platform == "linux"
        and threading.active_count() == 1
        and all(number in (None, 1) for number in threads)
        and all(job.experiment.train.loop is None for job in jobs)
        and not torch.cuda.is_available()
    )


def dead(job: Job, error: str) -> dict[str, Any]:
    """Return a failed result for a job whose worker died.

    Args:
        job: the job that the worker was playing.
        error: the reason, in one line.
    """
    given = {"key": job.key, "label": job.label, "given": dict(job.sections)}
    return given | {"status": "failed", "error": error, "traceback": ""}


@dataclass
class _Worker:
    """A process that plays jobs, our end of the pipe to it, and the job that it has."""

    process: BaseProcess
    pipe: Connection
    job: Job

    @classmethod
    def start(cls, work: Work, crew: Sequence[_Worker], forked: bool) -> _Worker:
        """Start a process in addition to those of the ``crew``: a fork of this one, or a new interpreter."""
        here, there = multiprocessing.Pipe()
        context: Any = multiprocessing.get_context("fork" if forked else "spawn")
        # A fork inherits our ends of all pipes. A worker learns that we are gone when the other end of its pipe is
        # closed everywhere, so no worker may hold one of these ends open.
        ours = [here, *(worker.pipe for worker in crew)] if forked else []
        process = context.Process(target=_serve, args=(there, work, ours), daemon=True)
        with warnings.catch_warnings():
            # from Python 3.12 on, forking with other threads warns; it means threads of OpenBLAS, which are asleep
            warnings.simplefilter("ignore", DeprecationWarning)
            process.start()
        there.close()
        return cls(process, here, Job("", "", {}))

    def give(self, job: Job) -> None:
        """Send a job to the process."""
        self.job = job
        with suppress(OSError):  # the process is dead, which :meth:`hear` will report
            self.pipe.send(job)

    def hear(self) -> int | dict[str, Any] | None:
        """Return the next message: a number of rounds played, or the job's result; None if the process is gone."""
        message: int | dict[str, Any] | None = None
        with suppress(EOFError, OSError):
            message = self.pipe.recv()
        return message

    def end(self) -> int | None:
        """End the process and return its exit code.

        An idle process ends by itself when the pipe is closed; a busy one is terminated after half a second, and killed
        five seconds later.
        """
        self.pipe.close()
        self.process.join(0.5 if self.process.is_alive() else None)
        if self.process.is_alive():
            self.process.terminate()
            self.process.join(_GRACE_S)
        if self.process.is_alive():  # deep in a library that does not return
            self.process.kill()
            self.process.join()
        return self.process.exitcode


def _serve(pipe: Connection, work: Work, others: Sequence[Connection]) -> None:
    """Play jobs from the pipe until it closes: the body of a worker process.

    ``others`` are connections that this process has inherited and must not keep open.
    """
    for other in others:
        other.close()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides what it means
    signal.signal(signal.SIGTERM, _leave)
    torch.set_num_threads(1)
    # the suppressed errors say that the parent has closed the pipe, or is gone
    with suppress(EOFError, OSError), keeping(), threadpool_limits(1):
        while True:
            pipe.send(work(pipe.recv(), pipe.send))


def _leave(number: int, frame: object) -> NoReturn:
    """End this process so that temporary folders are taken away; a signal alone would leave them behind."""
    raise SystemExit(128 + number)


def in_ray(
    jobs: Sequence[Job], step: Callable[[Job, int], None], *, work: Work, address: str, gpus: float | None = None
) -> Iterator[tuple[Job, dict[str, Any]]]:
    """Yield each job with its result as it ends, played on a Ray cluster as one task of one core.

    hanse must be installed on the cluster's machines; ``HANSE_DATA`` has the same value there. If a worker dies, only
    its task fails.

    Args:
        jobs: the jobs, in the order in which they are handed to Ray.
        step: not called, since tasks report only at their end.
        work: a function that plays one job. It must be a function of a module.
        address: an address as Ray takes it: "host:port", "ray://host:port", "auto" for the cluster of this machine, or
            "local" for a new cluster on this machine.
        gpus: how many GPUs each task sees. Below 1, several tasks share one. None: none.

    Raises:
        UserError: Ray is not installed, nothing answers at the address, or the cluster has fewer GPUs than one task
            asks for (Ray itself would wait forever).
    """
    ray = _ray(address)
    try:
        there = ray.cluster_resources().get("GPU", 0) if gpus else 0
        if gpus and there < gpus:
            raise UserError(f"--gpus-per-job {gpus:g}: the Ray cluster has {there:g}; start more or ask for fewer")
        cards = {} if gpus is None else {"num_gpus": gpus}
        remote = ray.remote(num_cpus=1, max_retries=0, **cards)(_in_a_ray_worker)
        running = {remote.remote(work, job): job for job in jobs}
        while running:
            ready, _ = ray.wait(list(running), num_returns=1)
            job = running.pop(ready[0])
            try:
                result = ray.get(ready[0])
            except ray.exceptions.RayError as wrong:
                result = dead(job, f"its Ray task was lost: {' '.join(str(wrong).split())}")
            yield job, result
    finally:
        ray.shutdown()  # which ends the tasks that still run


def _ray(address: str) -> Any:
    """Return the module ``ray``, connected to the cluster at ``address``."""
    ray = library("ray", "--ray: ray is not installed; 'pip install ray'")
    _knock(address)
    variables = {name: os.environ[name] for name in ("HANSE_DATA",) if name in os.environ}
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR", runtime_env={"env_vars": variables})
    except (ConnectionError, ValueError, RuntimeError, OSError) as wrong:
        raise UserError(f"--ray {address}: no Ray cluster answers: {' '.join(str(wrong).split())}") from None
    return ray


def _knock(address: str) -> None:
    """Raise UserError if nothing listens at a "host:port". Ray itself would try for minutes and then end the process.

    Other addresses ("auto", "local") are left to Ray.
    """
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon or not port.isdigit():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_PATIENCE_S).close()
    except (OSError, OverflowError) as wrong:
        raise UserError(f"--ray {address}: no Ray cluster answers: {wrong}") from None


def _in_a_ray_worker(work: Work, job: Job) -> dict[str, Any]:
    """Play one job with one thread; its rounds are not reported."""
    with intra_op(1):
        return work(job, lambda rounds: None)
