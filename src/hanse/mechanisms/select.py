"""SELECT: which clients train in a round.

There are four groups of selectors. Some use no values: everyone, uniform, round-robin. Some rank clients by cumulative
Shapley value (:class:`Greedy`, :class:`UCB`). One draws by values (:class:`SFedAvg`). Some go by clients' losses:
:class:`PowerOfChoice` asks for losses, :class:`Oort` remembers reported ones.

To write your own selector by value, subclass :class:`RankedSelect` and rank the clients in ``ranked``. The functions
are the published formulas; ``set_aware.py``, ``gtflat.py`` and ``pifl.py`` have further selectors.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from hanse.base.factories import PartShare, Positive, Rate, Share, SomeShare, Weight
from hanse.base.streams import stream
from hanse.core.declared import Figure
from hanse.core.part import Choice, Context, Most, SelectPart, Size, State, View
from hanse.core.port import Request, Score, Scored
from hanse.core.table import Floats, Ints
from hanse.games.cumulative import update_cumulative

Seated = Positive | None  # the option clients_per_round of personalised systems; None: everyone
CLIENTS = frozenset({"clients"})
SUMS = frozenset({"sums"})  # selectors that read no update, nor what one client says of its training


def round_robin(order: Ints, waiting: np.ndarray, m: int) -> Ints:
    """Return the next block of ``m`` clients: those still waiting, in order, and then more from the start of the order.

    Filling up keeps every block at size m (papers.md G1). If there are fewer than m clients, the block is all of them.

    Args:
        order: client ids ``[n]``.
        waiting: a mask by client id, ``[N]``.
        m: how many clients a block has.

    Examples:
        Five clients come in blocks of two. The last block is filled from the start of the order:

        >>> order = np.array([3, 0, 4, 1, 2])
        >>> round_robin(order, np.array([False, True, True, False, True]), 2)
        array([4, 1])
        >>> round_robin(order, np.array([False, False, True, False, False]), 2)
        array([2, 3])
    """
    first = order[waiting[order]][:m]
    fill = order[~np.isin(order, first)][: m - len(first)]
    return np.concatenate([first, fill]).astype(np.int64)


def rounds_to_meet_all(num_clients: int, clients_per_round: int) -> int:
    """Return the length of the round-robin phase in rounds, ceil(N / M) (GreedyFed Alg. 1 line 2)."""
    return math.ceil(num_clients / clients_per_round)


def too_short(size: Size) -> Sequence[str]:
    """Return a warning if a run is over before or when the selector's first phase ends, in which every client trains
    once, or if every client always trains.
    """
    if size.seats >= size.clients > 1:
        return [f"warning: mechanism.clients_per_round: all {size.clients} clients always train, so none is chosen"]
    needed = rounds_to_meet_all(size.clients, size.seats)
    if size.rounds > needed:
        return ()
    return [
        f"warning: run.rounds: {size.rounds}: to meet all {size.clients} clients, {size.seats} a round, takes {needed} "
        "rounds; nobody is chosen by value before that"
    ]


def run_order(view: View) -> Ints:
    """Return the present clients ``[n]`` in a random order that is the same in every round of a run."""
    context = view.context
    order = stream(context.seed, "round-robin").permutation(context.num_clients)
    return order[np.isin(order, view.present)] if len(view.present) < len(order) else order


def count_sat(outcome: View, sat: Ints) -> Ints:
    """Return how often each client has trained, ``[N]``, including this round.

    Args:
        outcome: the finished round.
        sat: the counts before the round, ``[N]``.
    """
    if outcome.choice is None:
        return sat
    sat = sat.copy()
    np.add.at(sat, outcome.choice.clients, 1)
    return sat


@dataclass(frozen=True)
class Everyone(SelectPart):
    """Every client that is present trains."""

    needs = CLIENTS
    accepts = SUMS

    def select(self, view: View, state: State) -> tuple[Choice, State]:
        """Return all present clients."""
        return Choice(view.present), state


@dataclass(frozen=True)
class TheOne(Everyone):
    """Centralised training: the only client, which holds all data, trains."""

    needs = frozenset({"pooled"})


@dataclass(frozen=True)
class Uniform(SelectPart):
    """FedAvg's selection: ``clients_per_round`` of the present clients, uniformly at random without replacement."""

    needs = CLIENTS
    accepts = SUMS
    clients_per_round: Positive = 10

    def select(self, view: View, state: State) -> tuple[Choice, State]:
        """Return the drawn clients in ascending order."""
        m = min(self.clients_per_round, len(view.present))
        return Choice(np.sort(view.draw("select").choice(view.present, m, replace=False))), state


