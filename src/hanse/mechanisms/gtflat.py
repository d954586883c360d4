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

from hanse.base.errors import UserError
from hanse.base.factories import Count, Positive, Weight
from hanse.base.streams import stream
from hanse.core.part import Aggregate, AggregatePart, Choice, Context, Group, Mechanism, SelectPart, State, View
from hanse.core.table import Floats
from hanse.games import replicator
from hanse.mechanisms.baselines import fedavg, fedprox
from hanse.mechanisms.select import CLIENTS, count_sat, meet_all, without_replacement

Payoff = Literal["distance", "cosine", "layers"]
Scale = Literal["paper", "mean"]
GROUPS = frozenset({"clients", "groups"})


@dataclass(frozen=True)
class GTFLAT(AggregatePart):
    """GTFLAT with ``strength`` w, ``generations``, and whole individuals if a ``population`` is given.

    ``payoff``: "distance" over all parameters, eq. (10); "cosine" of what the clients changed; "layers": distances
    within each tensor, summed (with ``scale = "mean"`` each tensor counts the same). ``time``: "discrete" generations
    or the "continuous" flow.

    Two details of the published code: ``start`` "random" draws what each individual chooses at first (with a
    ``population``), and ``eps`` is added to every entry of the differences that distances are of (there 1e-6).
    """

    kind = "average"
    needs = GROUPS
    strength: Weight = 0.8
    generations: Count = 50
    population: Positive | None = None
    scale: Scale = "paper"
    payoff: Payoff = "distance"
    time: replicator.Time = "discrete"
    start: Literal["equal", "random"] = "equal"
    eps: Annotated[float, Field(ge=0, le=1)] = 0.0

    def __post_init__(self) -> None:
        if self.start == "random" and self.population is None:
            raise UserError("start: 'random': needs a population of individuals, such as population = 100")

    def aggregate(self, group: Group, state: State) -> Aggregate:
        """Return the equilibrium's weights; a group of one seat has weight 1."""
        if len(group) == 1:
            return Aggregate(np.ones(1))
        rows = group.parameters  # no buffers (papers.md T7)
        layout = group.view.context.layout
        start = self._start(group)
        offsets = [a for a in layout.offsets if a <= layout.num_parameters]
        if self.payoff == "cosine":
            ways = rows - group.start[:, : layout.num_parameters]
            return _play(self, replicator.cosine_payoff(ways), time=self.time, start=start)
        if self.payoff == "layers":
            scaled = partial(replicator.layer_payoff, rows, offsets, relative=True)
            return _play(self, replicator.layer_payoff(rows, offsets), scaled, self.time, start)
        return _play(self, replicator.payoff_matrix(rows, self.eps), time=self.time, start=start)

    def _start(self, group: Group) -> Floats | None:
        """Return what each individual chooses at first, where that is drawn."""
        if self.start == "equal" or self.population is None:
            return None
        return replicator.drawn(len(group), self.population, group.view.draw("weigh", start=group.row))


@dataclass(frozen=True)
class ValidationGTFLAT(AggregatePart):
    """GTFLAT whose payoffs are measured, not estimated: player i values model j by the server's validation loss of the
    mean of models i and j. It evaluates ``k (k - 1) / 2`` models a group and round.
    """

    kind = "average"
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


