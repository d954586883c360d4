"""The definition of local training: a problem, one job per seat, and the order of a job's batches.

Read this module for an engine's inputs and outputs. A :class:`Problem` is the model with its loss. A :class:`SeatJob`
says where one seat starts, which samples it trains on and what pulls it. :func:`batch_plan` turns a job and a recipe
(:class:`hanse.core.recipe.Recipe`) into batches. An :class:`Engine` takes all of these, trains (:class:`TrainedRows`)
and scores models (:class:`ModelScores`).

Every engine (native, stacked, vmapped, sequential, a remote node) takes the same jobs and the same batch plan. Results
can therefore be compared number by number.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from hanse.base.plain_text import quantity
from hanse.base.pytorch import Tensor, nn, torch
from hanse.base.streams import stream
from hanse.core.part import ModelScores
from hanse.core.port import Payload
from hanse.core.recipe import Recipe
from hanse.core.table import Layout
from hanse.data.samples import Samples
from hanse.learning.losses import Objective
from hanse.learning.metrics import Metric, Predictions
from hanse.learning.module_layers import ConvStack, Spec, read_convolutions, read_stack

LOOP = "its training loop"
"""What the reason of a seat that was refused for its loop (:mod:`hanse.learning.loop`) begins with."""
NO_STEP = "made no step"
"""What the reason goes on with if a loop changed nothing."""


class SampleJudge(Protocol):
    """Scores samples in a special way, such as by comparing whole answers of a language model."""

    def __call__(self, outputs: Callable[[Tensor], Tensor], x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return each sample's loss and how right it is.

        Args:
            outputs: runs the model on a batch of inputs and returns its outputs.
            x: inputs ``[n, ...]``.
            y: labels or targets ``[n, ...]``.

        Returns:
            The losses ``[n]``, and shares from 0 to 1 ``[n]``.
        """
        ...


