"""WEIGH, server optimisers: the server takes its own step from the old row towards the result of the clients.

:class:`FedNova` and :class:`QFedAvg` are affine: weights on the updates, with the rest on the old row. The others are
subclasses of :class:`ServerStep`. Write a subclass of it for your own server optimiser. All keep moments for each
server row, and are applied again to each coalition (:class:`hanse.core.part.Aggregate`), with the moments from before
the round. ``learn`` keeps new moments once the row is final.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from pydantic import Field

from hanse.base.factories import PartShare, Rate, Weight
from hanse.base.pytorch import Tensor, torch
from hanse.core.part import Aggregate, Aggregated, AggregatePart, Along, Context, Group, Most, State, View
from hanse.core.port import Request, Score, Scored
from hanse.mechanisms.robust import OfRule, lengths
from hanse.mechanisms.scaffold import step_sum
from hanse.mechanisms.weigh import GROUPED, sample_shares

Floor = Annotated[float, Field(ge=1e-12, allow_inf_nan=False)]  # not smaller, so its square is not 0 in float32


@dataclass(frozen=True)
class ServerStep(OfRule):
    """A server step along the change that another rule makes. Subclasses define the step.

    The step changes only the parameters. Buffers come from the other rule. What a subclass remembers about a row, such
    as a velocity, is kept in named moments: ``first`` makes them and ``step`` updates them. When a row splits, its
    moments are copied.

    Attributes:
        of: the rule along whose change the step goes. It must have no state.

    Examples:
        A server that moves every parameter by the same small amount, in the direction of the averaged change:

        >>> from dataclasses import dataclass, replace
        >>> from hanse.mechanisms.baselines import fedavg
        >>> @dataclass(frozen=True)
        ... class SignStep(ServerStep):
        ...     lr: float = 0.25
        ...     def first(self, size):
        ...         return {}  # nothing to remember
        ...     def step(self, change, moments):
        ...         return self.lr * change.sign(), {}
        >>> SignStep().step(torch.tensor([0.3, -2.0, 0.0]), {})[0].tolist()
        [0.25, -0.25, 0.0]
        >>> replace(fedavg(5), name="signs", weigh=SignStep(lr=0.5)).weigh.lr
        0.5
    """

    def first(self, size: int) -> Mapping[str, Tensor]:
        """Return the moments ``[size]``, by name, of a row that has not moved yet; {} if there are none."""
        raise NotImplementedError

    def step(self, change: Tensor, moments: Mapping[str, Tensor]) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Return the step ``[size]`` and the moments after it.

        Args:
            change: the other rule's change of the row's parameters, ``[size]``.
            moments: the row's moments, by the names that :meth:`first` gives them.
        """
        raise NotImplementedError

    def scale(self, after: Mapping[str, Tensor]) -> Tensor | float:
        """Return the factor by which the step scales the change, ``[size]`` or one number, given the moments after it.

        The step must be ``scale * change`` plus something independent of the change. Path values use the scale to
        attribute the step to updates (:class:`hanse.mechanisms.value.Path`). Without this method, nothing is
        attributed.

        Args:
            after: the moments that :meth:`step` returned.
        """
        raise NotImplementedError

    def init(self, context: Context) -> State:
        """Return the state in which no row has moved yet.

        ``rows [R]`` are the rows that have moved, and each moment is ``[R, parameters]``.
        """
        empty = {name: moment[None][:0] for name, moment in self.first(context.layout.num_parameters).items()}
        return {"rows": np.zeros(0, np.int64), **empty}

    def aggregate(self, group: Group, state: State) -> Aggregate:
        """Return the row after the step, and the moments to keep if this row becomes final.

        Args:
            group: the seats of a row. The method reads ``old``, ``num_parameters``, ``num_samples`` and ``made``.
            state: as :meth:`init` makes it.
        """
        said, width = self.of.aggregate(group, {}), group.num_parameters
        row = group.made(said) if said.row is None else said.row.clone()
        old = group.old[:width]
        at = np.flatnonzero(state["rows"] == group.row)
        fresh = self.first(width)
        moments = {name: (state[name][at[0]] if len(at) else fresh[name]).to(old.device) for name in fresh}
        # row is a new tensor, so its parameters may be written in place
        step, after = self.step(row[:width] - old, moments)
        row[:width] = old + step
        along = None
        if type(self).scale is not ServerStep.scale and said.weights is not None and not said.reapply:
            along = Along(said.weights, torch.as_tensor(self.scale(after)).to(old).expand(width))
        return Aggregate(row=row, metrics=said.metrics, keeps=after, along=along)

    def learn(self, outcome: View, state: State) -> State:
        """Keep the moments of final rows, and give each new row the moments of the row from which it comes.

        Args:
            outcome: the finished round. The method reads ``table``, ``mixed``, ``settlement`` and ``get(Aggregated)``.
            state: as :meth:`init` makes it.
        """
        told = outcome.get(Aggregated)
        if told is None:
            return state
        withheld = frozenset() if outcome.settlement is None else outcome.settlement.withheld
        names = [name for name in state if name != "rows"]
        known = {int(row): {name: state[name][k] for name in names} for k, row in enumerate(state["rows"])}
        for row in outcome.mixed.made:
            if row in told.said and row not in withheld:  # a row that was withheld stays as it was
                known[row] = dict(told.said[row].keeps)
        rows = sorted(known)
        moments = {name: torch.stack([known[row][name] for row in rows]) if rows else state[name] for name in names}
        return {"rows": np.array(rows, np.int64), **moments}


