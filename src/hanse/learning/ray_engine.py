"""An engine that trains on a Ray cluster (``federation.engine = "ray"``).

Its workers are Ray actors, one for each core or graphics card of the cluster, and keep the samples that they were sent.
An actor that is lost with its machine is started on another one, and its seats are trained again there. Scoring, tests
and everything else stay in this process.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hanse.base.errors import UserError, library
from hanse.base.pytorch import torch
from hanse.core.recipe import Recipe
from hanse.data.samples import Samples
from hanse.learning.engines import EngineChoice, make_engine
from hanse.learning.job import Engine, Problem, SeatJob, TrainedRows
from hanse.learning.local import Precision
from hanse.learning.loop import Loop, LoopEngine
from hanse.learning.sequential import SequentialEngine

NEEDS_RAY = "federation.engine: 'ray': needs Ray; pip install '.[ray]' in a clone of hanse"
_POOLS = 2  # sets of samples that are kept: a round's own, and those that behaviours show to some clients


class RayWorker:
    """Trains seats in a process of Ray's.

    Args:
        choice: the engine that trains.
        problem: the model and its loss.
        device: where it trains.
        precision: the precision of forward passes.
        loop: the user's own training loop. None: hanse trains.
    """

    def __init__(
        self, choice: EngineChoice, problem: Problem, device: str, precision: Precision, loop: Loop | None
    ) -> None:
        engine = make_engine(choice, problem, device, precision)
        self.engine = LoopEngine(engine, loop) if loop and isinstance(engine, SequentialEngine) else engine
        self.pools: dict[Any, Samples] = {}

    def train(self, pool: Sequence[Any], jobs: Sequence[SeatJob], recipe: Recipe, lr: float) -> TrainedRows:
        """Train some seats of a round.

        Args:
            pool: the reference of all samples, alone in a list, so that Ray does not fetch them each time.
            jobs: one for each seat.
            recipe: the recipe.
            lr: the round's learning rate.
        """
        if pool[0] not in self.pools:
            found = library("ray", NEEDS_RAY).get(pool[0])
            self.pools = dict([*self.pools.items(), (pool[0], found)][-_POOLS:])
        return self.engine.train(self.pools[pool[0]], jobs, recipe, lr)


class RayEngine:
    """An engine whose seats are trained by the cluster at ``RAY_ADDRESS``, or by one that Ray starts on this machine.

    Args:
        engine: does everything but training.
        choice: which engine trains in each worker.
        device: where workers train.
        precision: the precision of forward passes.
        loop: the user's own training loop. None: hanse trains.

    Raises:
        UserError: Ray is not installed.
    """

    def __init__(
        self, engine: Engine, problem: Problem, choice: EngineChoice, device: torch.device, precision: Precision,
        loop: Loop | None,
    ) -> None:  # fmt: skip
        self.engine, self.ray = engine, library("ray", NEEDS_RAY)
        self._given, self._workers = (choice, problem, str(device), precision, loop), list[Any]()
        self._card, self._began = "GPU" if device.type == "cuda" else "CPU", False
        self._pools: list[tuple[Samples, Any]] = []

    def _start(self) -> None:
        """Start the workers, and Ray if nobody has."""
        if not self.ray.is_initialized():
            self.ray.init(log_to_driver=False, logging_level="ERROR")
            self._began = True
        # half a place each, so that what is left of the cluster has room for workers of a machine that is lost
        half = {"num_cpus": 0.5, "num_gpus": 0.5 * (self._card == "GPU"), "scheduling_strategy": "SPREAD"}
        kind = self.ray.remote(**half, max_restarts=-1, max_task_retries=-1)(RayWorker)
        places = int(self.ray.cluster_resources().get(self._card, 0))
        if not places:
            raise UserError(f"federation.engine: 'ray': the cluster has no {self._card}: add one, or take 'local'")
        self._workers = [kind.remote(*self._given) for _ in range(places)]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    def train(self, pool: Samples, jobs: Sequence[SeatJob], recipe: Recipe, lr: float) -> TrainedRows:
        """Train every job on some worker, and return the results in the order of the jobs.

        Args:
            pool: all samples; a job's ``index`` points into them.
            jobs: one job for each seat.
            recipe: the recipe.
            lr: the round's learning rate.
        """
        if not self._workers:
            self._start()
        held = next((there for known, there in self._pools if known is pool), None)
        if held is None:
            held = self.ray.put(pool)
            self._pools = [*self._pools, (pool, held)][-_POOLS:]
        places = [range(k, len(jobs), len(self._workers)) for k in range(min(len(jobs), len(self._workers)))]
        done: list[TrainedRows] = self.ray.get([
            worker.train.remote([held], [jobs[s] for s in seats], recipe, lr)
            for worker, seats in zip(self._workers, places, strict=False)
        ])  # fmt: skip
        return TrainedRows.joined(done, np.argsort(np.concatenate([list(seats) for seats in places])).tolist())

    def close(self) -> None:
        """End the workers, and the cluster if it was started here."""
        for worker in self._workers:
            self.ray.kill(worker)
        if self._began:
            self.ray.shutdown()
        self.engine.close()
