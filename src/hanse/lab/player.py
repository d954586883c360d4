"""Plays jobs: skips what is finished, does the rest here, in processes, or on Ray; keeps what ends and what fails.

Each job has one thread. A worker that dies costs its job and nobody else's.
"""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import signal
import socket
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, TypeGuard

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from threadpoolctl import threadpool_limits

from hanse.base.errors import UserError, library
from hanse.base.files import write_whole
from hanse.base.toml import flat
from hanse.data.keeping import keeping
from hanse.data.sources import SOURCES, load
from hanse.lab.job import Job, Step, key_of
from hanse.learning.threads import intra_op

Work = Callable[[Job, Step], dict[str, Any]]
_ONE_THREAD = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_PATIENCE_S = 10.0


@dataclass(frozen=True)
class PlayedJobs:
    """Finished jobs' results by key, the reason of each failure by key, and how many jobs were run now."""

    results: Mapping[str, Mapping[str, Any]]
    failures: Mapping[str, str]
    played: int


def play_all(
    jobs: Sequence[Job],
    folder: Path,
    work: Work,
    *,
    workers: int,
    label: str,
    ray: str | None = None,
    gpus: float | None = None,
    console: Console | None = None,
    ended: Callable[[PlayedJobs], None] = lambda done: None,
) -> PlayedJobs:
    """Play the jobs that ``folder/jobs`` has no finished result of, and keep what comes out there.

    ``work`` plays one of them, in ``workers`` processes (this one if it is 1) or on the Ray cluster at ``ray``, where
    each has ``gpus`` graphics cards (a share of one, too; None: none are asked for). A job that fails is recorded and
    tried again next time. ``ended`` sees what is there after every job. Raises UserError for workers below 1, for data
    that are not here and cannot be downloaded, or for a cluster that does not answer; KeyboardInterrupt once it is
    stopped (what has ended is kept).
    """
    if workers < 1:
        raise UserError(f"--workers {workers}: must be at least 1")
    store = Store(folder / "jobs")
    results = {job.key: found for job in jobs if (found := store.read(job)) is not None}
    todo = [job for job in jobs if job.key not in results]
    failures: dict[str, str] = {}
    progress = _bar(console)
    task = progress.add_task(label, total=sum(j.rounds for j in todo), jobs=len(todo), ended=0, failed="")
    steps = _Steps(lambda rounds: progress.advance(task, rounds))
    with ExitStack() as until_the_end:
        until_the_end.enter_context(keeping())
        check_sources(todo)
        doing = _doing(work, workers, ray, gpus)(todo, steps)  # before the bar, whose thread would forbid to fork
        until_the_end.enter_context(progress)
        for count, (job, found) in enumerate(doing, 1):
            if found["status"] == "interrupted":
                raise KeyboardInterrupt
            store.write(job, found)
            if found["status"] == "done":
                results[job.key] = found
            else:
                failures[job.key] = found["error"]
            steps.settle(job)
            failed = f"{len(failures)} failed" if failures else ""
            progress.update(task, ended=count, failed=failed)
            ended(PlayedJobs(results, failures, len(todo)))
    return PlayedJobs(results, failures, len(todo))


def _doing(
    work: Work, workers: int, ray: str | None, gpus: float | None
) -> Callable[..., Iterable[tuple[Job, dict[str, Any]]]]:
    """Return what does jobs and yields each with its result."""
    if ray is not None:
        return partial(in_ray, work=work, address=ray, gpus=gpus)
    return partial(in_order, work=work) if workers == 1 else partial(in_processes, work=work, workers=workers)


def check_sources(jobs: Sequence[Job]) -> None:
    """Load each source that the jobs need once, which downloads what is not here, before any process starts: where
    things are kept (:func:`hanse.data.keeping.keeping`), the jobs of this process and of forked ones find it loaded.
    """
    lines: list[str] = []
    wanted = dict.fromkeys((s.source, s.path, s.download, s.scale) for s in (job.experiment.data for job in jobs))
    for source, path, download, scale in wanted:
        if source in SOURCES:
            try:
                with intra_op(1):  # threads that PyTorch starts here would be lacking in forked processes
                    load(source, root=Path(path).expanduser() if path else None, download=download, scale=scale)
            except UserError as wrong:
                lines += wrong.lines
    if lines:
        raise UserError(*lines)


class _Steps:
    """Counts each job's rounds; a job that ended counts all of them, however it ended."""

    def __init__(self, advance: Callable[[int], None]) -> None:
        self._advance = advance
        self._played: dict[str, int] = {}

    def __call__(self, job: Job, rounds: int) -> None:
        self._played[job.key] = self._played.get(job.key, 0) + rounds
        self._advance(rounds)

    def settle(self, job: Job) -> None:
        self._advance(job.rounds - self._played.get(job.key, 0))


