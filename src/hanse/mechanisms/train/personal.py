"""TRAIN for personal models: client i's own model is row i, whatever lies behind the first N rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from hanse.mechanisms.part import Context, Ints, State, TrainPart, View
from hanse.mechanisms.train.basic import chosen_seats
from hanse.table import SERVER, Seats, Table

__all__ = ["Ditto", "FromCentres", "SentModels", "TowardsCentres"]

Weight = Annotated[float, Field(ge=0, allow_inf_nan=False)]


def _copies(context: Context, count: int) -> Tensor:
    return context.initial(0).repeat(count, 1)


def _units(rows: Ints, size: int) -> np.ndarray:
    """Return the unit rows ``[S, size]`` of these columns."""
    found = np.zeros((len(rows), size))
    found[np.arange(len(rows)), rows] = 1.0
    return found


@dataclass(frozen=True)
class Ditto(TrainPart):
    """Ditto (Li et al. 2021, Alg. 1): two seats a client, one for the shared model and one for its own, private one.

    The private model minimises ``F_i + lam/2 |theta - w|^2``; w is the shared model as it was sent this round. Row i is
    client i's and never leaves it; the rows behind the first N are shared, and ``home`` says which of them is a
    client's, so that a weigh part may split them. Both seats do the recipe's work.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"clients", "own_handed_out"})
    gives: ClassVar[frozenset[str]] = frozenset({"groups", "own_models"})
    lam: Weight = 1.0

    def table(self, context: Context) -> tuple[Table, Ints]:
        """Return rows ``[N + 1, P]``: N private ones and a shared one, home of all."""
        n = context.num_clients
        owner = np.append(np.arange(n, dtype=np.int64), SERVER)
        return Table.of(_copies(context, n + 1), owner), np.full(n, n, np.int64)

    def decide(self, view: View, state: State) -> Seats:
        """Seat each chosen client at its shared row, then each at its own."""
        shared = chosen_seats(view)
        own, first = np.unique(shared.client, return_index=True)
        start = np.concatenate([shared.start, own])
        # a shared seat names its own start with weight 0: every centre is then a row as it lies, none a copy
        centre = np.concatenate([shared.start, shared.start[first]])
        mu = np.repeat([0.0, self.lam], [len(shared), len(own)])
        client = np.concatenate([shared.client, own])
        return Seats(client, start, start, R=_units(centre, view.table.size), mu=mu)


@dataclass(frozen=True)
class SentModels(TrainPart):
    """A row a client that it trains alone and sends to the server every round (FedFomo)."""

    needs: ClassVar[frozenset[str]] = frozenset({"clients", "rows_exchanged"})
    gives: ClassVar[frozenset[str]] = frozenset({"sent_rows"})

    def table(self, context: Context) -> tuple[Table, Ints]:
        """Return rows ``[N, P]`` that the server sees; client i's home is row i."""
        n = context.num_clients
        return Table.of(_copies(context, n)), np.arange(n, dtype=np.int64)

    def decide(self, view: View, state: State) -> Seats:
        """Seat each chosen client at its row."""
        client = chosen_seats(view).client
        return Seats.at(client, client)


@dataclass(frozen=True)
class TowardsCentres(TrainPart):
    """FedAMP (Huang et al. 2021): each client goes on with its own model, pulled by ``mu/2 |theta - u_i|^2``.

    Rows: i client i's model, N + i its centre u_i, which the weigh part makes. The server sees both.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"clients", "centres_mixed"})
    gives: ClassVar[frozenset[str]] = frozenset({"centres"})
    mu: Weight = 0.01

    def table(self, context: Context) -> tuple[Table, Ints]:
        """Return rows ``[2 N, P]``; client i's home is row i."""
        n = context.num_clients
        return Table.of(_copies(context, 2 * n)), np.arange(n, dtype=np.int64)

    def decide(self, view: View, state: State) -> Seats:
        """Seat each chosen client at its own row, pulled towards its centre."""
        client = chosen_seats(view).client
        R = _units(view.context.num_clients + client, view.table.size)
        return Seats(client, client, client, R=R, mu=np.full(len(client), self.mu))


@dataclass(frozen=True)
class FromCentres(TrainPart):
    """pFedGraph (Ye et al. 2023): each client starts from its centre a_i, with ``-lam cos(theta, a_i)`` in its
    loss; lam is ``cosine``.

    Near a_i the cosine is ``1 - |d|^2 / (2 |a_i|^2)``, d the part of ``theta - a_i`` that is orthogonal to a_i, so the
    term acts as the pull ``mu/2 |theta - a_i|^2`` with ``mu = lam / |a_i|^2``, to second order; what differs is that a
    change of length alone is pulled too. That is the form a seat can have, and the one used here. Rows: i client i's
    trained model, N + i its centre and home.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"clients", "centres_mixed"})
    gives: ClassVar[frozenset[str]] = frozenset({"centres", "own_models"})
    cosine: Weight = 0.01

    def table(self, context: Context) -> tuple[Table, Ints]:
        """Return rows ``[2 N, P]``; client i's home is row N + i."""
        n = context.num_clients
        return Table.of(_copies(context, 2 * n)), np.arange(n, 2 * n, dtype=np.int64)

    def decide(self, view: View, state: State) -> Seats:
        """Seat each chosen client at its centre; its update becomes its own row."""
        client = chosen_seats(view).client
        start = view.context.num_clients + client
        width = view.context.layout.num_parameters
        length = [float(torch.linalg.vector_norm(view.table.rows[k, :width])) for k in start.tolist()]
        squared = np.square(np.array(length, np.float64))
        mu = np.divide(self.cosine, squared, out=np.zeros(len(client)), where=squared > 0)
        return Seats(client, start, client, R=_units(start, view.table.size), mu=mu)
