"""The process engine: seats dealt, longest first, to worker processes with one thread each.

Bit-equal to the sequential engine on one thread. Workers are started as ``python -m hanse.learning.worker``, not by
``multiprocessing``: the user's script is not imported again, so it needs no ``if __name__ == "__main__"`` guard. What
the workers need must be importable: a model class that is defined in the script itself is refused.

A round's samples and rows go through one memory-mapped arena that grows to the largest round met, so memory follows the
seats of a round and not the pool. A worker ends when it is closed and when its parent dies.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from hanse.data.samples import Samples
from hanse.learning.job import Problem, Recipe, SeatJob, TrainedRows, smallest_batch
from hanse.learning.local import Precision
from hanse.learning.scoring import Scorer, ScoringEngine
from hanse.learning.sequential import work_of
from hanse.learning.threads import Crew
from hanse.learning.worker import Place, SeatOrder, receive, send

__all__ = ["ProcessEngine", "why_not_processes"]

_ALIGN = 64


def why_not_processes(problem: Problem) -> str | None:
    """Return why a model cannot be sent to another process, or None."""
    local = [m for m in problem.module.modules() if type(m).__module__ == "__main__"]
    if local:
        return f"its class {type(local[0]).__name__} is defined in the script; put it into a module of its own"
    if getattr(problem.module, "shares_base", False):
        return "all seats share its base model, and each process would hold another one"
    try:
        pickle.dumps(problem)
    except Exception as error:  # whatever a user's module raises
        return f"it cannot be pickled ({error})"
    return None


class _Worker:
    """One worker process and the pipe to it."""

    def __init__(self, problem: Problem, precision: Precision, dtype: torch.dtype) -> None:
        path = os.pathsep.join(p for p in sys.path if p)
        environment = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONPATH": path}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "hanse.learning.worker", str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
        )
        self.post("problem", (problem, precision, dtype))  # answered once it is up; see wait

    def post(self, kind: str, content: Any) -> None:
        """Send a message without waiting for the answer."""
        try:
            send(cast(Any, self.process.stdin), (kind, content))
        except (BrokenPipeError, ValueError):
            self._gone()

    def wait(self) -> Any:
        """Return the answer to the oldest message. Raises RuntimeError with the worker's own text if it failed."""
        try:
            kind, result = receive(cast(Any, self.process.stdout))
        except EOFError:
            self._gone()
        if kind == "failed":
            raise RuntimeError(f"a worker process failed:\n{result}")
        return result

    def _gone(self) -> None:
        code = self.process.wait()
        raise RuntimeError(f"a worker process ended unexpectedly with exit code {code}")


class _Arena:
    """Shared memory as a mapped file, handed out from the start in every round."""

    def __init__(self) -> None:
        self.bytes = torch.empty(0, dtype=torch.uint8)
        self.used = 0

    def renew(self, size: int, workers: Sequence[_Worker]) -> None:
        """Make room for ``size`` bytes; a larger file is mapped by all and then unlinked."""
        self.used = 0
        if size <= len(self.bytes):
            return
        size = size + size // 4
        handle, path = tempfile.mkstemp(prefix="hanse-", dir=_folder(size))
        os.close(handle)
        try:
            os.truncate(path, size)
            self.bytes = torch.from_file(path, shared=True, size=size, dtype=torch.uint8)
            for worker in workers:
                worker.post("arena", (path, size))
            for worker in workers:
                worker.wait()
        finally:
            os.unlink(path)

    def place(self, shape: Sequence[int], dtype: torch.dtype) -> Place:
        """Take room for a tensor."""
        place = Place(self.used, tuple(shape), dtype)
        self.used += _bytes(shape, dtype)
        return place


