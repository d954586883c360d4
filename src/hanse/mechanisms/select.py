"""SELECT: who sits at a round's training."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from hanse.games.cumulative import update_cumulative
from hanse.mechanisms.part import Choice, Context, Ints, SelectPart, State, View
from hanse.streams import stream

__all__ = ["Everyone", "Greedy", "RoundRobin", "TheOne", "Uniform", "greedy", "round_robin"]

PerRound = Annotated[int, Field(ge=1)]
CLIENTS = frozenset({"clients"})


def greedy(values: np.ndarray, m: int) -> Ints:
    """Return the ``m`` positions of the largest values, best first; ties go to the lower position (READINGS G8)."""
    return np.argsort(-np.asarray(values, np.float64), kind="stable")[:m].astype(np.int64)


def round_robin(order: Ints, waiting: np.ndarray, m: int) -> Ints:
    """Return the next block of ``m`` clients of ``order``: those still ``waiting`` (a mask by client id) first, then
    filled up from the start of the order (READINGS G1).
    """
    first = order[waiting[order]][:m]
    fill = order[~np.isin(order, first)][: m - len(first)]
    return np.concatenate([first, fill]).astype(np.int64)


@dataclass(frozen=True)
class Everyone(SelectPart):
    """Everyone who is present trains."""

    needs: ClassVar[frozenset[str]] = CLIENTS

    def decide(self, view: View, state: State) -> Choice:
        """Return all present clients."""
        return Choice(view.present)


@dataclass(frozen=True)
class TheOne(SelectPart):
    """The one client that holds all data trains (centralised training)."""

    needs: ClassVar[frozenset[str]] = frozenset({"pooled"})

    def decide(self, view: View, state: State) -> Choice:
        """Return the only client."""
        return Choice(view.present)


@dataclass(frozen=True)
class Uniform(SelectPart):
    """FedAvg: ``clients_per_round`` of the present clients, uniformly at random without replacement."""

    needs: ClassVar[frozenset[str]] = CLIENTS
    clients_per_round: PerRound = 10

    def decide(self, view: View, state: State) -> Choice:
        """Return the drawn clients in ascending order."""
        m = min(self.clients_per_round, len(view.present))
        return Choice(np.sort(view.draw("select").choice(view.present, m, replace=False)))


@dataclass(frozen=True)
class RoundRobin(SelectPart):
    """Blocks of a random order, again and again, so that everyone sits equally often."""

    needs: ClassVar[frozenset[str]] = CLIENTS
    clients_per_round: PerRound = 10

    def init(self, context: Context) -> State:
        """Nobody has sat yet."""
        return {"sat": np.zeros(context.num_clients, np.int64)}

    def decide(self, view: View, state: State) -> Choice:
        """Return the next block of those who sat least often."""
        order = _order(view)
        sat = state["sat"]
        return Choice(round_robin(order, sat == sat[order].min(), self.clients_per_round))

    def learn(self, outcome: View, state: State) -> State:
        """Count who was asked."""
        return {"sat": _count(outcome, state["sat"])}


@dataclass(frozen=True)
class Greedy(SelectPart):
    """GreedyFed Alg. 1: everyone once in random order, then the largest cumulative Shapley values.

    ``averaging`` is "mean" (line 12) or the alpha of line 13; ``start`` says whether the first value is taken as it is
    ("first", READINGS G7) or averaged with zero as printed ("zero"). Ties go to the lower id, or at random. A client
    that was asked and never gave a value ranks last.
    """

    needs: ClassVar[frozenset[str]] = CLIENTS | {"values"}
    clients_per_round: PerRound = 10
    averaging: Literal["mean"] | Annotated[float, Field(ge=0, lt=1)] = "mean"
    start: Literal["first", "zero"] = "first"
    ties: Literal["id", "random"] = "id"

    def init(self, context: Context) -> State:
        """No values yet."""
        n = context.num_clients
        return {"sat": np.zeros(n, np.int64), "counts": np.zeros(n, np.int64), "cumulative": np.zeros(n)}

    def decide(self, view: View, state: State) -> Choice:
        """Return the next round-robin block while somebody waits for its first value, then the M best."""
        waiting = state["sat"][view.present] == 0
        if waiting.any():
            mask = state["sat"] == 0
            return Choice(round_robin(_order(view), mask, self.clients_per_round), metrics={"select/exploring": 1})
        present = view.present if self.ties == "id" else view.draw("ties").permutation(view.present)
        score = np.where(state["counts"] > 0, state["cumulative"], -np.inf)[present]
        best = present[greedy(score, self.clients_per_round)]
        return Choice(best, metrics={"select/exploring": 0})

    def learn(self, outcome: View, state: State) -> State:
        """Average this round's values in (lines 11-13)."""
        counts, cumulative = state["counts"], state["cumulative"]
        if outcome.values is not None and len(outcome.trained):
            clients = outcome.trained.seats.client
            alpha = None if self.averaging == "mean" else self.averaging
            cumulative, counts = update_cumulative(
                cumulative, counts, clients, outcome.values.per_seat, alpha=alpha, first_as_is=self.start == "first"
            )
        return {"sat": _count(outcome, state["sat"]), "counts": counts, "cumulative": cumulative}


def rounds_to_meet_all(num_clients: int, clients_per_round: int) -> int:
    """Return the length of the round-robin phase, ceil(N / M) rounds (GreedyFed Alg. 1 line 2)."""
    return math.ceil(num_clients / clients_per_round)


def _order(view: View) -> Ints:
    """Return the present clients in the run's random order (the same in every round)."""
    context = view.context
    order = stream(context.seed, "round-robin").permutation(context.num_clients)
    return order[np.isin(order, view.present)] if len(view.present) < len(order) else order


def _count(outcome: View, sat: Ints) -> Ints:
    if outcome.choice is None:
        return sat
    sat = sat.copy()
    np.add.at(sat, outcome.choice.clients, 1)
    return sat
