"""The layout of a round's batches for engines that train many seats at once.

:func:`plan_seats` finds each seat's batches as positions in the pool. Which seats train together in one program is
decided by :func:`group_seats`, and which worker gets which seats by :func:`deal_seats`. :class:`Batches` pads the batch
plans of a group to one array, step by step. It cuts this array into runs of steps with the same seats and the same
width. :func:`flat` lays a pool's samples out as rows. :class:`GroupEngine` trains the groups.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from hanse.base.pytorch import Tensor, torch
from hanse.core.recipe import Recipe
from hanse.data.samples import Samples
from hanse.learning.job import Problem, SeatJob, TrainedRows, plan_of, refuse_unfit, smallest_batch
from hanse.learning.scoring import Scorer
from hanse.learning.threads import intra_op

_STEP_COST = 2e7  # the overhead of one batched step, in multiplications: what a group more costs at every step
_GROUP_BYTES = 256 << 20  # parameters and velocities of one group of seats


def flat(pool: Samples, problem: Problem, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return the samples of a pool as rows ``[n, d]``, and labels ``[n]`` or targets ``[n, k]``, without copying them
    if they lie so already.
    """
    x = pool.x.reshape(len(pool), -1).to(dtype).contiguous()
    y = pool.y.to(dtype).reshape(len(pool), -1) if problem.regression else pool.y
    return x, y.contiguous()


@dataclass(frozen=True)
class SeatPlan:
    """One seat's batches as positions in the pool.

    Attributes:
        seat: the position of the seat's job among the round's jobs.
        batches: int64 ``[steps, B]``, -1 where a batch is short.
        reported: the first step whose losses are reported.
        spare: the position of one of the seat's own samples, which pads short batches with weight 0.
    """

    seat: int
    batches: NDArray[np.int64]
    reported: int
    spare: int

    @property
    def steps(self) -> int:
        """The number of optimiser steps."""
        return len(self.batches)

    @property
    def width(self) -> int:
        """The size of the largest batch."""
        return int(self.batches.shape[1])


@dataclass(frozen=True)
class Segment:
    """T consecutive steps in which the same ``a`` seats train, with the same batch width B.

    Attributes:
        taken: int64 ``[T, a B]``, positions in the pool.
        targets: ``[T, a, k, B]``.
        weights: ``[T, a, 1, B]``, each sample's weight in its batch's mean; 0 for padding.
        tally: ``[T, a, 1, B]``, each sample's weight in the reported mean loss.
        paces: ``[T, a, 1, 1]``, one over how many steps, with this one, a seat has taken in its last pass.
        counted: ``[T]``, whether any loss of that step is reported.
    """

    taken: Tensor
    targets: Tensor
    weights: Tensor
    tally: Tensor
    paces: Tensor
    counted: Sequence[bool]

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All but ``counted``, in order."""
        return self.taken, self.targets, self.weights, self.tally, self.paces


@dataclass(frozen=True)
class Batches:
    """The batches of a group of S seats, padded to one width B. T is the number of steps of the longest seat.

    Attributes:
        samples: int64 ``[T, S, B]``, positions in the pool. Padding repeats a sample of the same seat.
        weights: ``[T, S, B]``, each sample's weight in its batch's mean; 0 for padding.
        tally: ``[T, S, B]``, each sample's weight in the mean loss that its seat reports.
        paces: ``[T, S]``, one over how many steps, with this one, a seat has taken in its last pass; 1 before it.
        reports: ``[T]``, whether some seat reports losses of that step.
        segments: ``(begin, end, active, width)`` for each run of steps in which the first ``active`` seats train, with
            batches up to ``width``.
    """

    samples: Tensor
    weights: Tensor
    tally: Tensor
    paces: Tensor
    reports: list[bool]
    segments: list[tuple[int, int, int, int]]

    @staticmethod
    def of(plans: Sequence[SeatPlan], device: torch.device, dtype: torch.dtype) -> Batches:
        """Lay out a group's plans, which must be sorted by their number of steps, the longest first."""
        total, width = plans[0].steps, max(plan.width for plan in plans)
        taken = np.full((total, len(plans), width), -1, dtype=np.int64)
        spare = np.array([plan.spare for plan in plans])
        reported = np.zeros((total, len(plans)), dtype=bool)
        for s, plan in enumerate(plans):
            taken[: plan.steps, s, : plan.width] = plan.batches
            reported[plan.reported : plan.steps, s] = True
        valid = taken >= 0
        sizes = valid.sum(2)  # [T, S], 0 from the step on at which a seat has finished
        weights = valid / np.maximum(sizes, 1)[:, :, None]
        counted = (sizes * reported).sum(0)
        tally = valid * (reported / np.maximum(counted, 1))[:, :, None]
        active, widest = (sizes > 0).sum(1), sizes.max(1)
        edges = np.flatnonzero((np.diff(active) != 0) | (np.diff(widest) != 0)) + 1
        cuts = [0, *edges.tolist(), total]
        return Batches(
            samples=torch.from_numpy(np.where(valid, taken, spare[None, :, None])).to(device),
            weights=torch.from_numpy(weights).to(device=device, dtype=dtype),
            tally=torch.from_numpy(tally).to(device=device, dtype=dtype),
            paces=torch.from_numpy(1 / np.maximum(reported.cumsum(0), 1)).to(device),
            reports=[bool(step.any()) for step in reported],
            segments=[(a, b, int(active[a]), int(widest[a])) for a, b in pairwise(cuts) if b > a],
        )


