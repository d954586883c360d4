"""How a client trains: local SGD or another optimiser, and how much of it; what is remembered of earlier rounds."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from hanse.base.factories import Positive, Rate, Share, SomeShare, Weight
from hanse.base.pytorch import Tensor, torch
from hanse.core.table import Ints, Layout, Updates

Optimizer = Literal["sgd", "adamw", "adadelta"]
REMEMBERING = {"lr_decay_by": "last", "order": "by_class", "statistics": "own"}
"""The settings that make training depend on a client's earlier rounds, each with the value by which it does."""


@dataclass(frozen=True)
class Recipe:
    """Local training, as the ``[train]`` section of an experiment sets it for all clients.

    An epoch is one pass over a client's samples. Set one of ``batch_size`` (batches of this size, the last one
    smaller), ``batches_per_epoch`` (this number of nearly equal batches) or ``steps``. With ``steps``, ``batch_size``
    or ``batch_share`` says how large a batch is, and ``epochs`` does not count.

    The types of the fields are also bounds: a node checks a job that it is sent against them
    (:func:`hanse.base.factories.call`).

    The last three settings can make training depend on a client's earlier rounds (:class:`History`), as in
    GTFLAT's public code.

    Attributes:
        epochs: passes over a client's samples in a round.
        batch_size: samples per batch.
        batches_per_epoch: how many batches the samples are split into, instead of ``batch_size``.
        steps: how many batches in all, instead of epochs. Samples are reshuffled when they are used up.
        batch_share: used with ``steps``: each batch is a fresh random draw of this share of the samples (0 to 1), and
            of at least one sample.
        lr: the learning rate of round 0.
        momentum: the momentum of SGD, from 0 to below 1.
        weight_decay: L2 penalty: this multiple of each weight is added to its gradient. With AdamW the step itself
            shrinks the weights instead.
        lr_decay: the learning rate of a round is ``lr * lr_decay**round``.
        optimizer: "sgd", or "adamw" or "adadelta" with their own steps. These two ignore ``momentum``, start anew in
            every round, and need an engine that runs the module itself.
        rho: Adadelta's decay of its running averages.
        eps: Adadelta's epsilon.
        lr_decay_by: what the exponent of ``lr_decay`` is: the number of the "round" that is played, or of the "last"
            round in which this client trained (0 the first time).
        order: "shuffled", or "by_class": samples are sorted by class, and a client's batches continue where its last
            round stopped.
        statistics: what becomes of batch-norm statistics. "anew": each client's are the mean over the batches of its
            last pass, and they are averaged like parameters. "averaged": so are PyTorch's running statistics, which
            with few steps a round are mostly those of older models. "own": each client keeps its own, which have their
            initial values until it first trains.

    Examples:
        >>> recipe = Recipe(epochs=2, lr=0.1, lr_decay=0.5)
        >>> recipe.lr_at(1)
        0.05
    """

    epochs: Positive = 1
    batch_size: Positive | None = 10
    batches_per_epoch: Positive | None = None
    steps: Positive | None = None
    batch_share: SomeShare | None = None
    lr: Rate = 0.1
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    weight_decay: Weight = 0.0
    lr_decay: SomeShare = 1.0
    optimizer: Optimizer = "sgd"
    rho: Share = 0.9
    eps: SomeShare = 1e-6
    lr_decay_by: Literal["round", "last"] = "round"
    order: Literal["shuffled", "by_class"] = "shuffled"
    statistics: Literal["anew", "averaged", "own"] = "anew"

    @property
    def remembers(self) -> bool:
        """Whether training depends on a client's earlier rounds."""
        return any(getattr(self, name) == value for name, value in REMEMBERING.items())

    def sampling(self, samples: int, work: int | None = None) -> tuple[int, int]:
        """Return how many batches a client's samples are split into, and how many steps it takes in a round.

        Args:
            samples: how many samples the client has.
            work: epochs (or steps, if the recipe counts steps) that replace the recipe's. None: the recipe's.

        Examples:
            >>> Recipe(epochs=2, batch_size=10).sampling(25)
            (3, 6)
        """
        n = max(1, samples)
        size = min(self.batch_size or n, n)
        if self.batch_share is not None:
            size = max(1, int(n * self.batch_share))
        elif self.batches_per_epoch is not None:
            size = math.ceil(n / self.batches_per_epoch)
        batches = math.ceil(n / size)
        if self.steps is not None:
            return batches, self.steps if work is None else work
        return batches, batches * (self.epochs if work is None else work)

    def lr_at(self, round: int) -> float:
        """Return the learning rate of a round; rounds count from 0."""
        return self.lr * self.lr_decay**round


NEVER = -1  # the round of what has not happened: a client has not trained, a row was not moved


@dataclass(frozen=True)
class History:
    """How often, and when, each client has trained so far.

    Attributes:
        steps: ``[N]`` int64, the optimiser steps that each client took.
        last: ``[N]`` int64, the last round in which each client trained; -1 (``NEVER``) if it never has.
        statistics: ``[N, B]`` float32, each client's own batch-norm statistics, the float buffers at the end of a
            model's row. B is 0 if these are averaged like parameters.

    Examples:
        >>> from hanse.core.recipe import Recipe
        >>> from hanse.core.table import Layout, Seats
        >>> module = torch.nn.Linear(1, 1)
        >>> layout = Layout.of(module)
        >>> history = History.of(Recipe(lr_decay=0.9, lr_decay_by="last"), 3, layout, layout.flatten(module))
        >>> history.last
        array([-1, -1, -1])
    """

    steps: Ints
    last: Ints
    statistics: Tensor

    @staticmethod
    def of(recipe: Recipe, num_clients: int, layout: Layout, initial: Tensor) -> History:
        """Return the history before round 0, where everybody has the statistics of the ``initial`` model ``[P]``.

        Args:
            recipe: the clients' training recipe.
            num_clients: how many clients there are, N.
            layout: where each tensor of a model is in a row.
            initial: the first model, ``[P]``.
        """
        none = layout.num_parameters if recipe.statistics == "own" else layout.size
        statistics = initial[none:].repeat(num_clients, 1)
        return History(np.zeros(num_clients, np.int64), np.full(num_clients, NEVER, np.int64), statistics)

    def model(self, client: int, row: Tensor) -> Tensor:
        """Return a model as one client uses it, with the client's own statistics.

        Args:
            client: the client's id.
            row: ``[P]``, the model as the table has it.

        Returns:
            A new row ``[P]``, or ``row`` itself if clients have no statistics of their own.
        """
        kept = self.statistics.shape[1]
        return torch.cat([row[: len(row) - kept], self.statistics[client]]) if kept else row

    def after(self, round: int, updates: Updates) -> History:
        """Return the history after a round in which these updates were accepted."""
        clients = updates.seats.client
        steps, last, statistics = self.steps.copy(), self.last.copy(), self.statistics.clone()
        np.add.at(steps, clients, updates.steps)  # a client may have several seats: += would count one of them
        last[clients] = round
        if len(clients) and statistics.shape[1]:
            statistics[torch.from_numpy(clients)] = updates.rows[:, -statistics.shape[1] :]
        return History(steps, last, statistics)
