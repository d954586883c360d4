"""TRAIN for one shared model, and for a private model a client."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
import torch
from pydantic import Field

from hanse.mechanisms.part import Context, Ints, State, TrainPart, View
from hanse.table import Seats, Table

__all__ = ["OwnModels", "Proximal", "SharedModel", "chosen_seats"]


def chosen_seats(view: View) -> Seats:
    """Return a seat for each chosen client, at the row that the choice names or at its home. Raises RuntimeError before
    SELECT.
    """
    if view.choice is None:
        raise RuntimeError("no choice yet: seats were asked for before SELECT")
    clients = view.choice.clients
    start = view.home[clients] if view.choice.start is None else view.choice.start
    return Seats.at(clients, start)


@dataclass(frozen=True)
class SharedModel(TrainPart):
    """FedAvg: one row; everybody starts there and minimises its own loss."""

    gives: ClassVar[frozenset[str]] = frozenset({"groups"})

    def table(self, context: Context) -> tuple[Table, Ints]:
        """Return one server row ``[1, P]``, home of all ``[N]``."""
        return Table.of(context.initial(0)[None]), np.zeros(context.num_clients, np.int64)

    def decide(self, view: View, state: State) -> Seats:
        """Seat each chosen client at its home row."""
        return chosen_seats(view)


@dataclass(frozen=True)
class Proximal(TrainPart):
    """FedProx: as FedAvg, with the pull ``mu/2 |theta - start|^2`` (Li et al. 2020, eq. 2)."""

    gives: ClassVar[frozenset[str]] = frozenset({"groups"})
    mu: Annotated[float, Field(ge=0)] = 0.1

    def table(self, context: Context) -> tuple[Table, Ints]:
        """Return one server row ``[1, P]``, home of all ``[N]``."""
        return SharedModel().table(context)

    def decide(self, view: View, state: State) -> Seats:
        """Seat each chosen client at its home row, pulled towards it."""
        seats = chosen_seats(view)
        pull = np.zeros((len(seats), view.table.size))
        pull[np.arange(len(seats)), seats.start] = 1.0
        return Seats(seats.client, seats.start, seats.target, R=pull, mu=np.full(len(seats), self.mu))


@dataclass(frozen=True)
class OwnModels(TrainPart):
    """Local training: a private row a client, all from the same initial model."""

    needs: ClassVar[frozenset[str]] = frozenset({"clients"})
    gives: ClassVar[frozenset[str]] = frozenset({"own_rows"})

    def table(self, context: Context) -> tuple[Table, Ints]:
        """Return private rows ``[N, P]``; client i's home is row i."""
        rows = torch.stack([context.initial(0)] * context.num_clients)
        ids = np.arange(context.num_clients, dtype=np.int64)
        return Table.of(rows, ids), ids

    def decide(self, view: View, state: State) -> Seats:
        """Seat each chosen client at its own row."""
        return chosen_seats(view)
