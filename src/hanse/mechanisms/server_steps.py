"""WEIGH, rules in which the server takes a step of its own from the old row towards what the clients made.

``fednova`` and ``q_fedavg`` are affine: weights on the updates, and the rest on the old row. The others are of the kind
"again": they have moments for each server row, which are those from before the round in every coalition that is valued,
and go on only in ``learn``, if the row stood.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from hanse.base.factories import Rate, Weight
from hanse.core.part import Aggregate, Aggregated, AggregatePart, Context, Group, State, View
from hanse.core.port import Request, Score, Scored
from hanse.mechanisms.robust import BY_SAMPLES, GROUPS, borrowed, lengths
from hanse.mechanisms.scaffold import step_sum
from hanse.mechanisms.weigh import sample_shares

Floor = Annotated[float, Field(ge=1e-12, allow_inf_nan=False)]  # its square is a float32 that is not 0
Decay = Annotated[float, Field(ge=0, lt=1)]


@dataclass(frozen=True)
class ServerStep(AggregatePart):
    """A step of the server's along the change ``of`` another rule, in the parameters; buffers are the other rule's.

    Subclasses say which, from the moments of the row. These are copied when a row splits.
    """

    kind = "again"
    needs = GROUPS
    of: AggregatePart = BY_SAMPLES

    def __post_init__(self) -> None:
        """Take over the other rule's needs."""
        borrowed(self, self.of)

    def first(self, size: int) -> Mapping[str, Tensor]:
        """Return the moments ``[size]`` of a row that has not moved yet, by name."""
        raise NotImplementedError

    def step(self, change: Tensor, moments: Mapping[str, Tensor]) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Return the step ``[size]`` for a change ``[size]``, and the moments after it."""
        raise NotImplementedError

    def init(self, context: Context) -> State:
        """No row has moved: ``rows [R]`` are those that have, and each moment is ``[R, parameters]``."""
        empty = {name: moment[None][:0] for name, moment in self.first(context.layout.num_parameters).items()}
        return {"rows": np.zeros(0, np.int64), **empty}

    def asks(self, view: View, state: State) -> Sequence[Request]:
        """Ask what the other rule wants to know."""
        return self.of.asks(view, {})

    def aggregate(self, group: Group, state: State) -> Aggregate:
        """Return the stepped row, with the moments after it to keep."""
        said, width = self.of.aggregate(group, {}), group.num_parameters
        row = group.made(said) if said.row is None else said.row.clone()
        old = group.old[:width]
        at = np.flatnonzero(state["rows"] == group.row)
        fresh = self.first(width)
        moments = {name: (state[name][at[0]] if len(at) else fresh[name]).to(old.device) for name in fresh}
        step, after = self.step(row[:width] - old, moments)
        row[:width] = old + step
        return Aggregate(row=row, metrics=said.metrics, keeps=after)

    def learn(self, outcome: View, state: State) -> State:
        """Keep the moments of the rows that were made and stood, and give a row that is new those of the row that it is
        made of.
        """
        told = outcome.get(Aggregated)
        if told is None:
            return state
        withheld = frozenset() if outcome.settlement is None else outcome.settlement.withheld
        names = [name for name in state if name != "rows"]
        known = {int(row): {name: state[name][k] for name in names} for k, row in enumerate(state["rows"])}
        for row in outcome.mixed.made:
            if row in told.said and row not in withheld:
                known[row] = dict(told.said[row].keeps)
        for row in range(outcome.table.size, len(outcome.mixed.W)):
            if (parent := _parent(outcome, row)) in known:
                known[row] = known[parent]
        rows = sorted(known)
        moments = {name: torch.stack([known[row][name] for row in rows]) if rows else state[name] for name in names}
        return {"rows": np.array(rows, np.int64), **moments}


def _parent(outcome: View, row: int) -> int:
    """Return the row of the table that a new row comes from: that of the largest weight, or, if it is made of updates
    alone, the one that the update of the largest weight was to go to.
    """
    W, count = np.abs(outcome.mixed.W[row]), len(outcome.trained)
    if W[count:].any():
        return int(np.argmax(W[count:]))
    return int(outcome.trained.seats.target[int(np.argmax(W[:count]))])


@dataclass(frozen=True)
class FedAvgM(ServerStep):
    """FedAvgM (Hsu, Qi, Brown 2019): ``v = momentum v + change``, and the row moves by ``lr v``. With no momentum and a
    learning rate of 1 it is the other rule itself.
    """

    lr: Rate = 1.0
    momentum: Decay = 0.9

    def first(self, size: int) -> Mapping[str, Tensor]:
        """Return a velocity of 0."""
        return {"velocity": torch.zeros(size)}

    def step(self, change: Tensor, moments: Mapping[str, Tensor]) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Return the step along the velocity."""
        velocity = self.momentum * moments["velocity"] + change
        return self.lr * velocity, {"velocity": velocity}


