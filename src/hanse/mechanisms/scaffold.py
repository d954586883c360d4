"""SCAFFOLD (Karimireddy et al. 2020): one shared model, client drift corrected by control variates.

Alg. 1: every client trains from x with the step ``g_i(y) - c_i + c`` (line 10); option II of line 12 makes its next
variate ``c_i+ = c_i - c + (x - y_i) / (K eta_l)``, and the server takes ``x + eta_g mean(y_i - x)`` and ``c + 1/N sum
(c_i+ - c_i)`` (lines 16, 17). Here x is the row "server", c is "control", and the c_i are the private rows
"own_control".
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
    """SCAFFOLD, in the slots train and weigh; ``global_lr`` is eta_g. Another part may aggregate the model.

    A client's variate follows from the update that it sends, so it does not send it as well: P numbers up, x and
    ``c - c_i`` down. Under momentum the divisor counts how much each gradient moved the model (:func:`step_sum`).
    """

    needs = by_slot(train={"clients"}, weigh={"clients", "groups"})
    gives = by_slot(train={"groups"})
    reads = by_slot(train=VARIATES)
    fills = by_slot(train=VARIATES)
    pulls = True
    reads_steps = True
    global_lr: Rate = 1.0

    def blocks(self) -> Sequence[Block]:
        """Return x, c and the private c_i; all variates start at zero."""
        return (
            Block("server"),
            Block("control", initial="zero"),
            Block("own_control", PER_CLIENT, initial="zero", private=True),
        )

    def init(self, context: Context) -> State:
        """Keep nothing. Raises UserError for another optimiser than SGD, from whose steps gradients are read."""
        if context.recipe.optimizer != "sgd":
            raise UserError(f"train.optimizer: {context.recipe.optimizer!r}: control variates need 'sgd'")
        if context.recipe.lr_decay_by != "round":
            raise UserError("train.lr_decay_by: 'last': control variates need one learning rate a round: 'round'")
        return {}

    def seats(self, view: View, state: State) -> tuple[Seats, State]:
        """Seat each chosen client at the model, tilted by ``c - c_i`` (Alg. 1 line 10)."""
        seats = chosen_seats(view)
        tilt = np.zeros((len(seats), view.table.size))
        tilt[:, view.at("control")] = 1.0
        tilt[np.arange(len(seats)), view.at("own_control", seats.client)] = -1.0
        return Seats(seats.client, seats.start, seats.target, L=tilt), state

    def aggregate(self, group: Group, state: State) -> Aggregate:
        """Return ``x + global_lr mean_s (U_s - x)`` (Alg. 1 lines 16, 17)."""
        return Aggregate(np.full(len(group), self.global_lr / len(group)), old=1.0 - self.global_lr)

    def weigh(self, view: View, state: State) -> tuple[Weighed, State]:
        """Return the variates: ``c_i' = c_i - c + (x - U_i) / h_i`` and ``c' = c + 1/N sum_s (c_i' - c_i)``, where h is
        the sum of a seat's step lengths (Alg. 1 lines 12, 17).
        """
        updates, recipe, n = view.trained, view.context.recipe, view.context.num_clients
        client, x, c = updates.seats.client, updates.seats.start, view.at("control")
        own, count, size = view.at("own_control", client), len(updates), view.table.size
        h = recipe.lr_at(view.round) * step_sum(updates.steps, recipe.momentum)
        moved = h > 0  # who took no step has learned nothing about its gradient
        inverse = np.divide(1.0, h, out=np.zeros(count), where=moved)

        change = units(x, size) * inverse[:, None]  # c_i' - c_i, on M; on U it is -1/h_i at the client's own update
        change[moved, c] -= 1.0
        kept = units(own, size)
        common = np.zeros((1, size))
        for row in np.unique(x).tolist():
            common[0, row] = inverse[x == row].sum() / n
        common[0, c] = 1.0 - np.count_nonzero(moved) / n
        variates = Replace(own, np.diag(-inverse), kept + change)
        return Weighed((variates, Replace(c, -inverse[None] / n, common))), state


def step_sum(steps: Ints, momentum: float) -> Floats:
    """Return the sum of the weights that a run of ``steps`` gives its gradients, in units of the learning rate ``[S]``.

    Without momentum it is the number of steps; with it gradient k of T counts ``(1 - b^(T-k+1)) / (1 - b)``.
    """
    T = np.asarray(steps, np.float64)
    if momentum == 0:
        return T
    return np.asarray((T - momentum * (1.0 - momentum**T) / (1.0 - momentum)) / (1.0 - momentum))


def scaffold(clients_per_round: Seated = None, global_lr: Rate = 1.0) -> Mechanism:
    """SCAFFOLD (Karimireddy et al. 2020): one shared model, client drift corrected by control variates."""
    part = Scaffold(global_lr)
    return Mechanism("scaffold", who(clients_per_round), part, part, deploy=ServerModel())
