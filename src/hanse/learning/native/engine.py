"""The native engine: compiled code trains whole seats, in parallel threads.

:class:`NativeEngine` checks its inputs and passes addresses to the functions of ``seats.c``
(:mod:`hanse.learning.native.library`). Compiled code reads any address that it is given, so all sizes and positions are
checked here first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hanse.base.pytorch import Tensor, torch
from hanse.core.recipe import Recipe
from hanse.data.samples import Samples
from hanse.learning.batches import SeatPlan, deal_seats, flat, plan_seats
from hanse.learning.job import Problem, SeatJob, TrainedRows, constant_of, pull_of, refuse_unfit
from hanse.learning.native.library import (
    NativeLayer,
    NativeLayers,
    NativeOutputs,
    NativeSeat,
    library,
    read_native,
    why_not_native,
)
from hanse.learning.scoring import Scorer
from hanse.learning.threads import Crew, wrap_around

_HANDS = 8  # portions of seats for each thread, so a thread on a busy core can take fewer of them


@dataclass(frozen=True)
class _Leg:
    """Seats for a thread to train one after another, all their steps or the next ``steps`` of them."""

    plans: Sequence[SeatPlan]
    steps: int | None = None


@dataclass(frozen=True)
class _Progress:
    """How far the seats have come; each array has a place for every job.

    Attributes:
        rows: the weights so far, ``[M, P]``.
        velocities: SGD's, likewise; None: every seat is trained in one go, or without momentum.
        steps: the steps done.
        losses: the sum of the losses to report so far.
        counted: of how many samples these are.
    """

    rows: Tensor
    velocities: Tensor | None
    steps: NDArray[np.int64]
    losses: NDArray[np.float64]
    counted: NDArray[np.int64]

    @classmethod
    def none(cls, seats: int, size: int, velocities: bool) -> _Progress:
        """Return that of seats that have not begun."""
        counts = np.zeros(seats, dtype=np.int64)
        moving = torch.zeros((seats, size)) if velocities else None
        return cls(torch.empty((seats, size)), moving, counts, np.zeros(seats), counts.copy())


def _beyond(numbers: Tensor, end: int) -> tuple[int, int] | None:
    """Return the smallest and the largest of some numbers, unless all lie from 0 to below ``end``: then None."""
    least, most = (int(extremes) for extremes in torch.aminmax(numbers))
    return None if least >= 0 and most < end else (least, most)


class NativeEngine(Scorer):
    """Trains linear layers with ReLU or tanh between them, and convolutions before them, with SGD on the CPU.

    To the last bit, a seat's result depends on the processor's vector width, but not on other seats or the number of
    threads.

    Args:
        problem: the model and its loss (:class:`hanse.learning.job.Problem`).
        workers: how many threads train, each with its own seats.

    Raises:
        ValueError: the model cannot be trained this way, or the compiled code is missing. The message says why.
    """

    name = "native"

    def __init__(self, problem: Problem, workers: int = 1) -> None:
        reason, compiled, layers = why_not_native(problem), library(), read_native(problem)
        if reason is not None or isinstance(compiled, str) or layers is None:
            raise ValueError(reason)
        native = None if layers.convolutions else NativeOutputs(layers, compiled)
        super().__init__(problem, torch.device("cpu"), crew=Crew(workers), native=native, threads=1)
        self._train = compiled.hanse_train
        self._read: NativeLayers = layers

    def train(self, pool: Samples, jobs: Sequence[SeatJob], recipe: Recipe, lr: float) -> TrainedRows:
        """Train every job and return the rows in the order of the jobs; a row that diverged is NaN or infinite.

        Args:
            pool: all samples; a job's ``index`` points into them.
            jobs: one job for each seat.
            recipe: the recipe, which must use SGD.
            lr: the learning rate.

        Raises:
            ValueError: a job with a payload, another optimiser, or a seat without samples.
            IndexError: samples, labels or rows do not fit the model, or positions are not in the pool.
            MemoryError: there is not enough memory.
        """
        refuse_unfit(jobs, recipe, self.name)
        x, y = flat(pool, self.problem, torch.float32)
        layers = self._read.on(pool.x.shape[1:])
        self._refuse_beyond(jobs, x, y, layers[-1].outputs)
        plans = plan_seats(jobs, recipe, 1)
        chains = self._chains(plans)
        shared = any(len(chain) > 1 for chain in chains)
        so_far = _Progress.none(len(jobs), self.problem.layout.size, shared and recipe.momentum > 0)

        def one(_: int, leg: _Leg) -> None:
            self._run(leg, jobs, layers, recipe, lr, x, y, so_far)

        self.crew.relay(one, chains)
        rows, counted = so_far.rows, so_far.counted
        losses = np.where(counted > 0, so_far.losses / np.maximum(counted, 1), np.nan)
        # one sum a row instead of a look at each number, which takes ten times as long
        finite = torch.isfinite(rows.sum(1)).numpy() & np.isfinite(losses)
        return TrainedRows(rows, np.where(finite, losses, np.nan), so_far.steps)

    def _chains(self, plans: Sequence[SeatPlan]) -> list[list[tuple[float, _Leg]]]:
        """Return the seats in portions, with their ranks; if these would leave threads idle, some seats in two legs."""
        workers = self.crew.workers
        work = [float(plan.steps * plan.width) for plan in plans]
        if workers == 1 or len(plans) > _HANDS * workers:
            hands = [list(plans)] if workers == 1 else deal_seats(plans, _HANDS * workers)
            return [[(rank, _Leg(hand))] for rank, hand in enumerate(hands)]
        chains = []
        for plan, much, parts in zip(plans, work, wrap_around(work, workers), strict=True):
            first = round(parts[0] / plan.width)
            if first < plan.steps:  # first legs go before, second legs after seats that are trained in one
                before, after = _Leg([plan], first), _Leg([plan], plan.steps - first)
                chains.append([(-sum(work) - parts[0], before), (sum(work) - parts[1], after)])
            else:
                chains.append([(-much, _Leg([plan]))])
        return chains

    def _refuse_beyond(self, jobs: Sequence[SeatJob], x: Tensor, y: Tensor, outputs: int) -> None:
        """Raise IndexError for sizes, positions or labels beyond what is there: compiled code would read past it."""
        wanted = (len(x), outputs) if self.problem.regression else (len(x),)
        if y.shape != wanted or not (self.problem.regression or y.dtype == torch.int64):
            kind = str(y.dtype).removeprefix("torch.")
            allowed = f"{'' if self.problem.regression else 'int64 '}{list(wanted)}"
            raise IndexError(f"targets are {kind} {list(y.shape)}, {allowed} is needed")
        size = self.problem.layout.size
        for seat, job in enumerate(jobs):
            if job.start.shape != (size,):
                raise IndexError(f"seat {seat}: a row {list(job.start.shape)} for {size} parameters")
        taken = torch.cat([torch.zeros(0, dtype=torch.int64), *(job.index for job in jobs)])
        if len(taken) and (found := _beyond(taken, len(x))):
            raise IndexError(f"samples {found[0]} to {found[1]} of a pool of {len(x)}")
        if len(taken) and not self.problem.regression and (found := _beyond(y[taken], outputs)):
            raise IndexError(f"labels {found[0]} to {found[1]}, allowed are 0 to {outputs - 1}")

    def _run(
        self,
        leg: _Leg,
        jobs: Sequence[SeatJob],
        layers: Sequence[NativeLayer],
        recipe: Recipe,
        lr: float,
        x: Tensor,
        y: Tensor,
        so_far: _Progress,
    ) -> None:
        """Train these seats from where they are."""
        # only addresses are handed over: these lists keep the memory alive until the call is back
        plans, own = leg.plans, [jobs[plan.seat] for plan in leg.plans]
        starts = [job.start.to(torch.float32).contiguous() for job in own]
        constants = [constant_of(job, torch.float32) for job in own]
        begun = [int(so_far.steps[plan.seat]) for plan in plans]
        batches = [
            np.ascontiguousarray(plan.batches[done:][: leg.steps], dtype=np.int64)
            for plan, done in zip(plans, begun, strict=True)
        ]
        seats = (NativeSeat * len(plans))()
        for i, (seat, plan, job) in enumerate(zip(seats, plans, own, strict=True)):
            row, constant = so_far.rows[plan.seat], constants[i]
            seat.start, seat.row = (row if begun[i] else starts[i]).data_ptr(), row.data_ptr()
            seat.velocity = None if so_far.velocities is None else so_far.velocities[plan.seat].data_ptr()
            seat.constant = None if constant is None else constant.data_ptr()
            seat.batches, seat.steps, seat.width = batches[i].ctypes.data, len(batches[i]), plan.width
            seat.reported = plan.reported - begun[i]
            seat.pull = pull_of(job, recipe)
            seat.loss, seat.counted = so_far.losses[plan.seat], so_far.counted[plan.seat]
        labels, targets = (None, y.data_ptr()) if self.problem.regression else (y.data_ptr(), None)
        depth = len(layers)
        given = (
            (NativeLayer * depth)(*layers),
            depth,
            seats,
            len(seats),
            x.data_ptr(),
            labels,
            targets,
            lr,
            recipe.momentum,
        )
        if self._train(*given):
            raise MemoryError(f"native engine: not enough memory to train {len(plans)} seats")
        for seat, plan in zip(seats, plans, strict=True):
            so_far.steps[plan.seat] += seat.steps
            so_far.losses[plan.seat], so_far.counted[plan.seat] = seat.loss, seat.counted