@dataclass(frozen=True)
class Adaptive(ServerStep):
    """Reddi et al. 2021, Alg. 2: ``m = beta1 m + (1 - beta1) change``, and the row moves by ``lr m / (sqrt(v) + tau)``.
    Subclasses say what becomes of ``v``, which begins as ``tau^2``; nothing is corrected for the start.
    """

    lr: Rate = 0.03
    beta1: Decay = 0.9
    tau: Floor = 1e-3

    def first(self, size: int) -> Mapping[str, Tensor]:
        """Return moments of 0 and of ``tau^2``."""
        return {"m": torch.zeros(size), "v": torch.full((size,), self.tau**2)}

    def second(self, v: Tensor, square: Tensor) -> Tensor:
        """Return the next ``v`` from the change squared."""
        raise NotImplementedError

    def step(self, change: Tensor, moments: Mapping[str, Tensor]) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Return the step along ``m``, over the root of ``v``."""
        m = self.beta1 * moments["m"] + (1 - self.beta1) * change
        v = self.second(moments["v"], change.square())
        return self.lr * m / (v.sqrt() + self.tau), {"m": m, "v": v}


@dataclass(frozen=True)
class FedAdam(Adaptive):
    """FedAdam (Reddi et al. 2021): ``v = beta2 v + (1 - beta2) change^2``."""

    beta2: Decay = 0.99

    def second(self, v: Tensor, square: Tensor) -> Tensor:
        """Return the moving mean of squares."""
        return self.beta2 * v + (1 - self.beta2) * square


@dataclass(frozen=True)
class FedYogi(Adaptive):
    """FedYogi (Reddi et al. 2021): ``v = v - (1 - beta2) change^2 sign(v - change^2)``."""

    beta2: Decay = 0.99

    def second(self, v: Tensor, square: Tensor) -> Tensor:
        """Return ``v`` moved towards the square by a share of the square."""
        return v - (1 - self.beta2) * square * (v - square).sign()


@dataclass(frozen=True)
class FedAdagrad(Adaptive):
    """FedAdagrad (Reddi et al. 2021): ``v = v + change^2``; as in the paper, without a first moment (``beta1 = 0``)."""

    beta1: Decay = 0.0

    def second(self, v: Tensor, square: Tensor) -> Tensor:
        """Return the sum of squares."""
        return v + square


@dataclass(frozen=True)
class FedNova(AggregatePart):
    """FedNova (Wang et al. 2020): each client's way counts by how many steps it took. ``d_k = (w - U_k) / a_k`` and
    ``w' = w - (sum_k p_k a_k) sum_k p_k d_k``, with ``p`` the sample shares and ``a_k`` the sum of the weights that the
    run of client k gives its gradients: its number of steps, without momentum.
    """

    needs = GROUPS
    reads_steps = True

    def aggregate(self, group: Group, state: State) -> Aggregate:
        """Return the weights; ``weigh/steps`` is the effective number of steps."""
        shares = sample_shares(group.num_samples)
        sums = step_sum(np.maximum(group.steps, 1), group.view.context.recipe.momentum)
        effective = float(shares @ sums)
        weights = effective * shares / sums
        return Aggregate(weights, 1.0 - float(weights.sum()), {"weigh/steps": effective})


@dataclass(frozen=True)
class QFedAvg(AggregatePart):
    """q-FedAvg (Li et al. 2020, Alg. 2): who loses more counts more. With ``F_k`` the loss of the start model on client
    k's data and ``Dw_k = L (w - U_k)``: ``w' = w - sum_k F_k^q Dw_k / sum_k h_k``, ``h_k = q F_k^(q-1) |Dw_k|^2 + L
    F_k^q``. With ``q = 0`` it is the plain mean.

    ``L`` is ``lipschitz``, or one over the clients' learning rate. Clients are asked for ``F_k`` beside training; for
    one that does not say, or says no finite number, the loss that it trained at stands.
    """

    needs = GROUPS
    reads_steps = True
    q: Weight = 1.0
    lipschitz: Rate | None = None

    def asks(self, view: View, state: State) -> Sequence[Request]:
        """Ask the clients that train a group's row for the loss of the model that they start from."""
        if view.stage != "train" or view.seats is None:
            return ()
        seats = view.seats
        mine = np.flatnonzero(~view.table.per_client(seats.target))
        return [
            Request(client, (Score(_question(row), view.table.rows[start][None]),))
            for client, start, row in zip(
                seats.client[mine].tolist(), seats.start[mine].tolist(), seats.target[mine].tolist(), strict=True
            )
        ]

    def aggregate(self, group: Group, state: State) -> Aggregate:
        """Return the weights; ``weigh/start_loss`` is the mean of ``F``."""
        view, loss = group.view, group.loss.copy()
        for k, client in enumerate(view.trained.seats.client[group.at].tolist()):
            if isinstance(said := view.answers.get((client, _question(group.row))), Scored):
                loss[k] = float(said.loss[0]) if bool(said.loss[0].isfinite()) else loss[k]
        L = self.lipschitz or 1.0 / view.context.recipe.lr_at(view.round)
        loss = np.maximum(np.nan_to_num(loss, nan=0.0), 1e-10)  # as the authors' code: F^(q-1) at a loss of 0
        powers = (loss / loss.max()) ** self.q  # F^q, of which only ratios count: a claimed loss must not overflow
        h = self.q * powers / loss * np.square(L * lengths(group)) + L * powers
        weights = L * powers / h.sum()
        return Aggregate(weights, 1.0 - float(weights.sum()), {"weigh/start_loss": float(loss.mean())})


def _question(row: int) -> str:
    return f"start loss {row}"
