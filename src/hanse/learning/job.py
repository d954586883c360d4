"""What local training is asked to do: the recipe, one job a seat, and the order of its batches.

Every engine (stacked, vmapped, sequential, a remote node) takes the same jobs and the same batch plan, so that they
can be compared number by number.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hanse.base.streams import stream
from hanse.core.payload import Payload
from hanse.core.recipe import Recipe
from hanse.core.table import Layout
from hanse.data.samples import Samples
from hanse.learning.losses import Objective
from hanse.learning.metrics import Metric


class SampleJudge(Protocol):
    """Scores samples in a way of its own, such as by comparing whole answers."""

    def __call__(self, outputs: Callable[[Tensor], Tensor], x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return each sample's loss and how right it is (0 to 1), both ``[n]``; ``outputs`` runs the model."""
        ...


@dataclass(frozen=True)
class Problem:
    """A model and its loss: a ``module`` used as a template (never trained in place by callers), its layout, and
    ``loss``: "cross_entropy" (y int64 ``[n]``; accuracy = share of right answers) or "mse" (y float; accuracy is NaN).
    An ``objective`` says what a sample's loss is in the place of these. ``metrics`` are what tests report beside loss
    and accuracy, the main one first.

    Texts have labels ``[n, T]`` at every position and outputs ``[n, k, T]`` (:mod:`hanse.learning.sequences`). A
    ``judge`` scores samples in the place of that. With ``plain`` every engine and scorer runs the module as it is: no
    stacked layers, no other layout of images.

    Parameters with ``requires_grad`` False are ``frozen``: they are columns of a row that training leaves as they are,
    or, in a layout without them, the module's own for all rows.
    """

    module: nn.Module
    layout: Layout
    loss: Literal["cross_entropy", "mse"] = "cross_entropy"
    judge: SampleJudge | None = None
    plain: bool = False
    objective: Objective | None = None
    metrics: tuple[Metric, ...] = ()

    @property
    def regression(self) -> bool:
        """Whether the targets are numbers, not classes."""
        return self.loss == "mse" if self.objective is None else self.objective.regression

    @property
    def one_output(self) -> bool:
        """Whether two classes are told apart by one output."""
        return self.objective is not None and self.objective.one_output

    @cached_property
    def frozen(self) -> tuple[str, ...]:
        """The names of the parameters that do not train."""
        return tuple(name for name, p in self.module.named_parameters() if not p.requires_grad)

    @cached_property
    def unsent(self) -> str:
        """A digest of the frozen parameters that rows do not have (empty: none): they must be the same everywhere."""
        digest, tensors = hashlib.blake2b(digest_size=16), dict(self.module.named_parameters())
        left = [name for name in self.frozen if name not in self.layout.names]
        for name in left:
            tensor = tensors[name].detach().cpu().contiguous()
            digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
            digest.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
        return digest.hexdigest() if left else ""

    @cached_property
    def frozen_columns(self) -> Tensor | None:
        """Which columns of a row belong to frozen parameters, bool ``[P]``, or None if all train."""
        columns = torch.zeros(self.layout.size, dtype=torch.bool)
        views = self.layout.unflatten(columns)
        held = [views[name] for name in self.frozen if name in views]
        for view in held:
            view.fill_(True)
        return columns if held else None


@dataclass(frozen=True)
class Drawn:
    """A seat's batches: ``batches [steps, B]``, positions into its index with -1 for padding, and the first step whose
    losses are ``reported``, the start of the last pass.
    """

    batches: NDArray[np.int64]
    reported: int


@dataclass(frozen=True)
class SeatJob:
    """One seat's training: samples ``index [n]`` (int64) into a pool, from row ``start [P]``, minimising
    ``F + mu/2 |theta - centre|^2 + <tilt, theta>`` over the parameters (not the buffers).

    ``work`` replaces the recipe's epochs, or its steps if it counts those (stragglers). ``key`` is ``(seed, round,
    client, start row)`` of its stream. ``payload`` adds a term to the loss of each batch, not to the one reported.
    ``drawn`` are its batches where they are not drawn from that stream.
    ``before``: the steps that its client took in earlier rounds; batches that are not shuffled go on there.
    ``name`` is its client's, for display.
    """

    index: Tensor
    start: Tensor
    key: tuple[int, int, int, int]
    centre: Tensor | None = None
    mu: float = 0.0
    tilt: Tensor | None = None
    work: int | None = None
    payload: Payload | None = None
    before: int = 0
    drawn: Drawn | None = None
    name: str = ""


