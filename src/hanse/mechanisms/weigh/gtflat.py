"""WEIGH by GTFLAT (Mahini et al.): in each group of seats the updates' weights are the outcome of a population game.

Each client chooses among the others' models, the nearest being the best; after 50 generations a model's weight is the
share of all that chose it (:mod:`hanse.games.replicator`). The weights depend on the unit of the distances: with far
apart models the nearest neighbours take all, with close ones everything is equal (papers.md T10). ``scale = "mean"``
divides the distances by their mean; either way the mean distance is recorded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field
from torch import Tensor

from hanse.games import replicator
from hanse.mechanisms.part import Floats, Ints, State, View, WeighPart
from hanse.mechanisms.weigh.average import average_groups
from hanse.table import Mix

__all__ = ["GTFLAT", "Payoff", "Scale", "ValidationGTFLAT"]

Payoff = Literal["distance", "cosine", "layers"]
Scale = Literal["paper", "mean"]
Strength = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Generations = Annotated[int, Field(ge=0)]
Population = Annotated[int, Field(ge=1)] | None
GROUPS = frozenset({"clients", "groups"})


@dataclass(frozen=True)
class Rules:
    """How a group's game is played: the options of :func:`hanse.games.replicator.equilibrium`, and the scale."""

    strength: float
    generations: int
    population: int | None
    scale: Scale
    time: replicator.Time = "discrete"

    def play(self, view: View, payoff: Callable[[Ints], Floats], scaled: Callable[[Ints], Floats] | None = None) -> Mix:
        """Return the mix in which each group's weights are its game's equilibrium; ``payoff(positions)`` gives Phi, and
        ``scaled`` the scale-free one where that is not Phi over its mean size.

        A group of one seat gets weight 1. Recorded, as means over the groups of several seats: ``weigh/distance`` (the
        mean size of the payoffs before any scaling), ``weigh/nash_gap``, ``weigh/effective_seats`` (``1 / sum w^2``).
        """
        recorded: list[tuple[float, float, float]] = []

        def solve(group: Ints) -> Floats:
            if len(group) == 1:
                return np.ones(1)
            phi = payoff(group)
            played = phi
            if self.scale == "mean":
                played = replicator.scale_free(phi) if scaled is None else scaled(group)
            state = replicator.equilibrium(played, self.generations, self.strength, self.population, time=self.time)
            weights = replicator.weights(state)
            gap = replicator.nash_gap(played, state)
            recorded.append((replicator.mean_distance(phi), gap, 1.0 / float(weights @ weights)))
            return weights

        mix = average_groups(view, solve)
        if not recorded:
            return mix
        names = ("weigh/distance", "weigh/nash_gap", "weigh/effective_seats")
        means = np.mean(recorded, axis=0).tolist()
        return replace(mix, metrics=dict(zip(names, means, strict=True)))


@dataclass(frozen=True)
class GTFLAT(WeighPart):
    """GTFLAT with ``strength`` w, ``generations``, and whole individuals if a ``population`` is given.

    ``payoff``: "distance" over all parameters, eq. (10); "cosine" of what the clients changed; "layers": distances
    within each tensor, summed (with ``scale = "mean"`` each tensor counts the same). ``time``: "discrete" generations
    or the "continuous" flow.
    """

    needs: ClassVar[frozenset[str]] = GROUPS
    strength: Strength = 0.8
    generations: Generations = 50
    population: Population = None
    scale: Scale = "paper"
    payoff: Payoff = "distance"
    time: replicator.Time = "discrete"

    def decide(self, view: View, state: State) -> Mix:
        """Return the equilibrium weights by group."""
        updates, layout = view.trained, view.context.layout
        rows = updates.rows[:, : layout.num_parameters]  # no buffers (papers.md T7)

        def of(group: Ints) -> Tensor:
            return rows if len(group) == len(rows) else rows[group]  # no copy of a whole round's models

        def payoff(group: Ints) -> Floats:
            if self.payoff == "cosine":
                start = view.table.rows[updates.seats.start[group], : layout.num_parameters]
                return replicator.cosine_payoff(of(group) - start)
            if self.payoff == "layers":
                return replicator.layer_payoff(of(group), offsets)
            return replicator.payoff_matrix(of(group))

        def alike(group: Ints) -> Floats:
            return replicator.layer_payoff(of(group), offsets, relative=True)

        offsets = [a for a in layout.offsets if a <= layout.num_parameters]
        rules = Rules(self.strength, self.generations, self.population, self.scale, self.time)
        return rules.play(view, payoff, alike if self.payoff == "layers" else None)


@dataclass(frozen=True)
class ValidationGTFLAT(WeighPart):
    """GTFLAT whose payoffs are measured, not estimated: player i values model j by the server's validation loss of the
    mean of models i and j. It evaluates ``k (k - 1) / 2`` models a group and round.
    """

    needs: ClassVar[frozenset[str]] = GROUPS | {"validation"}
    strength: Strength = 0.8
    generations: Generations = 50
    population: Population = None
    scale: Scale = "paper"

    def decide(self, view: View, state: State) -> Mix:
        """Return the equilibrium weights by group."""
        updates = view.trained

        def payoff(group: Ints) -> Floats:
            k = len(group)
            base = view.table.rows[int(updates.seats.target[group[0]])]
            game = view.server.coalitions(updates.rows[group], base, np.ones(k), "loss")
            i, j = np.triu_indices(k, 1)
            losses = np.zeros((k, k))
            pairs = [frozenset(pair) for pair in zip(i.tolist(), j.tolist(), strict=True)]
            losses[i, j] = losses[j, i] = -np.asarray(game.many(pairs))
            return replicator.loss_payoff(losses)

        return Rules(self.strength, self.generations, self.population, self.scale).play(view, payoff)
