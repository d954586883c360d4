"""A Flower strategy's rounds as a mechanism of hanse whose decisions the strategy has already made.

:class:`Watched` collects what the strategy did in a round. :func:`watching` turns it into a mechanism: :class:`Asked`
selects the clients that the strategy asked, :class:`Combined` returns its aggregate, and :class:`OfReplies` values the
replies. :class:`Replies` replaces the clients and returns the replies that have already arrived. The usual loop then
plays the round. Values, payments, books and records are therefore made as in any other run.

The run's ``config.toml`` names this mechanism as ``hanse.flower.valued.mechanism:flower``. The run cannot be played
from there, because nothing would tell it what the strategy did.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord
from torch import Tensor

from hanse.base.errors import UserError, first_line
from hanse.core.part import (
    Aggregate,
    Aggregated,
    AggregatePart,
    Choice,
    Group,
    Mechanism,
    SelectPart,
    State,
    ValuePart,
    Values,
    View,
    in_slots,
)
from hanse.core.port import ClientInfo, Closing, Federation, Reply, Request, Roster, Train, Trained
from hanse.core.table import Floats, Ints
from hanse.core.telling import Measure, Plot, Telling
from hanse.federation.codec import WireError
from hanse.flower.arrays import Form, average, opened, shares, size_of
from hanse.flower.valued.reaggregate import Again, NotAgain
from hanse.flower.valued.worth import ByClients, ByFunction, NoWorthError, Worth, counted_in
from hanse.games.mixture import Game
from hanse.learning.by_function import FunctionCoalitions
from hanse.learning.coalitions import Rule
from hanse.mechanisms.deploy import ServerModel
from hanse.mechanisms.train import SharedModel
from hanse.mechanisms.value import GTG, Exact, Mixture, Path, steadied

STRATEGY = frozenset({"strategy"})  # a need that only a watched strategy meets: it keeps these parts out of other runs
OTHER = "aggregating the same replies again gave another model: it has state that a copy does not carry"
NO_SUM = (
    "method 'path' shares out the step of an average of the replies, which the aggregate is not: 'mixture', 'exact' "
    "and 'gtg' value any aggregate that can be made again"
)
NO_STEPS = (
    "game 'increment' takes the replies' steps one by one, and the aggregate is not their average: game 'average' "
    "values any aggregate that can be made again"
)
TINY = 1e-37  # numbers may always differ by this: float32's relative error does not hold for the smallest ones
FEW = 6  # up to so many replies the exact value is taken: at most 64 coalitions are aggregated again
GAIN = Measure(
    "first-order share of the gain",
    "A first-order share of the gain is the part of what the clients' own evaluations say the round gained that goes "
    "to an update for how far it went the way of all of them; the values of a round sum to that gain.",
    share_out=True,
)

APP = (
    "A Flower app's own rounds, in which hanse valued the replies: what was trained, on which data and how, is the "
    "app's. In config.toml [data], [train] and [model] are hanse's defaults, which had no part in it."
)

OWN = (  # what the strategy itself measures, as its own log has it
    Plot("The strategy's own figures", "strategy/*/*", line="*: *", caption="What the app's own functions returned."),
)


@dataclass
class Watched:
    """What a strategy did in one round, and how its result is judged.

    Clients are named by hanse's client ids.

    Attributes:
        form: the app's arrays, as columns of a row.
        worth: how models are judged.
        roster: all clients that have come so far.
        before: the arrays that the round started from.
        asked: the clients to which the strategy sent training messages.
        replies: the sound replies.
        records: the arrays of the sound replies, as they came.
        refused: why a client has no sound reply.
        weights: the number of samples that each sound reply states; 0 if a reply states none.
        made: the strategy's aggregate of the replies. None: it made none.
        average: whether ``made`` is the weighted average of the sound replies.
        again: the function that makes the aggregate of some of the replies. It is used if ``made`` is not an average.
        answered: the clients whose replies, sound or not, the strategy has seen.
        why_not: why the aggregate of some replies is not available, if ``again`` is None.
        tests: clients' evaluations of the model after the round: ``(figure, samples)`` by client. Higher figures are
            better.
        tests_before: clients' evaluations of the model before the round, in the same form as ``tests``.

    Examples:
        A round of FedAvg with the replies of two clients, given by hand:

        >>> from flwr.app import Array
        >>> def model(*w):
        ...     return ArrayRecord({"w": Array(np.array(w, np.float32))})
        >>> before, records = model(0, 0), {0: model(1, 0), 1: model(0, 1)}
        >>> form, worth = Form.of(before), ByFunction(lambda arrays: float(arrays["w"].numpy().sum()))
        >>> replies = {c: Trained(0, form.row(records[c]), 10, 0.5, 1) for c in (0, 1)}
        >>> told = Watched(
        ...     form, worth, Roster([info(0, 100, "farm", 10), info(1, 101, "mill", 10)]), before, asked=[0, 1],
        ...     replies=replies, records=records, weights={0: 10.0, 1: 10.0}, made=model(0.5, 0.5), answered=[0, 1],
        ... )
        >>> told.settled()
        >>> told.average, told.share([0, 1])
        (True, array([0.5, 0.5]))
        >>> told.coalition([1])["w"].numpy()
        array([0., 1.], dtype=float32)

        As a mechanism, it plays the round again with these replies:

        >>> mechanism, federation = watching(flower(), told), Replies(told)
        >>> federation.present(0).ids, mechanism.select.told is told
        (array([0, 1]), True)
    """

    form: Form
    worth: Worth
    roster: Roster
    before: ArrayRecord
    asked: Sequence[int] = ()
    replies: Mapping[int, Trained] = field(default_factory=dict)
    records: Mapping[int, ArrayRecord] = field(default_factory=dict)
    refused: Mapping[int, str] = field(default_factory=dict)
    weights: Mapping[int, float] = field(default_factory=dict)
    made: ArrayRecord | None = None
    average: bool = False
    again: Again | None = None
    answered: Sequence[int] = ()
    why_not: str = ""
    tests: Mapping[int, tuple[float, float]] = field(default_factory=dict)
    tests_before: Mapping[int, tuple[float, float]] = field(default_factory=dict)

    def share(self, clients: Sequence[int]) -> Floats:
        """Return the weights of some clients' replies in an average of them, ``[n]``, summing to 1."""
        return shares(np.array([self.weights[c] for c in clients]))

    def coalition(self, clients: Sequence[int]) -> ArrayRecord | None:
        """Return the aggregate that the strategy makes of some clients' replies, or None if it makes none.

        Raises:
            NotAgain: the aggregate cannot be made again.
        """
        if self.average:
            return average([self.records[c] for c in clients], self.share(clients))
        if self.again is None:
            raise NotAgain(self.why_not)
        return self.again.made(clients)

    def _averaged(self, known: bool) -> bool:
        """Say whether the aggregate is the weighted average of the sound replies, up to rounding.

        Args:
            known: whether the strategy uses Flower's own averaging. If not, replies that hardly differ tell nothing:
                any rule would make nearly their average, so the answer is False for these.
        """
        if self.made is None or not self.replies or not self.form.names:
            return False
        clients = list(self.replies)
        rows = torch.stack([self.replies[c].row for c in clients]).double()
        old = row_of(self.form, self.before, "the arrays before").double()
        mean = torch.from_numpy(self.share(clients)) @ rows
        made = row_of(self.form, self.made, "the aggregate").double()
        size = torch.maximum(rows.abs().max(0).values, old.abs())
        # an error bound for a weighted sum of n terms in the coarsest type of each column
        near = (len(clients) + 2) * (self.form.rounding([self.made, *self.records.values()]) * size + TINY)
        tells = known or bool(((rows - mean).abs() > 4 * near).any())
        return tells and bool(((mean - made).abs() <= near).all())

    def repeats(self) -> bool:
        """Say whether the strategy makes the same aggregate of the sound replies again.

        Raises:
            NotAgain: the aggregate cannot be made again.
        """
        remade = self.coalition(list(self.replies)) if self.replies else None
        return self.made is not None and remade is not None and same(self.made, remade)

    def settled(self) -> None:
        """Find out whether the aggregate is the average of the sound replies and, if not, whether a copy of the
        strategy reproduces it. If it is neither, ``why_not`` says why.
        """
        if self.made is None:
            return
        known, self.average = self.average, self._averaged(self.average)
        if self.average:
            return
        why = "its aggregate is not the average of the replies" if known else OTHER
        if self.again is not None:
            try:
                if self.repeats():
                    return
            except Exception as wrong:
                why = str(wrong) if isinstance(wrong, NotAgain) else first_line(wrong)
        elif not known:
            return  # why_not says it
        self.again, self.why_not = None, self.unsound(self.answered, self.replies) or why

    def unsound(self, answered: Iterable[int], sound: Iterable[int]) -> str:
        """Return why a round cannot be valued if its aggregate also has unsound updates, for which hanse has no rows.

        Empty if all replies are sound.
        """
        others = sorted(set(answered) - set(sound))
        names = ", ".join(self.roster[client].name for client in others)[:150]
        why = f"its aggregate is not that of the sound replies alone: there were others, refused here, of {names}"
        return why if others else ""