@dataclass(frozen=True)
class Said:
    """What a training loop of the user's own said of a seat: ``metrics`` by name, on how many ``samples`` it trained
    (None: all), and why the seat is ``refused``, if it is.
    """

    metrics: Mapping[str, float] = field(default_factory=dict)
    samples: int | None = None
    refused: str | None = None


@dataclass(frozen=True)
class TrainedRows:
    """``rows [S, P]`` float32, mean ``loss [S]`` of the last epoch's samples as met (NaN: diverged), ``steps [S]``.

    Of a training loop of the user's own, what it ``said`` of each seat, and a loss is NaN where it does not say.
    """

    rows: Tensor
    loss: NDArray[np.float64]
    steps: NDArray[np.int64]
    said: Sequence[Said] = ()


@dataclass(frozen=True)
class Scores:
    """Per model: mean ``loss [C]``, ``accuracy [C]`` (NaN for regression), number of samples ``count [C]``, and the
    standard error of the mean loss ``loss_error [C]`` from its spread over the samples (None: not known).
    """

    loss: NDArray[np.float64]
    accuracy: NDArray[np.float64]
    count: NDArray[np.int64]
    loss_error: NDArray[np.float64] | None = None


@dataclass(frozen=True)
class ModelOutputs:
    """One model's ``outputs [k, n]`` on n samples, and each sample's ``loss [n]``, on the CPU."""

    outputs: Tensor
    loss: Tensor


class Engine(Protocol):
    """Trains seats and scores models; engines differ in speed, never in what they compute."""

    name: str

    def train(self, pool: Samples, jobs: Sequence[SeatJob], recipe: Recipe, lr: float) -> TrainedRows:
        """Train every job, in order."""
        ...

    def score(self, rows: Tensor, pool: Samples, index: Sequence[Tensor] | None = None) -> Scores:
        """Score ``rows [C, P]`` on the whole pool, or model c on ``pool[index[c]]``."""
        ...

    def score_some(self, rows: Tensor, pool: Samples, some: NDArray[np.int64]) -> Scores:
        """Score those of ``rows [C, P]`` at the positions ``some [m]`` on the pool, bit for bit as :meth:`score` would
        among all; the others may be NaN.
        """
        ...

    def score_each(self, rows: Tensor, pool: Samples, index: Sequence[Tensor]) -> Sequence[Scores]:
        """Score every row of ``rows [C, P]`` on each list of samples ``pool[index[i]]``."""
        ...

    def outputs(self, rows: Tensor, pool: Samples, index: Sequence[Tensor] | None = None) -> Sequence[ModelOutputs]:
        """Return what ``rows [C, P]`` put out on the pool, or model c on ``pool[index[c]]``."""
        ...

    def close(self) -> None:
        """Release threads and buffers."""
        ...


@dataclass(frozen=True)
class _Cuts:
    """How one pass over ``n`` samples is cut: batch b takes positions ``cuts[b]:cuts[b + 1]`` of a permutation."""

    n: int
    cuts: NDArray[np.int64]
    steps: int  # optimiser steps in all

    @property
    def per_epoch(self) -> int:
        return len(self.cuts) - 1

    @property
    def epochs(self) -> int:
        return math.ceil(self.steps / self.per_epoch)

    @cached_property
    def slots(self) -> NDArray[np.int64]:
        """Positions ``[per_epoch, B]`` into a permutation, n where a batch is short."""
        slots = self.cuts[:-1, None] + np.arange(int(np.diff(self.cuts).max()))
        return np.where(slots < self.cuts[1:, None], slots, self.n)