@dataclass(frozen=True)
class Problem:
    """A model and its loss: what engines train and scorers score.

    Samples have one label or target each, or they are texts: labels ``[n, T]`` at every position and outputs ``[n, k,
    T]`` (:mod:`hanse.learning.sequences`).

    Attributes:
        module: the template. Engines train copies of the module, or run it on other weights. Callers never train it in
            place.
        layout: where the module's tensors lie in a row ``[P]``.
        loss: "cross_entropy" (labels int64 ``[n]``, accuracy is the share of right answers) or "mse" (float targets,
            accuracy is NaN).
        judge: what replaces the usual scoring by loss and predicted class. None: the usual scoring is used.
        plain: whether every engine and scorer must run the module itself, because the fast ways (stacked layers,
            another memory layout of images) compute something else (:mod:`hanse.learning.agreement`).
        objective: a loss that is minimised instead of ``loss``. None: ``loss`` itself is minimised.
        metrics: metrics that tests report in addition to loss and accuracy, the main one first.

    Examples:
        >>> from hanse.core.table import Layout
        >>> module = nn.Linear(3, 2)
        >>> problem = Problem(module, Layout.of(module))
        >>> problem.layout.size  # six weights and two biases: the length P of a row
        8
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
        """Whether a single output tells two classes apart."""
        return self.objective is not None and self.objective.one_output

    @cached_property
    def stack(self) -> list[Spec] | None:
        """The module's layers, if it is a list of known layers that run one after another.

        None otherwise, and if ``plain``.

        See :func:`hanse.learning.module_layers.read_stack`.
        """
        return None if self.plain else read_stack(self.module, self.layout.names)

    @cached_property
    def convolutions(self) -> ConvStack | None:
        """The same of a module that begins with convolutions."""
        return None if self.plain else read_convolutions(self.module, self.layout.names)

    @property
    def side_by_side(self) -> ConvStack | None:
        """The :attr:`convolutions`, where running several models at once pays."""
        stack = self.convolutions
        return stack if stack is not None and stack.narrow else None

    @cached_property
    def frozen(self) -> tuple[str, ...]:
        """The names of the parameters with ``requires_grad`` False.

        Training does not change their columns of a row. If the layout omits them, they are the module's own, the same
        for all rows.
        """
        return tuple(name for name, p in self.module.named_parameters() if not p.requires_grad)

    @cached_property
    def unsent(self) -> str:
        """A digest of the frozen parameters that rows leave out, 32 hexadecimal digits; empty if there are none.

        Such parameters are never sent. Server and participants compare this digest to make sure that they have the same
        ones.
        """
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

    def predictions(self, y: Tensor, outputs: Tensor, loss: Tensor, units: Tensor | None = None) -> Predictions:
        """Return the predictions in a model's outputs. Logits, or the single logit of class 1, become probabilities.

        Args:
            y: the true targets of n samples.
            outputs: ``[k, n]``.
            loss: ``[n]``, each sample's loss.
            units: ``[n]``, the unit of each sample.
        """
        predicted = outputs.t().double()
        if self.one_output:
            predicted = torch.cat([torch.sigmoid(-predicted), torch.sigmoid(predicted)], 1)
        elif not self.regression:
            predicted = torch.softmax(predicted, 1)
        targets = y.cpu().reshape(len(y), -1).double() if self.regression else y.cpu()
        of = None if units is None else units.numpy()
        return Predictions(targets.numpy(), predicted.numpy(), loss.double().numpy(), of)


@dataclass(frozen=True)
class Drawn:
    """A seat's batches.

    Attributes:
        batches: int64 ``[steps, B]``, positions into the seat's samples, -1 where a batch is short.
        reported: the first step whose losses are reported. It is where the last pass over the samples starts.
    """

    batches: NDArray[np.int64]
    reported: int


@dataclass(frozen=True)
class SeatJob:
    """One seat's training: minimise ``F + mu/2 |theta - centre|^2 + <tilt, theta>`` over the parameters (not the
    buffers).

    Attributes:
        index: int64 ``[n]``, the seat's samples as positions in a pool.
        start: the row ``[P]`` from which training starts.
        key: ``(seed, round, client, start row)``, the key of the stream from which batches are drawn.
        centre: the row ``[P]`` to which the parameters are pulled. None: no pull, whatever ``mu`` is.
        mu: how strong the pull is.
        tilt: a row ``[P]`` that is added to every gradient. None: nothing is added.
        work: how many epochs (or steps, if the recipe counts steps) replace the recipe's number, for stragglers. None:
            the recipe's number.
        payload: the payload that adds a term to the loss of each batch, but not to the reported loss.
        before: the client's steps in earlier rounds, after which unshuffled batches continue.
        drawn: the batches, if not drawn from the stream of ``key``.
        name: the client's name, for display.

    Examples:
        Client 1 trains a linear model on all of four samples, in round 0 from row 0:

        >>> from hanse.core.table import Layout
        >>> from hanse.data.samples import Samples
        >>> from hanse.learning.sequential import SequentialEngine
        >>> module = nn.Linear(3, 2)
        >>> problem = Problem(module, Layout.of(module))
        >>> pool = Samples(torch.randn(4, 3), torch.tensor([0, 1, 0, 1]))
        >>> job = SeatJob(torch.arange(4), problem.layout.flatten(module), key=(0, 0, 1, 0))
        >>> SequentialEngine(problem).train(pool, [job], Recipe(epochs=2), lr=0.1).rows.shape
        torch.Size([1, 8])
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
class LoopResult:
    """What the user's own training loop returned for a seat.

    Attributes:
        metrics: numbers by name.
        samples: the number of samples on which the loop trained. None: all of the seat's.
        refused: why the seat is refused. None: it is accepted.
    """

    metrics: Mapping[str, float] = field(default_factory=dict)
    samples: int | None = None
    refused: str | None = None


@dataclass(frozen=True)
class TrainedRows:
    """The results of training S seats.

    Attributes:
        rows: float32 ``[S, P]``, in the order of the jobs.
        loss: ``[S]``, the mean loss over the samples of the last epoch, each at its own step. NaN if training diverged,
            or the user's own loop reports none.
        steps: int64 ``[S]``, optimiser steps taken.
        said: what the user's own loop returned for each seat; empty if hanse itself trained.
    """

    rows: Tensor
    loss: NDArray[np.float64]
    steps: NDArray[np.int64]
    said: Sequence[LoopResult] = ()

    @staticmethod
    def joined(parts: Sequence[TrainedRows], order: Sequence[int]) -> TrainedRows:
        """Return the seats of one or more parts in this ``order`` of their places, of all parts one after another."""
        said, at = [one for part in parts for one in part.said], np.array(order, np.int64)
        return TrainedRows(
            torch.cat([part.rows for part in parts])[torch.from_numpy(at)],
            np.concatenate([part.loss for part in parts])[at],
            np.concatenate([part.steps for part in parts])[at],
            [said[k] for k in order] if said else (),
        )


@dataclass(frozen=True)
class ModelOutputs:
    """One model's outputs on n samples, on the CPU.

    Attributes:
        outputs: ``[k, n]``, logits or predictions.
        loss: ``[n]``, each sample's loss.
    """

    outputs: Tensor
    loss: Tensor


