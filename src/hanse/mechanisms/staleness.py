"""WEIGH by staleness: updates that arrive rounds late count less, as in FedBuff and FedAsync.

In both papers the server continues while clients are still training. So does a run whose rounds do not wait for all
clients (``[federation] enough`` and ``late = "next"``). This part decides only how much a late update counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from hanse.base.factories import Count, Rate
from hanse.core.part import Aggregate, AggregatePart, Group, State
from hanse.core.table import Floats, Ints
from hanse.mechanisms.weigh import GROUPED


@dataclass(frozen=True)
class ByStaleness(AggregatePart):
    """The row moves by ``rate`` times the mean change. The later an update, the more its change shrinks.

    With m updates of staleness tau (in rounds) the new row is ``M' = M + rate / m sum_s s(tau_s) (U_s - M)``. Late
    updates are rebased: their change is applied to the present row.

    FedAsync's Algorithm 1 mixes in every update as it arrives, ``x_t = (1 - alpha s) x_(t-1) + alpha s x_new``. With
    several updates in one round, this part takes the mean of these steps.

    Attributes:
        rule: how s falls with the staleness.
            "fedbuff": ``1 / sqrt(1 + tau)`` (Nguyen et al. 2022, "Federated learning with buffered asynchronous
            aggregation", Algorithm 1 with the scaling of section 5).
            The others are FedAsync's (Xie, Koyejo and Gupta 2019, "Asynchronous federated optimization", section 5.2).
            "constant": 1. "polynomial": ``(1 + tau) ** -a``. "hinge": 1 up to ``tau = b``, then ``1 / (a (tau - b) +
            1)``.
        rate: the server's learning rate (FedAsync's alpha).
        a: the constant a of "polynomial" and "hinge", above 0.
        b: the constant b of "hinge": an update counts in full up to this staleness, in rounds.
    """

    needs = GROUPED
    accepts = frozenset({"late"})
    rule: Literal["fedbuff", "constant", "polynomial", "hinge"] = "fedbuff"
    rate: Rate = 1.0
    a: Rate = 0.5
    b: Count = 4

    def aggregate(self, group: Group, state: State) -> Aggregate:
        """Return the weights on the updates and on the old row; ``weigh/staleness`` records the mean staleness."""
        weights = self.rate * self.scale(group.staleness) / len(group)
        old = 1.0 - float(weights.sum())
        old = 0.0 if abs(old) < 1e-12 else old  # rounding of the sum; 0 lets the old row be left out
        return Aggregate(weights, old, {"weigh/staleness": float(group.staleness.mean())})

    def scale(self, staleness: Ints) -> Floats:
        """Return the factor ``s(tau)`` for each ``staleness [m]`` in rounds.

        Examples:
            >>> ByStaleness(rule="hinge", a=1.0, b=1).scale(np.array([0, 1, 2, 4]))
            array([1.  , 1.  , 0.5 , 0.25])
        """
        tau = staleness.astype(np.float64)
        if self.rule == "fedbuff":
            return 1.0 / np.sqrt(1.0 + tau)
        if self.rule == "polynomial":
            return (1.0 + tau) ** -self.a
        if self.rule == "hinge":
            return np.where(tau <= self.b, 1.0, 1.0 / (self.a * np.maximum(tau - self.b, 0.0) + 1.0))
        return np.ones(len(tau))
