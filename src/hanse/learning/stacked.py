"""The stacked engine: all seats of a round trained by one batched program with a hand-written backward pass.

One flat buffer holds the parameters of all seats *layer-major* (each block ``[S, *shape]`` is contiguous), and a second
one holds the velocities. Momentum is thus part of the gradient's product, and a step is a single addition. Seats are
sorted by their number of steps. Each step works on the unfinished seats, which come first in each block.

The rule of :mod:`hanse.learning.engines` chooses this engine for layers that can be stacked. The buffers are in
:mod:`hanse.learning.program`, and the layers in :mod:`hanse.learning.layers`.
"""

from __future__ import annotations

from collections.abc import Sequence
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hanse.core.recipe import Recipe
from hanse.data.samples import Samples
from hanse.learning.batches import Batches, FlatPool, SeatPlan, Segment, deal_seats, group_seats, plan_seats
from hanse.learning.graphs import Graphs
from hanse.learning.job import Problem, SeatJob, TrainedRows, refuse_unfit, smallest_batch
from hanse.learning.program import ActiveProgram, Program
from hanse.learning.scoring import Scorer, ScoringEngine
from hanse.learning.threads import Crew, intra_op


class StackedEngine(ScoringEngine):
    """Trains all seats as one stack, for models that :func:`hanse.learning.module_layers.read_stack` can read.

    Args:
        problem: the model and its loss (:class:`hanse.learning.job.Problem`).
        device: where the buffers lie.
        threads: intra-op threads of one program. None: PyTorch's setting is kept.
        workers: the number of threads. If above 1, the seats are divided among them, and each trains its own stack with
            one intra-op thread.
        dtype: the type of weights, gradients and steps.
        graphs: whether steps are recorded and replayed on a CUDA device (:mod:`hanse.learning.graphs`).

    Raises:
        ValueError: the model cannot be stacked.
    """

    name = "stacked"

    def __init__(
        self,
        problem: Problem,
        device: torch.device | str = "cpu",
        threads: int | None = None,
        workers: int = 1,
        dtype: torch.dtype = torch.float32,
        graphs: bool = False,
    ) -> None:
        specs = problem.stack
        if specs is None:
            raise ValueError("the model is not a sequence of layers that can be stacked")
        self.problem, self.specs = problem, specs
        self.device, self.threads, self.dtype = torch.device(device), threads, dtype
        self.smallest = smallest_batch(problem)
        self.crew = Crew(workers)
        self.scorer = Scorer(problem, self.device, dtype, crew=self.crew)
        self._programs: list[dict[tuple[int, int], Program]] = [{} for _ in range(workers)]
        self._pool = FlatPool(problem, self.device, dtype)
        self._graphs: WeakKeyDictionary[Program, Graphs] | None = WeakKeyDictionary() if graphs else None

    def train(self, pool: Samples, jobs: Sequence[SeatJob], recipe: Recipe, lr: float) -> TrainedRows:
        """Train every job and return the rows in the order of the jobs; a row that diverged is NaN or infinite.

        Args:
            pool: all samples; a job's ``index`` points into them.
            jobs: one job for each seat.
            recipe: the recipe, which must use SGD.
            lr: the learning rate.

        Raises:
            ValueError: a job has a payload, the optimiser is another one, or a seat has too few samples.
        """
        refuse_unfit(jobs, recipe, self.name)
        rows = torch.empty((len(jobs), self.problem.layout.size), dtype=self.dtype, device=self.device)
        losses = np.full(len(jobs), np.nan)
        steps = np.zeros(len(jobs), dtype=np.int64)
        with intra_op(self.threads), torch.no_grad():
            x, y = self._pool.of(pool)
            plans = plan_seats(jobs, recipe, self.smallest)
            groups = [
                group
                for part in deal_seats(plans, self.crew.workers)
                for group in group_seats(part, self.problem.layout.size)
            ]

            def one(worker: int, group: Sequence[SeatPlan]) -> None:
                seats = [plan.seat for plan in group]
                with torch.no_grad():  # each thread has this setting for itself
                    program = self._program(worker, len(group), max(plan.width for plan in group))
                    losses[seats] = self._run(program, group, [jobs[s] for s in seats], recipe, lr, x, y)
                    program.store(rows, seats)
                steps[seats] = [plan.steps for plan in group]

            self.crew.deal(one, groups)
            # one sum a row instead of a look at each number, which takes ten times as long
            finite = torch.isfinite(rows.sum(1)).cpu().numpy() & np.isfinite(losses)
        return TrainedRows(rows, np.where(finite, losses, np.nan), steps)

    def close(self) -> None:
        """Release the buffers."""
        for programs in self._programs:
            programs.clear()
        self._pool.clear()
        self.crew.close()

    def _program(self, worker: int, seats: int, width: int) -> Program:
        """Return a worker's buffers for so many seats and such a width; the eight shapes made last are kept."""
        key, programs = (seats, width), self._programs[worker]
        if key not in programs:
            if len(programs) >= 8:  # seats may come in ever new shapes: their buffers would fill the memory
                programs.pop(next(iter(programs)))
            programs[key] = Program(self.problem, self.specs, seats, width, self.device, self.dtype)
        return programs[key]

    def _run(
        self,
        program: Program,
        plans: Sequence[SeatPlan],
        jobs: Sequence[SeatJob],
        recipe: Recipe,
        lr: float,
        x: Tensor,
        y: Tensor,
    ) -> NDArray[np.float64]:
        """Train one group of seats, sorted by steps, the longest first; return the losses that they report, ``[S]``."""
        program.start(jobs, recipe)
        batches = Batches.of(plans, self.device, self.dtype)
        steps = _steps if self._graphs is None else self._graphs.setdefault(program, Graphs(_steps))
        for begin, end, active, width in batches.segments:
            bound = program.bind(active, width)
            taken = batches.samples[begin:end, :active, :width].reshape(end - begin, -1)
            # gathered for the whole segment at once; samples, which are larger, are gathered step by step
            targets = y.index_select(0, taken.reshape(-1)).view(end - begin, active, width, -1).transpose(2, 3)
            weights = batches.weights[begin:end, :active, :width].unsqueeze(2).contiguous()
            tally = batches.tally[begin:end, :active, :width].unsqueeze(2)
            segment = Segment(taken, targets.contiguous(), weights, tally, batches.reports[begin:end])
            steps(bound, x, segment, recipe.momentum, lr)
        return program.total.view(-1).double().cpu().numpy().copy()


def _steps(bound: ActiveProgram, x: Tensor, segment: Segment, momentum: float, lr: float) -> None:
    """Take the steps of one segment; step t reads the samples ``x[taken[t]]``."""
    gathered = bound.inputs.view(-1, bound.inputs.shape[2])
    layers, backwards, loss = bound.layers, bound.layers[::-1], bound.loss
    parts = zip(segment.taken.unbind(0), segment.targets.unbind(0), segment.weights.unbind(0), strict=True)
    for step, (index, y, w) in enumerate(parts):
        torch.index_select(x, 0, index, out=gathered)
        value = bound.inputs
        for layer in layers:
            value = layer.forward(value, w)
        grad = loss.gradient(value, y, w, segment.tally[step] if segment.counted[step] else None)
        for layer in backwards:
            grad = layer.backward(grad, momentum)
        bound.descend(lr)