class Engine(Protocol):
    """Trains seats and scores models. Engines differ only in speed, not in results.

    In the methods ``rows`` are C models ``[C, P]``, and ``pool`` is the samples on which they are scored.

    Examples:
        The engine of a small experiment scores two copies of its first model on the server's validation set:

        >>> from hanse.runs.rehearsal import rehearse
        >>> session = rehearse("fedavg").session
        >>> rows = torch.stack([session.context.initial(0)] * 2)
        >>> session.engine.score(rows, session.data.server_validation).loss.shape
        (2,)
    """

    name: str

    def train(self, pool: Samples, jobs: Sequence[SeatJob], recipe: Recipe, lr: float) -> TrainedRows:
        """Train every job and return the results in the order of the jobs.

        Args:
            pool: all samples; a job's ``index`` points into them.
            jobs: one job for each seat.
            recipe: epochs or steps, batch size, optimiser and its settings.
            lr: the learning rate of this round, which overrides the recipe's.
        """
        ...

    def score(self, rows: Tensor, pool: Samples, index: Sequence[Tensor] | None = None) -> ModelScores:
        """Score each model on the whole pool, or model c on the samples ``pool[index[c]]``."""
        ...

    def score_some(self, rows: Tensor, pool: Samples, some: NDArray[np.int64]) -> ModelScores:
        """Score only the models ``rows[some]`` on the pool, where ``some [m]`` are positions.

        The scores of these models equal those of :meth:`score` on all rows bit for bit. The other scores may be NaN.
        """
        ...

    def score_each(self, rows: Tensor, pool: Samples, index: Sequence[Tensor]) -> Sequence[ModelScores]:
        """Score every model on each of several lists of samples ``pool[index[i]]``: one :class:`ModelScores` for
        each list.
        """
        ...

    def outputs(self, rows: Tensor, pool: Samples, index: Sequence[Tensor] | None = None) -> Sequence[ModelOutputs]:
        """Return each model's outputs on the pool, or model c's on the samples ``pool[index[c]]``."""
        ...

    def close(self) -> None:
        """Release threads and buffers."""
        ...


@dataclass(frozen=True)
class _Cuts:
    """How one pass over ``n`` samples is cut: batch b takes positions ``cuts[b]:cuts[b + 1]`` of a permutation."""

    n: int
    cuts: NDArray[np.int64]
    steps: int  # of the whole training, not of one pass

    @property
    def per_epoch(self) -> int:
        return len(self.cuts) - 1

    @property
    def epochs(self) -> int:
        return math.ceil(self.steps / self.per_epoch)

    @cached_property
    def slots(self) -> NDArray[np.int64]:
        """Positions ``[per_epoch, B]`` into a permutation; n, one beyond its end, where a batch is short."""
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
        size = min(recipe.batch_size or n, n)  # no batch_size: the whole of a client's samples
        per_epoch = math.ceil(n / size)
        cuts = np.minimum(np.arange(per_epoch + 1) * size, n)
        if per_epoch > 1 and cuts[-1] - cuts[-2] < smallest:
            cuts = cuts[:-1]  # an epoch's last batch is dropped if batch norm cannot use it
    per_epoch = len(cuts) - 1
    if recipe.steps is None:
        return _Cuts(n, cuts, per_epoch * (recipe.epochs if work is None else work))
    return _Cuts(n, cuts, recipe.steps if work is None else work)


def batch_plan(
    n: int, recipe: Recipe, key: tuple[int, int, int, int], work: int | None = None, smallest: int = 1, before: int = 0
) -> NDArray[np.int64]:
    """Return the batches of one seat: positions into its samples, int64 ``[steps, B]``, short batches padded with -1.

    The order comes from the stream ``(seed, "batches", round, client, start)``: one permutation for each epoch. A
    recipe whose order is not "shuffled" takes the samples in their given order.

    Args:
        n: how many samples the seat has.
        recipe: the recipe, which says how many batches there are and how large they are.
        key: ``(seed, round, client, start row)``.
        work: the epochs (or steps, if the recipe counts those) instead of the recipe's.
        smallest: the smallest batch that the model can train on (2 with batch norm). A shorter last batch of an epoch
            is left out.
        before: without shuffling, how many steps after the first batch the plan begins.

    Raises:
        ValueError: the seat has fewer than ``smallest`` samples.

    Examples:
        >>> from hanse.core.recipe import Recipe
        >>> in_order = Recipe(epochs=1, batch_size=2, order="by_class")
        >>> batch_plan(5, in_order, key=(0, 0, 0, 0)).tolist()
        [[0, 1], [2, 3], [4, -1]]
    """
    if n < smallest:
        raise ValueError(f"client {key[2]} has {quantity(n, 'sample')} to train on; at least {smallest} needed")
    cut = _cut(n, recipe, work, smallest)
    if recipe.order != "shuffled":
        at_rest = np.append(np.arange(n), -1)[cut.slots]  # slot n, where a batch is short, reads the -1
        return at_rest[(before + np.arange(cut.steps)) % cut.per_epoch]
    seed, round, client, start = key
    draw = stream(seed, "batches", round=round, client=client, start=start)
    order = np.full((cut.epochs, n + 1), -1, dtype=np.int64)  # column n stays -1: the padding of short batches
    for epoch in range(cut.epochs):
        order[epoch, :n] = draw.permutation(n)
    return order[:, cut.slots].reshape(-1, cut.slots.shape[1])[: cut.steps]