@dataclass(frozen=True)
class GTFLATSelect(SelectPart):
    """GTFLAT's future work (section 6), as we read it: clients are *selected* by the same game, among all clients.

    The server remembers of each client how it changed the model when it last sat. Every client's population chooses
    among the others' changes, the nearest paying most (eq. 10), and after ``generations`` a client's chance is the
    share of all that chose it (eq. 11): clients are drawn by it, without replacement. So clients whose changes many
    others are near to sit often, and nobody who is far from all. At first everybody sits once, in a random order.

    A change of more than ``sketch`` numbers is kept as a sketch of that length (each number is added, with a random
    sign, to a random place; Charikar et al. 2002), whose distances are right on average and to about
    ``sketch**-0.5`` of themselves: the state has ``N x sketch`` numbers.

    Payoffs are over the number of players (eq. 12), so that among N clients it takes N/k times as many generations as
    among k seats to go as far; with too few the weights are nearly uniform.
    """

    needs = CLIENTS
    meets_everyone = True
    clients_per_round: Positive = 10
    strength: Weight = 0.8
    generations: Count = 50
    scale: Scale = "paper"
    sketch: Positive = 256

    def init(self, context: Context) -> State:
        """Nobody has sat, and no change is known."""
        n, width = context.num_clients, min(self.sketch, context.layout.num_parameters)
        return {"sat": np.zeros(n, np.int64), "known": np.zeros(n, bool), "changes": np.zeros((n, width))}

    def select(self, view: View, state: State) -> tuple[Choice, State]:
        """Return the next of those who never sat, then clients drawn by the game's weights.

        Of clients whose change is not known (they sat, and their updates were refused) nobody is drawn while others are
        there. Recorded: ``select/effective_clients``, as many as the weights amount to.
        """
        meeting = meet_all(view, state, self.clients_per_round)
        if meeting is not None:
            return meeting, state
        known = view.present[state["known"][view.present]]
        players, m = (known if len(known) else view.present), self.clients_per_round
        chances = self.chances(state["changes"][players])
        drawn = without_replacement(chances, min(m, len(players)), view.draw("select"))
        recorded = {"select/exploring": 0, "select/effective_clients": 1.0 / float(chances @ chances)}
        return Choice(np.sort(players[drawn]), metrics=recorded), state

    def chances(self, changes: Floats) -> Floats:
        """Return the weights ``[n]`` of the game among clients with these ``changes [n, width]``."""
        phi = replicator.payoff_matrix(changes)
        played = replicator.scale_free(phi) if self.scale == "mean" else phi
        return replicator.weights(replicator.equilibrium(played, self.generations, self.strength))

    def learn(self, outcome: View, state: State) -> State:
        """Remember who sat, and the changes of those whose updates were accepted."""
        updates, parameters = outcome.trained, outcome.context.layout.num_parameters
        known, changes = state["known"].copy(), state["changes"].copy()
        if len(updates):
            start = outcome.table.rows[updates.seats.start]
            moved = (updates.rows - start)[:, :parameters].double().cpu().numpy()
            known[updates.seats.client] = True
            changes[updates.seats.client] = sketched(moved, changes.shape[1], outcome.context.seed)
        return {"sat": count_sat(outcome, state["sat"]), "known": known, "changes": changes}


def sketched(vectors: Floats, width: int, seed: int) -> Floats:
    """Return sketches ``[n, width]`` of ``vectors [n, P]``, by one linear map for each seed: each entry is added, with
    a random sign, to a random place (Charikar, Chen, Farach-Colton 2002). Vectors no longer than ``width`` stay.
    """
    length = vectors.shape[1]
    if length <= width:
        return vectors
    draw = stream(seed, "sketch")
    place, sign = draw.integers(width, size=length), draw.choice([-1.0, 1.0], size=length)
    return np.stack([np.bincount(place, weights=sign * vector, minlength=width) for vector in vectors])


def _play(
    part: GTFLAT | ValidationGTFLAT,
    phi: Floats,
    scaled: Callable[[], Floats] | None = None,
    time: replicator.Time = "discrete",
    start: Floats | None = None,
) -> Aggregate:
    """Return the equilibrium of a group's game with payoffs ``phi [m, m]`` by the part's options; ``scaled`` makes the
    scale-free payoffs where they are not ``phi`` over its mean size.

    Recorded, of groups of several seats: ``weigh/distance`` (the mean size of the payoffs before any scaling),
    ``weigh/nash_gap``, ``weigh/effective_seats`` (``1 / sum w^2``).
    """
    played = phi
    if part.scale == "mean":
        played = replicator.scale_free(phi) if scaled is None else scaled()
    state = replicator.equilibrium(played, part.generations, part.strength, part.population, time=time, start=start)
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