@dataclass(frozen=True)
class RoundRobin(SelectPart):
    """Repeats blocks of a random order, so all clients train equally often."""

    needs = CLIENTS
    accepts = SUMS
    clients_per_round: Positive = 10

    def init(self, context: Context) -> State:
        """Return the state in which no client has trained."""
        return {"sat": np.zeros(context.num_clients, np.int64)}

    def select(self, view: View, state: State) -> tuple[Choice, State]:
        """Return the next block of the clients that have trained least often.

        Args:
            view: the round. The method reads ``present``.
            state: as :meth:`init` makes it.
        """
        order, sat = run_order(view), state["sat"]
        waiting = sat == sat[order].min(initial=sat.max())  # nobody may be there
        return Choice(round_robin(order, waiting, self.clients_per_round)), state

    def learn(self, outcome: View, state: State) -> State:
        """Count the clients of this round.

        Args:
            outcome: the finished round. The method reads ``choice``.
            state: as :meth:`init` makes it.
        """
        return {"sat": count_sat(outcome, state["sat"])}


def who(clients_per_round: int | None) -> SelectPart:
    """Return a selector of ``clients_per_round`` random clients; for None, of everyone.

    Everyone is the default of the personalised systems, as in their published comparisons.
    """
    return Everyone() if clients_per_round is None else Uniform(clients_per_round)


VALUES = CLIENTS | {"values"}


def greedy(values: np.ndarray, m: int) -> Ints:
    """Return the positions ``[m]`` of the largest values, largest first; ties go to the lower position (papers.md
    G8)."""
    return np.argsort(-np.asarray(values, np.float64), kind="stable")[:m].astype(np.int64)


def ucb_scores(values: Floats, counts: Ints, finished: int, beta: float) -> Floats:
    """Return UCB's scores ``SV_k + beta sqrt(ln t / N_k)``, ``[n]``; infinite where never valued.

    Our reading of the formula: papers.md G9.

    Args:
        values: cumulative values, ``[n]``.
        counts: in how many rounds each client was valued, ``[n]``.
        finished: t, the number of finished rounds.
        beta: weight of the bonus.

    Examples:
        The second client has been valued less often, which outweighs its lower value:

        >>> ucb_scores(np.array([0.3, 0.2, 0.0]), np.array([8, 2, 0]), finished=10, beta=0.5).round(2)
        array([0.57, 0.74,  inf])
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        bonus = beta * np.sqrt(np.log(max(finished, 1)) / counts)
    return np.asarray(np.where(counts > 0, values + bonus, np.inf))


def softmax(values: Floats, temperature: float = 1.0) -> Floats:
    """Return ``exp(v / temperature)``, ``[n]``, scaled to sum to 1."""
    shifted = np.exp((values - values.max(initial=-np.inf)) / temperature)
    return np.asarray(shifted / shifted.sum())


def without_replacement(probabilities: Floats, m: int, draw: np.random.Generator) -> Ints:
    """Return ``m`` different positions, drawn one after another in proportion to ``probabilities [n]``.

    Adding Gumbel noise to the logarithms and taking the largest has exactly this distribution.
    """
    with np.errstate(divide="ignore"):
        keys = np.log(probabilities) + draw.gumbel(size=len(probabilities))
    return np.argsort(-keys, kind="stable")[:m].astype(np.int64)


# options of the selectors by value: see ByValue
Averaging = Literal["mean"] | PartShare
Start = Literal["first", "zero"]
Order = Literal["random", "id", "never"]


def no_values(context: Context) -> State:
    """Return the state before round 0 of a selector that goes by cumulative values.

    The state has three arrays: ``sat [N]``, how often each client was chosen; ``counts [N]``, how often it was valued;
    and ``cumulative [N]``, its value so far.
    """
    n = context.num_clients
    return {"sat": np.zeros(n, np.int64), "counts": np.zeros(n, np.int64), "cumulative": np.zeros(n)}


def meet_all(view: View, state: State, m: int, order: Order = "random") -> Choice | None:
    """Return the next block of the first phase, in which every client trains once, or None after that phase.

    This is the phase of GreedyFed Alg. 1 lines 2 and 3. It lasts as long as a present client has never trained.

    Args:
        view: the round, before selection.
        state: a state with the key ``sat``.
        m: how many clients a block has.
        order: the order in which clients train. "random" is the run's random order. "id" is the order of ids, with the
            last block filled at random, as in the authors' code. "never" skips the phase.
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
    """Return the next state, with this round's values averaged in (GreedyFed Alg. 1 lines 11-13).

    The value of a client in a round is the sum over its seats.

    Args:
        outcome: the finished round.
        state: a state with the keys of :func:`no_values`.
        averaging: "mean", or the weight of the past in an exponential average.
        start: "first": a client's first value is used unchanged. "zero": it is averaged with zero.
    """
    counts, cumulative = state["counts"], state["cumulative"]
    if outcome.values is not None and len(outcome.trained):
        clients, values = outcome.values.by_client(outcome)
        alpha = None if averaging == "mean" else averaging
        cumulative, counts = update_cumulative(
            cumulative, counts, clients, values, alpha=alpha, first_as_is=start == "first"
        )
    return {"sat": count_sat(outcome, state["sat"]), "counts": counts, "cumulative": cumulative}


