"""A Flower strategy's rounds as a mechanism of hanse whose decisions the strategy has already made.

:class:`WatchedRound` is what the strategy did in a round, and the federation of the clients whose replies have already
arrived. :class:`ReplyJudge` is the run's judge in that round. In the mechanism :class:`Combined` returns the strategy's
aggregate, and :class:`OfReplies` values the replies. The usual loop then plays the round. Values, payments, books and
records are therefore made as in any other run.

The run's ``config.toml`` names this mechanism as ``hanse.flower.valued.mechanism:flower``. The run cannot be played
from there, because nothing would tell it what the strategy did.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, cast

import numpy as np
import torch
from flwr.app import ArrayRecord
from torch import Tensor

from hanse.base.errors import UserError
from hanse.core.part import Aggregate, AggregatePart, Group, Mechanism, State, ValuePart, Values, View, in_slots
from hanse.core.port import Call, Federation, Reply, Roster, Train, Trained
from hanse.core.table import Floats, Ints
from hanse.core.telling import Measure, Plot, Telling
from hanse.federation.codec import WireError
from hanse.flower.arrays import ArrayLayout, average, opened, shares, size_of
from hanse.flower.valued.reaggregate import Reaggregation
from hanse.flower.valued.worth import ByFunction, Worth, counted_in
from hanse.learning.by_function import FunctionCoalitions
from hanse.mechanisms.deploy import ServerModel
from hanse.mechanisms.registry import word_of
from hanse.mechanisms.select import Everyone
from hanse.mechanisms.train import SharedModel
from hanse.mechanisms.value import GTG, Exact, MixtureValue
from hanse.runs.server_judge import ServerJudge

TINY = 1e-37  # numbers may always differ by this: float32's relative error does not hold for the smallest ones
FEW = 6  # up to so many replies the exact value is taken: at most 64 coalitions are aggregated again
APP = (
    "A Flower app's own rounds, in which hanse valued the replies: what was trained, on which data and how, is the "
    "app's. In config.toml [data], [train] and [model] are hanse's defaults, which had no part in it."
)

OWN = (  # what the strategy itself measures, as its own log has it
    Plot("The strategy's own figures", "strategy/*/*", line="*: *", caption="What the app's own functions returned."),
)


@dataclass
class WatchedRound(Federation):
    """What a strategy did in one round, and how its result is judged.

    Clients are named by hanse's client ids. As a federation it has the clients that the strategy asked.

    Attributes:
        form: the app's arrays, as columns of a row.
        worth: how models are judged.
        before: the arrays that the round started from.
        number: the round's number in Flower.
        begun: when it began, by ``time.perf_counter``.
        roster: all clients that have come so far.
        asked: the clients to which the strategy sent training messages.
        replies: the sound replies.
        records: the arrays of the sound replies, as they came.
        refused: why a client has no sound reply.
        made: the strategy's aggregate of the replies. None: it made none.
        average: whether ``made`` is the weighted average of the sound replies.
        again: makes the aggregate of some of the replies again. None: only averages are.
        answered: the clients whose replies, sound or not, the strategy has seen.
        game: the last game of coalitions; None before the first.
        said: the strategy's own figures, by name.

    Examples:
        A round of FedAvg with the replies of two clients, given by hand:

        >>> from flwr.app import Array
        >>> def model(*w):
        ...     return ArrayRecord({"w": Array(np.array(w, np.float32))})
        >>> before, records = model(0, 0), {0: model(1, 0), 1: model(0, 1)}
        >>> form, worth = ArrayLayout.of(before), ByFunction(lambda arrays: float(arrays["w"].numpy().sum()))
        >>> replies = {c: Trained(0, form.row(records[c]), 10, 0.5, 1) for c in (0, 1)}
        >>> told = WatchedRound(form, worth, before, replies=replies, records=records, made=model(0.5, 0.5))
        >>> told.average = told.is_average(told.made, [0, 1])
        >>> told.average, told.share([0, 1])
        (True, array([0.5, 0.5]))
        >>> told.coalition([1])["w"].numpy()
        array([0., 1.], dtype=float32)
    """

    form: ArrayLayout
    worth: Worth
    before: ArrayRecord
    number: int = 0
    begun: float = field(default_factory=time.perf_counter)
    roster: Roster = field(default_factory=Roster)
    asked: set[int] = field(default_factory=set)
    replies: dict[int, Trained] = field(default_factory=dict)
    records: dict[int, ArrayRecord] = field(default_factory=dict)
    refused: dict[int, str] = field(default_factory=dict)
    made: ArrayRecord | None = None
    average: bool = False
    again: Reaggregation | None = None
    answered: Collection[int] = ()
    game: Any = None
    said: dict[str, float] = field(default_factory=dict)

    def present(self, round: int) -> Roster:
        """Return the clients that the strategy asked."""
        return Roster(one for one in self.roster if one.id in self.asked)

    def exchange(self, call: Call) -> Sequence[Reply]:
        """Return the recorded replies, or why there are none. Only training is asked of this federation, and nobody is
        waited for.
        """
        found, down = list[Reply](), size_of(self.before)
        for client, tasks in [(request.client, request.tasks) for request in call.requests]:
            if client in self.replies:
                results = tuple(replace(self.replies[client], seat=t.seat) for t in tasks if isinstance(t, Train))
                found.append(Reply(client, results, bytes_down=down, bytes_up=size_of(self.records[client])))
            elif client in self.refused:
                found.append(Reply(client, refused=self.refused[client][:900], bytes_down=down))
        return found

    def share(self, clients: Sequence[int]) -> Floats:
        """Return the weights of some clients' replies in an average of them, ``[n]``, summing to 1."""
        return shares(np.array([float(self.replies[c].num_samples) for c in clients]))

    def coalition(self, clients: Sequence[int]) -> ArrayRecord | None:
        """Return the aggregate that the strategy makes of some clients' replies, or None if it makes none.

        Raises:
            UserError: the aggregate cannot be made again.
        """
        if self.average:
            return average([self.records[c] for c in clients], self.share(clients))
        if self.again is None:
            raise UserError("its aggregate is not the average of the replies")
        return self.again.made(clients)

    def is_average(self, made: ArrayRecord | None, clients: Sequence[int]) -> bool:
        """Say whether an aggregate is the weighted average of some sound replies, up to rounding."""
        records = [self.records[c] for c in clients]
        if made is None or not records or not self.form.names or any(set(one) != set(made) for one in records):
            return False
        weights = self.share(clients)
        try:
            for name in made:
                found, old, *sent = (opened(one[name]) for one in (made, self.before, *records))
                rows = np.stack([array.astype(np.float64) for array in sent])
                coarse = np.float16 if any(array.dtype == np.float16 for array in (found, *sent)) else np.float32
                size = np.maximum(np.abs(rows).max(0), np.abs(old))
                # an error bound for a weighted sum of n terms in the coarsest type of this array
                near = (len(clients) + 2) * (np.finfo(coarse).eps * size + TINY)
                mean = np.tensordot(weights, rows, 1)
                if found.shape != mean.shape or not (np.abs(mean - found) <= near).all():
                    return False
        except (KeyError, TypeError, ValueError, WireError):  # another name or shape, or no numbers
            return False
        return True

    def averages_few(self) -> bool:
        """Say whether the strategy averages one reply, and all but one, as it does all; if that can be tried."""
        few = [some for some in (list(self.replies)[:1], list(self.replies)[1:]) if some]
        try:
            return all(self.is_average(self.coalition(some), some) for some in few)
        except UserError:  # its aggregates cannot be made again
            return True