def row_of(form: Form, arrays: ArrayRecord, what: str) -> Tensor:
    """Return arrays as a row ``[P]``.

    Args:
        form: what the arrays should be.
        arrays: the arrays.
        what: the name of the arrays in the message.

    Raises:
        UserError: the arrays have another form.
    """
    try:
        return form.row(arrays)
    except WireError as wrong:
        raise UserError(f"{what}: {wrong}") from None


def same(one: ArrayRecord, other: ArrayRecord) -> bool:
    """Say whether two records hold the same numbers under the same names, in the same order."""
    if list(one) != list(other):
        return False
    return all(
        # NumPy looks for NaN in real numbers alone
        np.array_equal(opened(array), opened(other[name]), equal_nan=np.dtype(array.dtype).kind == "f")
        for name, array in one.items()
    )


# ---- the mechanism


def flower(strategy: str = "", flower: str = "", settings: dict[str, Any] | None = None) -> Mechanism:
    """Return the mechanism of a run that a Flower strategy has played, without knowledge of any round.

    The arguments are what ``config.toml`` keeps of the strategy. They change nothing here.

    Args:
        strategy: name of the strategy's class.
        flower: version of Flower.
        settings: the strategy's parameters that Flower itself defines.
    """
    return Mechanism("flower", Asked(), SharedModel(), Combined(), Mixture(), deploy=ServerModel())


