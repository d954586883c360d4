"""Loss and accuracy of many models on many samples.

Engines are such a :class:`Scorer`, and :mod:`hanse.learning.coalitions` has one.
Models are rows, or mixtures of rows (:class:`ModelRows`). Results come as one :class:`Chunk` at a time, with the losses
and which answers are right.

There are four ways to compute the outputs, and the first one that applies is used:

* models with different samples and stackable layers: they are stacked, and their lists of samples are cut into common
  chunks;
* mixtures of a few rows (coalitions' models) that begin with a linear layer. The outputs of this layer are linear in
  its weights, so they are computed once for each row and *mixed* for every model instead of being computed anew (one
  product ``[C, S] x [S, h n]``). If the first layer is a convolution, compiled code does the same where that is less
  arithmetic;
* models on the same samples: they are stacked or, if they begin with narrow convolutions, run as the channels of one
  wide convolution;
* otherwise one model after another.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from hanse.base.errors import gated
from hanse.base.pytorch import F, Tensor, torch
from hanse.core.part import ModelScores
from hanse.data.samples import Samples
from hanse.learning.job import ModelOutputs, Problem
from hanse.learning.local import Precision, Trainer
from hanse.learning.module_layers import forward
from hanse.learning.sequences import sequence_outcomes
from hanse.learning.threads import Crew, intra_op

# the models' positions; each sample's loss and whether it is right, [C', m], or what ``reduce`` made of them
Outcome = tuple[list[int], Tensor, Tensor]

# sizes of chunks; other sizes may give other last bits
_CHUNK = 1 << 22  # activations (numbers) of a chunk, which bounds the memory
_GATHER = 1 << 20  # numbers of the samples that are gathered for a chunk: so few stay in the cache for the product
_OUTCOMES = 1 << 24  # losses of samples that are held at once
_IMAGES = 250  # samples of a chunk for convolutions, and for models that are scored one by one
_ON_A_CARD = 1 << 24  # numbers of a chunk's samples on a card, where long operators pay
_WIDE = 24  # the most mixtures that become the channels of one wide convolution
_KEEP = 1 << 27  # numbers: up to this the first layer's outputs of mixed rows are kept, else computed for every chunk
_BLOCK = 1 << 19  # numbers: the first layer's mixed outputs of a chunk of models on a block of samples
_TOGETHER = 16  # models of a chunk: mixtures, or rows that become the channels of one wide convolution
_KEPT = 4  # sets of samples on a card: those that are trained on, and those of the tests


@cache
def _none() -> Tensor:
    """Return a single False, made once: a kernel less for each chunk."""
    return torch.zeros((), dtype=torch.bool)


@dataclass(frozen=True)
class ModelRows:
    """C models: rows ``[C, P]``, or mixtures of rows.

    Attributes:
        rows: ``[C, P]``; for mixtures ``[S, P]``, the rows from which they are mixed.
        shares: ``[C, S]``, the share of each row in each model. None: the models are the rows themselves.
        first_outputs: a cache of the mixed rows' first-layer outputs, by the first sample of a block. Mixtures that
            share it must have the same rows and pool.
        among: the total number of models, if these are a subset. It keeps the sizes of chunks, and so the bits of the
            results, equal.
    """

    rows: Tensor
    shares: Tensor | None = None
    first_outputs: dict[int, Tensor] = field(default_factory=dict)
    among: int = 0

    def __len__(self) -> int:
        return len(self.rows if self.shares is None else self.shares)

    def __getitem__(self, which: slice | list[int]) -> Tensor:
        """Return some of the models as rows ``[C', P]``."""
        return self.rows[which] if self.shares is None else self.shares[which] @ self.rows


@dataclass(frozen=True)
class Chunk:
    """One piece of a :class:`Scorer`'s results: some models on some samples.

    Attributes:
        which: the positions of the C' models.
        begin: the position of the first sample.
        loss: ``[C', m]``, each sample's loss.
        right: ``[C', m]``, whether the answer to each sample is right, or to what degree.
        outputs: ``[C', k, m]``, the models' outputs. None: the samples have no such outputs (texts, or judged samples).
    """

    which: list[int]
    begin: int
    loss: Tensor
    right: Tensor
    outputs: Tensor | None = None


class Compiled(Protocol):
    """Compiled code for models' outputs on the same samples (:mod:`hanse.learning.native.engine`)."""

    def __call__(self, rows: Tensor, x: Tensor) -> Tensor:
        """Return the outputs ``[C, k, m]`` of ``rows [C, P]`` on samples ``x [m, ...]``."""
        ...

    def pays(self, shares: Tensor) -> bool:
        """Say whether :meth:`mixed` is to be used for mixtures by ``shares [C, S]``."""
        ...

    def mixed(self, rows: Tensor, shares: Tensor, x: Tensor) -> Tensor:
        """Return the outputs ``[C, k, m]`` of mixtures of ``rows [S, P]`` by ``shares [C, S]``."""
        ...


class KeptOutputs:
    """What some models put out on samples that come in chunks, and the samples' losses."""

    def __init__(self, models: int) -> None:
        self.parts: list[dict[int, tuple[Tensor, Tensor]]] = [{} for _ in range(models)]

    def keep(self, chunk: Chunk) -> None:
        """Keep what a chunk has of its models."""
        if chunk.outputs is None:
            raise ValueError("outputs: texts and judged samples have no single output each")
        for c, output, loss in zip(chunk.which, chunk.outputs, chunk.loss, strict=True):
            self.parts[c][chunk.begin] = output.cpu(), loss.cpu()

    def of(self, model: int) -> tuple[Tensor, Tensor]:
        """Return a model's outputs ``[k, n]`` and losses ``[n]``."""
        outputs, losses = zip(*(part for _, part in sorted(self.parts[model].items())), strict=True)
        return torch.cat(outputs, 1), torch.cat(losses)


Reduce = Callable[[Chunk], tuple[Tensor, Tensor]]


def tally(problem: Problem, output: Tensor, y: Tensor, *, rights: bool = True) -> tuple[Tensor, Tensor]:
    """Return each sample's loss and whether it is right, both ``[C, m]``.

    Among equal outputs the first class counts, as in ``argmax``.

    Args:
        problem: the problem, whose loss is used.
        output: ``[C, k, m]``.
        y: the labels ``[m]`` of samples that all models share; or, if each model has samples of its own, all their
            labels ``[C m]``, one model after another. For regression, the targets ``[.., k]``.
        rights: whether it is needed which answers are right. If not, all are False, as for regression.
    """
    if problem.objective is not None:
        loss = problem.objective.of_models(output, y)
    elif problem.loss == "mse":
        targets = y.reshape(-1, output.shape[2], output.shape[1]).transpose(1, 2)
        loss = (output - targets).square().mean(1)
    else:
        labels = y.reshape(-1, 1, output.shape[2]).expand(output.shape[0], 1, -1)
        loss = F.log_softmax(output, 1).gather(1, labels).squeeze(1).neg_()
    if problem.regression or not rights:
        return loss, _none().to(loss.device).expand_as(loss)
    # max(1).indices is much faster than argmax(1)
    best = (output[:, 0] > 0).long() if problem.one_output else output.max(1).indices
    return loss, (best == y.reshape(-1, output.shape[2])) & torch.isfinite(loss)


class Resident:
    """Caches the most recent sets of samples on a device, so they are not copied every round.

    Args:
        device: where to keep them. On the CPU, samples are returned unchanged.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._kept: list[tuple[Samples, Samples]] = []

    def of(self, pool: Samples) -> Samples:
        """Return the samples on the device."""
        for given, there in self._kept:
            if given is pool:
                return there
        there = pool.to(self.device)
        if there is not pool:
            self._kept = [*self._kept[1 - _KEPT :], (pool, there)]
        return there

    def clear(self) -> None:
        """Forget the samples, so their memory can be freed."""
        self._kept = []


class Scorer:
    """Scores rows of one problem; engines in this process are scorers that train, too.

    Args:
        problem: the models and their loss (:class:`hanse.learning.job.Problem`).
        device: where models are run.
        dtype: the type of weights and outputs.
        precision: "bf16" for forward passes in bfloat16, where the module itself is run.
        crew: threads that share the work. None: only the caller's thread works.
        rights: whether right answers are counted, too.
        native: compiled code for the outputs of models on the same samples. None: PyTorch alone is used.
        threads: intra-op threads. None: PyTorch's setting is kept.

    Examples:
        >>> from hanse.core.table import Layout
        >>> module = torch.nn.Linear(3, 2)
        >>> scorer = Scorer(Problem(module, Layout.of(module)), torch.device("cpu"))
        >>> scorer.score(torch.zeros(2, 8), Samples(torch.randn(4, 3), torch.tensor([0, 1, 0, 1]))).accuracy
        array([0.5, 0.5])
    """

    def __init__(
        self,
        problem: Problem,
        device: torch.device,
        dtype: torch.dtype | None = None,
        precision: Precision = "float32",
        crew: Crew | None = None,
        rights: bool = True,
        native: Compiled | None = None,
        threads: int | None = None,
    ) -> None:
        self.problem, self.device, self.precision = problem, device, precision
        self.dtype = dtype or torch.float32
        self.threads = threads
        self.specs = problem.stack
        self.convolutions = problem.side_by_side if precision == "float32" else None
        self.crew, self.rights, self.native = crew or Crew(1), rights, native
        self._trainers: list[Trainer] = []
        self._pool = Resident(device)

    def score(self, rows: Tensor, pool: Samples, index: Sequence[Tensor] | None = None) -> ModelScores:
        """Score ``rows [C, P]`` on the whole pool, or model c on ``pool[index[c]]``. A model without samples gets NaN.

        Raises:
            ValueError: ``index`` does not have one entry for each model.
        """
        if index is not None and len(index) != len(rows):
            raise ValueError(f"{len(rows)} models, but {len(index)} lists of samples")
        return self._scores(self._as_models(rows), pool, index)

    def score_some(self, rows: Tensor, pool: Samples, some: NDArray[np.int64]) -> ModelScores:
        """Score those of ``rows [C, P]`` at the positions ``some [m]`` on the pool.

        The scores of these models equal those of :meth:`score` on all rows bit for bit, unless a product's bits depend
        on its number of rows. Other scores are NaN unless they had to be computed.
        """
        if self.convolutions is not None:  # models run side by side: their last digits depend on each other
            return self.score(rows, pool)
        stacks = self.specs is not None and self.native is None
        # a lone model is multiplied in another order than several, so a second one is scored with it
        if stacks and len(some) == 1 < len(rows):
            some = np.append(some, (some + 1) % len(rows))
        part = self._scores(self._as_models(rows[some], among=len(rows)), pool, None)
        columns = (part.loss, part.accuracy, part.loss_error)
        loss, accuracy, error = (np.full(len(rows), np.nan) for _ in columns)
        for whole, column in zip((loss, accuracy, error), columns, strict=True):
            whole[some] = column
        return ModelScores(loss, accuracy, np.full(len(rows), len(pool)), error)

    def _scores(self, given: ModelRows, pool: Samples, index: Sequence[Tensor] | None) -> ModelScores:
        """Return the models' mean losses, accuracies, counts and the standard errors of the losses."""
        models = len(given)
        count = np.array([len(pool)] * models if index is None else [len(i) for i in index], dtype=np.int64)
        loss, squares, right = np.zeros(models), np.zeros(models), np.zeros(models)
        with intra_op(self.threads):
            for which, losses, rights in self.outcomes(given, pool, index):
                loss[which] += losses.sum(1, dtype=torch.float64).cpu().numpy()
                squares[which] += losses.double().square().sum(1).cpu().numpy()
                right[which] += rights.sum(1).cpu().numpy()
        with np.errstate(invalid="ignore", divide="ignore"):
            mean = np.where(count > 0, loss / np.maximum(count, 1), np.nan)
            share = np.where(count > 0, right / np.maximum(count, 1), np.nan)
            variance = np.maximum(squares / count - mean**2, 0.0) * count / (count - 1.0)
            error = np.where(count > 1, np.sqrt(variance / count), np.nan)
        if self.problem.regression:
            share = np.full(models, np.nan)
        return ModelScores(mean, share, count, error)

    def score_each(self, rows: Tensor, pool: Samples, index: Sequence[Tensor]) -> list[ModelScores]:
        """Score all of ``rows [C, P]`` on each list of samples ``pool[index[i]]``: one :class:`ModelScores` a list.

        The lists are concatenated, so many short ones cost no more than one long one. The results are summed
        separately.
        """
        models, counts = rows.shape[0], np.array([len(i) for i in index], dtype=np.int64)
        loss, accuracy = np.full((len(index), models), np.nan), np.full((len(index), models), np.nan)
        for part in _groups(counts, max(1, _OUTCOMES // max(1, models))):
            starts = np.concatenate([[0], np.cumsum(counts[part])[:-1]])
            joined = torch.cat([index[i] for i in part]).to(pool.x.device)
            losses, rights = np.empty((models, len(joined))), np.empty((models, len(joined)))
            done = [0] * models
            with intra_op(self.threads):
                for which, found, right in self.outcomes(rows, pool, joined):
                    span = slice(done[which[0]], done[which[0]] + found.shape[1])
                    losses[which, span], rights[which, span] = found.cpu().numpy(), right.cpu().numpy()
                    for c in which:
                        done[c] = span.stop
            size = counts[part][:, None]
            loss[part] = np.add.reduceat(losses, starts, axis=1).T / size
            if not self.problem.regression:
                accuracy[part] = np.add.reduceat(rights, starts, axis=1).T / size
        return [ModelScores(loss[i], accuracy[i], np.full(models, n)) for i, n in enumerate(counts.tolist())]

    def outputs(self, rows: Tensor, pool: Samples, index: Sequence[Tensor] | None = None) -> list[ModelOutputs]:
        """Return the outputs of ``rows [C, P]`` on the pool, or of model c on ``pool[index[c]]``.

        There must be samples.

        Raises:
            ValueError: texts or judged samples, which have no single output each.
        """
        kept = KeptOutputs(len(rows))

        def keep(chunk: Chunk) -> tuple[Tensor, Tensor]:
            kept.keep(chunk)
            return chunk.loss, chunk.right

        with intra_op(self.threads):
            for _ in self.outcomes(rows, pool, index, keep):
                pass
        return [ModelOutputs(*kept.of(model)) for model in range(len(rows))]

    def close(self) -> None:
        """End the threads, and release the samples."""
        self._pool.clear()
        self.crew.close()

    def trainers(self) -> list[Trainer]:
        """Return a copy of the module for each worker, made at the first call."""
        while len(self._trainers) < self.crew.workers:
            self._trainers.append(Trainer(self.problem, self.device, self.dtype, self.precision))
        return self._trainers

    def outcomes(
        self,
        models: Tensor | ModelRows,
        pool: Samples,
        index: Sequence[Tensor] | Tensor | None = None,
        reduce: Reduce | None = None,
    ) -> Iterator[Outcome]:
        """Yield, chunk by chunk, models' positions and their samples' losses and right answers, both ``[C', m]``.

        Each model meets its samples in their order.

        Args:
            models: rows ``[C, P]``, or mixtures of rows.
            pool: the samples.
            index: which samples are used. None: all samples of the pool. A tensor of positions: these samples, for all
                models. A list: one such tensor for each model.
            reduce: a function that transforms a chunk's losses and right answers, for example into weighted sums,
                inside the threads.
        """
        reduce, pool = reduce or (lambda chunk: (chunk.loss, chunk.right)), self._pool.of(pool)
        if isinstance(models, Tensor):
            models = self._as_models(models)
        with gated("the model: fails on held-out samples"), torch.no_grad():
            if index is None or isinstance(index, Tensor):
                # a lone row of convolutions is run as the module, a lone mixture is not: its bits must not depend
                # on how many are asked for at once
                # (on a card, whose grouped convolutions are slow, it is run as the module, too)
                wide = self.convolutions is not None and self.device.type == "cpu"
                beside = wide and (len(models) > 1 or models.shares is not None)
                if self.specs is not None or beside or self._mixes_natively(models):
                    yield from self._together(models, pool, index, reduce)
                else:
                    yield from self._one_by_one(models, pool, None if index is None else [index] * len(models), reduce)
            elif self.specs is None:
                yield from self._one_by_one(models, pool, index, reduce)
            else:
                yield from self._ragged(models, pool, index, reduce)

    def _as_models(self, rows: Tensor, among: int = 0) -> ModelRows:
        return ModelRows(rows.to(device=self.device, dtype=self.dtype), among=among)

    def _blocks(self, rows: Tensor, first: int = 0) -> dict[str, Tensor]:
        """Return named views ``[C, *shape]`` of the tensors that lie whole in ``rows``.

        The rows hold a row's columns from ``first`` on, as far as they go.
        """
        end = first + rows.shape[1]
        return {
            name: rows[:, a - first : b - first].view(-1, *shape)
            for name, shape, a, b in self.problem.layout._blocks()
            if first <= a and b <= end
        }

    def _targets(self, y: Tensor) -> Tensor:
        return y.to(device=self.device, dtype=self.dtype if y.is_floating_point() else None)

    def _inputs(self, x: Tensor) -> Tensor:
        return x.reshape(len(x), -1).to(device=self.device, dtype=self.dtype)

    def _together(self, models: ModelRows, pool: Samples, taken: Tensor | None, reduce: Reduce) -> list[Outcome]:
        """Score models on the same samples, those of ``taken`` or all, in chunks of models and of samples."""
        parts, cuts = self._chunks(models, len(pool) if taken is None else len(taken), taken is not None)
        mixes = self.mixes(models)
        run = self._mixed_first(models, parts, pool, cuts, taken) if mixes else self._runner(models, parts)

        def one(_: int, place: tuple[slice, int]) -> Outcome:
            cut, p = place
            some = _some(pool, cut, taken)
            which, outputs = list(range(len(models))[parts[p]]), run(p, cut, some.x)
            found = tally(self.problem, outputs, self._targets(some.y), rights=self.rights)
            return which, *reduce(Chunk(which, cut.start, *found, outputs))

        return self.crew.map(one, [(cut, p) for cut in cuts for p in range(len(parts))])

    def _chunks(self, models: ModelRows, count: int, gathered: bool) -> tuple[list[slice], list[slice]]:
        """Return the chunks of models that are run at once, and the chunks of ``count`` samples that they are run on.

        ``gathered``: whether samples have to be collected from the pool, which is faster in smaller chunks.
        """
        if self.specs is None:
            if self._mixes_natively(models):
                return _parts(len(models), max(1, _CHUNK // self.problem.layout.size)), _parts(count, _IMAGES)
            mixtures = models.shares is not None
            parts = _even(len(models), -(-len(models) // _WIDE)) if mixtures else _parts(len(models), _TOGETHER)
            return parts, _parts(count, _IMAGES)
        if self.mixes(models):  # blocks of samples are so small that what is mixed on one stays in the cache
            hidden = self.specs[0].outputs
            blocks = max(self.crew.workers, math.ceil(count * hidden * _TOGETHER / _BLOCK))
            return _parts(len(models), _TOGETHER), _even(count, blocks)
        widest = max(spec.outputs for spec in self.specs)
        every = max(len(models), models.among)
        together = max(1, min(every if models.shares is None else _TOGETHER, every, _CHUNK // (256 * widest)))
        step = max(256, min(_CHUNK // (together * widest), -(-count // self.crew.workers)))
        if gathered:
            step = min(step, max(256, _GATHER // self.specs[0].inputs))
        return _parts(len(models), together), _parts(count, step)

    def mixes(self, models: ModelRows) -> bool:
        """Return whether these models' first-layer outputs are mixtures of the first-layer outputs of a few rows."""
        return models.shares is not None and self.specs is not None and self.specs[0].kind == "linear"

    def _mixes_natively(self, models: ModelRows) -> bool:
        """Say whether compiled code is to mix the outputs of these models' first convolution."""
        return self.native is not None and models.shares is not None and self.native.pays(models.shares)

    def _runner(self, models: ModelRows, parts: Sequence[slice]) -> Callable[[int, slice, Tensor], Tensor]:
        """Return the function that gives the outputs ``[C', k, m]`` of chunk p of the models on a chunk of samples."""
        native, shares = self.native, models.shares
        if native is not None and self.specs is not None:
            return lambda p, cut, x: native(models[parts[p]], self._inputs(x))
        if native is not None and shares is not None and self._mixes_natively(models):
            return lambda p, cut, x: native.mixed(models.rows, shares[parts[p]], x.to(self.device, self.dtype))
        blocks = [self._blocks(models[part]) for part in parts]
        if self.specs is not None:
            specs = self.specs
            return lambda p, cut, x: forward(specs, blocks[p], self._inputs(x).mT)
        assert self.convolutions is not None
        stack = self.convolutions
        return lambda p, cut, x: stack.forward(blocks[p], x.to(device=self.device, dtype=self.dtype))

    def _mixed_first(
        self, models: ModelRows, parts: Sequence[slice], pool: Samples, cuts: Sequence[slice], taken: Tensor | None
    ) -> Callable[[int, slice, Tensor], Tensor]:
        """Return such a function that mixes the first layer's outputs, block by block of samples.

        The other layers are run on mixed weights.
        """
        assert self.specs is not None
        assert models.shares is not None
        specs, shares, hidden = self.specs, models.shares, self.specs[0].outputs
        head = hidden * (specs[0].inputs + specs[0].bias)  # its tensors are a row's first columns
        mixed = [self._blocks(shares[part] @ models.rows[:, head:], head) for part in parts]
        small = len(models.rows) * hidden * len(pool) <= _KEEP

        def first(_: int, cut: slice) -> Tensor:
            """Return the first layer's outputs ``[S, h, m]`` of all rows, kept if small."""
            if cut.start in models.first_outputs:
                return models.first_outputs[cut.start]
            x = self._inputs(_some(pool, cut, taken).x)
            outputs = forward(specs[:1], self._blocks(models.rows[:, :head]), x.mT)
            if small:
                models.first_outputs[cut.start] = outputs
            return outputs

        def run(p: int, cut: slice, _: Tensor) -> Tensor:
            outputs = first(0, cut)
            value = torch.mm(shares[parts[p]], outputs.reshape(len(outputs), -1)).view(-1, hidden, outputs.shape[2])
            return forward(specs[1:], mixed[p], value)

        if small and not models.first_outputs:  # all at once: else several threads would compute the same block
            self.crew.map(first, cuts)
        return run

    def _ragged(self, models: ModelRows, pool: Samples, index: Sequence[Tensor], reduce: Reduce) -> list[Outcome]:
        """Score models on samples of their own, the longest lists first.

        Lists are cut so that all lists of a chunk go on to its end.
        """
        assert self.specs is not None
        specs = self.specs
        widest = max(max(spec.outputs, spec.inputs) for spec in specs)
        order = sorted((c for c in range(len(models)) if len(index[c])), key=lambda c: -len(index[c]))
        lists = {c: index[c].to(pool.x.device) for c in order}
        work: list[tuple[list[int], int, int]] = []
        done = 0
        while order:
            length = min(len(lists[order[-1]]) - done, _CHUNK // widest)
            together = max(1, _CHUNK // (widest * length))
            work += [(order[part], done, length) for part in _parts(len(order), together)]
            done += length
            order = [c for c in order if len(lists[c]) > done]

        def one(_: int, place: tuple[list[int], int, int]) -> Outcome:
            members, begin, length = place
            taken = torch.cat([lists[c][begin : begin + length] for c in members])
            x = self._inputs(pool.x.index_select(0, taken)).view(len(members), length, -1)
            output = forward(specs, self._blocks(models[members]), x.mT)
            found = tally(self.problem, output, self._targets(pool.y.index_select(0, taken)), rights=self.rights)
            return members, *reduce(Chunk(members, begin, *found, output))

        return self.crew.map(one, work)

    def _one_by_one(
        self, models: ModelRows, pool: Samples, index: Sequence[Tensor] | None, reduce: Reduce
    ) -> Iterator[Outcome]:
        """Score model after model in blocks of samples; of mixtures, a few rows are made at a time."""
        for part in _parts(len(models), _TOGETHER if models.shares is not None else max(1, len(models))):
            members = range(len(models))[part]
            counts = {c: len(pool if index is None else index[c]) for c in members}
            work = [(c, cut) for c in members for cut in _parts(counts[c], self._images(pool))]
            one = self._alone(models[part], members, pool, index, reduce)
            yield from self.crew.map(one, work)

    def _images(self, pool: Samples) -> int:
        """Return how many of the pool's samples go through a single model at once."""
        if self.device.type == "cpu":
            return _IMAGES
        return max(_IMAGES, _ON_A_CARD // max(1, pool.x[:1].numel()))

    def _alone(
        self, rows: Tensor, members: range, pool: Samples, index: Sequence[Tensor] | None, reduce: Reduce
    ) -> Callable[[int, tuple[int, slice]], Outcome]:
        """Return what scores one of the ``members``, whose rows these are, on a chunk of its samples."""
        loaded, trainers = [-1] * self.crew.workers, self.trainers()

        def one(worker: int, place: tuple[int, slice]) -> Outcome:
            (c, cut), trainer = place, trainers[worker]
            if loaded[worker] != c:
                trainer.load(rows[c - members.start])
                loaded[worker] = c
            some = _some(pool, cut, None if index is None else index[c])
            found = outcomes_of(self.problem, trainer.outputs, some.x, self._targets(some.y))
            return [c], *reduce(Chunk([c], cut.start, *found))

        return one


def _some(pool: Samples, cut: slice, taken: Tensor | None) -> Samples:
    """Return a chunk of the pool's samples, or of those ``taken`` from it."""
    return Samples(pool.x[cut], pool.y[cut]) if taken is None else pool.take(taken[cut].to(pool.x.device))


def _parts(count: int, together: int) -> list[slice]:
    """Cut ``count`` things into chunks of ``together``, the last one shorter."""
    return [slice(a, min(a + together, count)) for a in range(0, count, together)]


def _even(count: int, parts: int) -> list[slice]:
    """Cut ``count`` things into so many chunks of nearly equal size, none empty."""
    edges = [round(count * k / parts) for k in range(parts + 1)]
    return [slice(a, b) for a, b in pairwise(edges) if b > a]


def outcomes_of(
    problem: Problem, outputs: Callable[[Tensor], Tensor], x: Tensor, y: Tensor
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return each sample's loss, correctness and outputs for one model.

    If the problem has a judge, the judge decides. Texts are scored by position.

    Args:
        problem: the model and its loss (:class:`hanse.learning.job.Problem`).
        outputs: a function that runs the model on inputs.
        x: inputs ``[n, ...]``.
        y: labels or targets ``[n, ...]``.

    Returns:
        Three results: losses ``[1, n]``; how far each sample's answer is right, ``[1, n]``; and outputs ``[1, k, n]``,
            or None for texts and judged samples.
    """
    if problem.judge is not None:
        loss, right = problem.judge(outputs, x, y)
    elif problem.loss == "cross_entropy" and y.ndim == 2:
        loss, right = sequence_outcomes(outputs(x), y)
    else:
        flat = outputs(x).reshape(len(x), -1).t().unsqueeze(0)
        return *tally(problem, flat, y), flat
    return loss.unsqueeze(0), right.unsqueeze(0), None


def _groups(counts: NDArray[np.int64], most: int) -> Iterator[list[int]]:
    """Yield the positions of the lists that are not empty, in order, in groups of about ``most`` samples in all."""
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
