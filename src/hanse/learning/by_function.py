"""Models that only the user's function can score: an engine, a judge and a game of coalitions that call it.

hanse need not know what the models are, because the function takes a row and returns its worth. ``hanse.valued`` and
``hanse.flower.strategy`` use this for apps whose models hanse cannot run. Nothing is known of samples here. So there
are no gradients, no confusion counts, and no values computed without a block of samples.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, NoReturn, TypeVar

import numpy as np
from numpy.typing import NDArray

from hanse.base.errors import UserError
from hanse.base.pytorch import Tensor, torch
from hanse.core.part import ModelScores
from hanse.core.recipe import Recipe
from hanse.core.table import Floats, Ints, mix
from hanse.data.samples import Samples
from hanse.games.gram import inner_products
from hanse.games.jackknife import t_factor
from hanse.games.mixture import Game
from hanse.learning.coalitions import WORST, Rule, members_of, mixtures
from hanse.learning.figures import Figures, accuracy_of, loss_of, worth_of
from hanse.learning.job import ModelOutputs, SeatJob, TrainedRows

Evaluate = Callable[[Tensor], Figures]
_PROBES = 32  # random worths
_LOOKS = 4  # coalitions that are evaluated again where the first differs
Model = TypeVar("Model")


@dataclass
class FunctionEngine:
    """Scores models by a function instead of running them.

    The engine ignores the samples that it is given, since the function has its own.

    Attributes:
        evaluate: a function that gets a row ``[P]`` and returns figures by name.
        name: the engine's name.

    Examples:
        >>> engine = FunctionEngine(lambda row: {"loss": float((row**2).sum())})
        >>> engine.score(torch.ones(2, 3), Samples(torch.zeros(1, 1), torch.zeros(1, dtype=torch.int64))).loss
        array([3., 3.])
    """

    evaluate: Evaluate
    name: str = "function"

    def score(self, rows: Tensor, pool: Samples, index: Sequence[Tensor] | None = None) -> ModelScores:
        """Return the scores of ``rows [C, P]``.

        If the figures include "count", it is the number of samples, otherwise that is 1.
        """
        figures = [self.evaluate(row) for row in rows]
        loss, accuracy = [loss_of(one) for one in figures], [accuracy_of(one) for one in figures]
        count = [int(one.get("count", 1)) for one in figures]
        return ModelScores(np.array(loss), np.array(accuracy), np.array(count, np.int64))

    def score_some(self, rows: Tensor, pool: Samples, some: NDArray[np.int64]) -> ModelScores:
        """Return the scores of all ``rows [C, P]``."""
        return self.score(rows, pool)

    def score_each(self, rows: Tensor, pool: Samples, index: Sequence[Tensor]) -> Sequence[ModelScores]:
        """Return the scores of ``rows [C, P]``, the same ones for each list of samples."""
        return [self.score(rows, pool)] * len(index)

    def train(self, pool: Samples, jobs: Sequence[SeatJob], recipe: Recipe, lr: float) -> TrainedRows:
        """Raise RuntimeError: a function cannot train."""
        raise RuntimeError("models are trained elsewhere")

    def outputs(self, rows: Tensor, pool: Samples, index: Sequence[Tensor] | None = None) -> Sequence[ModelOutputs]:
        """Raise RuntimeError: a function does not return a model's outputs."""
        raise RuntimeError("a function says what a model is worth, not what it puts out")

    def close(self) -> None:
        """Do nothing: there is nothing to release."""


class FunctionCoalitions(Generic[Model]):
    """The game of some updates whose coalitions' models a function scores.

    It can be used like :class:`hanse.learning.coalitions.UpdateGame`, but has no worths without a block of samples.
    Its :attr:`for_errors` are random worths, by which :meth:`errors` finds how much it matters that the function does
    not say the same of a model twice.

    Args:
        worth: a function that returns the worth of a model; higher is better.
        make: a function that takes the positions of some players, int64 ``[m]``, and returns their model, or None if
            there is no such model.
        base: the model of the empty coalition, and of coalitions that have no model.
        weights: ``[S]``, how much each update counts; a negative weight counts as 0.
        moves: ``[S, P]``, each update's step from the base.
        again: the rule by which ``make`` aggregates each coalition. None: ``make`` takes weighted means.
    """

    def __init__(
        self,
        worth: Callable[[Model], float],
        make: Callable[[Ints], Model | None],
        base: Model,
        weights: Sequence[float] | Floats,
        moves: Tensor,
        again: Rule | None = None,
    ) -> None:
        self.again = again
        self._worth, self._make, self._base, self._moves = worth, make, base, moves
        self._nothing: float | None = None  # what the base is worth, as soon as it is known
        self.shares = np.maximum(np.asarray(weights, dtype=np.float64), 0.0)
        self.evaluated = 0
        self.floor, self.below_floor = -math.inf, 0  # what guessing gives is not known of a user's function
        self._first: dict[tuple[int, ...], float] = {}

    @property
    def players(self) -> int:
        """The number of updates, S."""
        return len(self.shares)

    @property
    def for_errors(self) -> Floats:
        """Random worths ``[evaluated, B]`` of size 1; :meth:`errors` needs the values that follow from them."""
        return np.random.default_rng(0).normal(size=(self.evaluated, _PROBES))

    def errors(self, of_random: Floats) -> Floats:
        """Return the standard errors ``[n]`` of values because the function says something else each time, enlarged
        by Student's factor for the few looks that they are from.

        The function is asked about the largest coalition once more and, if it says something else, about up to four
        coalitions more. The result is 0 where it says the same.

        Args:
            of_random: ``[n, B]``, the values of the random worths.
        """
        apart = list[float]()
        for members in [max(self._first, key=len), *list(self._first)[:_LOOKS]]:
            apart.append(self._worth_of(np.array(members, np.int64)) - self._first[members])
            if not any(apart):
                return np.zeros(len(of_random))
        size = math.sqrt(sum(one**2 for one in apart) / (2 * len(apart)))
        return np.asarray(t_factor(len(apart)) * size * np.sqrt(np.mean(of_random**2, axis=1)))

    def __call__(self, coalition: frozenset[int]) -> float:
        """Return the utility of one coalition, the more the better."""
        return self.many([coalition])[0]

    def many(self, coalitions: Sequence[frozenset[int]]) -> list[float]:
        """Return the utility of each coalition, in order.

        Raises:
            ValueError: a player that does not exist.
        """
        return [self._one(np.array(members_of(coalition, self.players), np.int64)) for coalition in coalitions]

    def update_gram(self) -> NDArray[np.float64]:
        """Return the inner products ``[S, S]`` of how each update moved the base."""
        return inner_products(self._moves)

    def output_gram(self) -> None:
        """Return None: the models' outputs are not known."""

    def _one(self, members: Ints) -> float:
        """Return the utility of some players; the base, whose worth many coalitions may share, is scored only once."""
        self.evaluated += 1
        if not len(members):
            return self._worth_of(members)
        key = tuple(members.tolist())
        if key not in self._first:
            self._first[key] = self._worth_of(members)
        return self._first[key]

    def _worth_of(self, members: Ints) -> float:
        model = self._make(members) if len(members) else None
        if model is not None:
            return self._worth(model)
        if self._nothing is None:
            self._nothing = self._worth(self._base)
        return self._nothing


