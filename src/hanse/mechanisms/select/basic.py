"""Selectors that know nothing of what clients are worth: everyone, uniform, round-robin."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field

from hanse.base.streams import stream
from hanse.core.part import Choice, Context, Ints, Named, SelectPart, State, View

__all__ = [
    "CLIENTS",
    "Everyone",
    "PerRound",
    "RoundRobin",
    "Seated",
    "TheOne",
    "Uniform",
    "count_sat",
    "round_robin",
    "rounds_to_meet_all",
    "run_order",
    "who",
]

PerRound = Annotated[int, Field(ge=1)]
Seated = PerRound | None  # None: everyone
CLIENTS = frozenset({"clients"})


def round_robin(order: Ints, waiting: np.ndarray, m: int) -> Ints:
    """Return the next block of ``m`` clients of ``order``: those still ``waiting`` (a mask by client id) first, then
    filled up from the start of the order (papers.md G1).
    """
    first = order[waiting[order]][:m]
    fill = order[~np.isin(order, first)][: m - len(first)]
    return np.concatenate([first, fill]).astype(np.int64)


def rounds_to_meet_all(num_clients: int, clients_per_round: int) -> int:
    """Return the length of the round-robin phase, ceil(N / M) rounds (GreedyFed Alg. 1 line 2)."""
    return math.ceil(num_clients / clients_per_round)


def run_order(view: View) -> Ints:
    """Return the present clients ``[n]`` in the run's random order, which is the same in every round."""
    context = view.context
    order = stream(context.seed, "round-robin").permutation(context.num_clients)
    return order[np.isin(order, view.present)] if len(view.present) < len(order) else order


def count_sat(outcome: View, sat: Ints) -> Ints:
    """Return how often each client has been seated ``[N]``, this round included."""
    if outcome.choice is None:
        return sat
    sat = sat.copy()
    np.add.at(sat, outcome.choice.clients, 1)
    return sat


@dataclass(frozen=True)
class Everyone(SelectPart):
    """Everyone who is present trains."""

    needs: ClassVar[Named] = CLIENTS

    def select(self, view: View, state: State) -> tuple[Choice, State]:
        """Return all present clients."""
        return Choice(view.present), state


@dataclass(frozen=True)
class TheOne(SelectPart):
    """The one client that holds all data trains (centralised training)."""

    needs: ClassVar[Named] = frozenset({"pooled"})

    def select(self, view: View, state: State) -> tuple[Choice, State]:
        """Return the only client."""
        return Choice(view.present), state


@dataclass(frozen=True)
class Uniform(SelectPart):
    """FedAvg: ``clients_per_round`` of the present clients, uniformly at random without replacement."""

    needs: ClassVar[Named] = CLIENTS
    clients_per_round: PerRound = 10

    def select(self, view: View, state: State) -> tuple[Choice, State]:
        """Return the drawn clients in ascending order."""
        m = min(self.clients_per_round, len(view.present))
        return Choice(np.sort(view.draw("select").choice(view.present, m, replace=False))), state


@dataclass(frozen=True)
class RoundRobin(SelectPart):
    """Blocks of a random order, again and again, so that everyone sits equally often."""

    needs: ClassVar[Named] = CLIENTS
    clients_per_round: PerRound = 10

    def init(self, context: Context) -> State:
        """Nobody has sat yet."""
        return {"sat": np.zeros(context.num_clients, np.int64)}

    def select(self, view: View, state: State) -> tuple[Choice, State]:
        """Return the next block of those who sat least often."""
        order = run_order(view)
        sat = state["sat"]
        return Choice(round_robin(order, sat == sat[order].min(), self.clients_per_round)), state

    def learn(self, outcome: View, state: State) -> State:
        """Count who was asked."""
        return {"sat": count_sat(outcome, state["sat"])}


def who(clients_per_round: int | None) -> SelectPart:
    """Return the selector of so many clients a round, at random; None: of everyone, as the comparisons of personalised
    systems do.
    """
    return Everyone() if clients_per_round is None else Uniform(clients_per_round)