def watching(mechanism: Mechanism, told: Watched | None) -> Mechanism:
    """Return the mechanism of one round.

    Args:
        mechanism: the mechanism of the run, with its value part and its payment rule.
        told: what the strategy did in the round. None: no round is known yet.
    """
    value = None if mechanism.value is None else OfReplies(mechanism.value, told)
    return replace(mechanism, select=Asked(told), weigh=Combined(told), value=value)


@dataclass(frozen=True)
class Asked(SelectPart):
    """A select part: the clients that the strategy asked.

    Attributes:
        told: what the strategy did in the round. None: no round is known yet, and ``select`` cannot be called.

    Examples:
        >>> from hanse.runs.rehearsal import rehearse
        >>> empty = ArrayRecord()
        >>> told = Watched(Form.of(empty), ByClients(), Roster(), empty, asked=[2, 0])
        >>> choice, state = Asked(told).select(rehearse("fedavg").view, {})
        >>> choice.clients
        array([0, 2])
    """

    needs = STRATEGY
    told: Watched | None = None

    def select(self, view: View, state: State) -> tuple[Choice, State]:
        """Return the clients that were asked, in ascending order. All start from the server's row."""
        assert self.told is not None
        return Choice(np.array(sorted(self.told.asked), np.int64)), state


@dataclass(frozen=True)
class Combined(AggregatePart):
    """A weigh part: what the strategy's ``aggregate_train`` made of the replies.

    Values may ask the part for the aggregate of some of the updates.

    Attributes:
        told: what the strategy did in the round. None: no round is known yet, and ``aggregate`` cannot be called.

    Examples:
        The loop calls it in each round of a watched strategy. Here with a round played by a rehearsal:

        >>> from hanse.runs.rehearsal import rehearse
        >>> (group,) = rehearse("fedavg").groups
        >>> empty = ArrayRecord()
        >>> weights = dict.fromkeys(range(4), 10.0)
        >>> told = Watched(Form.of(empty), ByClients(), Roster(), empty, weights=weights, made=empty, average=True)
        >>> Combined(told).aggregate(group, {}).weights
        array([0.25, 0.25, 0.25, 0.25])
    """

    needs = STRATEGY
    told: Watched | None = None

    def aggregate(self, group: Group, state: State) -> Aggregate:
        """Return the weights of the average or, if the strategy does not average, its new row.

        For a subset of the replies, this is the row that the strategy would have made of them. If it makes none, the
        row stays unchanged.
        """
        told = self.told
        assert told is not None
        if told.made is None:
            return Aggregate(row=group.old)
        clients = group.view.trained.seats.client[group.at].tolist()
        if told.average:
            return Aggregate(told.share(clients), reapply=True)
        if len(clients) == len(group.view.trained):
            return Aggregate(row=row_of(told.form, told.made, "the aggregate"))
        made = told.coalition(clients)
        return Aggregate(row=group.old if made is None else row_of(told.form, made, "the aggregate of some replies"))


