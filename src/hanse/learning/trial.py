"""Engines by name, and how long a round takes on each: a few steps of the real job, timed and projected."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import median

import torch

from hanse.data.samples import Samples
from hanse.errors import UserError
from hanse.learning.batches import plan_seats
from hanse.learning.job import Engine, Problem, Recipe, SeatJob, smallest_batch
from hanse.learning.local import Precision, has_convolutions
from hanse.learning.processes import ProcessEngine
from hanse.learning.sequential import SequentialEngine
from hanse.learning.stacked import StackedEngine
from hanse.learning.vmapped import VmappedEngine

__all__ = ["Choice", "Trial", "make_engine"]


@dataclass(frozen=True)
class Choice:
    """An engine and its settings: intra-op ``threads`` of one program, ``workers`` that train seats side by side.

    ``measured`` is the projected time of a round's training in ms by candidate, ``why`` explains the choice in lines.
    """

    engine: str
    threads: int
    workers: int
    why: list[str] = field(default_factory=list, compare=False)
    measured: dict[str, float] = field(default_factory=dict, compare=False)

    @property
    def label(self) -> str:
        """What it is called in explanations."""
        if self.engine == "processes":
            return f"processes ({self.workers} of 1 thread)"
        if self.workers > 1:
            what = "stacks" if self.engine == "stacked" else "seats"
            return f"{self.engine} ({self.workers} {what} side by side, 1 thread each)"
        return f"{self.engine} ({self.threads} thread{'s' if self.threads > 1 else ''})"


def make_engine(
    choice: Choice, problem: Problem, device: torch.device | str = "cpu", precision: Precision = "float32"
) -> Engine:
    """Return the chosen engine. ``precision`` "bf16" concerns the engines that run the module itself."""
    device = torch.device(device)
    match choice.engine:
        case "stacked":
            return StackedEngine(problem, device, choice.threads, choice.workers)
        case "vmapped":
            return VmappedEngine(problem, device, choice.threads)
        case "processes":
            return ProcessEngine(problem, device, choice.workers, precision)
        case "sequential":
            return SequentialEngine(problem, device, choice.threads, choice.workers, precision)
    raise UserError(f"engine is {choice.engine!r}; allowed: stacked, vmapped, sequential, processes")


@dataclass(frozen=True)
class Trial:
    """The job cut down to one step (``one``) and to a few (``few``): what a round's beginning and its steps cost."""

    problem: Problem
    pool: Samples
    jobs: Sequence[SeatJob]
    one: Recipe
    few: Recipe
    steps: float  # of a whole round, the mean over seats
    device: torch.device
    precision: Precision

    @staticmethod
    def of(
        problem: Problem,
        recipe: Recipe,
        pool: Samples,
        jobs: Sequence[SeatJob],
        device: torch.device,
        precision: Precision,
    ) -> Trial:
        """Cut a job down. Raises ValueError for a seat without samples."""
        plans = plan_seats(jobs, recipe, smallest_batch(problem))
        one = replace(recipe, steps=1, epochs=1, batches_per_epoch=None, batch_size=_batch(recipe, jobs))
        few = replace(one, steps=3 if has_convolutions(problem.module) else 11)
        shorter = [replace(job, work=None) for job in jobs]
        steps = sum(plan.steps for plan in plans) / len(plans)
        return Trial(problem, pool, shorter, one, few, steps, device, precision)

    def measure(self, candidates: Sequence[Choice]) -> dict[str, float]:
        """Return each candidate's projected ms a round, from medians of three turns.

        One that is three times as slow as the best in the first turn is not measured again.
        """
        engines = {c.label: make_engine(c, self.problem, self.device, self.precision) for c in candidates}
        starts: dict[str, list[float]] = {label: [] for label in engines}
        wholes: dict[str, list[float]] = {label: [] for label in engines}
        try:
            for engine in engines.values():
                self._time(engine, self.one)
            for turn in range(3):
                fastest = min((median(times) for times in wholes.values() if times), default=0.0)
                for label, engine in engines.items():
                    if turn == 0 or median(wholes[label]) <= 3 * fastest:
                        starts[label].append(self._time(engine, self.one))
                        wholes[label].append(self._time(engine, self.few))
        finally:
            for engine in engines.values():
                engine.close()
        measured = {}
        for label in engines:
            start, whole = median(starts[label]), median(wholes[label])
            step = max(0.0, whole - start) / ((self.few.steps or 2) - 1)
            measured[label] = round(1e3 * (start + step * (self.steps - 1)), 2)
        return measured

    def _time(self, engine: Engine, recipe: Recipe) -> float:
        begin = time.perf_counter()
        trained = engine.train(self.pool, self.jobs, recipe, 0.0)
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        float(trained.rows[0, 0])
        return time.perf_counter() - begin


def _batch(recipe: Recipe, jobs: Sequence[SeatJob]) -> int:
    """Return the batch size to measure with: the recipe's, or a typical one of its batches."""
    if recipe.batches_per_epoch is None and recipe.batch_size is not None:
        return recipe.batch_size
    size = median(len(job.index) for job in jobs)
    return max(1, round(size / (recipe.batches_per_epoch or 1)))
