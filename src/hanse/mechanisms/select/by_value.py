"""Selectors by cumulative Shapley value: GreedyFed, UCB, S-FedAvg."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from hanse.core.part import Choice, Context, Floats, Ints, Named, SelectPart, State, View
from hanse.games.cumulative import update_cumulative
from hanse.mechanisms.select.basic import CLIENTS, PerRound, count_sat, round_robin, run_order

__all__ = ["UCB", "ByValue", "Greedy", "SFedAvg", "greedy", "softmax", "ucb_scores", "without_replacement"]

VALUES = CLIENTS | {"values"}


def greedy(values: np.ndarray, m: int) -> Ints:
    """Return the positions ``[m]`` of the largest values, best first; ties go to the lower one (papers.md G8)."""
    return np.argsort(-np.asarray(values, np.float64), kind="stable")[:m].astype(np.int64)


def ucb_scores(values: Floats, counts: Ints, finished: int, beta: float) -> Floats:
    """Return ``SV_k + beta sqrt(ln t / N_k)`` ``[n]`` after t finished rounds, infinite for clients never valued
    (papers.md G9).
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        bonus = beta * np.sqrt(np.log(max(finished, 1)) / counts)
    return np.asarray(np.where(counts > 0, values + bonus, np.inf))


def softmax(values: Floats, temperature: float = 1.0) -> Floats:
    """Return ``exp(v / temperature)`` ``[n]``, normalised."""
    shifted = np.exp((values - values.max()) / temperature)
    return np.asarray(shifted / shifted.sum())


def without_replacement(probabilities: Floats, m: int, draw: np.random.Generator) -> Ints:
    """Return positions ``[m]`` drawn one after another without replacement (Gumbel's trick has exactly this law)."""
    with np.errstate(divide="ignore"):
        keys = np.log(probabilities) + draw.gumbel(size=len(probabilities))
    return np.argsort(-keys, kind="stable")[:m].astype(np.int64)


Averaging = Literal["mean"] | Annotated[float, Field(ge=0, lt=1)]
Start = Literal["first", "zero"]


def no_values(context: Context) -> State:
    """Return the state of a selector by cumulative values before round 0: how often each client sat, was valued, and
    how.
    """
    n = context.num_clients
    return {"sat": np.zeros(n, np.int64), "counts": np.zeros(n, np.int64), "cumulative": np.zeros(n)}


def meet_all(view: View, state: State, m: int) -> Choice | None:
    """Return the next round-robin block while a present client has never sat (GreedyFed Alg. 1 lines 2-3), else
    None.
    """
    if (state["sat"][view.present] > 0).all():
        return None
    return Choice(round_robin(run_order(view), state["sat"] == 0, m), metrics={"select/exploring": 1})


def average_in(outcome: View, state: State, averaging: Averaging, start: Start) -> State:
    """Return the state with this round's values averaged in (GreedyFed Alg. 1 lines 11-13); a client's seats add up."""
    counts, cumulative = state["counts"], state["cumulative"]
    if outcome.values is not None and len(outcome.trained):
        clients, place = np.unique(outcome.trained.seats.client, return_inverse=True)
        values = np.bincount(place, weights=outcome.values.per_seat)
        alpha = None if averaging == "mean" else averaging
        cumulative, counts = update_cumulative(
            cumulative, counts, clients, values, alpha=alpha, first_as_is=start == "first"
        )
    return {"sat": count_sat(outcome, state["sat"]), "counts": counts, "cumulative": cumulative}


