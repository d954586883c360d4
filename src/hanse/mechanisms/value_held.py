"""VALUE by first-order Shapley on data that stay with the clients: no validation set at the server is needed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from hanse.federation.port import Derived, Gradient, Request
from hanse.games import shapley
from hanse.mechanisms.part import State, ValuePart, Values, View
from hanse.mechanisms.weigh import sample_shares
from hanse.table import mix

__all__ = ["FirstOrderAtClients"]


@dataclass(frozen=True)
class FirstOrderAtClients(ValuePart):
    """PI-FL's first-order Shapley values (Alg. 2, eq. 2, or eq. 1 unless ``normalised``) on the own data of the clients
    that trained: each sends the loss gradient of its group's mean update, from ``samples`` of its ``share`` (none:
    all).

    The gradient of a group is the mean over its clients, weighted by samples. It is taken at the mean weighted by
    reported samples, which is the new model itself unless WEIGH averages in another way.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"groups"})
    gives: ClassVar[frozenset[str]] = frozenset({"values"})
    normalised: bool = True
    share: Literal["train", "validation"] = "train"
    samples: Annotated[int, Field(ge=1)] | None = 64

    def asks(self, view: View, state: State) -> Sequence[Request]:
        """Ask each group's clients for the gradient of their mean update."""
        if view.stage != "close":
            return ()
        updates = view.trained
        found = []
        for row, group in updates.seats.groups().items():
            weights = sample_shares(updates.num_samples[group])
            mean = mix(weights[None], updates.rows[group], updates.rows[:0])
            task = Gradient(_question(row), mean, self.share, self.samples)
            found += [Request(c, (task,)) for c in np.unique(updates.seats.client[group]).tolist()]
        return found

    def decide(self, view: View, state: State) -> Values:
        """Return first-order values; 0 in a group whose clients all sent no gradient."""
        updates, width = view.trained, view.context.layout.num_parameters
        per_seat, heard = np.zeros(len(updates)), 0
        for row, group in updates.seats.groups().items():
            gradient, answered = _mean_gradient(view, row, np.unique(updates.seats.client[group]).tolist(), width)
            heard += answered
            if gradient is not None:
                weights = sample_shares(np.maximum(view.mixed.W[row, group], 0.0))
                per_seat[group] = shapley.first_order(gradient, updates.rows[group, :width], weights, self.normalised)
        return Values(per_seat, metrics={"value/sum": float(per_seat.sum()), "value/gradients": float(heard)})


def _question(row: int) -> str:
    return f"gradient {row}"


def _mean_gradient(view: View, row: int, clients: Sequence[int], width: int) -> tuple[Tensor | None, int]:
    """Return the clients' gradients, weighted by samples, and how many came; one that is not finite is left out."""
    total, weight, heard = torch.zeros(width, dtype=torch.float64), 0.0, 0
    for c in clients:
        answer = view.answers.get((c, _question(row)))
        if isinstance(answer, Derived) and answer.num_samples > 0:
            gradient = answer.gradients[0, :width].double().cpu()
            if bool(torch.isfinite(gradient).all()):
                total += answer.num_samples * gradient
                weight += answer.num_samples
                heard += 1
    return (total / weight if weight else None), heard
