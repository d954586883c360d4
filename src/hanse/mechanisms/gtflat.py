"""GTFLAT (Mahini, Mousavi, Daneshtalab): averaging weights come from a population game between the clients.

Each client is a population whose individuals choose among the other clients' models; the nearest model pays best. After
some generations, a model's weight is the share of all individuals that choose it (:mod:`hanse.games.replicator`).

GTFLAT is an add-on: it replaces the weights of any mechanism that averages, as in ``dataclasses.replace(mechanism,
weigh=GTFLAT())``. The published combinations are at the end of the module (:func:`gtfedavg`, :func:`gtfedprox`) and in
``fedgen.py``, and :class:`GTFLATSelect` selects clients by the game.

The weights depend on the unit of the distances. If the models are far apart, the nearest neighbours get all the weight.
If they are close, all weights are nearly equal (papers.md T10). ``scale = "mean"`` divides the distances by their mean.
The mean distance is always recorded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from hanse.base.errors import UserError
from hanse.base.factories import Count, Positive, Share, Weight
from hanse.base.streams import stream
from hanse.core.part import Aggregate, AggregatePart, Choice, Context, Group, Mechanism, SelectPart, Size, State, View
from hanse.core.table import Floats
from hanse.games import replicator
from hanse.mechanisms.baselines import fedavg, fedprox
from hanse.mechanisms.select import CLIENTS, count_sat, meet_all, too_short, without_replacement
from hanse.mechanisms.weigh import GROUPED

Scale = Literal["paper", "mean"]


@dataclass(frozen=True)
class GTFLAT(AggregatePart):
    """GTFLAT: a model's weight is the share of all individuals in the game that choose it; near models pay most.

    The game of a round (eqs 4 and 8) has the distances' payoffs (eq. 10), is played for some generations (eq. 6), and
    its state gives the weights (eq. 11).

    Attributes:
        strength: the paper's w, how strongly a generation follows the payoffs.
        generations: how many generations are played.
        population: the number of individuals per client. None: any share is possible, as in an infinite population.
        scale: "paper" takes distances as they are, "mean" divides them by their mean.
        start: what individuals choose at first. "equal": all models equally often. "random": each a random model, as in
            the published code; this needs a ``population``.
        eps: a number added to every entry of the difference between two models before its length is taken; the
            published code has 1e-6.
    """

    needs = GROUPED
    strength: Weight = 0.8
    generations: Count = 50
    population: Positive | None = None
    scale: Scale = "paper"
    start: Literal["equal", "random"] = "equal"
    eps: Share = 0.0

    def __post_init__(self) -> None:
        """Raise UserError for a random start without individuals that could choose."""
        if self.start == "random" and self.population is None:
            raise UserError("start: 'random': needs a population of individuals, such as population = 100")

    def aggregate(self, group: Group, state: State) -> Aggregate:
        """Return the weights ``[m]`` that the game gives; the only seat of a group has weight 1.

        Recorded are the models' mean distance, how far the shares are from a Nash equilibrium, and of how many equal
        seats the weights are worth.
        """
        if len(group) == 1:
            return Aggregate(np.ones(1))
        phi = replicator.payoff_matrix(group.parameters, self.eps)  # without buffers: batch norm's (papers.md T7)
        played = replicator.scale_free(phi) if self.scale == "mean" else phi
        start = None
        if self.start == "random" and self.population is not None:
            start = replicator.drawn(len(group), self.population, group.view.draw("weigh", start=group.row))
        shares = replicator.equilibrium(played, self.generations, self.strength, self.population, start=start)
        weights = replicator.weights(shares)
        recorded = {
            "weigh/distance": replicator.mean_distance(phi),
            "weigh/nash_gap": replicator.nash_gap(played, shares),
            "weigh/effective_seats": 1.0 / float(weights @ weights),
        }
        return Aggregate(weights, metrics=recorded)


@dataclass(frozen=True)
class GTFLATSelect(SelectPart):
    """Selects clients by GTFLAT's game among all clients; it often selects those whose changes are near many others'.

    This is our reading of the paper's future work (section 6). The server remembers how each client changed the model
    when it last trained. Every client's population chooses among the others' changes; the nearest pays most (eq. 10). A
    client's chance is the share of all individuals that choose its change (eq. 11). After everyone has trained once in
    random order, clients are drawn by these chances without replacement. A client that is far from all others hardly
    ever trains.

    A long change is kept as a *sketch* (Charikar et al. 2002), a short vector: each number of the change gets a random
    sign and is added at a random place. Distances between sketches are right on average, with a relative error of about
    ``sketch ** -0.5``. The state has ``N x sketch`` numbers.

    Payoffs are divided by the number of players (eq. 12). So a game of all N clients needs N/k times as many
    generations as one of the k seats; with too few, the chances are nearly uniform.

    Attributes:
        clients_per_round: how many clients train in a round.
        strength: the paper's w, how strongly a generation follows the payoffs.
        generations: how many generations are played.
        scale: "paper" takes distances as they are, "mean" divides them by their mean.
        sketch: the length of a sketch. Changes shorter than that are kept whole.

    Examples:
        >>> from hanse.runs.rehearsal import rehearse
        >>> part, view, state = rehearse({"name": "fedavg", "select": "gtflat"}, 2).before("select")
        >>> choice, state = part.select(view, state)
        >>> len(choice.clients)
        4
    """

    needs = CLIENTS
    clients_per_round: Positive = 10
    strength: Weight = 0.8
    generations: Count = 50
    scale: Scale = "paper"
    sketch: Positive = 256

    def unfit(self, size: Size) -> Sequence[str]:
        """Return a warning if the run ends before everyone has sat once."""
        return too_short(size)

    def init(self, context: Context) -> State:
        """Return the state in which nobody has sat and no change is known."""
        n, width = context.num_clients, min(self.sketch, context.layout.num_parameters)
        return {"sat": np.zeros(n, np.int64), "known": np.zeros(n, bool), "changes": np.zeros((n, width))}

    def select(self, view: View, state: State) -> tuple[Choice, State]:
        """Return the next clients that have never trained, or, once all have, clients drawn by the chances of the game.

        If a client's updates were all refused, its change is not known. It is drawn only if no present client's change
        is known. ``select/effective_clients`` records the effective number of clients that these chances choose among.

        Args:
            view: the round. The method reads ``present`` and ``draw``.
            state: as :meth:`init` makes it.
        """
        meeting = meet_all(view, state, self.clients_per_round) if len(view.present) else Choice(view.present)
        if meeting is not None:
            return meeting, state
        known = view.present[state["known"][view.present]]
        players, m = (known if len(known) else view.present), self.clients_per_round
        chances = self.chances(state["changes"][players])
        drawn = without_replacement(chances, min(m, len(players)), view.draw("select"))
        recorded = {"select/exploring": 0, "select/effective_clients": 1.0 / float(chances @ chances)}
        return Choice(np.sort(players[drawn]), metrics=recorded), state

    def chances(self, changes: Floats) -> Floats:
        """Return the chances ``[n]`` that the game gives to clients with these ``changes [n, width]``."""
        phi = replicator.payoff_matrix(changes)
        played = replicator.scale_free(phi) if self.scale == "mean" else phi
        return replicator.weights(replicator.equilibrium(played, self.generations, self.strength))

    def learn(self, outcome: View, state: State) -> State:
        """Remember who trained, and a sketch of each change that was accepted.

        Args:
            outcome: the finished round. The method reads ``table``, ``choice`` and ``trained``.
            state: as :meth:`init` makes it.
        """
        updates, parameters = outcome.trained, outcome.context.layout.num_parameters
        known, changes = state["known"].copy(), state["changes"].copy()
        if len(updates):
            start = outcome.table.rows[updates.seats.start]
            moved = (updates.rows - start)[:, :parameters].double().cpu().numpy()
            known[updates.seats.client] = True
            changes[updates.seats.client] = sketched(moved, changes.shape[1], outcome.context.seed)
        return {"sat": count_sat(outcome, state["sat"]), "known": known, "changes": changes}


def sketched(vectors: Floats, width: int, seed: int) -> Floats:
    """Return sketches ``[n, width]``, which keep distances approximately (Charikar, Chen, Farach-Colton 2002).

    Each entry is added, with a random sign, to a random place of the sketch. The map is linear and the same for all
    vectors.

    Args:
        vectors: ``[n, P]``. They are returned as they are if P is at most ``width``.
        width: the length of a sketch.
        seed: the seed of the random map. Sketches are comparable only if they were made with the same seed.
    """
    length = vectors.shape[1]
    if length <= width:
        return vectors
    draw = stream(seed, "sketch")
    place, sign = draw.integers(width, size=length), draw.choice([-1.0, 1.0], size=length)
    return np.stack([np.bincount(place, weights=sign * vector, minlength=width) for vector in vectors])


def gtfedavg(clients_per_round: Positive = 10) -> Mechanism:
    """GTFedAvg: FedAvg with GTFLAT's weights. :class:`GTFLAT` has its options: ``weigh = { population = 100 }``.

    Args:
        clients_per_round: how many clients train in a round, at random.
    """
    return replace(fedavg(clients_per_round), name="gtfedavg", weigh=GTFLAT())


def gtfedprox(clients_per_round: Positive = 10, mu: Weight = 0.1) -> Mechanism:
    """GTFedProx: FedProx (with its ``mu``) and GTFLAT's weights, as in :func:`gtfedavg`.

    Args:
        clients_per_round: how many clients train in a round, at random.
        mu: strength of the pull towards the shared model.
    """
    return replace(fedprox(clients_per_round, mu), name="gtfedprox", weigh=GTFLAT())
