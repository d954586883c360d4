"""SCAFFOLD (Karimireddy et al. 2020): one shared model; control variates correct the drift of the clients.

In Alg. 1 every client trains from x with steps along ``g_i(y) - c_i + c`` (line 10). By option II of line 12 its next
variate is ``c_i+ = c_i - c + (x - y_i) / (K eta_l)``. The server then takes ``x + eta_g mean(y_i - x)`` and ``c + 1/N
sum (c_i+ - c_i)`` (lines 16 and 17). In the table, x is the row "server", c is the row "control", and the c_i are the
private rows "own_control".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hanse.base.errors import UserError
from hanse.base.factories import Rate
from hanse.core.part import (
    Aggregate,
    AggregatePart,
    Context,
    Group,
    Mechanism,
    State,
    TrainPart,
    View,
    Weighed,
    WeighPart,
    by_slot,
)
from hanse.core.table import PER_CLIENT, Block, Floats, Ints, Replace, Seats
from hanse.mechanisms.deploy import ServerModel
from hanse.mechanisms.select import Seated, who
from hanse.mechanisms.train import chosen_seats, units

VARIATES = frozenset({"control", "own_control"})


@dataclass(frozen=True)
class Scaffold(TrainPart, AggregatePart, WeighPart):
    """SCAFFOLD, in the slots train and weigh: rows of the table are control variates, which correct the training steps.

    A client's next variate follows from the update that it sends, so the variate need not be sent as well. A client
    sends P numbers, and receives x and ``c - c_i``. With momentum, the divisor K counts how much each gradient moved
    the model (:func:`step_sum`). Another part may take the slot weigh and aggregate the model. The variates then work
    in the same way.

    Attributes:
        global_lr: the server's learning rate, eta_g.

    Examples:
        >>> from hanse.runs.rehearsal import rehearse
        >>> part, view, state = rehearse("scaffold").before("train")
        >>> seats, state = part.seats(view, state)
        >>> seats.L.shape
        (4, 6)
    """

    adds = (("tilt", ""),)

    needs = by_slot(train={"clients", "penalty", "sgd"}, weigh={"clients", "groups"})
    gives = by_slot(train={"groups"})
    fills = by_slot(train=VARIATES)
    global_lr: Rate = 1.0

    def blocks(self, context: Context) -> Sequence[Block]:
        """Return the rows for x, for c, and for the private c_i. All variates start at zero."""
        return (
            Block("server"),
            Block("control", initial="zero"),
            Block("own_control", PER_CLIENT, initial="zero", private=True),
        )

    def init(self, context: Context) -> State:
        """Return an empty state, since the variates are rows.

        Raises UserError unless the clients use SGD with one learning rate for a whole round: gradients are read from
        their steps.
        """
        if context.recipe.optimizer != "sgd":
            raise UserError(f"train.optimizer: {context.recipe.optimizer!r}: control variates need 'sgd'")
        if context.recipe.lr_decay_by != "round":
            raise UserError("train.lr_decay_by: 'last': control variates need one learning rate in a round ('round')")
        return {}

    def seats(self, view: View, state: State) -> tuple[Seats, State]:
        """Return a seat for each chosen client at the model, its gradients tilted by ``c - c_i`` (Alg. 1 line 10).

        Args:
            view: the round. The method reads ``table``, ``at``, ``home`` and ``choice``.
            state: as :meth:`init` makes it.
        """
        seats = chosen_seats(view)
        tilt = np.zeros((len(seats), view.table.size))
        tilt[:, view.at("control")] = 1.0
        tilt[np.arange(len(seats)), view.at("own_control", seats.client)] = -1.0
        return Seats(seats.client, seats.start, seats.target, L=tilt), state

    def aggregate(self, group: Group, state: State) -> Aggregate:
        """Return the weights of ``x + global_lr mean_s (U_s - x)`` (Alg. 1 lines 16, 17).

        Args:
            group: the seats that train a row. It is not used.
            state: as :meth:`init` makes it.
        """
        return Aggregate(np.full(len(group), self.global_lr / len(group)), old=1.0 - self.global_lr)

    def weigh(self, view: View, state: State) -> tuple[Weighed, State]:
        """Return the new variates (Alg. 1 lines 12 and 17).

        ``c_i' = c_i - c + (x - U_i) / h_i`` and ``c' = c + 1/N sum (c_i' - c_i)``, where h_i is the sum of a seat's
        step lengths. Both are linear in updates and rows, so they are given as weights.

        Args:
            view: the round. The method reads ``round``, ``table``, ``at`` and ``trained``.
            state: as :meth:`init` makes it.
        """
        updates, recipe, n = view.trained, view.context.recipe, view.context.num_clients
        client, x, c = updates.seats.client, updates.seats.start, view.at("control")
        own, count, size = view.at("own_control", client), len(updates), view.table.size
        h = recipe.lr_at(view.round) * step_sum(updates.steps, recipe.momentum)
        moved = h > 0  # a client that took no step says nothing about its gradient, and keeps its variate
        inverse = np.divide(1.0, h, out=np.zeros(count), where=moved)

        # c_i' - c_i in terms of the old rows; in terms of the updates it is -1/h_i at the client's own update
        change = units(x, size) * inverse[:, None]
        change[moved, c] -= 1.0
        kept = units(own, size)
        # c' in terms of the old rows: c less 1/N of it for each seat that moved, and the start rows over N h
        common = np.zeros((1, size))
        for row in np.unique(x).tolist():
            common[0, row] = inverse[x == row].sum() / n
        common[0, c] = 1.0 - np.count_nonzero(moved) / n
        variates = Replace(own, np.diag(-inverse), kept + change)
        return Weighed((variates, Replace(c, -inverse[None] / n, common))), state


def step_sum(steps: Ints, momentum: float) -> Floats:
    """Return how much the gradients of a local run count in total, ``[S]``, in units of the learning rate.

    Without momentum this is the number of steps. With momentum b, gradient k of T counts ``(1 - b^(T-k+1)) / (1 - b)``,
    because it also moves the model in all later steps.

    Args:
        steps: the number of optimiser steps of each seat, ``[S]``.
        momentum: SGD's momentum b, at least 0 and below 1.

    Examples:
        >>> step_sum(np.array([1, 2, 3]), momentum=0.0)
        array([1., 2., 3.])
        >>> step_sum(np.array([1, 2, 3]), momentum=0.5)  # of three steps: 1.75 + 1.5 + 1
        array([1.  , 2.5 , 4.25])
    """
    T = np.asarray(steps, np.float64)
    if momentum == 0:
        return T
    return np.asarray((T - momentum * (1.0 - momentum**T) / (1.0 - momentum)) / (1.0 - momentum))


def scaffold(clients_per_round: Seated = None, global_lr: Rate = 1.0) -> Mechanism:
    """SCAFFOLD (Karimireddy et al. 2020): one shared model; control variates correct the drift of the clients.

    Args:
        clients_per_round: how many clients, drawn at random, train in a round. None: all of them.
        global_lr: the server's learning rate.
    """
    part = Scaffold(global_lr)
    return Mechanism("scaffold", who(clients_per_round), part, part, deploy=ServerModel())