@dataclass(frozen=True)
class ReplyJudge(ServerJudge):
    """The run's judge in a watched round: coalitions of a user's function are models that the strategy would have made,
    of which a row has not all arrays.

    Attributes:
        told: what the strategy did in the round.
    """

    told: WatchedRound = field(kw_only=True)

    @staticmethod
    def of(judge: ServerJudge, told: WatchedRound) -> ReplyJudge:
        """Return the run's judge in a round."""
        return ReplyJudge(**{one.name: getattr(judge, one.name) for one in fields(judge)}, told=told)

    def coalitions(self, updates: Tensor, base: Tensor, weights: Floats, utility: str, **more: Any) -> Any:
        """Return the game of coalitions, as :meth:`hanse.core.part.Judge.coalitions` does."""
        told, worth = self.told, self.told.worth
        if not isinstance(worth, ByFunction):
            told.game = worth.judge.coalitions(updates, base, weights, worth.utility, **more)
            return told.game
        clients = sorted(told.replies)
        # a reply of weight 0 is in no average, and no player
        players = [c for c, w in zip(clients, told.share(clients), strict=True) if w or not told.average]

        def make(members: Ints) -> ArrayRecord | None:
            if more.get("game") == "increment":
                steps = torch.from_numpy(weights[members]) @ (updates[members] - base).double()
                return told.form.arrays((base + steps).float())
            return told.coalition([players[m] for m in members.tolist()])

        again = more.get("again")
        told.game = FunctionCoalitions(worth.worth, make, told.before, weights, updates - base, again)
        return told.game


