"""Loss and accuracy of many models on many samples: stacked where the model allows, else one model after another."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from numpy.typing import NDArray
from torch import Tensor

from hanse.data.samples import Samples
from hanse.learning.convolutions import ConvStack, read_convolutions
from hanse.learning.forward import forward
from hanse.learning.job import Problem, Scores
from hanse.learning.local import Precision, Trainer
from hanse.learning.program import read_stack
from hanse.learning.sequences import sequence_outcomes
from hanse.learning.threads import Crew, intra_op

__all__ = ["Scorer", "ScoringEngine", "losses", "outcomes_of", "tally"]

T = TypeVar("T")

_CHUNK = 1 << 22  # activations (numbers) of a chunk: bounds memory
_GATHER = 1 << 20  # numbers of samples that are gathered for a chunk: they stay in the cache for the product
_OUTCOMES = 1 << 24  # losses of samples that are held at once
_IMAGES = 250  # samples of a chunk for convolutions, and for models that are scored one by one
_WIDE = 16  # at most so many models as channels of one wide convolution


def tally(problem: Problem, output: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return each sample's loss and whether it is right, both ``[C, m]``, of outputs ``[C, k, m]``.

    ``y`` are the labels of the m samples, or of each model's own ones in turn (regression: targets ``[.., k]``). Of
    equal outputs the first class counts, as ``argmax`` has it. For regression nothing is right.
    """
    loss = losses(problem, output, y)
    if problem.loss == "mse":
        return loss, torch.zeros_like(loss, dtype=torch.bool)
    best = output.max(1).indices  # much faster than argmax
    return loss, (best == y.reshape(-1, output.shape[2])) & torch.isfinite(loss)


def losses(problem: Problem, output: Tensor, y: Tensor) -> Tensor:
    """Return each sample's loss ``[C, m]``; see :func:`tally`."""
    if problem.loss == "mse":
        targets = y.reshape(-1, output.shape[2], output.shape[1]).transpose(1, 2)
        return (output - targets).square().mean(1)
    labels = y.reshape(-1, 1, output.shape[2]).expand(output.shape[0], 1, -1)
    return F.log_softmax(output, 1).gather(1, labels).squeeze(1).neg_()


class ScoringEngine:
    """What the engines of this process share: their ``scorer`` works on ``threads`` intra-op threads."""

    scorer: Scorer
    threads: int | None

    def score(self, rows: Tensor, pool: Samples, index: Sequence[Tensor] | None = None) -> Scores:
        """Score ``rows [C, P]`` on the pool, or model c on ``pool[index[c]]``."""
        with intra_op(self.threads):
            return self.scorer.score(rows, pool, index)

    def score_each(self, rows: Tensor, pool: Samples, index: Sequence[Tensor]) -> Sequence[Scores]:
        """Score every row of ``rows [C, P]`` on each list of samples ``pool[index[i]]``."""
        with intra_op(self.threads):
            return self.scorer.score_each(rows, pool, index)


