"""A federation that lives: clients that come late, leave early, or whose data change."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from hanse.core.telling import Conduct
from hanse.federation.behaviour.basic import Me, OfSome

__all__ = ["Drift", "Joiner", "Leaver"]


@dataclass(frozen=True)
class Joiner(OfSome):
    """The ``clients`` are there from round ``at`` on."""

    at: Annotated[int, Field(ge=0)] = 1

    def present(self, me: Me, round: int) -> bool:
        """Return whether the client has come."""
        return me.id not in self.clients or round >= self.at

    def tells(self, num_clients: int, seed: int) -> Conduct:
        """Return who comes late."""
        return Conduct(sentence=f"Some clients join in round {self.at}.", clients=self.those(num_clients))


@dataclass(frozen=True)
class Leaver(OfSome):
    """The ``clients`` are gone from round ``at`` on."""

    at: Annotated[int, Field(ge=0)] = 1

    def present(self, me: Me, round: int) -> bool:
        """Return whether the client is still there."""
        return me.id not in self.clients or round < self.at

    def tells(self, num_clients: int, seed: int) -> Conduct:
        """Return who leaves early."""
        return Conduct(sentence=f"Some clients are gone from round {self.at} on.", clients=self.those(num_clients))


@dataclass(frozen=True)
class Drift(OfSome):
    """The ``clients`` hold a ``share`` of their train samples at a time, in the order of their classes: a window that
    moves on to the other end in ``rounds`` rounds, and then stays there.
    """

    share: Annotated[float, Field(gt=0, le=1)] = 0.5
    rounds: Annotated[int, Field(ge=1)] = 10

    def holds(self, me: Me, round: int, targets: Tensor, index: Tensor) -> Tensor:
        """Return the samples in the window. Targets that are not one number a sample keep the samples' own order."""
        if me.id not in self.clients or len(index) == 0:
            return index
        order = torch.argsort(targets[index], stable=True) if targets.ndim == 1 else torch.arange(len(index))
        width = max(1, int(self.share * len(index)))
        first = (len(index) - width) * min(round, self.rounds) // self.rounds
        return index[torch.sort(order[first : first + width]).values]

    def tells(self, num_clients: int, seed: int) -> Conduct:
        """Return whose data change."""
        told = (
            f"The data of some clients change: {100 * self.share:g} % of their samples at a time, in order of classes."
        )
        return Conduct(sentence=told, clients=self.those(num_clients))