# ---- the mechanism


def flower(strategy: str = "", flower: str = "", settings: dict[str, Any] | None = None) -> Mechanism:
    """Return the mechanism of a run that a Flower strategy has played, without knowledge of any round.

    The arguments are what ``config.toml`` keeps of the strategy. They change nothing here.

    Args:
        strategy: name of the strategy's class.
        flower: version of Flower.
        settings: the strategy's parameters that Flower itself defines.
    """
    return Mechanism("flower", Everyone(), SharedModel(), Combined(), MixtureValue(), deploy=ServerModel())


@dataclass(frozen=True)
class Combined(AggregatePart):
    """A weigh part: what the strategy's ``aggregate_train`` made of the replies.

    Examples:
        The loop calls it in each round of a watched strategy. Here with a round played by a rehearsal:

        >>> from hanse.runs.rehearsal import rehearse
        >>> (group,) = rehearse("fedavg").groups
        >>> empty = ArrayRecord()
        >>> replies = {client: Trained(0, torch.zeros(0), 10, 0.5, 1) for client in range(4)}
        >>> form = ArrayLayout.of(empty)
        >>> told = WatchedRound(form, ByFunction(len), empty, replies=replies, made=empty, average=True)
        >>> judge = ReplyJudge.of(group.view.judge, told)
        >>> Combined().aggregate(replace(group, view=replace(group.view, judge=judge)), {}).weights
        array([0.25, 0.25, 0.25, 0.25])
    """

    needs = frozenset({"strategy"})  # which only a watched strategy meets: it keeps this part out of other runs

    def aggregate(self, group: Group, state: State) -> Aggregate:
        """Return the weights of the average or, if the strategy does not average, its new row.

        For a subset of the replies, this is the row that the strategy would have made of them. If it makes none, the
        row stays unchanged.
        """
        told = cast(ReplyJudge, group.view.judge).told
        clients = group.view.trained.seats.client[group.at].tolist()
        if told.average:
            return Aggregate(told.share(clients))
        whole = told.made is None or len(clients) == len(group.view.trained)
        made = told.made if whole else told.coalition(clients)
        return Aggregate(row=group.old if made is None else told.form.row(made))