class Scorer:
    """Scores rows of one problem; models that cannot be stacked are shared out over a crew of threads."""

    def __init__(
        self,
        problem: Problem,
        device: torch.device,
        dtype: torch.dtype = torch.float32,
        precision: Precision = "float32",
        crew: Crew | None = None,
    ) -> None:
        self.problem, self.device, self.dtype, self.precision = problem, device, dtype, precision
        self.specs = read_stack(problem)
        self.convolutions = read_convolutions(problem) if self.specs is None and precision == "float32" else None
        self.crew = crew or Crew(1)
        self._trainers: list[Trainer] = []

    def score(self, rows: Tensor, pool: Samples, index: Sequence[Tensor] | None = None) -> Scores:
        """Score ``rows [C, P]`` on the whole pool, or model c on ``pool[index[c]]``; NaN where there are no samples.

        Raises ValueError if ``index`` does not have one entry a model.
        """
        models = rows.shape[0]
        if index is not None and len(index) != models:
            raise ValueError(f"{models} models, but {len(index)} lists of samples")
        count = np.array([len(pool)] * models if index is None else [len(i) for i in index], dtype=np.int64)
        loss, squares, right = np.zeros(models), np.zeros(models), np.zeros(models)
        for which, losses, rights in self.outcomes(rows, pool, index):
            loss[which] += losses.sum(1, dtype=torch.float64).cpu().numpy()
            squares[which] += losses.double().square().sum(1).cpu().numpy()
            right[which] += rights.sum(1).cpu().numpy()
        with np.errstate(invalid="ignore", divide="ignore"):
            mean = np.where(count > 0, loss / np.maximum(count, 1), np.nan)
            share = np.where(count > 0, right / np.maximum(count, 1), np.nan)
            variance = np.maximum(squares / count - mean**2, 0.0) * count / (count - 1.0)
            error = np.where(count > 1, np.sqrt(variance / count), np.nan)
        if self.problem.loss == "mse":
            share = np.full(models, np.nan)
        return Scores(mean, share, count, error)

    def score_each(self, rows: Tensor, pool: Samples, index: Sequence[Tensor]) -> list[Scores]:
        """Score every row of ``rows [C, P]`` on each list of samples ``pool[index[i]]``: one :class:`Scores` a list.

        The lists are joined, so that many short ones cost as much as one long one; their sums are taken list by list.
        """
        models, counts = rows.shape[0], np.array([len(i) for i in index], dtype=np.int64)
        loss, accuracy = np.full((len(index), models), np.nan), np.full((len(index), models), np.nan)
        for part in _groups(counts, max(1, _OUTCOMES // max(1, models))):
            starts = np.concatenate([[0], np.cumsum(counts[part])[:-1]])
            joined = torch.cat([index[i] for i in part]).to(pool.x.device)
            losses, rights = np.empty((models, len(joined))), np.empty((models, len(joined)))
            done = [0] * models
            for which, found, right in self.outcomes(rows, pool, joined):
                span = slice(done[which[0]], done[which[0]] + found.shape[1])
                losses[which, span], rights[which, span] = found.cpu().numpy(), right.cpu().numpy()
                for c in which:
                    done[c] = span.stop
            size = counts[part][:, None]
            loss[part] = np.add.reduceat(losses, starts, axis=1).T / size
            if self.problem.loss != "mse":
                accuracy[part] = np.add.reduceat(rights, starts, axis=1).T / size
        return [Scores(loss[i], accuracy[i], np.full(models, n)) for i, n in enumerate(counts.tolist())]

    def outcomes(
        self, rows: Tensor, pool: Samples, index: Sequence[Tensor] | Tensor | None
    ) -> Iterator[tuple[list[int], Tensor, Tensor]]:
        """Yield, chunk by chunk, models' positions, their samples' losses and right answers ``[C', m]``.

        ``index``: all samples of the pool (None), the same ones for all models (a tensor), or a list for each model.
        """
        rows = rows.to(device=self.device, dtype=self.dtype)
        with torch.no_grad():
            if index is None or isinstance(index, Tensor):
                if self.convolutions is not None and len(rows) > 1:
                    yield from self._wide(self.convolutions, rows, pool, index)
                elif self.specs is None:
                    yield from self._one_by_one(rows, pool, None if index is None else [index] * len(rows))
                else:
                    yield from self._stacked(rows, pool, index)
            elif self.specs is None:
                yield from self._one_by_one(rows, pool, index)
            else:
                yield from self._ragged(rows, pool, index)

    def _blocks(self, rows: Tensor) -> dict[str, Tensor]:
        return self.problem.layout.unflatten(rows)

    def _targets(self, y: Tensor) -> Tensor:
        return y.to(device=self.device, dtype=self.dtype if y.is_floating_point() else None)

    def _inputs(self, x: Tensor) -> Tensor:
        return x.reshape(len(x), -1).to(device=self.device, dtype=self.dtype)

    def _dealt(
        self, work: Sequence[T], one: Callable[[T], tuple[list[int], Tensor, Tensor]]
    ) -> Iterator[tuple[list[int], Tensor, Tensor]]:
        """Share the work out over the crew; yield the results in the order of the work."""
        done: list[tuple[list[int], Tensor, Tensor] | None] = [None] * len(work)

        def run(worker: int, place: int) -> None:
            with torch.no_grad():  # a setting of each thread
                done[place] = one(work[place])

        self.crew.deal(run, range(len(work)))
        for found in done:
            assert found is not None
            yield found

    def _stacked(self, rows: Tensor, pool: Samples, taken: Tensor | None) -> Iterator[tuple[list[int], Tensor, Tensor]]:
        """Models together on the same samples, those of ``taken`` or all, in chunks of models and of samples."""
        assert self.specs is not None
        specs = self.specs
        widest = max(spec.outputs for spec in specs)
        models = max(1, min(len(rows), _CHUNK // (256 * widest)))
        count = len(pool) if taken is None else len(taken)
        step = max(256, min(_CHUNK // (models * widest), -(-count // self.crew.workers)))
        if taken is not None:
            step = min(step, max(256, _GATHER // specs[0].inputs))
        parts = [rows[first : first + models] for first in range(0, len(rows), models)]
        blocks = [self._blocks(part) for part in parts]

        def one(place: tuple[int, int]) -> tuple[list[int], Tensor, Tensor]:
            p, a = place
            part = self._some(pool, taken, a, step)
            output = forward(specs, blocks[p], self._inputs(part.x))
            which = list(range(p * models, p * models + len(parts[p])))
            return which, *tally(self.problem, output, self._targets(part.y))

        yield from self._dealt([(p, a) for p in range(len(parts)) for a in range(0, count, step)], one)

    def _wide(
        self, stack: ConvStack, rows: Tensor, pool: Samples, taken: Tensor | None
    ) -> Iterator[tuple[list[int], Tensor, Tensor]]:
        """Models as the channels of wide convolutions, on the same samples: those of ``taken`` or all."""
        parts = [rows[first : first + _WIDE] for first in range(0, len(rows), _WIDE)]
        blocks = [self._blocks(part) for part in parts]

        def one(place: tuple[int, int]) -> tuple[list[int], Tensor, Tensor]:
            p, a = place
            part = self._some(pool, taken, a, _IMAGES)
            output = stack.forward(blocks[p], part.x.to(device=self.device, dtype=self.dtype))
            which = list(range(p * _WIDE, p * _WIDE + len(parts[p])))
            return which, *tally(self.problem, output, self._targets(part.y))

        count = len(pool) if taken is None else len(taken)
        yield from self._dealt([(p, a) for p in range(len(parts)) for a in range(0, count, _IMAGES)], one)

    @staticmethod
    def _some(pool: Samples, taken: Tensor | None, first: int, count: int) -> Samples:
        some = slice(first, first + count)
        return Samples(pool.x[some], pool.y[some]) if taken is None else pool.take(taken[some])

    def _ragged(
        self, rows: Tensor, pool: Samples, index: Sequence[Tensor]
    ) -> Iterator[tuple[list[int], Tensor, Tensor]]:
        """Models with their own samples: the longest lists first, cut so that all lists of a chunk go on to its end."""
        assert self.specs is not None
        specs = self.specs
        widest = max(max(spec.outputs, spec.inputs) for spec in specs)
        order = sorted((c for c in range(len(rows)) if len(index[c])), key=lambda c: -len(index[c]))
        lists = {c: index[c].to(pool.x.device) for c in order}
        work: list[tuple[list[int], int, int]] = []
        done = 0
        while order:
            length = min(len(lists[order[-1]]) - done, _CHUNK // widest)
            together = max(1, _CHUNK // (widest * length))
            work += [(order[first : first + together], done, length) for first in range(0, len(order), together)]
            done += length
            order = [c for c in order if len(lists[c]) > done]

        def one(place: tuple[list[int], int, int]) -> tuple[list[int], Tensor, Tensor]:
            members, begin, length = place
            taken = torch.cat([lists[c][begin : begin + length] for c in members])
            x = self._inputs(pool.x.index_select(0, taken)).view(len(members), length, -1)
            output = forward(specs, self._blocks(rows[members]), x)
            return members, *tally(self.problem, output, self._targets(pool.y.index_select(0, taken)))

        yield from self._dealt(work, one)

    def _one_by_one(
        self, rows: Tensor, pool: Samples, index: Sequence[Tensor] | None
    ) -> Iterator[tuple[list[int], Tensor, Tensor]]:
        """Model after model in blocks of samples, shared out over the crew; yielded in order."""
        while len(self._trainers) < self.crew.workers:
            self._trainers.append(Trainer(self.problem, self.device, self.dtype, self.precision))
        counts = [len(pool) if index is None else len(i) for i in index or rows]
        work = [(c, a) for c, count in enumerate(counts) for a in range(0, count, _IMAGES)]
        done: list[tuple[Tensor, Tensor] | None] = [None] * len(work)
        loaded = [-1] * self.crew.workers

        def one(worker: int, place: int) -> None:
            (c, a), trainer = work[place], self._trainers[worker]
            if loaded[worker] != c:
                trainer.load(rows[c])
                loaded[worker] = c
            if index is None:
                x, y = pool.x[a : a + _IMAGES], pool.y[a : a + _IMAGES]
            else:
                part = pool.take(index[c][a : a + _IMAGES].to(pool.x.device))
                x, y = part.x, part.y
            done[place] = outcomes_of(self.problem, trainer.outputs, x, self._targets(y))

        self.crew.deal(one, range(len(work)))
        for (c, _), found in zip(work, done, strict=True):
            assert found is not None
            yield [c], *found


def outcomes_of(problem: Problem, outputs: Callable[[Tensor], Tensor], x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return the loss and how right it is of each sample of one model, both ``[1, n]``; ``outputs`` runs the model.

    The problem's judge says so where it has one; texts are scored by position.
    """
    if problem.judge is not None:
        loss, right = problem.judge(outputs, x, y)
    elif problem.loss == "cross_entropy" and y.ndim == 2:
        loss, right = sequence_outcomes(outputs(x), y)
    else:
        return tally(problem, outputs(x).reshape(len(x), -1).t().unsqueeze(0), y)
    return loss.unsqueeze(0), right.unsqueeze(0)


def _groups(counts: NDArray[np.int64], most: int) -> Iterator[list[int]]:
    """Yield the positions of the lists that are not empty, in order, so that a group has about ``most`` samples."""
    group: list[int] = []
    total = 0
    for place in np.flatnonzero(counts).tolist():
        if group and total + counts[place] > most:
            yield group
            group, total = [], 0
        group.append(place)
        total += int(counts[place])
    if group:
        yield group
