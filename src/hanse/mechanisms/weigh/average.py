"""WEIGH: how the updates of a group of seats become the server row that they train."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from hanse.core.declared import LARGEST_COUNT
from hanse.core.part import Aggregate, AggregatePart, Floats, Group, Named, State

__all__ = ["BySamples", "UniformWeights", "addable", "sample_shares"]


def addable(num_samples: Floats) -> Floats:
    """Return sizes ``[S]`` in proportions whose sum a float can hold; as they are, unless one is beyond 2^53."""
    largest = num_samples.max(initial=0.0)
    return num_samples / largest if largest > LARGEST_COUNT else num_samples


def sample_shares(num_samples: Floats) -> Floats:
    """Return ``n_k / sum n`` ``[S]``; uniform if nobody reports a sample. Sizes may be any finite numbers from 0 on."""
    num_samples = addable(num_samples)
    total = float(num_samples.sum())
    return num_samples / total if total > 0 else np.full(len(num_samples), 1.0 / len(num_samples))


@dataclass(frozen=True)
class BySamples(AggregatePart):
    """FedAvg: weights in proportion to the reported number of samples (McMahan et al. 2017)."""

    def aggregate(self, group: Group, state: State) -> Aggregate:
        """Return the sample shares."""
        return Aggregate(sample_shares(group.num_samples))


@dataclass(frozen=True)
class UniformWeights(AggregatePart):
    """Every update of a group counts the same."""

    needs: ClassVar[Named] = frozenset({"clients", "groups"})

    def aggregate(self, group: Group, state: State) -> Aggregate:
        """Return equal weights."""
        return Aggregate(np.full(len(group), 1.0 / len(group)))
