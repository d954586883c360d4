"""WEIGH by inverse distance: updates near the plain mean count more."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from hanse.core.part import Aggregate, AggregatePart, Group, Named, State
from hanse.games.gram import distances_to_mean

__all__ = ["InverseDistance"]


@dataclass(frozen=True)
class InverseDistance(AggregatePart):
    """IDA (Yeganeh et al. 2020): weights in proportion to ``1 / |U_s - mean U|``, inside each group of seats.

    ``norm``: "l2" or "l1", over the parameters. ``epsilon`` keeps an update that is the mean itself from taking all: it
    is added to the distances in units of their mean, so that the weights do not depend on the scale of the models.
    """

    needs: ClassVar[Named] = frozenset({"clients", "groups"})
    norm: Literal["l2", "l1"] = "l2"
    epsilon: Annotated[float, Field(gt=0, le=1)] = 1e-3

    def aggregate(self, group: Group, state: State) -> Aggregate:
        """Return the inverse-distance weights; ``weigh/distance`` records the mean distance to the mean."""
        if len(group) == 1:
            return Aggregate(np.ones(1))
        found = distances_to_mean(group.parameters, 1 if self.norm == "l1" else 2)
        mean = float(found.mean())
        recorded = {"weigh/distance": mean}
        if mean == 0:
            return Aggregate(np.full(len(group), 1.0 / len(group)), metrics=recorded)
        trust = 1.0 / (found / mean + self.epsilon)
        return Aggregate(np.asarray(trust / trust.sum()), metrics=recorded)
