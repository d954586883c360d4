"""GTFLAT (Mahini, Mousavi, Daneshtalab): the weights of a group of seats are the outcome of a population game.

It is an add-on that replaces the weights of any average: ``dataclasses.replace(mechanism, weigh=GTFLAT())`` puts it on
any mechanism that averages; at the end are the published ones. Each client chooses among the others' models, the
nearest being the best; after 50 generations a model's weight is the share of all that chose it
(:mod:`hanse.games.replicator`). The weights depend on the unit of the distances: with far apart models the nearest
neighbours take all, with close ones everything is equal (papers.md T10). ``scale = "mean"`` divides the distances by
their mean; either way the mean distance is recorded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from hanse.base.factories import Count, Positive, Weight
from hanse.core.part import Aggregate, AggregatePart, Group, Mechanism, State
from hanse.core.table import Floats
from hanse.games import replicator
from hanse.mechanisms.baselines import fedavg, fedprox

Payoff = Literal["distance", "cosine", "layers"]
Scale = Literal["paper", "mean"]
GROUPS = frozenset({"clients", "groups"})


@dataclass(frozen=True)
class GTFLAT(AggregatePart):
    """GTFLAT with ``strength`` w, ``generations``, and whole individuals if a ``population`` is given.

    ``payoff``: "distance" over all parameters, eq. (10); "cosine" of what the clients changed; "layers": distances
    within each tensor, summed (with ``scale = "mean"`` each tensor counts the same). ``time``: "discrete" generations
    or the "continuous" flow.
    """

    needs = GROUPS
    strength: Weight = 0.8
    generations: Count = 50
    population: Positive | None = None
    scale: Scale = "paper"
    payoff: Payoff = "distance"
    time: replicator.Time = "discrete"

    def aggregate(self, group: Group, state: State) -> Aggregate:
        """Return the equilibrium's weights; a group of one seat has weight 1."""
        if len(group) == 1:
            return Aggregate(np.ones(1))
        rows = group.parameters  # no buffers (papers.md T7)
        layout = group.view.context.layout
        offsets = [a for a in layout.offsets if a <= layout.num_parameters]
        if self.payoff == "cosine":
            return _play(self, replicator.cosine_payoff(rows - group.start[:, : layout.num_parameters]), time=self.time)
        if self.payoff == "layers":
            scaled = partial(replicator.layer_payoff, rows, offsets, relative=True)
            return _play(self, replicator.layer_payoff(rows, offsets), scaled, self.time)
        return _play(self, replicator.payoff_matrix(rows), time=self.time)


@dataclass(frozen=True)
class ValidationGTFLAT(AggregatePart):
    """GTFLAT whose payoffs are measured, not estimated: player i values model j by the server's validation loss of the
    mean of models i and j. It evaluates ``k (k - 1) / 2`` models a group and round.
    """

    needs = GROUPS | {"validation"}
    strength: Weight = 0.8
    generations: Count = 50
    population: Positive | None = None
    scale: Scale = "paper"

    def aggregate(self, group: Group, state: State) -> Aggregate:
        """Return the equilibrium's weights; a group of one seat has weight 1."""
        k = len(group)
        if k == 1:
            return Aggregate(np.ones(1))
        game = group.view.judge.coalitions(group.updates, group.old, np.ones(k), "loss")
        i, j = np.triu_indices(k, 1)
        losses = np.zeros((k, k))
        pairs = [frozenset(pair) for pair in zip(i.tolist(), j.tolist(), strict=True)]
        losses[i, j] = losses[j, i] = -np.asarray(game.many(pairs))
        return _play(self, replicator.loss_payoff(losses))


def _play(
    part: GTFLAT | ValidationGTFLAT,
    phi: Floats,
    scaled: Callable[[], Floats] | None = None,
    time: replicator.Time = "discrete",
) -> Aggregate:
    """Return the equilibrium of a group's game with payoffs ``phi [m, m]`` by the part's options; ``scaled`` makes the
    scale-free payoffs where they are not ``phi`` over its mean size.

    Recorded, of groups of several seats: ``weigh/distance`` (the mean size of the payoffs before any scaling),
    ``weigh/nash_gap``, ``weigh/effective_seats`` (``1 / sum w^2``).
    """
    played = phi
    if part.scale == "mean":
        played = replicator.scale_free(phi) if scaled is None else scaled()
    state = replicator.equilibrium(played, part.generations, part.strength, part.population, time=time)
    weights = replicator.weights(state)
    recorded = {
        "weigh/distance": replicator.mean_distance(phi),
        "weigh/nash_gap": replicator.nash_gap(played, state),
        "weigh/effective_seats": 1.0 / float(weights @ weights),
    }
    return Aggregate(weights, metrics=recorded)


def gtfedavg(
    clients_per_round: Positive = 10,
    strength: Weight = 0.8,
    generations: Count = 50,
    population: Positive | None = None,
    scale: Scale = "paper",
) -> Mechanism:
    """GTFedAvg: FedAvg with GTFLAT's weights."""
    weigh = GTFLAT(strength, generations, population, scale)
    return replace(fedavg(clients_per_round), name="gtfedavg", weigh=weigh)


def gtfedprox(
    clients_per_round: Positive = 10,
    mu: Annotated[float, Field(ge=0)] = 0.1,
    strength: Weight = 0.8,
    generations: Count = 50,
    population: Positive | None = None,
    scale: Scale = "paper",
) -> Mechanism:
    """GTFedProx: FedProx with GTFLAT's weights."""
    weigh = GTFLAT(strength, generations, population, scale)
    return replace(fedprox(clients_per_round, mu), name="gtfedprox", weigh=weigh)
