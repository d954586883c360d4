"""What a client's earlier training left it, for recipes that depend on it."""

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
    """Of each client: the optimiser ``steps [N]`` that it took so far, the ``last [N]`` round in which it trained
    (NEVER: none), and its own batch-norm ``statistics [N, B]``, the float buffers of a model's row (B is 0 where these
    are averaged as parameters are).
    """

    steps: Ints
    last: Ints
    statistics: Tensor

    @staticmethod
    def of(recipe: Recipe, num_clients: int, layout: Layout, initial: Tensor) -> History:
        """Return the history before round 0: everybody has the statistics of the ``initial`` model ``[P]``."""
        none = layout.size if recipe.statistics == "averaged" else layout.num_parameters
        statistics = initial[none:].repeat(num_clients, 1)
        return History(np.zeros(num_clients, np.int64), np.full(num_clients, NEVER, np.int64), statistics)

    def model(self, client: int, row: Tensor) -> Tensor:
        """Return a model ``[P]`` as ``client`` uses it, with its own statistics; the row itself if it has none."""
        kept = self.statistics.shape[1]
        return torch.cat([row[: len(row) - kept], self.statistics[client]]) if kept else row

    def after(self, round: int, updates: Updates) -> History:
        """Return the history after a round in which these updates were accepted."""
        clients = updates.seats.client
        steps, last, statistics = self.steps.copy(), self.last.copy(), self.statistics.clone()
        np.add.at(steps, clients, updates.steps)
        last[clients] = round
        if len(clients) and statistics.shape[1]:
            statistics[torch.from_numpy(clients)] = updates.rows[:, -statistics.shape[1] :]
        return History(steps, last, statistics)