def _bytes(shape: Sequence[int], dtype: torch.dtype) -> int:
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    return -(-size // _ALIGN) * _ALIGN


def _folder(size: int) -> str:
    """Return a folder in memory with room to spare, else the temporary one (writing past a full one kills)."""
    try:
        free = os.statvfs("/dev/shm")
        if free.f_bavail * free.f_frsize > 2 * size:
            return "/dev/shm"
    except (OSError, AttributeError):
        pass
    return tempfile.gettempdir()


def _stop(workers: list[_Worker]) -> None:
    for worker in workers:
        for pipe in (worker.process.stdin, worker.process.stdout):
            try:
                if pipe is not None:
                    pipe.close()
            except OSError:
                pass
    for worker in workers:
        try:
            worker.process.wait(timeout=2)
        except subprocess.TimeoutExpired:
            worker.process.kill()
            worker.process.wait()
    workers.clear()


class ProcessEngine(ScoringEngine):
    """Trains seats in ``workers`` processes of one thread each; they start at the first training, which takes seconds.

    Raises ValueError if the model cannot be sent to them. Scores are computed in this process.
    """

    name = "processes"
    threads = None  # of this process: as they are

    def __init__(
        self,
        problem: Problem,
        device: torch.device | str = "cpu",
        workers: int = 2,
        precision: Precision = "float32",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        reason = why_not_processes(problem)
        if reason:
            raise ValueError(f"the model cannot be trained in worker processes: {reason}")
        self.problem, self.device, self.workers = problem, torch.device(device), workers
        self.precision, self.dtype, self.smallest = precision, dtype, smallest_batch(problem)
        self.crew = Crew(workers)
        self.scorer = Scorer(problem, self.device, dtype, precision, self.crew)
        self._arena = _Arena()
        self._workers: list[_Worker] = []
        self._finalizer = weakref.finalize(self, _stop, self._workers)

    def train(self, pool: Samples, jobs: Sequence[SeatJob], recipe: Recipe, lr: float) -> TrainedRows:
        """Train every job; rows come back in the jobs' order, NaN or infinite where a seat diverged.

        Raises RuntimeError with the worker's own text if one failed; the workers are then stopped, to start afresh.
        """
        for job in jobs:
            if len(job.index) < self.smallest:
                needed = f"at least {self.smallest} needed"
                raise ValueError(f"client {job.key[2]} has {len(job.index)} samples to train on; {needed}")
        losses = np.full(len(jobs), np.nan)
        steps = np.zeros(len(jobs), dtype=np.int64)
        try:
            self._start()
            orders = self._write(pool, jobs)

            def one(worker: int, seat: int) -> None:
                self._workers[worker].post("train", (orders[seat], recipe, lr))
                losses[seat], steps[seat] = self._workers[worker].wait()

            self.crew.deal(one, sorted(range(len(jobs)), key=lambda s: -work_of(jobs[s], recipe)))
        except BaseException:
            self.close()  # an answer may be on its way: these workers are not in step any more
            raise
        rows = torch.empty((len(jobs), self.problem.layout.size), dtype=self.dtype, device=self.device)
        for row, order in zip(rows, orders, strict=True):
            row.copy_(order.out.view(self._arena.bytes))
        return TrainedRows(rows, losses, steps)

    def _start(self) -> None:
        if not self._workers:
            self._workers += [_Worker(self.problem, self.precision, self.dtype) for _ in range(self.workers)]
            for worker in self._workers:
                worker.wait()
            self._arena = _Arena()

    def _write(self, pool: Samples, jobs: Sequence[SeatJob]) -> list[SeatOrder]:
        """Copy what the jobs need into the arena; a row that several jobs share is copied once."""
        shared: dict[int, Tensor] = {}
        for job in jobs:
            shared.update({id(row): row for row in (job.start, job.centre, job.tilt) if row is not None})
        out_shape = (self.problem.layout.size,)
        need = sum(_bytes(row.shape, row.dtype) for row in shared.values())
        for job in jobs:
            n = len(job.index)
            need += _bytes((n, *pool.x.shape[1:]), pool.x.dtype) + _bytes((n, *pool.y.shape[1:]), pool.y.dtype)
            need += _bytes(out_shape, self.dtype)
        self._arena.renew(need, self._workers)
        arena = self._arena
        places = {key: arena.place(row.shape, row.dtype) for key, row in shared.items()}
        for key, row in shared.items():
            places[key].view(arena.bytes).copy_(row)
        orders = []
        for job in jobs:
            n, index = len(job.index), job.index.to(pool.x.device)
            x = arena.place((n, *pool.x.shape[1:]), pool.x.dtype)
            y = arena.place((n, *pool.y.shape[1:]), pool.y.dtype)
            x.view(arena.bytes).copy_(pool.x.index_select(0, index))
            y.view(arena.bytes).copy_(pool.y.index_select(0, index))
            orders.append(
                SeatOrder(
                    x=x,
                    y=y,
                    start=places[id(job.start)],
                    out=arena.place(out_shape, self.dtype),
                    centre=places[id(job.centre)] if job.centre is not None else None,
                    tilt=places[id(job.tilt)] if job.tilt is not None else None,
                    key=job.key,
                    mu=job.mu,
                    work=job.work,
                    guide=job.guide,
                )
            )
        return orders

    def close(self) -> None:
        """Stop the workers; a later training starts new ones."""
        _stop(self._workers)
        self.crew.close()