@dataclass(frozen=True)
class RankedSelect(SelectPart):
    """Every client once in random order, then the ``clients_per_round`` clients that rank first.

    Subclasses define the ranking.

    Attributes:
        clients_per_round: how many clients train in a round.
        averaging: how a client's values of several rounds are combined: "mean" (GreedyFed Alg. 1 line 12), or a number:
            the alpha of line 13, which is the weight of the past, at least 0 and below 1.
        start: whether an exponential average uses the first value unchanged ("first", papers.md G7) or averages it with
            zero, as printed ("zero").
        meets: in which order every client trains once at first (:func:`meet_all`). With "never" there is no such phase,
            and clients that have never trained rank as with the value 0 (:class:`Greedy`) or first (:class:`UCB`).
        ties: how ties are broken: in favour of the lower "id", or at "random".

    Examples:
        >>> from hanse.runs.rehearsal import rehearse
        >>> part, view, state = rehearse("greedyfed", 2).before("select")
        >>> choice, state = part.select(view, state)
        >>> sorted(part.figures(state))
        ['cumulative_value']
    """

    needs = VALUES
    accepts = SUMS
    clients_per_round: Positive = 10
    averaging: Averaging = "mean"
    start: Start = "first"
    meets: Order = "random"
    ties: Literal["id", "random"] = "id"

    def unfit(self, size: Size) -> Sequence[str]:
        """Return a warning if the run ends before everyone has sat once."""
        return () if self.meets == "never" else too_short(size)

    def ranked(self, view: View, state: State) -> Ints:
        """Return the present clients ``[n]``, the best first."""
        raise NotImplementedError

    def in_order(self, view: View) -> Ints:
        """Return the present clients ``[n]`` in the order by which ties are broken."""
        return view.present if self.ties == "id" else view.present[view.draw("ties").permutation(len(view.present))]

    def init(self, context: Context) -> State:
        """Return the state before any values."""
        return no_values(context)

    def select(self, view: View, state: State) -> tuple[Choice, State]:
        """Return the next block of the first phase, and after it the clients that rank first.

        Args:
            view: the round. The method reads ``round`` and ``present``.
            state: as :meth:`init` makes it.
        """
        meeting = meet_all(view, state, self.clients_per_round, self.meets)
        if meeting is not None:
            return meeting, state
        return Choice(self.ranked(view, state)[: self.clients_per_round], metrics={"select/exploring": 0}), state

    def learn(self, outcome: View, state: State) -> State:
        """Average this round's values in.

        Args:
            outcome: the finished round. The method reads ``choice``, ``trained`` and ``values``.
            state: as :meth:`init` makes it.
        """
        return average_in(outcome, state, self.averaging, self.start)

    def figures(self, state: State) -> Mapping[str, Floats]:
        """Return each client's cumulative value, ``[N]``."""
        return {"cumulative_value": state["cumulative"]}


