"""Ditto (Li et al. 2021, Alg. 1): a shared model by FedAvg, and a private model for each client.

The private model is trained on the client's data alone, but pulled towards the shared model, and it never leaves the
client. :class:`Ditto` is the train part with both kinds of seats, and :func:`ditto` the whole mechanism.
"""

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
    """Two seats (training tasks) per client: one trains the shared model "server", the other its private model "own".

    The private model minimises ``F_i + lam/2 |theta - w|^2``, where w is the shared model as it was sent this round. A
    client's home row is the shared row that it trains. So a weigh part may split the shared model into clusters. Both
    seats do the full local work of the training recipe.

    Attributes:
        lam: strength of the pull. With 0 each private model is trained on its client's data alone.

    Examples:
        >>> from hanse.runs.rehearsal import rehearse
        >>> part, view, state = rehearse("ditto").before("train")
        >>> seats, state = part.seats(view, state)
        >>> len(seats)
        8
    """

    adds = (("pull", "lam"),)

    needs = frozenset({"clients", "penalty"})
    gives = frozenset({"groups"})
    lam: Weight = 1.0

    def blocks(self, context: Context) -> Sequence[Block]:
        """Return a private row for each client, and the shared row."""
        return Block("own", PER_CLIENT, private=True, held=True), Block("server")

    def home(self, table: Table, context: Context) -> Ints:
        """Return the shared row for every client, ``[N]``.

        The default would be a row of the first block, which is "own" here.
        """
        return np.full(context.num_clients, table.row("server"))

    def seats_each(self) -> int:
        """Return 2: a seat at the shared model, and one at the client's own."""
        return 2

    def seats(self, view: View, state: State) -> tuple[Seats, State]:
        """Return first a seat for each chosen client at its shared row, and then a seat for each at its own row."""
        shared = chosen_seats(view)
        # a client may be chosen for several shared rows, but has one private model
        clients, first = np.unique(shared.client, return_index=True)
        own = view.at("own", clients)
        start = np.concatenate([shared.start, own])
        # A shared seat is pulled to nothing, but it names a row as its centre, with weight 0. Then every seat's centre
        # is a row of the table, and none has to be computed and stored.
        centre = np.concatenate([shared.start, shared.start[first]])
        mu = np.repeat([0.0, self.lam], [len(shared), len(own)])
        client = np.concatenate([shared.client, clients])
        return Seats(client, start, start, R=units(centre, view.table.size), mu=mu), state


def ditto(clients_per_round: Seated = None, lam: Weight = 1.0) -> Mechanism:
    """Ditto (Li et al. 2021): FedAvg, plus a private model for each client, which is pulled towards the shared model.

    Args:
        clients_per_round: how many clients, drawn at random, train in a round. None: all of them.
        lam: strength of the pull.
    """
    return Mechanism("ditto", who(clients_per_round), Ditto(lam), BySamples(), deploy=OwnModel())