def _bar(console: Console | None) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("rounds, {task.fields[ended]}/{task.fields[jobs]} runs"),
        TimeElapsedColumn(),
        TextColumn("gone,"),
        TimeRemainingColumn(),
        TextColumn("left {task.fields[failed]}"),
        console=console,
        disable=console is None,
        speed_estimate_period=600,  # rounds of different algorithms differ much
    )


class Store:
    """The folder of results: a file ``<key>.json`` each, whole or not there at all; tables that share runs share it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, job: Job) -> Path:
        """Return where a job's result lies."""
        return self.folder / f"{job.key}.json"

    def read(self, job: Job) -> dict[str, Any] | None:
        """Return a job's finished result; None if there is none, if it is of a different experiment (whatever its file
        is called), or if it is not what is written here: cut short, or changed by somebody.

        The key covers what the table says. Defaults that it does not mention are compared with those that the result
        was made with; keys that only one of the two knows are passed over, so that a new option with an old default
        does not throw away finished runs.
        """
        try:
            found = json.loads(self.path(job).read_text())
        except (OSError, ValueError, RecursionError):  # not there, or cut short by something that was not us
            return None
        if not _is_finished(found) or key_of(found["given"]) != job.key:
            return None
        then = dict(flat(found["given"])) | dict(flat(found["experiment"]))
        now = dict(flat(json.loads(json.dumps(job.experiment.sections()))))
        if not all(then[name] == now[name] for name in then.keys() & now.keys()):
            return None
        points = len(found["tested"])
        curves = {name: [None] * (points - len(curve)) + curve for name, curve in found["curves"].items()}
        return found | {"curves": curves}

    def write(self, job: Job, result: Mapping[str, Any]) -> None:
        """Keep a result, finished or failed, in few bytes: of its ``experiment`` only what ``given`` does not say, of a
        curve only what follows the nothing at its start.
        """
        kept = dict(result)
        if "experiment" in kept:
            kept["experiment"] = _beyond(kept["experiment"], kept["given"])
        if "curves" in kept:
            kept["curves"] = {name: _begun(curve) for name, curve in kept["curves"].items()}
        write_whole(self.path(job), json.dumps(kept, separators=(",", ":"), allow_nan=False) + "\n")


def _is_finished(found: Any) -> TypeGuard[dict[str, Any]]:
    """Say whether this is the result of a finished run, with figures that can be read: JSON says no more than that it
    is JSON.
    """
    if not isinstance(found, dict) or found.get("status") != "done":
        return False
    tested, curves = found.get("tested"), found.get("curves")
    return (
        isinstance(found.get("given"), dict)
        and isinstance(found.get("experiment"), dict)
        and _is_number(found.get("cpu_seconds"))
        and isinstance(tested, list)
        and all(type(rounds) is int for rounds in tested)
        and tested == sorted(set(tested))
        and isinstance(curves, dict)
        and all(
            isinstance(curve, list)
            and len(curve) <= len(tested)
            and all(value is None or _is_number(value) for value in curve)
            for curve in curves.values()
        )
    )


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def _begun(curve: Sequence[Any]) -> list[Any]:
    """Return a curve without the points at its start that are nothing."""
    first = next((place for place, value in enumerate(curve) if value is not None), len(curve))
    return list(curve[first:])


def _beyond(whole: Mapping[str, Any], said: Mapping[str, Any]) -> dict[str, Any]:
    """Return what nested values have that ``said`` does not."""
    found: dict[str, Any] = {}
    for name, value in whole.items():
        below = said.get(name)
        if isinstance(value, Mapping) and isinstance(below, Mapping):
            more = _beyond(value, below)
            found |= {name: more} if more else {}
        elif name not in said or value != below:
            found[name] = value
    return found


def cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return max(1, len(os.sched_getaffinity(0)))
    return os.cpu_count() or 1


def in_order(
    jobs: Sequence[Job], step: Callable[[Job, int], None], *, work: Work
) -> Iterator[tuple[Job, dict[str, Any]]]:
    """Do the jobs in this process, one after another, with one thread; yields each with its result."""
    for job in jobs:
        with intra_op(1):

            def tell(rounds: int, job: Job = job) -> None:
                step(job, rounds)

            found = work(job, tell)
        yield job, found


def in_processes(
    jobs: Sequence[Job], step: Callable[[Job, int], None], *, work: Work, workers: int
) -> Iterator[tuple[Job, dict[str, Any]]]:
    """Start ``workers`` processes that do the jobs, first jobs first; the iterator yields each with its result as it
    ends.

    ``work`` is a function of a module. When the iterator is closed, or raises, the processes are ended.
    """
    waiting = list(reversed(jobs))
    crew: list[_Worker] = []
    forked = may_fork(jobs)
    if forked:
        import_module("hanse.runs.experiment")  # what every job imports: here once
    try:
        for _ in range(min(workers, len(jobs))):
            crew.append(_Worker.start(work, crew, forked))
            crew[-1].give(waiting.pop())
    except BaseException:  # one could not be started, or Ctrl-C: nobody would end the others
        for worker in crew:
            worker.end()
        raise
    return _heard(crew, waiting, step, work)


