"""Ditto (Li et al. 2021, Alg. 1): a shared model by FedAvg, and a private one for each client that is pulled to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hanse.base.factories import Weight
from hanse.core.part import Context, Mechanism, State, TrainPart, View
from hanse.core.table import PER_CLIENT, Block, Ints, Seats, Table
from hanse.mechanisms.deploy import OwnModel
from hanse.mechanisms.select import Seated, who
from hanse.mechanisms.train import chosen_seats, units
from hanse.mechanisms.weigh import BySamples


@dataclass(frozen=True)
class Ditto(TrainPart):
    """Two seats a client, one for the shared model "server" and one for its own, private model "own".

    The private model minimises ``F_i + lam/2 |theta - w|^2``; w is the shared model as it was sent this round. A
    client's ``home`` says which shared row is its, so that a weigh part may split them. Both seats do the recipe's
    work.
    """

    needs = frozenset({"clients"})
    gives = frozenset({"groups"})
    pulls = True
    lam: Weight = 1.0

    def blocks(self) -> Sequence[Block]:
        """Return a private row a client, and the shared one."""
        return Block("own", PER_CLIENT, private=True, held=True), Block("server")

    def home(self, table: Table, context: Context) -> Ints:
        """Return the shared row for everybody, ``[N]``."""
        return np.full(context.num_clients, table.row("server"))

    def seats(self, view: View, state: State) -> tuple[Seats, State]:
        """Seat each chosen client at its shared row, then each at its own."""
        shared = chosen_seats(view)
        clients, first = np.unique(shared.client, return_index=True)
        own = view.at("own", clients)
        start = np.concatenate([shared.start, own])
        # a shared seat names its own start with weight 0: every centre is then a row as it lies, none a copy
        centre = np.concatenate([shared.start, shared.start[first]])
        mu = np.repeat([0.0, self.lam], [len(shared), len(own)])
        client = np.concatenate([shared.client, clients])
        return Seats(client, start, start, R=units(centre, view.table.size), mu=mu), state


def ditto(clients_per_round: Seated = None, lam: Weight = 1.0) -> Mechanism:
    """Ditto (Li et al. 2021): FedAvg, and a private model a client that is pulled to the shared one by ``lam``."""
    return Mechanism("ditto", who(clients_per_round), Ditto(lam), BySamples(), deploy=OwnModel())