def plan_seats(jobs: Sequence[SeatJob], recipe: Recipe, smallest: int) -> list[SeatPlan]:
    """Return every seat's plan, in the order of the jobs.

    Args:
        jobs: the seats.
        recipe: the recipe, which says how many batches there are, and how large.
        smallest: the smallest batch that the model can train on.

    Raises:
        ValueError: a seat has fewer than ``smallest`` samples.
    """
    plans = []
    for seat, job in enumerate(jobs):
        index = job.index.cpu().numpy()
        plan = plan_of(job, recipe, smallest)
        taken = np.where(plan.batches >= 0, index[plan.batches], -1)
        plans.append(SeatPlan(seat, taken, plan.reported, int(index[0])))
    return plans


def _widest_first(plans: Sequence[SeatPlan]) -> list[SeatPlan]:
    """Return the seats by falling batch width, then by falling number of steps."""
    return sorted(plans, key=lambda plan: (-plan.width, -plan.steps, plan.seat))


def deal_seats(plans: Sequence[SeatPlan], workers: int) -> list[list[SeatPlan]]:
    """Distribute the seats over ``workers``, and return each worker's seats; workers that get no seat are left out.

    To balance the load, seats are dealt from the widest and longest down, back and forth between the workers (1, 2, 3,
    3, 2, 1, ...).
    """
    ordered = _widest_first(plans)
    hands: list[list[SeatPlan]] = [[] for _ in range(workers)]
    for place, plan in enumerate(ordered):
        turn, seat = divmod(place, workers)
        hands[seat if turn % 2 == 0 else workers - 1 - seat].append(plan)
    return [hand for hand in hands if hand]


def group_seats(plans: Sequence[SeatPlan], size: int) -> list[list[SeatPlan]]:
    """Cut the seats, sorted by batch width, into groups that train together, each sorted by steps, the longest first.

    Batches are padded to the group's widest batch, at a cost of ``steps x 3 P`` multiplications for each sample. A
    group ends where this costs the seats that are left more than the steps of another group, or where its memory does.

    Args:
        plans: the seats.
        size: P, the length of a row.
    """
    most = max(1, _GROUP_BYTES // (8 * size))  # 4 bytes of a parameter and 4 of its velocity
    ordered, groups = _widest_first(plans), list[list[SeatPlan]]()
    steps = np.array([plan.steps for plan in ordered])
    left, longest = np.cumsum(steps[::-1])[::-1], np.maximum.accumulate(steps[::-1])[::-1]
    for place, plan in enumerate(ordered):
        if groups and len(groups[-1]) < most:
            padding = 3.0 * size * (groups[-1][0].width - plan.width) * left[place]
            if padding <= _STEP_COST * longest[place]:
                groups[-1].append(plan)
                continue
        groups.append([plan])
    return [sorted(group, key=lambda plan: (-plan.steps, plan.seat)) for group in groups]


class GroupEngine(Scorer, ABC):
    """What engines share that train groups of seats, each group as one program."""

    name: str

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
        size = self.problem.layout.size
        rows = torch.empty((len(jobs), size), dtype=self.dtype, device=self.device)
        losses, steps = np.full(len(jobs), np.nan), np.zeros(len(jobs), dtype=np.int64)
        with intra_op(self.threads):
            pool = self.laid_out(self._pool.of(pool))
            for group in group_seats(plan_seats(jobs, recipe, smallest_batch(self.problem)), size):
                seats = [plan.seat for plan in group]
                trained, losses[seats] = self.train_group(pool, group, [jobs[s] for s in seats], recipe, lr)
                where = torch.tensor(seats, device=self.device)
                for columns, block in trained:
                    rows[where, columns] = block
                steps[seats] = [plan.steps for plan in group]
            # one sum a row instead of a look at each number, which takes ten times as long
            finite = torch.isfinite(rows.sum(1)).cpu().numpy() & np.isfinite(losses)
        return TrainedRows(rows, np.where(finite, losses, np.nan), steps)

    def laid_out(self, pool: Samples) -> Samples:
        """Return the samples as the programs read them."""
        return pool

    @abstractmethod
    def train_group(
        self, pool: Samples, plans: Sequence[SeatPlan], jobs: Sequence[SeatJob], recipe: Recipe, lr: float
    ) -> tuple[Iterable[tuple[slice, Tensor]], NDArray[np.float64]]:
        """Train one group of S seats, sorted by steps, the longest first.

        Returns:
            The columns of the trained rows in pieces, each ``[S, columns]``, and the losses that are reported, ``[S]``.
        """