@dataclass(frozen=True)
class FedAvgM(ServerStep):
    """FedAvgM (Hsu, Qi, Brown 2019): momentum at the server, ``v = momentum v + change``; the row moves by ``lr v``.

    Without momentum and with a learning rate of 1, the result equals the other rule's.

    Attributes:
        lr: the server's learning rate, above 0.
        momentum: the weight of the old velocity, at least 0 and below 1.
    """

    lr: Rate = 1.0
    momentum: PartShare = 0.9

    def first(self, size: int) -> Mapping[str, Tensor]:
        """Return a velocity of 0, ``[size]``."""
        return {"velocity": torch.zeros(size)}

    def step(self, change: Tensor, moments: Mapping[str, Tensor]) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Return the step ``[size]`` along the velocity, and the new velocity."""
        velocity = self.momentum * moments["velocity"] + change
        return self.lr * velocity, {"velocity": velocity}

    def scale(self, after: Mapping[str, Tensor]) -> float:
        """Return ``lr``; the old velocity belongs to no update."""
        return self.lr


@dataclass(frozen=True)
class Adaptive(ServerStep):
    """Adaptive server optimisers (Reddi et al. 2021, Alg. 2): the row moves by ``lr m / (sqrt(v) + tau)``.

    The first moment is ``m = beta1 m + (1 - beta1) change``. Subclasses say how ``v`` follows the squared change. It
    starts as ``tau^2``. There is no bias correction.

    Attributes:
        lr: the server's learning rate, above 0.
        beta1: decay of the first moment, at least 0 and below 1.
        tau: bounds the step where v is small; at least 1e-12.
    """

    lr: Rate = 0.03
    beta1: PartShare = 0.9
    tau: Floor = 1e-3

    def first(self, size: int) -> Mapping[str, Tensor]:
        """Return a first moment of 0 and a second one of ``tau^2``, ``[size]`` each."""
        return {"m": torch.zeros(size), "v": torch.full((size,), self.tau**2)}

    def second(self, v: Tensor, square: Tensor) -> Tensor:
        """Return the next ``v [size]`` from the squared change ``[size]``."""
        raise NotImplementedError

    def step(self, change: Tensor, moments: Mapping[str, Tensor]) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Return the step ``[size]`` along ``m``, divided by the root of ``v``, and the new moments."""
        m = self.beta1 * moments["m"] + (1 - self.beta1) * change
        v = self.second(moments["v"], change.square())
        return self.lr * m / (v.sqrt() + self.tau), {"m": m, "v": v}

    def scale(self, after: Mapping[str, Tensor]) -> Tensor:
        """Return ``lr (1 - beta1) / (sqrt(v) + tau)``, ``[size]``, with the ``v`` that the round led to.

        The old first moment belongs to no update.
        """
        return self.lr * (1 - self.beta1) / (after["v"].sqrt() + self.tau)


@dataclass(frozen=True)
class FedAdam(Adaptive):
    """FedAdam (Reddi et al. 2021): steps of ``lr m / (sqrt(v) + tau)`` with ``v = beta2 v + (1 - beta2) change^2``.

    Attributes:
        beta2: decay of the second moment, at least 0 and below 1. The other options are those of :class:`Adaptive`.
    """

    beta2: PartShare = 0.99

    def second(self, v: Tensor, square: Tensor) -> Tensor:
        """Return the moving average of the squares, ``[size]``."""
        return self.beta2 * v + (1 - self.beta2) * square


