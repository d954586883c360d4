"""The sequential engine: trains one seat after another with autograd. It is the reference, and the usual engine for
convolutions.

With ``workers`` above 1, seats are distributed over threads with one intra-op thread each. Convolutions release
Python's lock for milliseconds at a time, so these threads do not block each other. Unlike operators that are split over
threads, they stay fast on a busy machine. The results are the same as with one thread.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hanse.base.pytorch import torch
from hanse.core.recipe import Recipe
from hanse.data.samples import Samples
from hanse.learning.job import Problem, SeatJob, TrainedRows
from hanse.learning.local import Precision
from hanse.learning.scoring import Scorer
from hanse.learning.threads import Crew, intra_op


def work_of(job: SeatJob, recipe: Recipe) -> int:
    """Return a seat's amount of work (samples, or the recipe's steps), by which the longest job is scheduled first."""
    if recipe.steps is not None:
        return recipe.steps if job.work is None else job.work
    return len(job.index) * (recipe.epochs if job.work is None else job.work)


class SequentialEngine(Scorer):
    """Trains seats one after another, or ``workers`` at a time on separate threads.

    Modules that draw random numbers in training share one generator. A single worker therefore trains them in order.

    Args:
        problem: the model and its loss (:class:`hanse.learning.job.Problem`).
        device: where the work is done.
        threads: intra-op threads for a seat. None: PyTorch's setting is kept. With several workers, each has 1.
        workers: how many seats train at a time.
        precision: "bf16" runs forward passes under autocast to bfloat16.
        dtype: the type of weights, gradients and steps. None: float32.

    Examples:
        One client trains a linear model from zeros on three samples, for two epochs in one batch each:

        >>> from hanse.core.table import Layout
        >>> module = torch.nn.Linear(3, 2)
        >>> engine = SequentialEngine(Problem(module, Layout.of(module)))
        >>> pool = Samples(torch.eye(3), torch.tensor([0, 1, 1]))
        >>> job = SeatJob(torch.arange(3), start=torch.zeros(8), key=(0, 0, 0, 0))
        >>> done = engine.train(pool, [job], Recipe(epochs=2), lr=0.1)
        >>> tuple(done.rows.shape), done.steps.tolist()
        ((1, 8), [2])
    """

    name = "sequential"

    def __init__(
        self,
        problem: Problem,
        device: torch.device | str = "cpu",
        threads: int | None = None,
        workers: int = 1,
        precision: Precision = "float32",
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(problem, torch.device(device), dtype, precision, Crew(workers), threads=threads)

    def train(self, pool: Samples, jobs: Sequence[SeatJob], recipe: Recipe, lr: float) -> TrainedRows:
        """Train every job and return the rows in the order of the jobs; a row that diverged is NaN or infinite.

        Args:
            pool: all samples; a job's ``index`` points into them.
            jobs: one job for each seat.
            recipe: epochs or steps, batch size, optimiser and its settings.
            lr: the learning rate.

        Raises:
            ValueError: a seat has too few samples to train on.
        """
        pool = self._pool.of(pool)
        rows = torch.empty((len(jobs), self.problem.layout.size), dtype=self.dtype, device=self.device)
        losses = np.full(len(jobs), np.nan)
        steps = np.zeros(len(jobs), dtype=np.int64)
        trainers = self.trainers()

        def one(worker: int, seat: int) -> None:
            rows[seat], losses[seat], steps[seat] = trainers[worker].train(pool, jobs[seat], recipe, lr)

        with intra_op(self.threads):
            longest_first = sorted(range(len(jobs)), key=lambda s: -work_of(jobs[s], recipe))
            alone = self.crew.workers == 1 or (len(jobs) > 0 and trainers[0].draws(pool))
            if alone:
                with intra_op(1 if self.crew.workers > 1 else None):
                    for seat in range(len(jobs)):
                        one(0, seat)
            else:
                self.crew.map(one, longest_first)
        return TrainedRows(rows, losses, steps)
