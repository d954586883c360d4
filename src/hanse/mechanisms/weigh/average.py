"""WEIGH: which combination of the updates each row of the table becomes.

Averaging parts act inside each group of seats with the same target row; rows that nobody trained stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from hanse.federation.declared import LARGEST_COUNT
from hanse.mechanisms.part import Floats, Ints, State, View, WeighPart
from hanse.table import Mix

__all__ = ["BySamples", "UniformWeights", "addable", "average_groups", "sample_shares"]


def addable(num_samples: Floats) -> Floats:
    """Return sizes ``[S]`` in proportions whose sum a float can hold; as they are, unless one is beyond 2^53."""
    largest = num_samples.max(initial=0.0)
    return num_samples / largest if largest > LARGEST_COUNT else num_samples


def sample_shares(num_samples: Floats) -> Floats:
    """Return ``n_k / sum n`` ``[S]``; uniform if nobody reports a sample. Sizes may be any finite numbers from 0 on."""
    num_samples = addable(num_samples)
    total = float(num_samples.sum())
    return num_samples / total if total > 0 else np.full(len(num_samples), 1.0 / len(num_samples))


def average_groups(view: View, weights: Callable[[Ints], Floats]) -> Mix:
    """Return the mix in which each target row becomes ``sum_s w_s U_s`` over its group; ``weights(positions)`` gives w.

    All other rows keep their model, owner and clients.
    """
    updates, table = view.trained, view.table
    count = len(updates)
    W = np.zeros((table.size, count + table.size))
    W[np.arange(table.size), count + np.arange(table.size)] = 1.0
    for row, group in updates.seats.groups().items():
        W[row] = 0.0
        W[row, group] = weights(group)
    return Mix(W, table.owner, view.home)


@dataclass(frozen=True)
class BySamples(WeighPart):
    """FedAvg: weights in proportion to the reported number of samples (McMahan et al. 2017)."""

    def decide(self, view: View, state: State) -> Mix:
        """Return sample-share averages by group."""
        n = view.trained.num_samples
        return average_groups(view, lambda group: sample_shares(n[group]))


@dataclass(frozen=True)
class UniformWeights(WeighPart):
    """Every update of a group counts the same."""

    needs: ClassVar[frozenset[str]] = frozenset({"clients", "groups"})

    def decide(self, view: View, state: State) -> Mix:
        """Return plain averages by group."""
        return average_groups(view, lambda group: np.full(len(group), 1.0 / len(group)))
