"""TRAIN: how the model table is laid out, and what each seat minimises; here for one shared model, and for a private
model a client."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from pydantic import Field

from hanse.core.part import State, TrainPart, View
from hanse.core.table import PER_CLIENT, Block, Floats, Ints, Seats


def chosen_seats(view: View) -> Seats:
    """Return a seat for each chosen client: at the row that the choice names, or its home, and for the row that the
    choice names, or where it starts. Raises RuntimeError before SELECT.
    """
    if view.choice is None:
        raise RuntimeError("no choice yet: seats were asked for before SELECT")
    clients = view.choice.clients
    start = view.home[clients] if view.choice.start is None else view.choice.start
    target = start if view.choice.target is None else view.choice.target
    return Seats(np.asarray(clients, np.int64), np.asarray(start, np.int64), np.asarray(target, np.int64))


def units(rows: Ints, size: int) -> Floats:
    """Return the unit rows ``[S, size]`` of these columns: a pull to, or a tilt by, one row of the table each."""
    found = np.zeros((len(rows), size))
    found[np.arange(len(rows)), rows] = 1.0
    return found


@dataclass(frozen=True)
class SharedModel(TrainPart):
    """FedAvg: one row "server"; everybody starts there and minimises its own loss."""

    gives = frozenset({"groups"})

    def blocks(self) -> Sequence[Block]:
        """Return the one server row."""
        return (Block("server"),)

    def seats(self, view: View, state: State) -> tuple[Seats, State]:
        """Seat each chosen client at its home row."""
        return chosen_seats(view), state


@dataclass(frozen=True)
class Proximal(SharedModel):
    """FedProx: as FedAvg, with the pull ``mu/2 |theta - start|^2`` (Li et al. 2020, eq. 2)."""

    pulls = True
    mu: Annotated[float, Field(ge=0)] = 0.1

    def seats(self, view: View, state: State) -> tuple[Seats, State]:
        """Seat each chosen client at its home row, pulled towards it."""
        seats = chosen_seats(view)
        mu = np.full(len(seats), self.mu)
        return Seats(seats.client, seats.start, seats.target, R=units(seats.start, view.table.size), mu=mu), state


@dataclass(frozen=True)
class OwnModels(TrainPart):
    """Local training: a private row "own" a client, all from the same initial model."""

    needs = frozenset({"clients"})

    def blocks(self) -> Sequence[Block]:
        """Return a private row a client."""
        return (Block("own", PER_CLIENT, private=True),)

    def seats(self, view: View, state: State) -> tuple[Seats, State]:
        """Seat each chosen client at its own row."""
        return chosen_seats(view), state
