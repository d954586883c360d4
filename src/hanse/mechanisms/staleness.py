"""WEIGH by staleness: updates that come rounds late count less, as in FedBuff and FedAsync.

Both papers let the server go on while clients still train. Here that is what a run does whose rounds do not wait for
all (``[federation] enough`` and ``late = "next"``); this part only says what a late update counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from hanse.core.part import Aggregate, AggregatePart, Group, State
from hanse.core.table import Floats, Ints


@dataclass(frozen=True)
class ByStaleness(AggregatePart):
    """The row moves by ``rate`` times the mean of its m updates, each shrunk by its staleness tau (in rounds):
    ``M' = M + rate / m sum_s s(tau_s) (U_s - M)``, where updates are rebased.

    ``rule``: "fedbuff", ``s = 1 / sqrt(1 + tau)`` (Nguyen et al. 2022, "Federated learning with buffered asynchronous
    aggregation", Algorithm 1 with the scaling of section 5; ``rate`` is its server learning rate). The others are
    FedAsync's (Xie, Koyejo and Gupta 2019, "Asynchronous federated optimization", section 5.2), ``rate`` its alpha:
    "constant", 1; "polynomial", ``(1 + tau)^-a``; "hinge", 1 until ``tau = b``, and then ``1 / (a (tau - b) + 1)``.
    FedAsync mixes every update as it comes, Algorithm 1: ``x_t = (1 - alpha s) x_(t-1) + alpha s x_new``; of several in
    a round this is the mean, and x_new is rebased.
    """

    needs = frozenset({"clients", "groups"})
    takes = frozenset({"late"})
    rule: Literal["fedbuff", "constant", "polynomial", "hinge"] = "fedbuff"
    rate: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    a: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.5
    b: Annotated[int, Field(ge=0)] = 4

    def aggregate(self, group: Group, state: State) -> Aggregate:
        """Return the weights, and what is left to the old row; ``weigh/staleness`` records the mean staleness."""
        weights = self.rate * self.scale(group.staleness) / len(group)
        old = 1.0 - float(weights.sum())
        old = 0.0 if abs(old) < 1e-12 else old  # what the sum's rounding leaves
        return Aggregate(weights, old, {"weigh/staleness": float(group.staleness.mean())})

    def scale(self, staleness: Ints) -> Floats:
        """Return ``s(tau)`` for each ``staleness [m]``."""
        tau = staleness.astype(np.float64)
        if self.rule == "fedbuff":
            return 1.0 / np.sqrt(1.0 + tau)
        if self.rule == "polynomial":
            return (1.0 + tau) ** -self.a
        if self.rule == "hinge":
            return np.where(tau <= self.b, 1.0, 1.0 / (self.a * np.maximum(tau - self.b, 0.0) + 1.0))
        return np.ones(len(tau))