@lru_cache(maxsize=4096)
def _cut(n: int, recipe: Recipe, work: int | None, smallest: int) -> _Cuts:
    """Return how a seat's passes are cut; cached, since the same few sizes come back in every round."""
    if recipe.batch_share is not None:  # each batch is the head of a permutation of its own
        cuts = np.array([0, min(n, max(smallest, int(n * recipe.batch_share)))])
    elif recipe.batches_per_epoch is not None:
        per_epoch = min(recipe.batches_per_epoch, max(1, n // smallest))
        cuts = np.linspace(0, n, per_epoch + 1).round().astype(np.int64)
    else:
        size = min(recipe.batch_size or n, n)
        per_epoch = math.ceil(n / size)
        cuts = np.minimum(np.arange(per_epoch + 1) * size, n)
        if per_epoch > 1 and cuts[-1] - cuts[-2] < smallest:
            cuts = cuts[:-1]  # an epoch's last batch is dropped if batch norm cannot use it
    per_epoch = len(cuts) - 1
    if recipe.steps is None:
        return _Cuts(n, cuts, per_epoch * (recipe.epochs if work is None else work))
    return _Cuts(n, cuts, recipe.steps if work is None else work)


def batch_plan(
    n: int,
    recipe: Recipe,
    key: tuple[int, int, int, int],
    work: int | None = None,
    smallest: int = 1,
    before: int = 0,
) -> NDArray[np.int64]:
    """Return the batches of one seat, ``[steps, B]`` positions into its ``n`` samples, short batches padded with -1.

    The order comes from the stream ``(seed, "batches", round, client, start)`` of ``key``: one permutation an epoch.
    A recipe with another order than "shuffled" takes the samples as they lie, going on ``before`` steps after the first
    batch.
    ``smallest`` is the least batch the model can train on (2 with batch norm): a shorter last batch is left out.
    Raises ValueError for a client with fewer than ``smallest`` samples.
    """
    if n < smallest:
        raise ValueError(f"client {key[2]} has {n} samples to train on; at least {smallest} needed")
    cut = _cut(n, recipe, work, smallest)
    if recipe.order != "shuffled":
        at_rest = np.append(np.arange(n), -1)[cut.slots]
        return at_rest[(before + np.arange(cut.steps)) % cut.per_epoch]
    seed, round, client, start = key
    draw = stream(seed, "batches", round=round, client=client, start=start)
    order = np.full((cut.epochs, n + 1), -1, dtype=np.int64)
    for epoch in range(cut.epochs):
        order[epoch, :n] = draw.permutation(n)
    return order[:, cut.slots].reshape(-1, cut.slots.shape[1])[: cut.steps]


def last_epoch(n: int, recipe: Recipe, work: int | None = None, smallest: int = 1, before: int = 0) -> int:
    """Return the first step of the last (perhaps unfinished) pass over the samples: reported losses start there."""
    cut = _cut(n, recipe, work, smallest)
    if recipe.order != "shuffled":
        return max(0, cut.steps - 1 - (before + cut.steps - 1) % cut.per_epoch)
    return (cut.epochs - 1) * cut.per_epoch


def plan_of(job: SeatJob, recipe: Recipe, smallest: int) -> Drawn:
    """Return a seat's batches. Raises ValueError as :func:`batch_plan` does."""
    if job.drawn is not None:
        return job.drawn
    n = len(job.index)
    batches = batch_plan(n, recipe, job.key, job.work, smallest, job.before)
    return Drawn(batches, last_epoch(n, recipe, job.work, smallest, job.before))


def smallest_batch(problem: Problem) -> int:
    """Return the least batch a model can train on: 2 if it has batch norm, whose variance needs two samples."""
    return 2 if any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in problem.module.modules()) else 1


def refuse_unfit(jobs: Sequence[SeatJob], recipe: Recipe, engine: str) -> None:
    """Raise ValueError for a payload or a recipe that is not SGD; called by engines that can heed neither."""
    if any(job.payload is not None for job in jobs):
        raise ValueError(f"engine {engine!r} trains without payloads; use 'sequential'")
    if recipe.optimizer != "sgd":
        raise ValueError(f"engine {engine!r} takes SGD steps; use 'sequential' for {recipe.optimizer!r}")


def has_buffers(problem: Problem) -> bool:
    """Say whether the model keeps float buffers (batch-norm statistics) beside its parameters."""
    return problem.layout.size > problem.layout.num_parameters