def mixer(
    updates: Tensor,
    base: Tensor,
    weights: Floats,
    affine: tuple[float, float] | None = (1.0, 0.0),
    again: Rule | None = None,
) -> Callable[[Ints], Tensor]:
    """Return the function that makes the row ``[P]`` of some players, given by their positions ``[m]``.

    Args:
        updates: ``[S, P]``.
        base: ``[P]``.
        weights: ``[S]``, how much each update counts.
        affine: ``(total, old)``: the row is ``total`` times the players' weighted mean, plus ``old`` times the base.
            None for the increment game: the base plus the players' weighted steps from it.
        again: a rule that returns the row instead.
    """

    def row(members: Ints) -> Tensor:
        if again is None:
            [shares] = mixtures([frozenset(members.tolist())], weights, affine)
        else:
            said = again(members)
            if said.row is not None:
                return said.row
            assert said.weights is not None  # an aggregate has weights or a row
            shares = np.zeros(len(updates) + 1)
            shares[members], shares[-1] = said.weights, said.old
        return mix(shares[None], updates, base[None])[0]

    return row


@dataclass(frozen=True)
class FunctionJudge:
    """Scores models by the user's function instead of the server's held-out samples.

    Attributes:
        evaluate: a function that gets a row ``[P]`` and returns figures by name. None: the user supplied no function,
            and scoring is an error.
        known: as for :func:`hanse.learning.figures.worth_of`.
    """

    evaluate: Evaluate | None = None
    known: dict[str | None, str] = field(default_factory=dict)

    @property
    def engine(self) -> FunctionEngine:
        """The engine that scores rows with ``evaluate``."""
        return FunctionEngine(self._asked)

    def score(self, rows: Tensor) -> ModelScores:
        """Score ``rows [C, P]``."""
        return self.engine.score(rows, Samples(torch.zeros(0, 1), torch.zeros(0)))

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
    ) -> FunctionCoalitions[Tensor]:
        """Return the game of coalitions of some updates.

        A model is worth WORST if some of its numbers, or its worth, are not finite; the base must have a finite worth.

        Args:
            updates: ``[S, P]``.
            base: ``[P]``, the model of the empty coalition.
            weights: ``[S]``, how much each update counts.
            utility: the function's figure that counts.
            affine: as for :func:`mixer`.
            again: as for :func:`mixer`.
            game: "average", or "increment", for which ``affine`` is not used.
            keep_outputs: of no effect: a function does not say what a model puts out.
        """

        def worth(row: Tensor) -> float:
            if not bool(torch.isfinite(row).all()):
                return WORST
            found = worth_of(self._asked(row), utility, "mechanism.value.utility", self.known)
            if row is base and not math.isfinite(found):
                raise UserError(f"evaluate: returned {found} for the model that the round starts from: must be finite")
            return found if math.isfinite(found) else WORST

        given = np.asarray(weights, dtype=np.float64)
        shares = np.maximum(given, 0.0) if game == "average" else given
        make = mixer(updates, base, shares, affine if game == "average" else None, again)
        return FunctionCoalitions(worth, make, base, shares, updates - base, again)

    def _asked(self, row: Tensor) -> Figures:
        if self.evaluate is None:
            raise RuntimeError("there is no function that scores models; the part should have named it in its needs")
        return self.evaluate(row)

    def __getattr__(self, name: str) -> NoReturn:
        """Raise UserError for what only samples can tell: gradients, confusion counts, losses of classes."""
        if name.startswith("__"):
            raise AttributeError(name)
        raise UserError(
            f"evaluate: a function only says what a model is worth, but a part of the mechanism asks for its {name}"
        )
