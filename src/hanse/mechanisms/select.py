"""SELECT: who sits at a round's training.

First the selectors that know nothing of what clients are worth (everyone, uniform, round-robin), then those by
cumulative Shapley value (GreedyFed, UCB, S-FedAvg), and those by what clients lose (Power-of-Choice asks them, Oort
remembers what they reported).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from hanse.base.factories import Positive, Share, Weight
from hanse.base.streams import stream
from hanse.core.part import Choice, Context, SelectPart, State, View
from hanse.core.port import Request, Score, Scored
from hanse.core.table import Floats, Ints
from hanse.games.cumulative import update_cumulative

Seated = Positive | None  # None: everyone
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

    needs = CLIENTS

    def select(self, view: View, state: State) -> tuple[Choice, State]:
        """Return all present clients."""
        return Choice(view.present), state


@dataclass(frozen=True)
class TheOne(SelectPart):
    """The one client that holds all data trains (centralised training)."""

    needs = frozenset({"pooled"})

    def select(self, view: View, state: State) -> tuple[Choice, State]:
        """Return the only client."""
        return Choice(view.present), state


@dataclass(frozen=True)
class Uniform(SelectPart):
    """FedAvg: ``clients_per_round`` of the present clients, uniformly at random without replacement."""

    needs = CLIENTS
    clients_per_round: Positive = 10

    def select(self, view: View, state: State) -> tuple[Choice, State]:
        """Return the drawn clients in ascending order."""
        m = min(self.clients_per_round, len(view.present))
        return Choice(np.sort(view.draw("select").choice(view.present, m, replace=False))), state


@dataclass(frozen=True)
class RoundRobin(SelectPart):
    """Blocks of a random order, again and again, so that everyone sits equally often."""

    needs = CLIENTS
    clients_per_round: Positive = 10

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
Order = Literal["random", "id", "never"]


def no_values(context: Context) -> State:
    """Return the state of a selector by cumulative values before round 0: how often each client sat, was valued, and
    how.
    """
    n = context.num_clients
    return {"sat": np.zeros(n, np.int64), "counts": np.zeros(n, np.int64), "cumulative": np.zeros(n)}


def meet_all(view: View, state: State, m: int, order: Order = "random") -> Choice | None:
    """Return the next round-robin block while a present client has never sat (GreedyFed Alg. 1 lines 2-3), else
    None. In the run's random ``order``, or by "id", the last block filled at random, as the authors' code does;
    "never": there is no such phase.
    """
    if order == "never" or (state["sat"][view.present] > 0).all():
        return None
    if order == "id":
        waiting = np.sort(view.present[state["sat"][view.present] == 0])[:m]
        others = np.setdiff1d(view.present, waiting)
        filled = view.draw("fill").permutation(others)[: m - len(waiting)]
        return Choice(np.concatenate([waiting, filled]).astype(np.int64), metrics={"select/exploring": 1})
    return Choice(round_robin(run_order(view), state["sat"] == 0, m), metrics={"select/exploring": 1})


def average_in(outcome: View, state: State, averaging: Averaging, start: Start) -> State:
    """Return the state with this round's values averaged in (GreedyFed Alg. 1 lines 11-13); a client's seats add up."""
    counts, cumulative = state["counts"], state["cumulative"]
    if outcome.values is not None and len(outcome.trained):
        clients, values = outcome.values.by_client(outcome)
        alpha = None if averaging == "mean" else averaging
        cumulative, counts = update_cumulative(
            cumulative, counts, clients, values, alpha=alpha, first_as_is=start == "first"
        )
    return {"sat": count_sat(outcome, state["sat"]), "counts": counts, "cumulative": cumulative}


@dataclass(frozen=True)
class ByValue(SelectPart):
    """Everyone once in random order, then the ``clients_per_round`` that rank first; subclasses say by what.

    ``averaging`` is "mean" (GreedyFed Alg. 1 line 12) or the alpha of line 13; ``start`` says whether the first value
    is taken as it is ("first", papers.md G7) or averaged with zero as printed ("zero"). ``meets``: in which order
    everyone is met first (:func:`meet_all`); "never": nobody is, and all start at the value 0. ``ties`` go to the lower
    id, or at random.
    """

    needs = VALUES
    meets_everyone = True
    clients_per_round: Positive = 10
    averaging: Averaging = "mean"
    start: Start = "first"
    meets: Order = "random"
    ties: Literal["id", "random"] = "id"

    def ranked(self, view: View, state: State) -> Ints:
        """Return the present clients ``[n]``, the best first."""
        raise NotImplementedError

    def in_order(self, view: View) -> Ints:
        """Return the present clients ``[n]`` in the order that ties go by."""
        return view.present if self.ties == "id" else view.draw("ties").permutation(view.present)

    def init(self, context: Context) -> State:
        """No values yet."""
        return no_values(context)

    def select(self, view: View, state: State) -> tuple[Choice, State]:
        """Return the next round-robin block while somebody was never met, then the first."""
        meeting = meet_all(view, state, self.clients_per_round, self.meets)
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
    """GreedyFed Alg. 1: the largest cumulative Shapley values.

    A client that was asked and never gave a value ranks last.
    """

    def ranked(self, view: View, state: State) -> Ints:
        """Return the present clients ``[n]`` by cumulative value."""
        present = self.in_order(view)
        unknown = 0.0 if self.meets == "never" else -np.inf
        score = np.where(state["counts"] > 0, state["cumulative"], unknown)[present]
        return np.asarray(present[greedy(score, len(present))])


@dataclass(frozen=True)
class UCB(ByValue):
    """As GreedyFed, with a bonus for clients that sat rarely: ``SV_k + beta sqrt(ln t / N_k)`` (Pandey et al. 2023).

    A client that was asked and never gave a value has an infinite score only until it has sat; then it ranks last.
    ``t`` counts finished rounds, or this one too (``this_round``, as the code of GreedyFed's authors does).
    """

    beta: Weight = 0.01
    this_round: bool = False

    def ranked(self, view: View, state: State) -> Ints:
        """Return the present clients ``[n]`` by upper bound."""
        present = self.in_order(view)
        scores = ucb_scores(state["cumulative"], state["counts"], view.round + self.this_round, self.beta)
        scores = np.where(state["counts"] > 0, scores, -np.inf)[present]
        return np.asarray(present[greedy(scores, len(scores))])


@dataclass(frozen=True)
class Probabilities:
    """With which probability a selector by lot takes each client first, ``by_client [N]`` (0: not present)."""

    by_client: Floats


@dataclass(frozen=True)
class SFedAvg(SelectPart):
    """S-FedAvg (Nagalapatti, Narayanam 2021): clients are drawn by a softmax over an averaged value vector.

    After each round ``phi_k <- alpha phi_k + beta SV_k`` for those who were valued; phi starts at ``start``, by default
    1/N. The authors of GreedyFed ran it with temperature 0.01 (a factor 100) and start 0.03.
    """

    needs = VALUES
    gives = frozenset({"probabilities"})
    clients_per_round: Positive = 10
    alpha: Share = 0.75
    beta: Weight = 0.25
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
        by_client = np.zeros(len(state["phi"]))
        by_client[view.present] = probabilities
        return Choice(np.sort(view.present[drawn]), found=(Probabilities(by_client),)), state

    def learn(self, outcome: View, state: State) -> State:
        """Move the values of those who sat."""
        phi = state["phi"].copy()
        if outcome.values is not None and len(outcome.trained):
            clients, values = outcome.values.by_client(outcome)
            phi[clients] = self.alpha * phi[clients] + self.beta * values
        return {"phi": phi}


QUESTION = "power-of-choice"


def next_query_size(size: int, m: int, decay: float) -> int:
    """Return how many clients Power-of-Choice asks next: the last number decayed, never fewer than m (papers.md G9)."""
    return max(m, math.ceil(decay * size)) if size > m else size


@dataclass(frozen=True)
class PowerOfChoice(SelectPart):
    """Power-of-Choice (Cho et al. 2022): ask some clients for the loss of the model on their data, seat the largest.

    Round t asks ``d_t = max(M, ceil(decay d_{t-1}))`` clients, ``d_{-1} = N``, drawn in proportion to their reported
    samples; each scores at most ``score_samples`` of its training samples (None: all). Ties go to the lower id.

    ``pick = "random"``: nobody is asked and who sits is a uniform draw. That is what the code of GreedyFed's authors
    comes to: it lists the losses by id and reads the choice from a shuffled list.
    """

    needs = CLIENTS
    clients_per_round: Positive = 10
    decay: Annotated[float, Field(gt=0, le=1)] = 0.9
    score_samples: Positive | None = None
    pick: Literal["losses", "random"] = "losses"

    def init(self, context: Context) -> State:
        """Nobody has been asked."""
        return {"size": context.num_clients}

    def asks(self, view: View, state: State) -> Sequence[Request]:
        """Ask this round's candidates for the loss of their home model."""
        if view.stage != "open" or self.pick == "random":
            return ()
        return [
            Request(int(c), (Score(QUESTION, view.table.rows[int(view.home[c])][None], limit=self.score_samples),))
            for c in self._candidates(view, state)
        ]

    def select(self, view: View, state: State) -> tuple[Choice, State]:
        """Return the candidates with the largest losses; who did not answer, or has just left, is not seated."""
        if self.pick == "random":
            m = min(self.clients_per_round, len(view.present))
            return Choice(np.sort(view.draw("picked").choice(view.present, m, replace=False))), state
        found = {c: r for (c, question), r in view.answers.items() if question == QUESTION and isinstance(r, Scored)}
        clients = view.present[np.isin(view.present, list(found))]
        best = greedy(np.array([float(found[c].loss[0]) for c in clients.tolist()]), self.clients_per_round)
        return Choice(clients[best], metrics={"select/asked": len(found)}), state

    def learn(self, outcome: View, state: State) -> State:
        """Ask fewer next time."""
        return {"size": next_query_size(state["size"], self.clients_per_round, self.decay)}

    def _candidates(self, view: View, state: State) -> Ints:
        size = min(next_query_size(state["size"], self.clients_per_round, self.decay), len(view.present))
        weights = np.maximum(view.roster.num_samples, 1).astype(np.float64)
        drawn = without_replacement(weights / weights.sum(), size, view.draw("candidates"))
        return np.sort(view.present[drawn])


@dataclass(frozen=True)
class Oort(SelectPart):
    """Oort's statistical utility (Lai et al. 2021, sec. 4): samples times training loss, with a bonus for clients not
    heard of for long; part of the seats explore clients that never sat.

    ``utility = n_k loss_k + sqrt(0.1 ln t / t_k)``: utilities are clipped at the 95th percentile and scaled to the
    largest, and t_k is the round k last sat in. Exploring seats start as ``exploration`` of all and decay by 0.98 a
    round to 0.2; the others are drawn by utility among clients within ``cutoff`` of the last one that would be chosen.
    Its system speed term is left out: hanse's clients report no durations. The loss is the mean that the client
    reported, not a root mean square.
    """

    needs = CLIENTS | {"losses"}
    clients_per_round: Positive = 10
    exploration: Share = 0.9
    cutoff: Annotated[float, Field(gt=0, le=1)] = 0.95

    def init(self, context: Context) -> State:
        """Nobody has sat."""
        n = context.num_clients
        return {"utility": np.zeros(n), "last": np.full(n, -1), "sat": np.zeros(n, np.int64)}

    def select(self, view: View, state: State) -> tuple[Choice, State]:
        """Return exploring and exploiting clients in ascending order."""
        present, draw = view.present, view.draw("select")
        m = min(self.clients_per_round, len(present))
        fresh = present[state["sat"][present] == 0]
        known = present[state["sat"][present] > 0]
        share = max(0.2, self.exploration * 0.98**view.round)
        exploring = min(len(fresh), max(round(share * m), m - len(known)))
        new = draw.choice(fresh, exploring, replace=False) if exploring else fresh[:0]
        old = self._exploit(view, state, known, m - exploring, draw)
        return Choice(np.sort(np.concatenate([new, old])), metrics={"select/exploring": exploring}), state

    def _exploit(self, view: View, state: State, known: Ints, m: int, draw: np.random.Generator) -> Ints:
        if m == 0:
            return known[:0]
        score = self._scores(view.round, state, known)
        level = self.cutoff * np.sort(score)[-min(m, len(score))]
        pool = np.flatnonzero(score >= level)
        weights = score[pool] + 1e-12
        return known[pool[without_replacement(weights / weights.sum(), m, draw)]]

    @staticmethod
    def _scores(round: int, state: State, known: Ints) -> Floats:
        utility = np.minimum(state["utility"][known], np.percentile(state["utility"][known], 95))
        largest = utility.max()
        stale = np.sqrt(0.1 * np.log(round + 1) / (state["last"][known] + 1))
        return np.asarray((utility / largest if largest > 0 else utility) + stale)

    def learn(self, outcome: View, state: State) -> State:
        """Remember what each client reported, and when."""
        updates = outcome.trained
        utility, last, sat = state["utility"].copy(), state["last"].copy(), state["sat"].copy()
        if outcome.choice is not None:
            sat[outcome.choice.clients] += 1
            last[outcome.choice.clients] = outcome.round
            utility[outcome.choice.clients] = 0.0
        utility[updates.seats.client] = updates.num_samples * np.nan_to_num(updates.loss)  # who does not say: none
        return {"utility": utility, "last": last, "sat": sat}
