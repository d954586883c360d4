"""The judge: scores models and coalitions of updates on the server's held-out data.

Parts reach it as ``view.judge``. Parts that value updates use :meth:`ServerJudge.score` and
:meth:`ServerJudge.coalitions`. Parts that need classes use :meth:`ServerJudge.confusion` and
:meth:`ServerJudge.class_losses`. A part that trusts the server's own training (FLTrust, for example) uses
:meth:`ServerJudge.trained`. The experiment's ``[data]`` section decides which sets the server holds. Parts declare
which ones they need, and an experiment without these is refused before round 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from hanse.base.errors import UserError
from hanse.base.pytorch import Tensor, torch
from hanse.core.part import ModelScores
from hanse.core.port import Confusion, Gradient
from hanse.core.recipe import Recipe
from hanse.core.table import SERVER, Floats
from hanse.data import Samples
from hanse.federation.answers import Share, confusion, gradient
from hanse.games.mixture import Game
from hanse.learning.coalitions import Rule, UpdateGame
from hanse.learning.intervals import sample_blocks
from hanse.learning.job import Engine, Problem, SeatJob
from hanse.learning.slopes import Slopes


@dataclass(frozen=True)
class ServerJudge:
    """The server's held-out data, and an engine that scores models on them.

    Attributes:
        problem: the model as a module, and its loss (:class:`hanse.learning.job.Problem`).
        engine: scores models, such as :class:`hanse.learning.sequential.SequentialEngine`.
        validation: the server's validation set. None: it has none, and methods that need it raise RuntimeError.
        workers: how many threads score coalitions at the same time. The last bits of a utility depend on this number.
        num_classes: the number of classes of the targets. None: regression.
        root: the samples on which the server itself trains, and on which no model is scored. None: there are none.
        device: where the rows lie.
        recipe: the clients' training recipe, by which the server trains, too.
        seed: the run's seed, on which the order of its batches depends.

    Examples:
        >>> from hanse.runs.rehearsal import rehearse
        >>> small = rehearse("greedyfed")
        >>> judge, updates, (group,) = small.view.judge, small.view.trained.rows, small.groups
        >>> judge.score(updates).loss.shape, judge.gradient(group.old[None]).shape
        ((4,), torch.Size([1, 650]))
        >>> game = judge.coalitions(updates, group.old, [0.25] * 4, "loss")
        >>> len(game.many([frozenset(), frozenset({0, 2})]))
        2
    """

    problem: Problem
    engine: Engine
    validation: Samples | None
    workers: int
    num_classes: int | None = None
    root: Samples | None = None
    device: torch.device | str = "cpu"
    recipe: Recipe = field(default_factory=Recipe)
    seed: int = 0
    _trained: dict[tuple[int, int], tuple[Tensor, Tensor]] = field(default_factory=dict, repr=False, compare=False)

    def trained(self, row: Tensor, round: int, number: int) -> Tensor:
        """Return ``row [P]``, number ``number`` of the table, trained on the root set as clients train in this
        round.

        Results are kept until the next round, since some rules need them again for each coalition.
        """
        if self.root is None:
            raise RuntimeError("the server holds no root set; the part should have named it in its needs")
        if any(known != round for known, _ in self._trained):
            self._trained.clear()
        before, after = self._trained.get((round, number), (None, row))
        if before is None or not torch.equal(before, row):  # of another state, the row may be another
            job = SeatJob(torch.arange(len(self.root)), row, (self.seed, round, SERVER, number))
            done = self.engine.train(self.root, [job], self.recipe, self.recipe.lr_at(round))
            after = done.rows[0].to(row.device)
            self._trained[round, number] = row, after
        return after

    def score(self, rows: Tensor) -> ModelScores:
        """Return loss and accuracy ``[C]`` of ``rows [C, P]`` on the validation set."""
        return self.engine.score(rows, self._samples())

    def gradient(self, rows: Tensor) -> Tensor:
        """Return the mean loss gradient ``[C, P]`` of ``rows [C, P]`` on the validation set; zero for buffers."""
        return self._gradient(rows, torch.arange(len(self._samples())))

    def gradients_without_block(self, rows: Tensor) -> Tensor:
        """Return the mean loss gradients ``[B, P]`` of one row ``[1, P]`` without each block of the validation set.

        Jackknife standard errors are made from these (:func:`hanse.learning.intervals.sample_blocks`).

        Entries of frozen parameters are zero.
        """
        shares = torch.from_numpy(self.block_shares).to(rows)[:, None]
        if len(shares) < 2:
            return rows[:0]
        parts = self.block_gradients(rows[0]) * shares
        gradients = (parts.sum(0) - parts) / (1 - shares)
        for name, column in self.problem.layout.unflatten(gradients).items():
            if name in self.problem.frozen:
                column.zero_()
        return gradients

    def block_gradients(self, row: Tensor) -> Tensor:
        """Return the mean loss gradients ``[B, P]`` of a row ``[P]`` on each block of the validation set.

        They are with respect to everything in a row, including frozen parameters and batch-norm statistics
        (:class:`hanse.learning.slopes.Slopes`).
        """
        return self._slopes(row)

    @property
    def block_shares(self) -> Floats:
        """The share of the validation samples that each block has, ``[B]``."""
        sizes = np.array([len(block) for block in self._slopes.blocks], float)
        return np.asarray(sizes / sizes.sum())

    @cached_property
    def _slopes(self) -> Slopes:
        """The slope of the loss by blocks; of fewer than two samples there is one block."""
        samples = self._samples().to(torch.device(self.device))
        blocks = sample_blocks(len(samples), samples.units)
        return Slopes(self.problem, samples, blocks or [torch.arange(len(samples))])

    def confusion(self, rows: Tensor) -> Tensor:
        """Return the confusion counts of ``rows [C, P]`` on the validation set.

        Returns:
            ``[C, classes, classes]`` int64: the true class, then the predicted one.

        Raises:
            UserError: the targets are not classes.
        """
        if self.num_classes is None:
            raise UserError("confusion counts on the validation set were asked for, but the targets are not classes")
        samples = self._samples()
        share = Share(samples, torch.arange(len(samples)))
        return confusion(Confusion("validation", rows), share, self.problem, self.num_classes).counts

    def class_losses(self, row: Tensor) -> Floats:
        """Return the mean loss ``[G]`` of ``row [P]`` on each class of the validation set (see :func:`by_class`)."""
        samples = self._samples()
        scores = self.engine.score_each(row[None], samples, by_class(self.problem, samples))
        return np.array([score.loss[0] for score in scores])

    def class_gradients(self, row: Tensor, most: int) -> Tensor:
        """Return the mean loss gradient ``[G, P]`` of ``row [P]`` on each class of the validation set (see
        :func:`by_class`).

        Args:
            row: ``[P]``. Its buffers have gradient zero.
            most: at most this many samples of each class, the first ones, are used.
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
        game: Game = "average",
        keep_outputs: bool = False,
    ) -> UpdateGame:
        """Return the utility of coalitions of updates; see :meth:`hanse.core.part.Judge.coalitions`.

        Raises:
            UserError: an unknown utility, or one that these samples do not have.
            RuntimeError: the server holds no validation set.
        """
        options: dict[str, Any] = {"workers": self.workers, "affine": affine, "again": again, "game": game}
        options["keep_outputs"] = keep_outputs
        if utility in ("loss", "balanced") and self.problem.objective is None and self.num_classes:
            options["floor"] = -math.log(self.num_classes)  # what equal chances for all classes are worth
        return UpdateGame(self.problem, updates, base, weights, self._samples(), utility=utility, **options)

    def _gradient(self, rows: Tensor, index: Tensor) -> Tensor:
        """Return the mean loss gradient ``[C, P]`` of ``rows [C, P]`` on these validation samples; zero for buffers."""
        return gradient(Gradient("validation", rows), Share(self._samples(), index), self.problem).gradients

    def _samples(self) -> Samples:
        """Return the validation set. A part that gets RuntimeError here did not name it among its needs."""
        if self.validation is None:
            raise RuntimeError("the server holds no validation set; the part should have named it in its needs")
        return self.validation


def by_class(problem: Problem, samples: Samples) -> list[Tensor]:
    """Split validation samples into G groups, and return the positions of each.

    Groups are the classes that occur. For regression, they are tenths of the samples by (mean) target. For texts, which
    have many classes per sample, they are tenths in the given order.
    """
    if samples.y.ndim == 2 and not problem.regression:
        return [part for part in torch.arange(len(samples)).tensor_split(10) if len(part)]
    if problem.regression:
        order = samples.y.reshape(len(samples), -1).mean(1).argsort(stable=True)
        return [part.sort().values for part in order.tensor_split(10) if len(part)]
    order = samples.y.argsort(stable=True)
    return [part for part in torch.split(order, torch.bincount(samples.y).tolist()) if len(part)]
