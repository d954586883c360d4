"""What the loop remembers of each client's earlier training, because the settings of local training may depend on it.

Only three settings of a recipe need this (:data:`hanse.core.recipe.REMEMBERING`). The loop keeps a :class:`History` in
its state. It hands each client the client's own numbers with its training task, and updates the history after each
round.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hanse.core.recipe import Recipe
from hanse.core.table import Ints, Layout, Updates

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
        none = layout.size if recipe.statistics == "averaged" else layout.num_parameters
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