@dataclass(frozen=True)
class ByValue(SelectPart):
    """Everyone once in random order, then the ``clients_per_round`` that rank first; subclasses say by what.

    ``averaging`` is "mean" (GreedyFed Alg. 1 line 12) or the alpha of line 13; ``start`` says whether the first value
    is taken as it is ("first", papers.md G7) or averaged with zero as printed ("zero").
    """

    needs: ClassVar[Named] = VALUES
    meets_everyone: ClassVar[bool] = True
    clients_per_round: PerRound = 10
    averaging: Averaging = "mean"
    start: Start = "first"

    def ranked(self, view: View, state: State) -> Ints:
        """Return the present clients ``[n]``, the best first."""
        raise NotImplementedError

    def init(self, context: Context) -> State:
        """No values yet."""
        return no_values(context)

    def select(self, view: View, state: State) -> tuple[Choice, State]:
        """Return the next round-robin block while somebody was never met, then the first."""
        meeting = meet_all(view, state, self.clients_per_round)
        if meeting is not None:
            return meeting, state
        return Choice(self.ranked(view, state)[: self.clients_per_round], metrics={"select/exploring": 0}), state

    def learn(self, outcome: View, state: State) -> State:
        """Average this round's values in."""
        return average_in(outcome, state, self.averaging, self.start)

    def figures(self, state: State) -> Mapping[str, Floats]:
        """Return each client's cumulative value."""
        return {"cumulative_value": state["cumulative"]}


@dataclass(frozen=True)
class Greedy(ByValue):
    """GreedyFed Alg. 1: the largest cumulative Shapley values. Ties go to the lower id, or at random.

    A client that was asked and never gave a value ranks last.
    """

    ties: Literal["id", "random"] = "id"

    def ranked(self, view: View, state: State) -> Ints:
        """Return the present clients ``[n]`` by cumulative value."""
        present = view.present if self.ties == "id" else view.draw("ties").permutation(view.present)
        score = np.where(state["counts"] > 0, state["cumulative"], -np.inf)[present]
        return np.asarray(present[greedy(score, len(present))])


@dataclass(frozen=True)
class UCB(ByValue):
    """As GreedyFed, with a bonus for clients that sat rarely: ``SV_k + beta sqrt(ln t / N_k)`` (Pandey et al. 2023).

    A client that was asked and never gave a value has an infinite score only until it has sat; then it ranks last.
    """

    beta: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.01

    def ranked(self, view: View, state: State) -> Ints:
        """Return the present clients ``[n]`` by upper bound."""
        scores = ucb_scores(state["cumulative"], state["counts"], view.round, self.beta)
        scores = np.where(state["counts"] > 0, scores, -np.inf)[view.present]
        return np.asarray(view.present[greedy(scores, len(scores))])


@dataclass(frozen=True)
class SFedAvg(SelectPart):
    """S-FedAvg (Nagalapatti, Narayanam 2021): clients are drawn by a softmax over an averaged value vector.

    After each round ``phi_k <- alpha phi_k + beta SV_k`` for those who were valued; phi starts at ``start``, by default
    1/N. The authors of GreedyFed ran it with temperature 0.01 (a factor 100) and start 0.03.
    """

    needs: ClassVar[Named] = VALUES
    clients_per_round: PerRound = 10
    alpha: Annotated[float, Field(ge=0, le=1)] = 0.75
    beta: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.25
    temperature: Annotated[float, Field(gt=0)] = 1.0
    start: Annotated[float, Field(allow_inf_nan=False)] | None = None

    def init(self, context: Context) -> State:
        """Everybody is worth the same."""
        n = context.num_clients
        return {"phi": np.full(n, 1 / n if self.start is None else self.start)}

    def select(self, view: View, state: State) -> tuple[Choice, State]:
        """Return M clients drawn without replacement."""
        probabilities = softmax(state["phi"][view.present], self.temperature)
        drawn = without_replacement(probabilities, self.clients_per_round, view.draw("select"))
        return Choice(np.sort(view.present[drawn])), state

    def learn(self, outcome: View, state: State) -> State:
        """Move the values of those who sat."""
        phi = state["phi"].copy()
        if outcome.values is not None and len(outcome.trained):
            clients, place = np.unique(outcome.trained.seats.client, return_inverse=True)
            values = np.bincount(place, weights=outcome.values.per_seat)
            phi[clients] = self.alpha * phi[clients] + self.beta * values
        return {"phi": phi}
