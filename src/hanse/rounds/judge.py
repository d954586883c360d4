"""The judge: held-out data at the server that score models, and coalitions of updates."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from hanse.base.errors import UserError
from hanse.core.port import Confusion, Gradient
from hanse.core.recipe import Recipe
from hanse.core.table import SERVER, Floats
from hanse.data import Samples
from hanse.federation.answers import Share, confusion, gradient
from hanse.learning.blocks import sample_blocks
from hanse.learning.coalitions import Coalitions, Rule
from hanse.learning.job import Engine, Problem, Scores, SeatJob


@dataclass(frozen=True)
class Root:
    """Samples that the server trains on itself, by the clients' ``recipe``: no others' models are judged on them.

    What a row has become is remembered until another round, since rules ask for it again for each coalition.
    """

    samples: Samples
    engine: Engine
    recipe: Recipe
    seed: int
    _known: dict[tuple[int, int], Tensor] = field(default_factory=dict, repr=False, compare=False)

    def trained(self, row: Tensor, round: int, number: int) -> Tensor:
        """Return ``row [P]``, number ``number`` of the table, trained as in a round."""
        if any(known != round for known, _ in self._known):
            self._known.clear()
        if (round, number) not in self._known:
            job = SeatJob(torch.arange(len(self.samples)), row, (self.seed, round, SERVER, number))
            done = self.engine.train(self.samples, [job], self.recipe, self.recipe.lr_at(round))
            self._known[round, number] = done.rows[0].to(row.device)
        return self._known[round, number]


@dataclass(frozen=True)
class Judge:
    """Held-out data that score models: the server's validation set (None: it holds none), and an engine to score on.

    ``root`` is what the server trains on, if it has that.
    """

    problem: Problem
    engine: Engine
    validation: Samples | None
    workers: int
    num_classes: int | None = None
    root: Root | None = None

    def trained(self, row: Tensor, round: int, number: int) -> Tensor:
        """Return ``row [P]``, number ``number`` of the table, trained on the root set as clients train in a round."""
        if self.root is None:
            raise RuntimeError("the server holds no root set; the part should have named it in its needs")
        return self.root.trained(row, round, number)

    def score(self, rows: Tensor) -> Scores:
        """Score ``rows [C, P]`` on the validation set."""
        return self.engine.score(rows, self._samples())

    def gradient(self, rows: Tensor) -> Tensor:
        """Return the mean loss gradient ``[C, P]`` of ``rows [C, P]`` on the validation set; zero for buffers."""
        return self._gradient(rows, torch.arange(len(self._samples())))

    def gradients_without_block(self, rows: Tensor) -> Tensor:
        """Return the mean loss gradients ``[B, P]`` of one row ``[1, P]`` without each block of the validation set in
        turn (see :func:`hanse.learning.blocks.sample_blocks`); zero for buffers.
        """
        count = len(self._samples())
        blocks = sample_blocks(count)
        sizes = torch.tensor([len(block) for block in blocks], dtype=rows.dtype, device=rows.device)[:, None]
        means = [self._gradient(rows, block) for block in blocks]
        sums = torch.cat([rows[:0], *means]) * sizes
        return (sums.sum(0) - sums) / (count - sizes)

    def confusion(self, rows: Tensor) -> Tensor:
        """Return how often ``rows [C, P]`` take each class (true) for each (predicted) on the validation set, ``[C,
        classes, classes]`` int64. Raises UserError for regression.
        """
        if self.num_classes is None:
            raise UserError("confusion counts on the validation set were asked for, but the targets are not classes")
        samples = self._samples()
        share = Share(samples, torch.arange(len(samples)))
        return confusion(Confusion("validation", rows), share, self.problem, self.num_classes).counts

    def class_losses(self, row: Tensor) -> Floats:
        """Return the mean loss ``[G]`` of ``row [P]`` on each class of the validation set (regression: on each tenth of
        it by target).
        """
        samples = self._samples()
        scores = self.engine.score_each(row[None], samples, by_class(self.problem, samples))
        return np.array([score.loss[0] for score in scores])

    def class_gradients(self, row: Tensor, most: int) -> Tensor:
        """Return the mean loss gradient ``[G, P]`` of ``row [P]`` on the first ``most`` validation samples of each
        class (regression: of each tenth by target); zero for buffers.
        """
        classes = by_class(self.problem, self._samples())
        return torch.cat([self._gradient(row[None], index[:most]) for index in classes])

    def coalitions(
        self,
        updates: Tensor,
        base: Tensor,
        weights: Floats,
        utility: str,
        *,
        affine: tuple[float, float] = (1.0, 0.0),
        again: Rule | None = None,
    ) -> Coalitions:
        """Return the utility of coalitions of ``updates [S, P]`` with ``weights [S]``; the empty one is ``base [P]``.
        ``affine`` and ``again`` say what is made of members otherwise (see :class:`Coalitions`).
        """
        samples, workers = self._samples(), self.workers
        return Coalitions(
            self.problem, updates, base, weights, samples, utility=utility, workers=workers, affine=affine, again=again
        )

    def _gradient(self, rows: Tensor, index: Tensor) -> Tensor:
        """Return the mean loss gradient ``[C, P]`` of ``rows [C, P]`` on these samples; zero for buffers."""
        return gradient(Gradient("validation", rows), Share(self._samples(), index), self.problem).gradients

    def _samples(self) -> Samples:
        if self.validation is None:
            raise RuntimeError("the server holds no validation set; the part should have named it in its needs")
        return self.validation


def by_class(problem: Problem, samples: Samples) -> list[Tensor]:
    """Return the positions of each class's samples, of the classes that there are; for regression, of each tenth of
    the samples by their (mean) target; for texts, which have many classes each, of each tenth in their order.
    """
    if samples.y.ndim == 2 and not problem.regression:
        return [part for part in torch.arange(len(samples)).tensor_split(10) if len(part)]
    if problem.regression:
        order = samples.y.reshape(len(samples), -1).mean(1).argsort(stable=True)
        return [part.sort().values for part in order.tensor_split(10) if len(part)]
    order = samples.y.argsort(stable=True)
    return [part for part in torch.split(order, torch.bincount(samples.y).tolist()) if len(part)]