@dataclass(frozen=True)
class Greedy(RankedSelect):
    """GreedyFed Alg. 1: selects the clients with the largest cumulative Shapley values.

    A client that trained but was never valued, because its updates were refused, ranks last.
    """

    def ranked(self, view: View, state: State) -> Ints:
        """Return the present clients ``[n]`` by cumulative value, the largest first."""
        present = self.in_order(view)
        unknown = 0.0 if self.meets == "never" else -np.inf
        score = np.where(state["counts"] > 0, state["cumulative"], unknown)[present]
        return np.asarray(present[greedy(score, len(present))])


@dataclass(frozen=True)
class UCB(RankedSelect):
    """GreedyFed with a bonus for clients that rarely trained: ``SV_k + beta sqrt(ln t / N_k)`` (Pandey et al. 2023).

    A client that has never trained ranks first, because its bonus is infinite. This matters only if ``meets`` is
    "never". A client that trained but was never valued ranks last.

    Attributes:
        beta: weight of the bonus.
    """

    beta: Weight = 0.01

    def ranked(self, view: View, state: State) -> Ints:
        """Return the present clients ``[n]`` by upper confidence bound, the largest first."""
        present = self.in_order(view)
        scores = ucb_scores(state["cumulative"], state["counts"], view.round, self.beta)
        # whose updates were all refused must not keep the infinite bonus of those that were never tried
        scores = np.where((state["counts"] == 0) & (state["sat"] > 0), -np.inf, scores)[present]
        return np.asarray(present[greedy(scores, len(scores))])


@dataclass(frozen=True)
class Probabilities:
    """Tells later parts each client's probability of being drawn first by a random selector.

    Attributes:
        by_client: ``[N]``; 0 for clients that are not present.
    """

    by_client: Floats


@dataclass(frozen=True)
class SFedAvg(SelectPart):
    """S-FedAvg (Nagalapatti, Narayanam 2021): clients are drawn by a softmax over an averaged vector of values.

    After each round ``phi_k <- alpha phi_k + beta SV_k`` for the clients that were valued. The authors of GreedyFed
    used temperature 0.01 (a factor of 100), start 0.03 and the mean of a client's values as SV_k.

    Attributes:
        clients_per_round: how many clients train in a round.
        alpha: weight of the old phi.
        beta: weight of the new value.
        temperature: the temperature of the softmax, above 0. The lower it is, the more the best clients are preferred.
        start: phi before the first value. None: 1/N.
        averages: what is used as SV_k. "round": the client's value in the round. "mean": its mean value so far
            (GreedyFed section III-A: "of the cumulative Shapley Values").

    Examples:
        >>> from hanse.runs.rehearsal import rehearse
        >>> part, view, state = rehearse("s_fedavg", 2).before("select")
        >>> choice, state = part.select(view, state)
        >>> len(choice.clients)
        4
    """

    needs = VALUES
    gives = frozenset({"probabilities"})
    accepts = SUMS
    clients_per_round: Positive = 10
    alpha: Share = 0.75
    beta: Weight = 0.25
    temperature: Rate = 1.0
    start: Figure | None = None
    averages: Literal["round", "mean"] = "round"

    def init(self, context: Context) -> State:
        """Return the same phi for every client, ``[N]``; with ``averages = "mean"``, also each client's mean value and
        number of values.
        """
        n = context.num_clients
        means = {"cumulative": np.zeros(n), "counts": np.zeros(n, np.int64)} if self.averages == "mean" else {}
        return {"phi": np.full(n, 1 / n if self.start is None else self.start), **means}

    def select(self, view: View, state: State) -> tuple[Choice, State]:
        """Return clients drawn without replacement, and hand on their probabilities.

        Args:
            view: the round. The method reads ``present`` and ``draw``.
            state: as :meth:`init` makes it.
        """
        probabilities = softmax(state["phi"][view.present], self.temperature)
        drawn = without_replacement(probabilities, self.clients_per_round, view.draw("select"))
        by_client = np.zeros(len(state["phi"]))
        by_client[view.present] = probabilities
        return Choice(np.sort(view.present[drawn]), found=(Probabilities(by_client),)), state

    def learn(self, outcome: View, state: State) -> State:
        """Update phi of the clients that were valued.

        Args:
            outcome: the finished round. The method reads ``trained`` and ``values``.
            state: as :meth:`init` makes it.
        """
        phi, means = state["phi"].copy(), {name: state[name] for name in state if name != "phi"}
        if outcome.values is not None and len(outcome.trained):
            clients, values = outcome.values.by_client(outcome)
            if means:
                means["cumulative"], means["counts"] = update_cumulative(**means, clients=clients, values=values)
                values = means["cumulative"][clients]
            phi[clients] = self.alpha * phi[clients] + self.beta * values
        return {"phi": phi, **means}


