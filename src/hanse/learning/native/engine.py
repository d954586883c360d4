"""The native engine: compiled code trains whole seats, in parallel threads.

:class:`NativeEngine` checks its inputs and passes addresses to the functions of ``seats.c``
(:mod:`hanse.learning.native.library`). Compiled code reads any address that it is given, so all sizes and positions are
checked here first.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from hanse.core.recipe import Recipe
from hanse.data.samples import Samples
from hanse.learning.batches import FlatPool, SeatPlan, deal_seats, plan_seats
from hanse.learning.job import Problem, SeatJob, TrainedRows, refuse_unfit
from hanse.learning.native.library import Layer, NativeLayers, Seat, library, read_native, why_not_native
from hanse.learning.program import constant_of
from hanse.learning.scoring import Scorer, ScoringEngine
from hanse.learning.threads import Crew

_HANDS = 8  # portions of seats for each thread, so a thread on a busy core can take fewer of them


def _beyond(numbers: Tensor, end: int) -> tuple[int, int] | None:
    """Return the smallest and the largest of some numbers, unless all lie from 0 to below ``end``: then None."""
    least, most = (int(extremes) for extremes in torch.aminmax(numbers))
    return None if least >= 0 and most < end else (least, most)


class NativeEngine(ScoringEngine):
    """Trains linear layers with ReLU or tanh between them, and convolutions before them, with SGD on the CPU.

    A seat's result, to the last bit, depends on the processor's vector width, but not on other seats or the number of
    threads.

    Args:
        problem: the model and its loss (:class:`hanse.learning.job.Problem`).
        workers: how many threads train, each with its own seats.

    Raises:
        ValueError: the model cannot be trained this way, or the compiled code is missing; the message says why.
    """

    name = "native"

    def __init__(self, problem: Problem, workers: int = 1) -> None:
        reason, compiled, layers = why_not_native(problem), library(), read_native(problem)
        if reason is not None or isinstance(compiled, str) or layers is None:
            raise ValueError(reason)
        self.problem, self.threads, self.crew = problem, 1, Crew(workers)
        self._train = compiled.hanse_train
        self._read: NativeLayers = layers
        self._pool = FlatPool(problem, torch.device("cpu"), torch.float32)
        dense = None if layers.convolutions else Dense((Layer * len(layers.dense))(*layers.dense), compiled)
        self.scorer = Scorer(problem, torch.device("cpu"), crew=self.crew, dense=dense)

    def train(self, pool: Samples, jobs: Sequence[SeatJob], recipe: Recipe, lr: float) -> TrainedRows:
        """Train every job; rows come back in the jobs' order, NaN or infinite where a seat diverged.

        Args:
            pool: all samples; a job's ``index`` points into them.
            jobs: one job for each seat.
            recipe: the recipe, which must use SGD.
            lr: the learning rate.

        Raises:
            ValueError: a job with a payload, another optimiser, or a seat without samples.
            IndexError: samples, labels or rows that do not fit the model, or positions that are not in the pool.
            MemoryError: there is not enough memory.
        """
        refuse_unfit(jobs, recipe, self.name)
        rows = torch.empty((len(jobs), self.problem.layout.size))
        losses, steps = np.full(len(jobs), np.nan), np.zeros(len(jobs), dtype=np.int64)
        x, y = self._pool.of(pool)
        layers = self._read.on(pool.x.shape[1:])
        self._refuse_beyond(jobs, x, y, layers[-1].outputs)
        plans = plan_seats(jobs, recipe, 1)

        def one(_: int, hand: Sequence[SeatPlan]) -> None:
            trained = self._run(hand, [jobs[plan.seat] for plan in hand], layers, recipe, lr, x, y, rows)
            for plan, loss in zip(hand, trained, strict=True):
                losses[plan.seat], steps[plan.seat] = loss, plan.steps

        hands = 1 if self.crew.workers == 1 else _HANDS * self.crew.workers
        self.crew.deal(one, deal_seats(plans, hands))
        # one sum a row instead of a look at each number, which takes ten times as long
        finite = torch.isfinite(rows.sum(1)).numpy() & np.isfinite(losses)
        return TrainedRows(rows, np.where(finite, losses, np.nan), steps)

    def _refuse_beyond(self, jobs: Sequence[SeatJob], x: Tensor, y: Tensor, outputs: int) -> None:
        """Raise IndexError for sizes, positions or labels beyond what is there: compiled code would read past it."""
        wanted = (len(x), outputs) if self.problem.regression else (len(x),)
        if y.shape != wanted or not (self.problem.regression or y.dtype == torch.int64):
            kind = str(y.dtype).removeprefix("torch.")
            allowed = f"{'' if self.problem.regression else 'int64 '}{list(wanted)}"
            raise IndexError(f"targets are {kind} {list(y.shape)}, {allowed} is needed")
        size, empty = self.problem.layout.size, torch.zeros(0, dtype=torch.int64)
        for seat, job in enumerate(jobs):
            if job.start.shape != (size,):
                raise IndexError(f"seat {seat}: a row {list(job.start.shape)} for {size} parameters")
        taken = torch.cat([empty, *(job.index for job in jobs)])
        if not len(taken):
            return
        if _beyond(taken, len(x)):
            seat = next(s for s, job in enumerate(jobs) if len(job.index) and _beyond(job.index, len(x)))
            raise IndexError(f"seat {seat}: its samples are not all in a pool of {len(x)}")
        if not self.problem.regression and _beyond(y[taken], outputs):
            for seat, job in enumerate(jobs):
                if len(job.index) and (found := _beyond(y[job.index], outputs)):
                    raise IndexError(f"seat {seat}: labels {found[0]} to {found[1]}, allowed are 0 to {outputs - 1}")

    def _run(
        self,
        plans: Sequence[SeatPlan],
        jobs: Sequence[SeatJob],
        layers: Sequence[Layer],
        recipe: Recipe,
        lr: float,
        x: Tensor,
        y: Tensor,
        rows: Tensor,
    ) -> list[float]:
        """Train these seats into ``rows`` and return the mean loss that each reports."""
        # only addresses are handed over: these lists keep the memory alive until the call is back
        starts = [job.start.to(torch.float32).contiguous() for job in jobs]
        constants = [constant_of(job, torch.float32) for job in jobs]
        batches = [np.ascontiguousarray(plan.batches, dtype=np.int64) for plan in plans]
        seats = (Seat * len(plans))()
        for seat, plan, job, start, constant, own in zip(seats, plans, jobs, starts, constants, batches, strict=True):
            seat.start, seat.row, seat.batches = start.data_ptr(), rows[plan.seat].data_ptr(), own.ctypes.data
            seat.constant = None if constant is None else constant.data_ptr()
            seat.steps, seat.width, seat.reported = plan.steps, plan.width, plan.reported
            seat.pull = recipe.weight_decay + (job.mu if job.centre is not None else 0.0)
        labels, targets = (None, y.data_ptr()) if self.problem.regression else (y.data_ptr(), None)
        depth = len(layers)
        given = ((Layer * depth)(*layers), depth, seats, len(seats), x.data_ptr(), labels, targets, lr, recipe.momentum)
        if self._train(*given):
            raise MemoryError(f"native engine: not enough memory to train {len(plans)} seats")
        return [seat.loss for seat in seats]

    def close(self) -> None:
        """Release the threads and the pool."""
        self._pool.clear()
        self.crew.close()


class Dense:
    """Scores one model at a time in compiled code, passing each block of samples through all layers while it is in the
    cache.

    Args:
        layers: the model's layers.
        compiled: the compiled functions.
    """

    def __init__(self, layers: ctypes.Array[Layer], compiled: ctypes.CDLL) -> None:
        self._layers, self._run = layers, compiled.hanse_outputs
        self._size = sum(layer.outputs * (layer.inputs + layer.bias) for layer in layers)

    def __call__(self, rows: Tensor, x: Tensor) -> Tensor:
        """Return the outputs ``[C, k, m]`` of models ``rows [C, P]`` on samples ``x [m, d]``, all float32.

        Raises:
            IndexError: samples of another width than the model's inputs, or rows of another length than its own.
            MemoryError: there is not enough memory.
        """
        rows, x, depth = rows.contiguous(), x.contiguous(), len(self._layers)
        if x.shape[1] != self._layers[0].inputs:  # compiled code would read beyond them
            raise IndexError(f"samples of {x.shape[1]} numbers for a model of {self._layers[0].inputs} inputs")
        if rows.shape[1] != self._size:
            raise IndexError(f"rows of {rows.shape[1]} numbers for {self._size} parameters")
        outputs = torch.empty((len(rows), self._layers[depth - 1].outputs, len(x)))
        for row, out in zip(rows, outputs, strict=True):
            if self._run(self._layers, depth, row.data_ptr(), x.data_ptr(), len(x), out.data_ptr()):
                raise MemoryError("native engine: not enough memory to score a model")
        return outputs