@dataclass(frozen=True)
class FedYogi(Adaptive):
    """FedYogi (Reddi et al. 2021): like FedAdam, with ``v = v - (1 - beta2) change^2 sign(v - change^2)``.

    Attributes:
        beta2: decay of the second moment, at least 0 and below 1. In a step, v changes by at most ``1 - beta2`` of the
            square.
    """

    beta2: PartShare = 0.99

    def second(self, v: Tensor, square: Tensor) -> Tensor:
        """Return ``v [size]`` moved towards the square, by a share of the square."""
        return v - (1 - self.beta2) * square * (v - square).sign()


@dataclass(frozen=True)
class FedAdagrad(Adaptive):
    """FedAdagrad (Reddi et al. 2021): like FedAdam, with ``v = v + change^2`` and no first moment.

    Attributes:
        beta1: decay of the first moment; 0 as in the paper.
    """

    beta1: PartShare = 0.0

    def second(self, v: Tensor, square: Tensor) -> Tensor:
        """Return the sum of the squares, ``[size]``."""
        return v + square


@dataclass(frozen=True)
class FedNova(AggregatePart):
    """FedNova (Wang et al. 2020): each client's change is divided by its number of steps before it is averaged.

    ``d_k = (w - U_k) / a_k`` and ``w' = w - (sum_k p_k a_k) sum_k p_k d_k``, where p are the sample shares. Without
    momentum, a_k is the number of client k's steps. With momentum, it is how much the client's gradients count in total
    (:func:`hanse.mechanisms.scaffold.step_sum`).
    """

    needs = GROUPED | {"sgd"}

    def aggregate(self, group: Group, state: State) -> Aggregate:
        """Return the weights on the updates and the old row; ``weigh/steps`` records the effective number of steps."""
        shares = sample_shares(group.num_samples)
        sums = step_sum(np.maximum(group.steps, 1), group.view.context.recipe.momentum)
        effective = float(shares @ sums)
        weights = effective * shares / sums
        return Aggregate(weights, 1.0 - float(weights.sum()), {"weigh/steps": effective})


@dataclass(frozen=True)
class QFedAvg(AggregatePart):
    """q-FedAvg (Li et al. 2020, Alg. 2): the updates of clients with larger losses count more.

    With ``F_k`` the loss of the start model on client k's data and ``Dw_k = L (w - U_k)`` the new row is ``w' = w -
    sum_k F_k^q Dw_k / sum_k h_k``, where ``h_k = q F_k^(q-1) |Dw_k|^2 + L F_k^q``. Clients are asked for ``F_k`` with
    their training. If a client does not answer with a finite number, its training loss is used.

    Attributes:
        q: how much more large losses count. With 0, the result is the plain mean.
        lipschitz: the paper's L. None: 1 divided by the clients' learning rate.
    """

    needs = GROUPED | {"sgd", "scores"}
    q: Weight = 1.0
    lipschitz: Rate | None = None

    def questions(self, clients: int, rows: int) -> Mapping[str, Most]:
        """Return what :meth:`asks` asks at most of a client with one seat."""
        return {"Score": Most(1, 1)}

    def asks(self, view: View, state: State) -> Sequence[Request]:
        """Ask the clients that train a group's row for the loss of the model from which they start."""
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
        """Return the weights on the updates and the old row; ``weigh/start_loss`` records the mean of ``F``."""
        view, loss = group.view, group.loss.copy()
        for k, client in enumerate(view.trained.seats.client[group.at].tolist()):
            if isinstance(said := view.answers.get((client, _question(group.row))), Scored):
                loss[k] = float(said.loss[0]) if bool(said.loss[0].isfinite()) else loss[k]
        L = self.lipschitz or 1.0 / view.context.recipe.lr_at(view.round)
        loss = np.maximum(np.nan_to_num(loss, nan=0.0), 1e-10)  # as in the authors' code: F^(q-1) exists at a loss of 0
        powers = (loss / loss.max()) ** self.q  # only ratios of F^q matter, and a claimed loss must not overflow
        h = self.q * powers / loss * np.square(L * lengths(group)) + L * powers
        weights = L * powers / h.sum()
        return Aggregate(weights, 1.0 - float(weights.sum()), {"weigh/start_loss": float(loss.mean())})


def _question(row: int) -> str:
    """Return the name of the question for the loss of the model from which a row's group starts."""
    return f"start loss {row}"