QUESTION = "power-of-choice"


def next_query_size(size: int, m: int, decay: float) -> int:
    """Return how many clients Power-of-Choice asks next: the last number, decayed, but at least m.

    Our reading of the rule: papers.md G9.

    Examples:
        >>> next_query_size(100, m=10, decay=0.9)
        90
        >>> next_query_size(11, m=10, decay=0.9)
        10
    """
    return max(m, math.ceil(decay * size)) if size > m else size


@dataclass(frozen=True)
class PowerOfChoice(SelectPart):
    """Power-of-Choice (Cho et al. 2022): asks some clients for the model's loss; those with the largest losses train.

    Round t asks ``d_t = max(M, ceil(decay d_{t-1}))`` clients, starting from ``d_{-1} = N``, drawn in proportion to
    their reported samples. Ties go to the lower id.

    Attributes:
        clients_per_round: M, how many clients train in a round.
        decay: the factor by which the number of clients asked shrinks per round.
        score_samples: the most training samples on which a client measures the loss. None: all.

    Examples:
        >>> from hanse.runs.rehearsal import rehearse
        >>> part, view, state = rehearse("power_of_choice").before("select")
        >>> choice, state = part.select(view, state)
        >>> len(choice.clients)
        4
    """

    needs = CLIENTS | {"scores"}
    clients_per_round: Positive = 10
    decay: SomeShare = 0.9
    score_samples: Positive | None = None

    def init(self, context: Context) -> State:
        """Return the number of all clients, with which the number of clients asked begins before it decays."""
        return {"size": context.num_clients}

    def questions(self, clients: int, rows: int) -> Mapping[str, Most]:
        """Return what :meth:`asks` asks at most."""
        return {"Score": Most(1, 1, samples=self.score_samples)}

    def asks(self, view: View, state: State) -> Sequence[Request]:
        """Ask this round's candidates for the loss of the model that they would start from.

        Args:
            view: the round. The method reads ``stage``, ``roster``, ``present``, ``table``, ``home`` and ``draw``.
            state: as :meth:`init` makes it.
        """
        if view.stage != "open":
            return ()
        return [
            Request(int(c), (Score(QUESTION, view.table.rows[int(view.home[c])][None], limit=self.score_samples),))
            for c in self._candidates(view, state)
        ]

    def select(self, view: View, state: State) -> tuple[Choice, State]:
        """Return the candidates with the largest losses.

        Those that did not answer or have just left are not among them.

        Args:
            view: the round. The method reads ``present`` and ``answers``, which have a :class:`hanse.core.port.Scored`
                by ``(client, QUESTION)`` for each candidate that answered.
            state: not read here.
        """
        found = {c: r for (c, question), r in view.answers.items() if question == QUESTION and isinstance(r, Scored)}
        clients = view.present[np.isin(view.present, list(found))]
        best = greedy(np.array([float(found[c].loss[0]) for c in clients.tolist()]), self.clients_per_round)
        return Choice(clients[best], metrics={"select/asked": len(found)}), state

    def learn(self, outcome: View, state: State) -> State:
        """Let the number of clients asked decay.

        Args:
            outcome: the finished round. The method reads nothing of it.
            state: as :meth:`init` makes it.
        """
        return {"size": next_query_size(state["size"], self.clients_per_round, self.decay)}

    def _candidates(self, view: View, state: State) -> Ints:
        """Return the clients to ask, in ascending order: the same ones whenever it is called in a round."""
        size = min(next_query_size(state["size"], self.clients_per_round, self.decay), len(view.present))
        weights = np.maximum(view.roster.num_samples, 1).astype(np.float64)
        drawn = without_replacement(weights / weights.sum(), size, view.draw("candidates"))
        return np.sort(view.present[drawn])