@dataclass(frozen=True)
class OfReplies(ValuePart):
    """A value part: the values of the replies in the game whose coalitions' models are the strategy's own aggregates.

    Attributes:
        part: the value part that solves the game, one of :mod:`hanse.mechanisms.value`, such as ``GTG()``. If the
            strategy does not average and the part needs averages, the exact Shapley value (up to 6 replies) or
            GTG-Shapley replaces it.
        told: what the strategy did in the round.

    Examples:
        A round of two clients whose models a user's function judges:

        >>> from flwr.app import Array
        >>> from hanse.core.table import Seats, Table, Updates
        >>> from hanse.runs.rehearsal import rehearse
        >>> def model(*w):
        ...     return ArrayRecord({"w": Array(np.array(w, np.float32))})
        >>> worth = ByFunction(lambda arrays: float(arrays["w"].numpy()[0]))
        >>> records = {0: model(1, 0), 1: model(0, 1)}
        >>> told = Watched(
        ...     Form.of(model(0, 0)), worth, Roster(), model(0, 0), records=records, weights={0: 10.0, 1: 10.0},
        ...     made=model(0.5, 0.5), average=True,
        ... )
        >>> rows, ones = torch.stack([told.form.row(records[c]) for c in (0, 1)]), np.ones(2)
        >>> updates = Updates(Seats.at([0, 1], [0, 0]), rows, 10 * ones, ones, ones.astype(np.int64))
        >>> view = replace(rehearse("fedavg").view, table=Table.of(torch.zeros(1, 2)), updates=updates)
        >>> values, state = OfReplies(Exact(), told).value(view, {})
        >>> values.per_seat
        array([ 0.75, -0.25])
    """

    accepts = frozenset({"reapply"})
    part: ValuePart
    told: Watched | None = None

    def tells(self, standing: frozenset[str]) -> Telling:
        """Say what is measured, in what unit, and that data, model and training in the record are not the app's."""
        if self.told is None:
            return self.part.tells(standing)
        worth = self.told.worth
        measure = GAIN if isinstance(worth, ByClients) else self.part.tells(standing).measures or Measure("value")
        measure = replace(measure, sentence=f"{measure.sentence} {counted_in(worth)}".strip())
        return Telling(report=APP, measures=measure, charts=OWN)

    def value(self, view: View, state: State) -> tuple[Values, State]:
        """Return the value of each reply.

        Raises:
            NoWorthError: a model could not be judged, or the strategy made no aggregate.
            NotAgain: the models of coalitions are not available.
        """
        told = self.told
        assert told is not None
        if told.made is None:
            raise NoWorthError("the strategy made no aggregate")
        clients = view.trained.seats.client.tolist()
        rows, old = view.trained.rows, view.table.rows[0]
        weights = told.share(clients)
        if isinstance(told.worth, ByClients):
            gain = told.worth.gain(told.tests_before, told.tests)
            values = told.worth.values(gain, weights, rows - old)
            return Values(values, metrics={"value/sum": float(values.sum()), "value/models_evaluated": 0.0}), state
        part: Any = self.part
        # of the replies that could be read and are in the aggregate, the round refuses some, such as too long ones
        if why := told.unsound(told.replies, clients):
            raise NotAgain(why)
        if isinstance(part, Path):
            if not told.average:
                raise NotAgain(told.unsound(told.answered, told.replies) or NO_SUM)
            return part.value(view, state)
        if getattr(part, "game", "average") == "increment" and not told.average:
            raise NotAgain(told.unsound(told.answered, told.replies) or NO_STEPS)
        if not told.average and "reapply" not in in_slots(getattr(part, "accepts", frozenset()), ["value"]):
            part = Exact() if len(clients) <= FEW else GTG()
        if not told.average and told.again is None:
            raise NotAgain(told.why_not)
        S, counted = len(clients), np.arange(len(clients))
        if told.average:  # a reply of weight 0 is in no average
            counted = np.flatnonzero(weights)
            clients, weights, rows = [clients[s] for s in counted.tolist()], weights[counted], rows[counted]
        game = self._game(view, told, clients, weights, rows, part)
        solved = steadied(part.solve(game, len(clients), view), game)
        if not told.average and not told.repeats():  # once more: what it remembers of other coalitions shows now
            raise NotAgain(OTHER)
        # beside the values, what all updates together and none of them were worth: their difference is what was shared
        # out
        together, nothing = game.many([frozenset(range(len(clients))), frozenset()])
        metrics = {
            "value/models_evaluated": float(game.evaluated),
            "value/sum": float(solved.values.sum()),
            "value/all_together": float(together),
            "value/nothing": float(nothing),
            **({} if told.average else {"value/aggregated_again": 1.0}),
            **solved.metrics,
        }
        errors = np.zeros(len(clients)) if solved.errors is None else solved.errors  # of all coalitions: none
        known = None if np.isnan(errors).all() else _among(errors, counted, S)
        without = None if isinstance(game, FunctionCoalitions) else _among(solved.without_block, counted, S)
        exact = None if solved.exact is None else _among(solved.exact, counted, S)
        return Values(_among(solved.values, counted, S), known, exact, metrics, without), state

    @staticmethod
    def _game(view: View, told: Watched, clients: Sequence[int], weights: Floats, rows: Tensor, part: Any) -> Any:
        """Return the game of these clients' replies, for its part: what each coalition's aggregate is worth."""
        old = view.table.rows[0]
        kind: Game = getattr(part, "game", "average")
        if isinstance(told.worth, ByFunction):

            def make(members: Ints) -> ArrayRecord | None:
                if kind == "increment":
                    steps = torch.from_numpy(weights[members]) @ (rows[members] - old).double()
                    return told.form.arrays((old + steps).float())
                return told.coalition([clients[m] for m in members.tolist()])

            return FunctionCoalitions(told.worth.worth, make, told.before, weights, rows - old)
        aggregated = view.get(Aggregated)
        assert aggregated is not None
        rule: Rule | None = None if told.average else aggregated.again[0]
        return view.judge.coalitions(rows, old, weights, part.utility, again=rule, game=kind)