@dataclass(frozen=True)
class OfReplies(ValuePart):
    """A value part: the values of the replies in the game whose coalitions' models are the strategy's own aggregates.

    Attributes:
        part: the value part that solves the game, one of :mod:`hanse.mechanisms.value`, such as ``GTG()``. If the
            strategy does not average and the part needs averages, the exact Shapley value (up to 6 replies) or
            GTG-Shapley replaces it.
        worth: how models are judged.

    Examples:
        A round of two clients whose models a user's function judges:

        >>> from flwr.app import Array
        >>> from hanse.core.table import Mix, Seats, Table, Updates
        >>> from hanse.runs.rehearsal import rehearse
        >>> def model(*w):
        ...     return ArrayRecord({"w": Array(np.array(w, np.float32))})
        >>> worth = ByFunction(lambda arrays: float(arrays["w"].numpy()[0]))
        >>> records = {0: model(1, 0), 1: model(0, 1)}
        >>> form, half = ArrayLayout.of(model(0, 0)), np.array([[0.5, 0.5, 0.0]])
        >>> replies = {c: Trained(0, form.row(records[c]), 10, 0.5, 1) for c in (0, 1)}
        >>> told = WatchedRound(
        ...     form, worth, model(0, 0), replies=replies, records=records, made=model(0.5, 0.5), average=True
        ... )
        >>> rows, ones = torch.stack([replies[c].row for c in (0, 1)]), np.ones(2)
        >>> updates = Updates(Seats.at([0, 1], [0, 0]), rows, 10 * ones, ones, ones.astype(np.int64))
        >>> table = Table.of(torch.zeros(1, 2))
        >>> mix = replace(Mix.keeping(table, 2, np.zeros(2, np.int64)), W=half)
        >>> view = rehearse("fedavg").view
        >>> view = replace(view, table=table, updates=updates, mix=mix, judge=ReplyJudge.of(view.judge, told))
        >>> values, state = OfReplies(Exact(), worth).value(view, {})
        >>> values.per_seat
        array([ 0.75, -0.25])
    """

    accepts = frozenset({"reapply"})
    part: ValuePart
    worth: Worth

    def tells(self, standing: frozenset[str]) -> Telling:
        """Say what is measured, in what unit, and that data, model and training in the record are not the app's."""
        measure = self.part.tells(standing).measures or Measure("value")
        measure = replace(measure, sentence=f"{measure.sentence} {counted_in(self.worth)}".strip())
        return Telling(report=APP, measures=measure, charts=OWN)

    def value(self, view: View, state: State) -> tuple[Values, State]:
        """Return the value of each reply.

        Raises:
            UserError: a model could not be judged, the strategy made no aggregate, or the models of coalitions are not
                available.
        """
        told = cast(ReplyJudge, view.judge).told
        clients = view.trained.seats.client.tolist()
        if told.made is None:
            raise UserError("the strategy made no aggregate")
        if told.average:
            values, state = self.part.value(view, state)
        else:
            try:
                values, state = self._of_any_rule(len(clients)).value(view, state)
                # after all coalitions: what it remembers of them shows now
                if told.game is not None and told.coalition(list(told.replies)) != told.made:
                    raise UserError(
                        "aggregating the same replies again gave another model: it has state that a copy does not carry"
                    )
            except UserError:
                if others := ", ".join(told.roster[c].name for c in sorted(set(told.answered) - told.replies.keys())):
                    what = "its aggregate is not that of the sound replies alone: there were others, refused here"
                    raise UserError(f"{what}, of {others[:150]}") from None
                raise
        if told.game is None:
            return values, state
        # beside the values, what all updates together and none of them were worth: their difference is what was shared
        # out
        together, nothing = told.game.many([frozenset(range(told.game.players)), frozenset()])
        metrics = {
            **values.metrics,
            "value/models_evaluated": float(told.game.evaluated),
            "value/all_together": float(together),
            "value/nothing": float(nothing),
            **({} if told.average else {"value/aggregated_again": 1.0}),
        }
        errors = np.zeros(len(clients)) if values.standard_errors is None else values.standard_errors
        if told.average:
            errors = np.where(told.share(clients) > 0, errors, 0.0)
        without = None if isinstance(told.worth, ByFunction) else values.without_block
        return replace(values, metrics=metrics, standard_errors=errors, without_block=without), state

    def _of_any_rule(self, replies: int) -> ValuePart:
        """Return the part that values the replies of a strategy that does not average."""
        part = self.part
        if not hasattr(part, "solve") or getattr(part, "game", "average") == "increment":
            what = "game 'increment'" if hasattr(part, "solve") else f"method {word_of(part, 'value')}"
            raise UserError(
                f"{what} takes the replies' steps one by one, and the aggregate is not their average: 'mixture', "
                "'exact' and 'gtg', with game 'average', value any aggregate that can be made again"
            )
        if "reapply" in in_slots(part.accepts, ["value"]):
            return part
        return Exact() if replies <= FEW else GTG()