def largest_batch(n: int, recipe: Recipe) -> int:
    """Return the size of a seat's largest batch, if it has ``n`` samples."""
    return int(np.diff(_cut(n, recipe, None, 1).cuts).max())


def last_epoch(n: int, recipe: Recipe, work: int | None = None, smallest: int = 1, before: int = 0) -> int:
    """Return the step at which the last pass over the samples begins, even if that pass is not complete.

    The reported loss starts there.

    Args:
        n: how many samples the seat has.
        recipe: the recipe, which says how many batches there are and how large they are.
        work: the epochs (or steps, if the recipe counts those) instead of the recipe's.
        smallest: the smallest batch that the model can train on (2 with batch norm).
        before: without shuffling, how many steps after the first batch the plan begins.
    """
    cut = _cut(n, recipe, work, smallest)
    if recipe.order != "shuffled":
        return max(0, cut.steps - 1 - (before + cut.steps - 1) % cut.per_epoch)
    return (cut.epochs - 1) * cut.per_epoch


def plan_of(job: SeatJob, recipe: Recipe, smallest: int) -> Drawn:
    """Return a seat's batches: those of the job if it has any, else those of :func:`batch_plan`.

    Args:
        job: the seat, with the positions of its samples.
        recipe: the clients' training recipe.
        smallest: the fewest samples that the seat may have: 1, or more if batch norm needs them.

    Raises:
        ValueError: the seat has fewer than ``smallest`` samples.
    """
    if job.drawn is not None:
        return job.drawn
    n = len(job.index)
    batches = batch_plan(n, recipe, job.key, job.work, smallest, job.before)
    return Drawn(batches, last_epoch(n, recipe, job.work, smallest, job.before))


def constant_of(job: SeatJob, dtype: torch.dtype) -> Tensor | None:
    """Return the part of a seat's gradient that is the same at every step, ``tilt - mu centre`` ``[P]``, or None.

    The rest of the pull, ``mu theta``, depends on the parameters and is added at each step.
    """
    if job.tilt is None and (job.centre is None or not job.mu):
        return None
    constant = torch.zeros_like(job.start, dtype=dtype)
    if job.tilt is not None:
        constant.add_(job.tilt)
    if job.centre is not None and job.mu:
        constant.add_(job.centre.to(dtype), alpha=-job.mu)
    return constant


def pull_of(job: SeatJob, recipe: Recipe) -> float:
    """Return the multiple of the parameters in a seat's gradient at each step: weight decay and the pull's ``mu``."""
    return recipe.weight_decay + (job.mu if job.centre is not None else 0.0)


def smallest_batch(problem: Problem) -> int:
    """Return the smallest batch on which a model can train: 2 with batch norm (for its variance), else 1."""
    return 2 if any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in problem.module.modules()) else 1


def refuse_unfit(jobs: Sequence[SeatJob], recipe: Recipe, engine: str) -> None:
    """Raise ValueError for a job with a payload, or for a recipe whose optimiser is not SGD.

    Engines that support neither of these call this before training. The message names ``engine``.

    Args:
        jobs: the seats.
        recipe: the clients' training recipe.
        engine: the engine's name, for the message.
    """
    if any(job.payload is not None for job in jobs):
        raise ValueError(f"engine {engine!r} trains without payloads; use 'sequential'")
    if recipe.optimizer != "sgd":
        raise ValueError(f"engine {engine!r} takes SGD steps; use 'sequential' for {recipe.optimizer!r}")


def has_buffers(problem: Problem) -> bool:
    """Say whether the model keeps float buffers (batch-norm statistics) besides its parameters."""
    return problem.layout.size > problem.layout.num_parameters
