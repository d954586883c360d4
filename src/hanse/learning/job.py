"""What local training is asked to do: the recipe, one job a seat, and the order of its batches.

Every engine (stacked, sequential, processes, a remote node) takes the same jobs and the same batch plan, so that they can
be compared number by number.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hanse.data.samples import Samples
from hanse.streams import stream
from hanse.table import Layout

__all__ = ["Engine", "Problem", "Recipe", "Scores", "SeatJob", "TrainedRows", "batch_plan"]


@dataclass(frozen=True)
class Problem:
    """A model and its loss: a ``module`` used as a template (never trained in place by callers), its layout, and
    ``loss``: "cross_entropy" (y int64 ``[n]``; accuracy = share of right answers) or "mse" (y float; accuracy is NaN).
    """

    module: nn.Module
    layout: Layout
    loss: Literal["cross_entropy", "mse"] = "cross_entropy"


@dataclass(frozen=True)
class Recipe:
    """Local SGD: exactly one of ``batch_size`` (epochs of batches of this size, the last one smaller),
    ``batches_per_epoch`` (epochs of this number of nearly equal batches) or ``steps`` (with ``batch_size``: this many
    batches, reshuffling when the data is used up). ``lr * lr_decay**round`` is round's learning rate.
    """

    epochs: int = 1
    batch_size: int | None = 32
    batches_per_epoch: int | None = None
    steps: int | None = None
    lr: float = 0.01
    momentum: float = 0.0
    weight_decay: float = 0.0
    lr_decay: float = 1.0

    def lr_at(self, round: int) -> float:
        """Return the learning rate of a round (rounds count from 0)."""
        return self.lr * self.lr_decay**round


@dataclass(frozen=True)
class SeatJob:
    """One seat's training: samples ``index [n]`` (int64) into a pool, from row ``start [P]``, minimising
    ``F + mu/2 |theta - centre|^2 + <tilt, theta>`` over the parameters (not the buffers).

    ``epochs`` overrides the recipe's (stragglers). ``key`` is ``(seed, round, client, start row)`` of its random stream.
    """

    index: Tensor
    start: Tensor
    key: tuple[int, int, int, int]
    centre: Tensor | None = None
    mu: float = 0.0
    tilt: Tensor | None = None
    epochs: int | None = None


@dataclass(frozen=True)
class TrainedRows:
    """``rows [S, P]`` float32, mean training ``loss [S]`` over the last epoch's samples (NaN if it diverged), ``steps [S]``."""

    rows: Tensor
    loss: NDArray[np.float64]
    steps: NDArray[np.int64]


@dataclass(frozen=True)
class Scores:
    """Per model: mean ``loss [C]``, ``accuracy [C]`` (NaN for regression) and the number of samples ``count [C]``, float64."""

    loss: NDArray[np.float64]
    accuracy: NDArray[np.float64]
    count: NDArray[np.int64]


class Engine(Protocol):
    """Trains seats and scores models; engines differ in speed, never in what they compute."""

    name: str

    def train(self, pool: Samples, jobs: Sequence[SeatJob], recipe: Recipe, lr: float) -> TrainedRows:
        """Train every job, in order."""
        ...

    def score(self, rows: Tensor, pool: Samples, index: Sequence[Tensor] | None = None) -> Scores:
        """Score ``rows [C, P]`` on the whole pool, or model c on ``pool[index[c]]``."""
        ...

    def close(self) -> None:
        """Release worker processes and buffers."""
        ...


def batch_plan(n: int, recipe: Recipe, key: tuple[int, int, int, int], epochs: int | None = None) -> NDArray[np.int64]:
    """Return the batches of one seat, ``[steps, B]`` positions into its ``n`` samples, short batches padded with -1.

    The order comes from the stream ``(seed, "batches", round, client, start)`` of ``key``: one permutation an epoch.
    Raises ValueError for a client without samples.
    """
    if n < 1:
        raise ValueError(f"client {key[2]} has {n} samples to train on; at least 1 is needed")
    seed, round, client, start = key
    draw = stream(seed, "batches", round=round, client=client, start=start)
    if recipe.batches_per_epoch is not None:
        per_epoch = min(recipe.batches_per_epoch, n)
        cuts = np.linspace(0, n, per_epoch + 1).round().astype(np.int64)
    else:
        size = min(recipe.batch_size or n, n)
        per_epoch = math.ceil(n / size)
        cuts = np.minimum(np.arange(per_epoch + 1) * size, n)
    width = int(np.diff(cuts).max())
    slots = cuts[:-1, None] + np.arange(width)
    slots = np.where(slots < cuts[1:, None], slots, n)  # n points at the padding
    steps = recipe.steps
    rounds = epochs if epochs is not None else recipe.epochs
    if steps is not None:
        # a straggler's smaller number of epochs scales a number of steps in the same proportion
        steps = steps if epochs is None else max(1, round_half_up(steps * epochs / recipe.epochs))
        rounds = math.ceil(steps / per_epoch)
    plan = np.concatenate([np.append(draw.permutation(n), -1)[slots] for _ in range(rounds)])
    return plan if steps is None else plan[:steps]


def round_half_up(x: float) -> int:
    """Return the nearest integer, halves upwards (``round`` would go to even)."""
    return math.floor(x + 0.5)


def has_buffers(problem: Problem) -> bool:
    """Say whether the model keeps float buffers (batch-norm statistics) beside its parameters."""
    return problem.layout.size > problem.layout.num_parameters


def empty_rows(problem: Problem, count: int, device: torch.device) -> Tensor:
    """Return an uninitialised table of ``count`` rows."""
    return torch.empty((count, problem.layout.size), dtype=torch.float32, device=device)