@dataclass(frozen=True)
class Oort(SelectPart):
    """Oort's selection (Lai et al. 2021, sec. 4): clients with high statistical utility, and some new ones.

    The utility is ``n_k loss_k + sqrt(0.1 ln t / t_k)``, where t_k is the round in which client k last trained. The
    first term is clipped at the 95th percentile and divided by its largest value. A share of the places goes to clients
    that have never trained. The other seats are drawn by utility from the clients within ``cutoff`` of the last client
    in the top M.

    Two things differ from the paper. There is no term for system speed, because hanse's clients report no durations.
    And the loss is the reported mean, not a root mean square.

    Attributes:
        clients_per_round: how many clients train in a round.
        exploration: the share of places for exploration in round 0. It is multiplied by 0.98 each round, down to 0.2.
        cutoff: which clients are in the pool: those whose utility is at least this share of the utility of the last
            client in the top M.

    Examples:
        >>> from hanse.runs.rehearsal import rehearse
        >>> part, view, state = rehearse("oort", 2).before("select")
        >>> choice, state = part.select(view, state)
        >>> len(choice.clients)
        4
    """

    needs = CLIENTS | {"losses"}
    clients_per_round: Positive = 10
    exploration: Share = 0.9
    cutoff: SomeShare = 0.95

    def init(self, context: Context) -> State:
        """Return the state in which nobody has trained."""
        n = context.num_clients
        return {"utility": np.zeros(n), "last": np.full(n, -1), "sat": np.zeros(n, np.int64)}

    def select(self, view: View, state: State) -> tuple[Choice, State]:
        """Return exploring and exploiting clients together, in ascending order.

        Args:
            view: the round. The method reads ``round``, ``present`` and ``draw``.
            state: as :meth:`init` makes it.
        """
        present, draw = view.present, view.draw("select")
        m = min(self.clients_per_round, len(present))
        fresh = present[state["sat"][present] == 0]
        known = present[state["sat"][present] > 0]
        share = max(0.2, self.exploration * 0.98**view.round)
        # at least as many as the known clients leave seats for, and never more than there are new clients
        exploring = min(len(fresh), max(round(share * m), m - len(known)))
        new = draw.choice(fresh, exploring, replace=False) if exploring else fresh[:0]
        old = self._exploit(view, state, known, m - exploring, draw)
        return Choice(np.sort(np.concatenate([new, old])), metrics={"select/exploring": exploring}), state

    def _exploit(self, view: View, state: State, known: Ints, m: int, draw: np.random.Generator) -> Ints:
        """Return ``m`` of the known clients, drawn by their scores from the best ones."""
        if m == 0:
            return known[:0]
        score = self._scores(view.round, state, known)
        level = self.cutoff * np.sort(score)[-min(m, len(score))]
        pool = np.flatnonzero(score >= level)
        weights = score[pool] + 1e-12
        return known[pool[without_replacement(weights / weights.sum(), m, draw)]]

    @staticmethod
    def _scores(round: int, state: State, known: Ints) -> Floats:
        """Return the known clients' scores: clipped and scaled utility, and a bonus for not having sat for long."""
        utility = np.minimum(state["utility"][known], np.percentile(state["utility"][known], 95))
        largest = utility.max()
        stale = np.sqrt(0.1 * np.log(round + 1) / (state["last"][known] + 1))
        return np.asarray((utility / largest if largest > 0 else utility) + stale)

    def learn(self, outcome: View, state: State) -> State:
        """Remember what each client reported, and when it trained.

        Args:
            outcome: the finished round. The method reads ``round``, ``choice`` and ``trained``.
            state: as :meth:`init` makes it.
        """
        updates = outcome.trained
        utility, last = state["utility"].copy(), state["last"].copy()
        if outcome.choice is not None:
            last[outcome.choice.clients] = outcome.round
            utility[outcome.choice.clients] = 0.0
        utility[updates.seats.client] = updates.num_samples * np.nan_to_num(updates.loss)  # no loss reported: 0
        return {"utility": utility, "last": last, "sat": count_sat(outcome, state["sat"])}
