"""What coalitions of clients are worth: many averaged models evaluated at once.

A coalition's model is the weighted mean of its members' updates. Three ways to get at its outputs, the first that fits:

* the model begins with a linear layer: that layer's outputs are linear in its weights, so they are computed once an
  update and *mixed* for every coalition instead of being computed anew (one product ``[C, S] x [S, h n]``);
* the model begins with narrow convolutions: several coalitions run as the channels of one wide convolution;
* otherwise the mixed models are scored one after another.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Literal, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hanse.base.errors import UserError, nearest
from hanse.base.streams import stream
from hanse.data.samples import Samples
from hanse.learning.convolutions import ConvStack, read_convolutions
from hanse.learning.forward import forward, through
from hanse.learning.job import Problem
from hanse.learning.program import read_stack
from hanse.learning.scoring import Scorer, losses, tally
from hanse.learning.threads import shared_crew

__all__ = ["Coalitions", "UtilityName", "sample_blocks"]

UtilityName = Literal["loss", "accuracy", "balanced"]
# which coalitions, what is added to their utilities, and to those with a block of samples left out
Outcome = tuple[slice, Tensor, Tensor]
T = TypeVar("T")
R = TypeVar("R")

_KEEP = 1 << 27  # numbers: first-layer outputs of all updates are kept up to this, else computed anew in every call
_BLOCK = 1 << 19  # numbers: first-layer outputs of a chunk of coalitions on a block of samples
_TOGETHER = 16  # coalitions of a chunk
_WIDE = 24  # at most so many coalitions as channels of one wide convolution
_IMAGES = 250  # images of a block
BLOCKS = 20  # of samples, for the error that comes from their draw
_WORST = -1e9  # the utility of a model whose loss is not finite: games need finite numbers


class Coalitions:
    """The game of ``updates [S, P]`` with ``weights [S]`` on some samples; a utility for :mod:`hanse.games`.

    Coalition C's model is ``sum_C q_i U_i / sum_C q_i``, the plain mean if its weights sum to 0, and ``base [P]`` if it
    is empty. ``utility`` is "loss" (minus the mean loss), "accuracy", or "balanced" (minus the mean over the classes of
    each class's mean loss). ``workers`` threads share the work (default: PyTorch's intra-op setting); the last bits of
    a utility depend on their number. ``evaluated`` counts the models evaluated; nothing is memoised here.
    ``without_block [evaluated, B]`` has, in the order of evaluation, what their utilities are with one of B blocks of
    the samples left out at a time: 20 blocks, or one a sample if there are fewer.

    Raises UserError for an unknown utility, one that regression does not have, or no samples.
    """

    def __init__(
        self,
        problem: Problem,
        updates: Tensor,
        base: Tensor,
        weights: Sequence[float] | NDArray[np.float64] | Tensor,
        samples: Samples,
        *,
        utility: str = "loss",
        workers: int | None = None,
    ) -> None:
        self.problem, self.utility = problem, utility
        self.device = updates.device
        rows = torch.cat([updates, base.to(updates).unsqueeze(0)])
        finite = torch.isfinite(rows).all(1)
        # a row that is not finite must spoil its own coalitions only, and 0 x NaN is NaN
        self.rows = torch.where(finite.unsqueeze(1), rows, torch.zeros_like(rows))
        self.spoilt = torch.nonzero(~finite).view(-1).tolist()
        self.shares = np.maximum(np.asarray(weights, dtype=np.float64), 0.0)
        self.samples = Samples(samples.x.to(self.device), samples.y.to(self.device))
        sign = 1.0 if utility == "accuracy" else -1.0  # the less loss the better
        self.sample_weights = sign * _sample_weights(problem, self.samples.y, utility)
        self.block_weights = sign * _block_weights(self.samples.y, utility)
        self._without: list[NDArray[np.float64]] = []
        self.evaluated = 0
        self.specs = read_stack(problem)
        self.mixes = self.specs is not None and self.specs[0].kind == "linear"
        if self.specs is not None and self.mixes:  # its tensors are a row's first columns
            self.head = self.specs[0].outputs * (self.specs[0].inputs + self.specs[0].bias)
        self.convolutions = None if self.specs is not None else read_convolutions(problem)
        self.crew = shared_crew((workers or torch.get_num_threads()) if self.device.type == "cpu" else 1)
        self.scorer = Scorer(problem, self.device, crew=self.crew)
        self._first: dict[int, Tensor] = {}
        if len(self.shares) != len(updates):
            raise ValueError(f"{len(updates)} updates, but {len(self.shares)} weights")

    @property
    def players(self) -> int:
        """The number of updates, S."""
        return len(self.shares)

    @property
    def without_block(self) -> NDArray[np.float64]:
        """Utilities with a block left out, ``[evaluated, B]``; see the class."""
        none = np.zeros((0, self.block_weights.shape[1]))
        return np.concatenate([none, *self._without])

    def __call__(self, coalition: frozenset[int]) -> float:
        """Return the utility of one coalition; higher is better."""
        return self.many([coalition])[0]

    def many(self, coalitions: Sequence[frozenset[int]]) -> list[float]:
        """Return the utility of each coalition, in order. Raises ValueError for a player that does not exist."""
        if not coalitions:
            return []
        shares = torch.from_numpy(self._mixtures(coalitions)).to(device=self.device, dtype=self.rows.dtype)
        worth = torch.zeros(len(coalitions), dtype=torch.float64, device=self.device)
        without = torch.zeros(len(coalitions), self.block_weights.shape[1], dtype=torch.float64, device=self.device)
        with torch.no_grad():
            if self.mixes:
                outcomes = self._mixed_outputs(shares)
            elif self.convolutions is not None:
                outcomes = self._wide(shares, self.convolutions)
            else:
                outcomes = self._one_by_one(shares)
            for part, value, blocks in outcomes:
                worth[part] += value
                without[part] += blocks
        self.evaluated += len(coalitions)
        bad = (shares[:, self.spoilt] != 0).any(1) | ~torch.isfinite(worth)
        worth[bad], without[bad] = _WORST, _WORST
        self._without.append(without.cpu().numpy())
        values: list[float] = worth.tolist()
        return values

    def _mixtures(self, coalitions: Sequence[frozenset[int]]) -> NDArray[np.float64]:
        """Return each coalition's mixture of ``[updates; base]``, ``[C, S + 1]``, rows summing to 1."""
        table = np.zeros((len(coalitions), self.players + 1))
        for c, coalition in enumerate(coalitions):
            members = sorted(coalition)
            if members and not 0 <= members[0] <= members[-1] < self.players:
                raise ValueError(f"coalition {members} names a player outside 0..{self.players - 1}")
            shares = self.shares[members]
            total = shares.sum()
            table[c, members or [-1]] = shares / total if total > 0 else 1.0 / max(1, len(members))
        return table

    def _value(self, begin: int, output: Tensor) -> tuple[Tensor, Tensor]:
        """Return what outputs ``[C', k, m]`` for the samples from ``begin`` on add to the utilities."""
        y = self.samples.y[begin : begin + output.shape[2]]
        if self.utility == "accuracy":
            return self._weighed(begin, tally(self.problem, output, y)[1])
        return self._weighed(begin, losses(self.problem, output, y))

    def _weighed(self, begin: int, outcomes: Tensor) -> tuple[Tensor, Tensor]:
        """Return what outcomes ``[C', m]`` (losses, or right answers) of the samples from ``begin`` on add to the
        utilities ``[C']``, and to those with a block left out ``[C', B]``.
        """
        part, numbers = slice(begin, begin + outcomes.shape[1]), outcomes.double()
        return numbers @ self.sample_weights[part], numbers @ self.block_weights[part]

    def _dealt(self, work: Sequence[T], one: Callable[[T], R]) -> list[R]:
        """Share the work out over the crew; the results come in the order of the work, so sums do not vary."""
        done: dict[int, R] = {}

        def run(worker: int, place: int) -> None:
            with torch.no_grad():  # a setting of each thread
                done[place] = one(work[place])

        self.crew.deal(run, range(len(work)))
        return [done[place] for place in range(len(work))]

    def _mixed_outputs(self, shares: Tensor) -> list[Outcome]:
        """Mix the first layer's outputs, block by block of samples; the other layers run on mixed weights."""
        assert self.specs is not None
        hidden, rest = self.specs[0].outputs, self.specs[1:]
        parts = _parts(len(shares), _TOGETHER)
        mixed = [self._blocks(shares[part] @ self.rows[:, self.head :], self.head) for part in parts]
        cuts = self._sample_blocks(hidden)

        def one(place: tuple[int, int]) -> Outcome:
            b, p = place
            outputs = self._first_outputs(b, cuts[b])
            value = torch.mm(shares[parts[p]], outputs.view(len(outputs), -1)).view(-1, hidden, outputs.shape[2])
            return parts[p], *self._value(cuts[b].start, through(rest, mixed[p], value))

        if not self._first:  # before the blocks are met by several threads
            self._dealt(range(len(cuts)), lambda b: self._first_outputs(b, cuts[b]))
        return self._dealt([(b, p) for b in range(len(cuts)) for p in range(len(parts))], one)

    def _sample_blocks(self, hidden: int) -> list[slice]:
        """Return blocks of nearly equal size, small enough that a chunk of coalitions stays in the cache."""
        n = len(self.samples)
        count = max(self.crew.workers, math.ceil(n * hidden * _TOGETHER / _BLOCK))
        edges = [round(n * k / count) for k in range(count + 1)]
        return [slice(a, b) for a, b in pairwise(edges) if b > a]

    def _first_outputs(self, block: int, part: slice) -> Tensor:
        """Return the first layer's outputs ``[S + 1, h, m]`` of all rows on a block of samples, kept if small."""
        if block in self._first:
            return self._first[block]
        assert self.specs is not None
        x = self.samples.x[part].reshape(part.stop - part.start, -1).to(self.rows.dtype)
        outputs = forward(self.specs[:1], self._blocks(self.rows[:, : self.head], 0), x)
        if len(self.rows) * self.specs[0].outputs * len(self.samples) <= _KEEP:
            self._first[block] = outputs
        return outputs

    def _blocks(self, rows: Tensor, first: int) -> dict[str, Tensor]:
        """Return named views ``[C, *shape]`` of rows that hold the columns from ``first`` on, as far as they go."""
        layout, end = self.problem.layout, first + rows.shape[1]
        return {
            name: rows[:, a - first : b - first].view(-1, *shape)
            for name, shape, a, b in layout._blocks()
            if first <= a and b <= end
        }

    def _wide(self, shares: Tensor, stack: ConvStack) -> list[Outcome]:
        """Several coalitions as the channels of one wide convolution."""
        count = -(-len(shares) // _WIDE)
        edges = [round(len(shares) * k / count) for k in range(count + 1)]
        parts = [slice(a, b) for a, b in pairwise(edges)]
        blocks = [self.problem.layout.unflatten(shares[part] @ self.rows) for part in parts]

        def one(place: tuple[int, int]) -> Outcome:
            p, begin = place
            x = self.samples.x[begin : begin + _IMAGES]
            return parts[p], *self._value(begin, stack.forward(blocks[p], x))

        return self._dealt([(p, a) for p in range(len(parts)) for a in range(0, len(self.samples), _IMAGES)], one)

    def _one_by_one(self, shares: Tensor) -> list[Outcome]:
        """Mix a few models, score them, mix the next ones."""
        found: list[Outcome] = []
        for part in _parts(len(shares), _TOGETHER):
            done = [0] * (part.stop - part.start)
            for which, loss, right in self.scorer.outcomes(shares[part] @ self.rows, self.samples, None):
                added = self._weighed(done[which[0]], right if self.utility == "accuracy" else loss)
                found.append((slice(part.start + which[0], part.start + which[-1] + 1), *added))
                for c in which:
                    done[c] += loss.shape[1]
        return found


def _parts(count: int, together: int) -> list[slice]:
    return [slice(a, min(a + together, count)) for a in range(0, count, together)]


def sample_blocks(n: int) -> list[Tensor]:
    """Return the positions of ``n`` samples in 20 blocks, or one a sample if there are fewer; the blocks are drawn, so
    that the order of the samples plays no role. None of fewer than two samples.
    """
    order = torch.from_numpy(stream(0, "validation blocks").permutation(n))
    count = min(BLOCKS, n) if n > 1 else 0
    return [order[b::count] for b in range(count)]


def _block_weights(y: Tensor, utility: str) -> Tensor:
    """Return :func:`_sample_weights` with each of B blocks left out, float64 ``[n, B]``."""
    n, blocks = len(y), sample_blocks(len(y))
    kept = np.ones((n, len(blocks)))
    for b, block in enumerate(blocks):
        kept[block.numpy(), b] = 0.0
    if utility != "balanced":
        return torch.from_numpy(kept / kept.sum(axis=0)).to(y.device)
    labels = y.cpu().numpy()
    of_class = np.zeros((int(labels.max()) + 1, n))
    of_class[labels, np.arange(n)] = 1.0
    counts = of_class @ kept  # samples of each class that are left, [classes, B]
    weights = np.divide(kept, counts[labels], out=np.zeros_like(kept), where=kept > 0) / (counts > 0).sum(axis=0)
    return torch.from_numpy(weights).to(y.device)


def _sample_weights(problem: Problem, y: Tensor, utility: str) -> Tensor:
    """Return what the outcome of each sample with target ``y`` counts, float64 ``[n]``, summing to 1."""
    n = len(y)
    if utility not in ("loss", "accuracy", "balanced"):
        raise UserError(f"utility is {utility!r}{nearest(utility, ('loss', 'accuracy', 'balanced'))}")
    if problem.loss == "mse" and utility != "loss":
        raise UserError(f"utility is {utility!r}, but regression has no classes; use 'loss'")
    if n == 0:
        raise UserError("there are no validation samples to value coalitions on")
    if utility != "balanced":
        return torch.full((n,), 1 / n, dtype=torch.float64, device=y.device)
    if y.ndim > 1:
        raise UserError("utility is 'balanced', but texts have many classes each; use 'loss' or 'accuracy'")
    counts = torch.bincount(y)
    return 1.0 / (counts[y].double() * (counts > 0).sum())
