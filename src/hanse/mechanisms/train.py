"""TRAIN: the rows of the model table, and what each seat minimises.

Train parts for one shared model (:class:`SharedModel`, :class:`Proximal`) and for one private model per client
(:class:`OwnModels`). Systems with other rows have their train part in their own module. A new train part usually needs
two functions: :func:`chosen_seats` makes the seats as chosen, and :func:`units` the rows to which they are pulled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from hanse.base.factories import Weight
from hanse.core.part import Context, State, TrainPart, View
from hanse.core.table import PER_CLIENT, Block, Floats, Ints, Seats


def chosen_seats(view: View) -> Seats:
    """Return a seat for each chosen client, without pulls or tilts.

    A seat starts at the row that the choice names, or at the client's home row. Its update goes to the row that the
    choice names, or else to the row where it started.

    Raises:
        RuntimeError: no clients were chosen yet.
    """
    if view.choice is None:
        raise RuntimeError("no choice yet: seats were asked for before SELECT")
    clients = view.choice.clients
    start = view.home[clients] if view.choice.start is None else view.choice.start
    target = start if view.choice.target is None else view.choice.target
    return Seats(np.asarray(clients, np.int64), np.asarray(start, np.int64), np.asarray(target, np.int64))


def units(rows: Ints, size: int) -> Floats:
    """Return unit rows ``[S, size]``: each has a single 1, for the table row by which its seat is pulled or tilted.

    Args:
        rows: the column of the 1 in each row, ``[S]``.
        size: the number of rows of the table.
    """
    found = np.zeros((len(rows), size))
    found[np.arange(len(rows)), rows] = 1.0
    return found


@dataclass(frozen=True)
class SharedModel(TrainPart):
    """FedAvg: there is one row "server". Every client starts from it and minimises its own loss."""

    adds: ClassVar[tuple[tuple[str, str], ...]] = ()

    gives = frozenset({"groups"})
    accepts = frozenset({"sums"})

    def blocks(self, context: Context) -> Sequence[Block]:
        """Return the single row "server"."""
        return (Block("server"),)

    def seats(self, view: View, state: State) -> tuple[Seats, State]:
        """Return a seat (a training task) for each chosen client, which starts from its home row or the one chosen."""
        return chosen_seats(view), state


@dataclass(frozen=True)
class Proximal(SharedModel):
    """FedProx: like FedAvg, with the pull ``mu/2 |theta - start|^2`` in each client's loss (Li et al. 2020, eq. 2).

    Attributes:
        mu: strength of the pull.
    """

    adds = (("pull", "mu"),)

    needs = frozenset({"penalty"})
    mu: Weight = 0.1

    def seats(self, view: View, state: State) -> tuple[Seats, State]:
        """Return a seat for each chosen client, which starts from the client's home row and is pulled towards it."""
        seats = chosen_seats(view)
        mu = np.full(len(seats), self.mu)
        return Seats(seats.client, seats.start, seats.target, R=units(seats.start, view.table.size), mu=mu), state


@dataclass(frozen=True)
class OwnModels(TrainPart):
    """Local training: each client has a private row "own"; all of them start from the same initial model."""

    adds = ()

    needs = frozenset({"clients"})

    def blocks(self, context: Context) -> Sequence[Block]:
        """Return a private row for each client."""
        return (Block("own", PER_CLIENT, private=True),)

    def seats(self, view: View, state: State) -> tuple[Seats, State]:
        """Return a seat (a training task) for each chosen client, which starts from the client's own row."""
        return chosen_seats(view), state
