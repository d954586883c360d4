"""VALUE by first-order Shapley on data that stay with the clients: no validation set at the server is needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from hanse.core.part import Named, State, ValuePart, Values, View
from hanse.core.port import Derived, Gradient, Request
from hanse.core.table import mix
from hanse.games import shapley
from hanse.mechanisms.weigh import sample_shares

__all__ = ["FirstOrderAtClients"]


@dataclass(frozen=True)
class FirstOrderAtClients(ValuePart):
    """PI-FL's first-order Shapley values (Alg. 2, eq. 2, or eq. 1 unless ``normalised``) on the own data of the clients
    that trained: each sends the loss gradient of its group's mean update, from ``samples`` of its ``share`` (none:
    all).

    The gradient of a group is the mean over its clients, weighted by samples. It is taken at the mean weighted by
    reported samples, which is the new model itself unless WEIGH averages in another way.

    With ``judges = "others"`` a client's own gradient is left out of its own value: a client whose data fit the tier
    badly has the steepest gradient, and its update moves along it, so that "all" favours it.
    """

    needs: ClassVar[Named] = frozenset({"groups"})
    gives: ClassVar[Named] = frozenset({"values"})
    normalised: bool = True
    share: Literal["train", "validation"] = "train"
    samples: Annotated[int, Field(ge=1)] | None = 64
    judges: Literal["all", "others"] = "all"

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

    def value(self, view: View, state: State) -> tuple[Values, State]:
        """Return first-order values; 0 in a group whose clients all sent no gradient."""
        updates, width = view.trained, view.context.layout.num_parameters
        per_seat, heard = np.zeros(len(updates)), 0
        for row, group in updates.seats.groups().items():
            gradients = _gradients(view, row, np.unique(updates.seats.client[group]).tolist(), width)
            heard += len(gradients)
            weights = sample_shares(np.maximum(view.mixed.W[row, group], 0.0))
            models = updates.rows[group, :width]
            if self.judges == "all" and gradients:
                per_seat[group] = shapley.first_order(_mean(gradients), models, weights, self.normalised)
            for place, s in enumerate(group if self.judges == "others" else ()):
                rest = {c: g for c, g in gradients.items() if c != updates.seats.client[s]}
                if rest:
                    per_seat[s] = shapley.first_order(_mean(rest), models, weights, self.normalised)[place]
        return Values(per_seat, metrics={"value/sum": float(per_seat.sum()), "value/gradients": float(heard)}), state


def _question(row: int) -> str:
    return f"gradient {row}"


def _gradients(view: View, row: int, clients: Sequence[int], width: int) -> dict[int, tuple[Tensor, int]]:
    """Return the gradients that came, with their numbers of samples, by client; one that is not finite is left out."""
    found = {}
    for c in clients:
        answer = view.answers.get((c, _question(row)))
        if isinstance(answer, Derived) and answer.num_samples > 0:
            gradient = answer.gradients[0, :width].double().cpu()
            if bool(torch.isfinite(gradient).all()):
                found[c] = (gradient, answer.num_samples)
    return found


def _mean(gradients: Mapping[int, tuple[Tensor, int]]) -> Tensor:
    """Return the mean of gradients, weighted by samples."""
    total = sum(samples for _, samples in gradients.values())
    first, *rest = ((samples / total) * gradient for gradient, samples in gradients.values())
    return sum(rest, start=first)
