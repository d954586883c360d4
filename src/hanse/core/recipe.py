"""How a client trains: local SGD, and how much of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Optimizer = Literal["sgd", "adamw", "adadelta"]
REMEMBERING = ("lr_decay_by", "order", "statistics")
"""The settings that make training depend on what a client did before."""


@dataclass(frozen=True)
class Recipe:
    """Local SGD: exactly one of ``batch_size`` (epochs of batches of this size, the last one smaller),
    ``batches_per_epoch`` (epochs of this number of nearly equal batches) or ``steps`` (with ``batch_size``: this many
    batches, reshuffling when the data is used up, or with ``batch_share`` each a fresh draw of this share of the
    samples, at least one). ``lr * lr_decay**round`` is round's learning rate.
    ``optimizer`` "adamw" or "adadelta" takes their steps in the place of SGD's (without ``momentum``; their moments
    start anew in every round), in the engines that run the module itself. ``rho`` and ``eps`` are Adadelta's.

    Three settings make training depend on what a client did before (:mod:`hanse.core.history`), as in GTFLAT's public
    code. ``lr_decay_by`` "last": the exponent is the last round in which this client trained (0 the first time), not
    the round that is played. ``order`` "by_class": a client's samples are not shuffled, they lie class after class, and
    its batches go on where its last round stopped. ``statistics`` "own": each client keeps its batch-norm statistics,
    as initialised until it first trains, and only parameters are averaged.
    """

    epochs: int = 1
    batch_size: int | None = 32
    batches_per_epoch: int | None = None
    steps: int | None = None
    batch_share: float | None = None
    lr: float = 0.01
    momentum: float = 0.0
    weight_decay: float = 0.0
    lr_decay: float = 1.0
    optimizer: Optimizer = "sgd"
    rho: float = 0.9
    eps: float = 1e-6
    lr_decay_by: Literal["round", "last"] = "round"
    order: Literal["shuffled", "by_class"] = "shuffled"
    statistics: Literal["averaged", "own"] = "averaged"

    @property
    def remembers(self) -> bool:
        """Whether training depends on what a client did before."""
        return bool(self.remembered)

    @property
    def remembered(self) -> list[str]:
        """The settings that make training depend on what a client did before, of those that are not the default."""
        return [name for name in REMEMBERING if getattr(self, name) != getattr(Recipe, name)]

    def lr_at(self, round: int) -> float:
        """Return the learning rate of a round (rounds count from 0)."""
        return self.lr * self.lr_decay**round
