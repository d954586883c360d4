"""TRAIN with control variates: SCAFFOLD (Karimireddy et al. 2020)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from hanse.mechanisms.part import Context, Ints, State, TrainPart, View
from hanse.mechanisms.train.basic import chosen_seats
from hanse.table import SERVER, Seats, Table

__all__ = ["Controlled"]


@dataclass(frozen=True)
class Controlled(TrainPart):
    """SCAFFOLD's local step ``g_i(y) - c_i + c`` (Alg. 1 line 10): the tilt ``<c - c_i, theta>``.

    Rows: 0 the model x, 1 the server's control variate c, 2 + i client i's own c_i; all variates start at zero.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"clients", "variates_updated"})
    gives: ClassVar[frozenset[str]] = frozenset({"groups", "variates"})

    def table(self, context: Context) -> tuple[Table, Ints]:
        """Return rows ``[2 + N, P]``: the model, c, and the private c_i; row 0 is home of all."""
        n, x = context.num_clients, context.initial(0)
        owner = np.concatenate([[SERVER, SERVER], np.arange(n)]).astype(np.int64)
        return Table.of(torch.cat([x[None], x.new_zeros((n + 1, len(x)))]), owner), np.zeros(n, np.int64)

    def decide(self, view: View, state: State) -> Seats:
        """Seat each chosen client at the model, tilted by ``c - c_i``."""
        client = chosen_seats(view).client
        start = np.zeros(len(client), np.int64)
        L = np.zeros((len(client), view.table.size))
        L[:, 1] = 1.0
        L[np.arange(len(client)), 2 + client] = -1.0
        return Seats(client, start, start, L=L)
