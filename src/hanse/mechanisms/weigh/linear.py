"""WEIGH by a train part's own linear rule: FedSoft's importance, SCAFFOLD's control variates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field

from hanse.errors import UserError
from hanse.mechanisms.part import Context, Floats, Ints, State, View, WeighPart
from hanse.mechanisms.weigh.average import addable
from hanse.mechanisms.weigh.centres import keep_all
from hanse.table import Mix

__all__ = ["ControlVariates", "SoftShares", "soft_shares", "step_sum"]


def soft_shares(importance: Floats, num_samples: Floats) -> Floats:
    """Return ``v_ks = u_sk n_s / sum_s u_sk n_s`` ``[K, S]``, FedSoft's shares, from ``importance [S, K]``; a centre
    that is important to nobody has a row of zeros. With no samples reported all count the same.
    """
    n = addable(num_samples) if num_samples.any() else np.ones(len(num_samples))
    weights = (importance * n[:, None]).T
    total = weights.sum(axis=1, keepdims=True)
    return np.asarray(np.divide(weights, total, out=np.zeros_like(weights), where=total > 0))


@dataclass(frozen=True)
class SoftShares(WeighPart):
    """FedSoft's aggregation: each centre is the mean of all updates by importance times samples; updates stay too.

    The paper draws clients for each centre by these weights and averages them plainly; this is the mean of that draw.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"clients", "importance"})
    gives: ClassVar[frozenset[str]] = frozenset({"soft_shares"})

    def decide(self, view: View, state: State) -> Mix:
        """Return each client's update, and the centres."""
        updates = view.trained
        if updates.seats.R is None:
            raise RuntimeError("these seats have no importance; the part should have been refused by its needs")
        count = len(updates)
        W = keep_all(view)
        W[updates.seats.target] = 0.0
        W[updates.seats.target, np.arange(count)] = 1.0
        centres = np.flatnonzero(updates.seats.R.any(axis=0))
        importance = updates.seats.R[:, centres]
        W[centres] = 0.0
        W[centres, :count] = soft_shares(importance, updates.num_samples)
        return Mix(W, view.table.owner, view.home, {"weigh/best_importance": float(importance.max(axis=1).mean())})


def step_sum(steps: Ints, momentum: float) -> Floats:
    """Return the sum of the weights that a run of ``steps`` gives its gradients, in units of the learning rate ``[S]``.

    Without momentum it is the number of steps; with it gradient k of T counts ``(1 - b^(T-k+1)) / (1 - b)``.
    """
    T = np.asarray(steps, np.float64)
    if momentum == 0:
        return T
    return np.asarray((T - momentum * (1.0 - momentum**T) / (1.0 - momentum)) / (1.0 - momentum))


@dataclass(frozen=True)
class ControlVariates(WeighPart):
    """SCAFFOLD (Karimireddy et al. 2020, Alg. 1, option II), every rule a row of W.

    With ``h_s`` the sum of a seat's step lengths: ``x' = x + global_lr mean_s (U_s - x)``, ``c_i' = c_i - c + (x - U_i)
    / h_i`` and ``c' = c + 1/N sum_s (c_i' - c_i)``. Under momentum h counts how much each gradient moved the model.
    Each c_i' follows from the update that the client sends, so it does not send it as well: P numbers up, x and
    ``c - c_i`` down.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"clients", "variates"})
    gives: ClassVar[frozenset[str]] = frozenset({"variates_updated"})
    global_lr: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0

    def init(self, context: Context) -> State:
        """Keep nothing. Raises UserError for another optimiser than SGD, from whose steps gradients are read."""
        if context.recipe.optimizer != "sgd":
            raise UserError(f"train.optimizer: {context.recipe.optimizer!r}: control variates need 'sgd'")
        return {}

    def decide(self, view: View, state: State) -> Mix:
        """Return the model and the control variates."""
        updates, recipe = view.trained, view.context.recipe
        count, n = len(updates), view.context.num_clients
        h = recipe.lr_at(view.round) * step_sum(updates.steps, recipe.momentum)
        moved = h > 0  # who took no step has learned nothing about its gradient
        inverse = np.divide(1.0, h, out=np.zeros(count), where=moved)
        x, c, own = count, count + 1, 2 + updates.seats.client
        W = keep_all(view)
        W[0, x] = 1.0 - self.global_lr
        W[0, :count] = self.global_lr / count
        W[own[moved], c] = -1.0
        W[own, x] = inverse
        W[own, np.arange(count)] = -inverse
        W[1, c] = 1.0 - np.count_nonzero(moved) / n
        W[1, x] = inverse.sum() / n
        W[1, :count] = -inverse / n
        return Mix(W, view.table.owner, view.home)
