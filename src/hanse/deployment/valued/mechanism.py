"""The rounds of a Flower strategy as rounds of hanse: a mechanism whose decisions the strategy has made already.

:class:`Watched` tells its parts what the strategy did; the loop then plays the round as any other, so that values,
payments, books and records are those of every run. As ``hanse.deployment.valued.mechanism:flower`` it stands in the
run's ``config.toml``, and cannot be played from there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
from hanse.core.telling import Measure, Telling
from hanse.deployment.arrays import Form, average, shares, size_of
from hanse.deployment.valued.reaggregate import Again, NotAgain
from hanse.deployment.valued.worth import ByClients, ByFunction, NoWorthError, Worth, counted_in
from hanse.federation.codec import WireError
from hanse.learning.by_function import FunctionCoalitions
from hanse.learning.coalitions import Rule
from hanse.mechanisms.deploy import ServerModel
from hanse.mechanisms.train import SharedModel
from hanse.mechanisms.value import GTG, Exact, Mixture

STRATEGY = frozenset({"strategy"})
OTHER = "aggregated again, the same replies made another model: it has state that a copy does not carry"
TINY = 1e-37  # what numbers near 0 may differ by
FEW = 6  # replies: up to so many all coalitions are aggregated again
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


@dataclass
class Watched:
    """One round of the strategy: who was ``asked``, each client's ``reply`` or why there is none (``refused``), the
    ``weights`` that replies state, the arrays ``before`` and those that were ``made`` (None: no aggregate).

    ``answered`` are those whose replies, sound or not, the strategy had.
    ``again`` makes it of some of them where it is no ``average`` (or ``why_not``: why that cannot be). ``tests`` are
    what clients say of the new model, (figure, samples) by client, ``tests_before`` what they said of the one before.
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
        """Return the weights of some clients' replies in their average, ``[n]``, summing to 1."""
        return shares(np.array([self.weights[c] for c in clients]))

    def coalition(self, clients: Sequence[int]) -> ArrayRecord | None:
        """Return the strategy's own aggregate of some clients' replies; None: it makes none. Raises NotAgain."""
        if self.average:
            return average([self.records[c] for c in clients], self.share(clients))
        if self.again is None:
            raise NotAgain(self.why_not)
        return self.again.made(clients)

    def averaged(self, known: bool) -> bool:
        """Say whether what was made is the average of the replies, by their weights, to rounding. Of a rule that is
        not ``known`` for averages, only replies that differ by more than rounding can say so.
        """
        if self.made is None or not self.replies or not self.form.names:
            return False
        clients = list(self.replies)
        rows = torch.stack([self.replies[c].row for c in clients]).double()
        old = row_of(self.form, self.before, "the arrays before").double()
        mean = torch.from_numpy(self.share(clients)) @ rows
        made = row_of(self.form, self.made, "the aggregate").double()
        size = torch.maximum(rows.abs().max(0).values, old.abs())
        near = (len(clients) + 2) * (self.form.rounding([self.made, *self.records.values()]) * size + TINY)
        tells = known or bool(((rows - mean).abs() > 4 * near).any())
        return tells and bool(((mean - made).abs() <= near).all())

    def settled(self) -> None:
        """Find out what kind of aggregate it was, and whether a copy of the strategy makes the same one."""
        if self.made is None:
            return
        known, self.average = self.average, self.averaged(self.average)
        if self.average:
            return
        why = "its aggregate is not the average of the replies" if known else OTHER
        if self.again is not None:
            try:
                remade = self.again.made(list(self.replies)) if self.replies else None
                if remade is not None and same(self.made, remade):
                    return
            except Exception as wrong:
                why = str(wrong) if isinstance(wrong, NotAgain) else first_line(wrong)
        elif not known:
            return  # why_not says it
        unsound = [client for client in self.answered if client not in self.replies]
        if unsound:
            names = ", ".join(self.roster[client].name for client in unsound)[:150]
            why = f"its aggregate is not that of the sound replies alone: there were others, refused here, of {names}"
        self.again, self.why_not = None, why


def row_of(form: Form, arrays: ArrayRecord, what: str) -> Tensor:
    """Return arrays as a row ``[P]``. Raises UserError, which says ``what`` they are, if they are of another form."""
    try:
        return form.row(arrays)
    except WireError as wrong:
        raise UserError(f"{what}: {wrong}") from None


def same(one: ArrayRecord, other: ArrayRecord) -> bool:
    """Say whether two records hold the same numbers under the same names."""
    if list(one) != list(other):
        return False
    return all(np.array_equal(one[name].numpy(), other[name].numpy(), equal_nan=_nans(one, name)) for name in one)


def _nans(arrays: ArrayRecord, name: str) -> bool:
    return np.dtype(arrays[name].dtype).kind == "f"


