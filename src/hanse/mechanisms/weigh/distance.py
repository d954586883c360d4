"""WEIGH by inverse distance: updates near the plain mean count more."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from hanse.games.gram import distances_to_mean
from hanse.mechanisms.part import Floats, Ints, State, View, WeighPart
from hanse.mechanisms.weigh.average import average_groups
from hanse.table import Mix

__all__ = ["InverseDistance"]


@dataclass(frozen=True)
class InverseDistance(WeighPart):
    """IDA (Yeganeh et al. 2020): weights in proportion to ``1 / |U_s - mean U|``, inside each group of seats.

    ``norm``: "l2" or "l1", over the parameters. ``epsilon`` keeps an update that is the mean itself from taking all: it
    is added to the distances in units of their mean, so that the weights do not depend on the scale of the models.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"clients", "groups"})
    norm: Literal["l2", "l1"] = "l2"
    epsilon: Annotated[float, Field(gt=0, le=1)] = 1e-3

    def decide(self, view: View, state: State) -> Mix:
        """Return the inverse-distance weights by group; ``weigh/distance`` records the mean distance to the mean."""
        rows = view.trained.rows[:, : view.context.layout.num_parameters]
        recorded: list[float] = []

        def weights(group: Ints) -> Floats:
            if len(group) == 1:
                return np.ones(1)
            found = distances_to_mean(rows[group], 1 if self.norm == "l1" else 2)
            mean = float(found.mean())
            recorded.append(mean)
            if mean == 0:
                return np.full(len(group), 1.0 / len(group))
            trust = 1.0 / (found / mean + self.epsilon)
            return np.asarray(trust / trust.sum())

        mix = average_groups(view, weights)
        return replace(mix, metrics={"weigh/distance": float(np.mean(recorded))}) if recorded else mix