def _among(numbers: Floats, counted: Ints, seats: int) -> Floats:
    """Return the players' numbers ``[m, ...]`` in their places ``counted [m]`` among all seats, ``[S, ...]``; others
    have 0.
    """
    whole = np.zeros((seats, *numbers.shape[1:]))
    whole[counted] = numbers
    return whole


# ---- the clients, whose replies are here


@dataclass
class Replies(Federation):
    """The federation of clients whose replies have already arrived.

    Attributes:
        told: the round that the replies belong to.

    Examples:
        Without any replies, it answers nothing:

        >>> empty = ArrayRecord()
        >>> federation = Replies(Watched(Form.of(empty), ByClients(), Roster(), empty))
        >>> list(federation.present(0)), federation.exchange(0, [], None, None)
        ([], [])
    """

    told: Watched

    def present(self, round: int) -> Roster:
        """Return the clients that the strategy asked."""
        asked = set(self.told.asked)
        return Roster(one for one in self.told.roster if one.id in asked)

    def exchange(
        self, round: int, requests: Sequence[Request], deadline_s: float | None, closing: Closing | None
    ) -> Sequence[Reply]:
        """Return the recorded replies, or why there are none. Only training is asked of this federation.

        Args:
            round: the number of the round. The recorded replies are those of the round in ``told``.
            requests: training tasks by client. A client without a reply or a refusal in ``told`` is left out.
            deadline_s: not used, because there is nobody to wait for.
            closing: not used.
        """
        found = []
        for request in requests:
            trained, why = self.told.replies.get(request.client), self.told.refused.get(request.client)
            if trained is not None:
                seats = [task.seat for task in request.tasks if isinstance(task, Train)]
                results = tuple(replace(trained, seat=seat) for seat in seats)
                up = size_of(self.told.records[request.client])
                found.append(Reply(request.client, results, bytes_down=size_of(self.told.before), bytes_up=up))
            elif why is not None:
                found.append(Reply(request.client, refused=why[:900], bytes_down=size_of(self.told.before)))
        return found


def info(number: int, node: int, name: str, samples: float) -> ClientInfo:
    """Return what mechanisms know of the client at a node of Flower.

    Args:
        number: the client's id.
        node: the id of the client's node in Flower.
        name: the client's name.
        samples: how many samples the client's reply of this round states.
    """
    return ClientInfo(number, name, f"node {node}", int(samples))