# ---- the mechanism


def flower(strategy: str = "", flower: str = "", settings: dict[str, Any] | None = None) -> Mechanism:
    """Return the mechanism of a run that was a Flower ``strategy``'s, without what it did: nobody can play it again.

    ``flower`` is the version, ``settings`` the strategy's plain attributes.
    """
    return Mechanism("flower", Asked(), SharedModel(), Combined(), Mixture(), deploy=ServerModel())


def watching(mechanism: Mechanism, told: Watched | None) -> Mechanism:
    """Return the mechanism of one round; None: of none yet."""
    value = None if mechanism.value is None else OfReplies(mechanism.value, told)
    return replace(mechanism, select=Asked(told), weigh=Combined(told), value=value)


@dataclass(frozen=True)
class Asked(SelectPart):
    """Those whom the strategy asked."""

    needs = STRATEGY
    told: Watched | None = None

    def select(self, view: View, state: State) -> tuple[Choice, State]:
        """Return them, ascending."""
        assert self.told is not None
        return Choice(np.array(sorted(self.told.asked), np.int64)), state


@dataclass(frozen=True)
class Combined(AggregatePart):
    """What the strategy's ``aggregate_train`` made of the replies."""

    kind = "again"
    needs = STRATEGY
    told: Watched | None = None

    def aggregate(self, group: Group, state: State) -> Aggregate:
        """Return the average's weights, or the row that the strategy made; of a coalition the one that it would have
        made.
        """
        told = self.told
        assert told is not None
        if told.made is None:
            return Aggregate(row=group.old)
        clients = group.view.trained.seats.client[group.at].tolist()
        if told.average:
            return Aggregate(told.share(clients))
        if len(clients) == len(group.view.trained):
            return Aggregate(row=row_of(told.form, told.made, "the aggregate"))
        made = told.coalition(clients)
        return Aggregate(row=group.old if made is None else row_of(told.form, made, "the aggregate of some replies"))


@dataclass(frozen=True)
class OfReplies(ValuePart):
    """What the replies were worth: a value part's solution of the game whose coalitions' models are the strategy's own
    aggregates. Where these are no averages, a part that goes by averages gives way to the exact value, or GTG-Shapley.
    """

    gives = frozenset({"values"})
    takes = frozenset({"again"})
    part: ValuePart
    told: Watched | None = None

    def tells(self, standing: frozenset[str]) -> Telling:
        """Say what is measured, in what unit, and what of the record is not of this run."""
        if self.told is None:
            return self.part.tells(standing)
        worth = self.told.worth
        measure = GAIN if isinstance(worth, ByClients) else self.part.tells(standing).measures or Measure("value")
        measure = replace(measure, sentence=f"{measure.sentence} {counted_in(worth)}".strip())
        return Telling(report=APP, measures=measure)

    def value(self, view: View, state: State) -> tuple[Values, State]:
        """Return every reply's value. Raises NoWorthError or NotAgain, with why there is none."""
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
        if not told.average and "again" not in in_slots(part.takes, ["value"]):
            part = Exact() if len(clients) <= FEW else GTG()
        if not told.average and told.again is None:
            raise NotAgain(told.why_not)
        game = self._game(view, told, clients, weights, part.utility)
        solved = part.solve(game, len(clients), view)
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
        known = None if np.isnan(errors).all() else errors
        without = None if isinstance(game, FunctionCoalitions) else solved.without_block
        return Values(solved.values, known, solved.exact, metrics, without), state

    @staticmethod
    def _game(view: View, told: Watched, clients: Sequence[int], weights: Floats, utility: str) -> Any:
        rows, old = view.trained.rows, view.table.rows[0]
        if isinstance(told.worth, ByFunction):

            def make(members: Ints) -> ArrayRecord | None:
                return told.coalition([clients[m] for m in members.tolist()])

            return FunctionCoalitions(told.worth.worth, make, told.before, weights, rows - old)
        aggregated = view.get(Aggregated)
        assert aggregated is not None
        rule: Rule | None = None if told.average else aggregated.again[0]
        return view.judge.coalitions(rows, old, weights, utility, again=rule)


# ---- the clients, whose replies are here


@dataclass
class Replies(Federation):
    """The port to clients that have answered already."""

    told: Watched

    def present(self, round: int) -> Roster:
        """Return who was asked."""
        asked = set(self.told.asked)
        return Roster(one for one in self.told.roster if one.id in asked)

    def exchange(
        self, round: int, requests: Sequence[Request], deadline_s: float | None, closing: Closing | None
    ) -> Sequence[Reply]:
        """Return the recorded replies to training tasks; nothing else was asked."""
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
    """Return what is known of a node's client."""
    return ClientInfo(number, name, f"node {node}", int(samples))