def _heard(
    crew: list[_Worker], waiting: list[Job], step: Callable[[Job, int], None], work: Work
) -> Iterator[tuple[Job, dict[str, Any]]]:
    try:
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
                        crew.append(_Worker.start(work, crew, forked=False))
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


def may_fork(jobs: Sequence[Job]) -> bool:
    """Say whether processes for these jobs may be forked, which takes no second time to import what is imported, nor
    memory for what is loaded.

    Not beside other threads, whose locks would stay shut in the fork; nor where PyTorch may start threads for an
    operator, as a training loop of the user's own can ask for, or uses a graphics card: it may have done so here, and
    neither can be gone on with in a fork.
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
    """Return the result of a job whose worker could not say what went wrong."""
    given = {"key": job.key, "label": job.label, "given": dict(job.sections)}
    return given | {"status": "failed", "error": error, "traceback": ""}


@dataclass
class _Worker:
    process: BaseProcess
    pipe: Connection
    job: Job

    @classmethod
    def start(cls, work: Work, crew: Sequence[_Worker], forked: bool) -> _Worker:
        """Start a process beside the ``crew``: a fork of this one, or a new interpreter."""
        here, there = multiprocessing.Pipe()
        context: Any = multiprocessing.get_context("fork" if forked else "spawn")
        # a fork has our ends of all pipes: with one of them open, its own or another's would not end when we do
        ours = [here, *(worker.pipe for worker in crew)] if forked else []
        process = context.Process(target=_serve, args=(there, work, ours), daemon=True)
        with _one_thread(), warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of threads, from Python 3.12 on: OpenBLAS's sleep
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


def _serve(pipe: Connection, work: Work, others: Sequence[Connection]) -> None:
    """Do jobs from the pipe until it closes; ``others`` are connections that are not for this process."""
    for other in others:
        other.close()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides what it means
    torch.set_num_threads(1)
    with suppress(EOFError, OSError), keeping(), threadpool_limits(1):  # the parent is done with us, or gone
        while True:
            pipe.send(work(pipe.recv(), pipe.send))


def in_ray(
    jobs: Sequence[Job], step: Callable[[Job, int], None], *, work: Work, address: str, gpus: float | None = None
) -> Iterator[tuple[Job, dict[str, Any]]]:
    """Do the jobs on the Ray cluster at ``address``; yields each with its result as it ends.

    ``address`` is what Ray takes: "host:port", "ray://host:port", "auto" for the cluster that this machine is part of,
    "local" for a new one on this machine. hanse must be installed on the cluster's machines; ``HANSE_DATA`` goes along.
    ``work`` is a function of a module. A task whose worker dies fails alone. With ``gpus`` each task sees so many
    graphics cards and no others; several share one if it is below 1. Raises UserError if Ray is not installed, nothing
    answers at the address, or the cluster has fewer graphics cards than one task asks for, which Ray would wait for.
    """
    ray = _ray(address)
    try:
        there = ray.cluster_resources().get("GPU", 0) if gpus else 0
        if gpus and there < gpus:
            raise UserError(
                f"--gpus-per-job {gpus:g}: the Ray cluster has {there:g} GPUs now; start more, or ask for fewer"
            )
        cards = {} if gpus is None else {"num_gpus": gpus}
        remote = ray.remote(num_cpus=1, max_retries=0, **cards)(_in_a_ray_worker)
        running = {remote.remote(work, job): job for job in jobs}
        while running:
            ready, _ = ray.wait(list(running), num_returns=1)
            job = running.pop(ready[0])
            try:
                found = ray.get(ready[0])
            except ray.exceptions.RayError as wrong:
                found = dead(job, f"its Ray task was lost: {' '.join(str(wrong).split())}")
            yield job, found
    finally:
        ray.shutdown()  # which ends the tasks that still run


def _ray(address: str) -> Any:
    """Return the module, connected."""
    ray = library("ray", "--ray: ray is not installed; 'pip install ray'")
    _knock(address)
    variables = {name: os.environ[name] for name in ("HANSE_DATA",) if name in os.environ}
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR", runtime_env={"env_vars": variables})
    except (ConnectionError, ValueError, RuntimeError, OSError) as wrong:
        raise UserError(f"--ray {address}: no Ray cluster answers: {' '.join(str(wrong).split())}") from None
    return ray


def _knock(address: str) -> None:
    """Refuse an address where nothing listens: Ray itself tries for minutes, and then ends the process."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon or not port.isdigit():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_PATIENCE_S).close()
    except (OSError, OverflowError) as wrong:
        raise UserError(f"--ray {address}: no Ray cluster answers: {wrong}") from None


def _in_a_ray_worker(work: Work, job: Job) -> dict[str, Any]:
    """Do one job with one thread; nobody hears how far it is."""
    with intra_op(1):
        return work(job, lambda rounds: None)
