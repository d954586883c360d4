"""Protocols of ``view.judge``, which scores models for parts: what a part may ask it.

:class:`hanse.runs.server_judge.ServerJudge` answers from the server's held-out samples, and
:class:`hanse.learning.by_function.FunctionJudge` from a function that the user supplies, which can answer fewer
questions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Sized
from typing import Any, Protocol

from torch import Tensor

from hanse.core.table import Floats, Ints
from hanse.games.mixture import Game


class Scores(Protocol):
    """How good each of C models is: ``loss [C]`` and ``accuracy [C]``, which is NaN for regression."""

    @property
    def loss(self) -> Floats:
        """The mean losses."""

    @property
    def accuracy(self) -> Floats:
        """The shares of right answers."""


class Coalitions(Protocol):
    """The utilities of coalitions of S updates; see :class:`hanse.learning.coalitions.UpdateGame`."""

    again: Any
    evaluated: int
    floor: float
    below_floor: int
    keep_outputs: bool
    shares: Floats

    @property
    def players(self) -> int:
        """The number of updates, S."""

    @property
    def without_block(self) -> Floats:
        """The utilities with one of B blocks of the samples left out, ``[evaluated, B]``."""

    def __call__(self, coalition: frozenset[int]) -> float:
        """Return the utility of one coalition."""

    def many(self, coalitions: Sequence[frozenset[int]]) -> list[float]:
        """Return the utility of each coalition, in order."""

    def update_gram(self) -> Floats:
        """Return the inner products ``[S, S]`` of the updates' steps from the base."""

    def output_gram(self) -> Floats | None:
        """Return the inner products ``[S, S]`` of the outputs of single players' models; None if they are not known."""


class Judge(Protocol):
    """Scores models; see :class:`hanse.runs.server_judge.ServerJudge`, which documents each method."""

    @property
    def validation(self) -> Sized | None:
        """The server's validation set."""

    def trained(self, row: Tensor, round: int, number: int) -> Tensor:
        """Return ``row [P]`` trained on the root set."""

    def score(self, rows: Tensor) -> Scores:
        """Score ``rows [C, P]``."""

    def gradient(self, rows: Tensor) -> Tensor:
        """Return the mean loss gradients ``[C, P]``."""

    def gradients_without_block(self, rows: Tensor) -> Tensor:
        """Return one row's gradients without each block of samples, ``[B, P]``."""

    def block_gradients(self, row: Tensor) -> Tensor:
        """Return a row's mean loss gradient on each block of samples, ``[B, P]``."""

    @property
    def block_shares(self) -> Floats:
        """The share of the samples that each block has, ``[B]``."""

    def confusion(self, rows: Tensor) -> Tensor:
        """Return confusion counts, ``[C, classes, classes]``."""

    def class_losses(self, row: Tensor) -> Floats:
        """Return a row's mean loss on each class, ``[G]``."""

    def class_gradients(self, row: Tensor, most: int) -> Tensor:
        """Return a row's mean loss gradient on each class, ``[G, P]``."""

    def coalitions(
        self,
        updates: Tensor,
        base: Tensor,
        weights: Floats,
        utility: str,
        *,
        affine: tuple[float, float] = (1.0, 0.0),
        again: Callable[[Ints], Any] | None = None,
        game: Game = "average",
    ) -> Coalitions:
        """Return the game of coalitions of some updates."""
