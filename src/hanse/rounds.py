"""One round, for every mechanism: present, ask, select, train, weigh, value, settle, mix, deploy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from hanse.exchange import Exchange, accepted, merge, training
from hanse.federation.port import Federation, Request, Roster
from hanse.ledger.book import Book
from hanse.ledger.entry import MINT, Transaction
from hanse.ledger.entry import client as account_of
from hanse.mechanisms.feedback import Feedback
from hanse.mechanisms.part import Context, Floats, Ints, Mechanism, Part, Server, Stage, State, View
from hanse.table import Mix, Table, Updates, mix

__all__ = ["LoopState", "Played", "Setup", "finish", "first_state", "play_round"]


@dataclass(frozen=True)
class Setup:
    """What stays the same over a run. ``grant`` and ``floor`` are in the smallest unit."""

    mechanism: Mechanism
    federation: Federation
    context: Context
    server: Server
    deadline_s: float | None = None
    min_replies: int = 0
    feedback: Feedback | None = None
    grant: int = 0
    floor: int = 0

    def parts(self) -> dict[str, Part]:
        """Return everything that asks and learns: the mechanism's parts, and the feedback to clients."""
        parts = self.mechanism.parts()
        return parts if self.feedback is None else parts | {"feedback": self.feedback}


@dataclass(frozen=True)
class LoopState:
    """What changes over a run, and all that a checkpoint holds: the next round, the table, homes, the parts' states,
    the books, the weights ``[N, K]`` of the clients' personal models if there are any, and whether the run is finished.
    """

    round: int
    table: Table
    home: Ints
    states: Mapping[str, State]
    book: Book = field(default_factory=Book)
    personal: Floats | None = None
    finished: bool = False


@dataclass(frozen=True)
class Played:
    """A finished round: the state after it, all that was decided in it, seconds by stage, bytes on the wire."""

    state: LoopState
    view: View
    seconds: Mapping[str, float]
    bytes_down: int
    bytes_up: int


def first_state(setup: Setup) -> LoopState:
    """Return the state before round 0."""
    table, home = setup.mechanism.train.table(setup.context)
    states = {slot: part.init(setup.context) for slot, part in setup.parts().items()}
    return LoopState(0, table, home, states, Book(floor=setup.floor))


def _exchange(setup: Setup, round_: int) -> Exchange:
    return Exchange(setup.federation, round_, setup.deadline_s, setup.min_replies)


def play_round(setup: Setup, state: LoopState) -> Played:
    """Play one round and return the next state with everything that was decided. Pure but for the federation."""
    mechanism, states = setup.mechanism, state.states
    port = _exchange(setup, state.round)
    present = setup.federation.present(state.round)
    view = View(setup.context, state.round, "open", present, state.table, state.home, setup.server, book=state.book)
    view = _post(view, _grants(setup, view))
    view = _without_leavers(setup, states, view)
    with port.clock("ask"):
        view = port.send(_questions(setup, states, view, "open"), view)
        view = _without_leavers(setup, states, view)  # those who say so now
    if mechanism.settle is not None:
        with port.clock("settle"):
            view = _post(view, mechanism.settle.open(view, states["settle"]))
    with port.clock("select"):
        view = replace(view, choice=mechanism.select.decide(view, states["select"]))
        seats = mechanism.train.decide(view, states["train"])
        view = replace(view, seats=seats, stage="train")
    with port.clock("train"):
        questions = _questions(setup, states, view, "train")
        guide = mechanism.train.guide(view, states["train"])
        view = port.send(merge([*training(seats, view.table, guide), *questions]), view)
        view = _enough(replace(view, updates=accepted(seats, view), stage="close"), setup.min_replies)
    with port.clock("ask"):
        view = port.send(_questions(setup, states, view, "close"), view)
    with port.clock("weigh"):
        view = replace(view, mix=_weigh(mechanism, states, view))
    if mechanism.value is not None and len(view.trained):
        with port.clock("value"):
            view = replace(view, values=mechanism.value.decide(view, states["value"]))
    if mechanism.settle is not None:
        with port.clock("settle"):
            settlement = mechanism.settle.decide(view, states["settle"])
            view = _post(replace(view, settlement=settlement), settlement.transactions)
    with port.clock("mix"):
        table = _mixed(view)
    if mechanism.deploy is not None:
        view = replace(view, deployment=mechanism.deploy.decide(view, states["deploy"]))
    learned = {slot: part.learn(view, states[slot]) for slot, part in setup.parts().items()}
    personal = None if view.deployment is None else view.deployment.weights
    after = LoopState(state.round + 1, table, view.mixed.home, learned, view.book, personal)
    return Played(after, view, port.seconds, port.down, port.up)


def finish(setup: Setup, state: LoopState) -> Played:
    """Settle what the last round left open, with one more exchange if the settle part asks for it."""
    port = _exchange(setup, state.round)
    present = setup.federation.present(state.round)
    view = View(setup.context, state.round, "end", present, state.table, state.home, setup.server, book=state.book)
    settle = setup.mechanism.settle
    if settle is not None:
        view = _without_leavers(setup, state.states, view)
        view = port.send(merge(settle.asks(view, state.states["settle"])), view)
        view = _post(view, settle.finish(view, state.states["settle"]))
    return Played(replace(state, book=view.book, finished=True), view, port.seconds, port.down, port.up)


def _post(view: View, transactions: Iterable[Transaction]) -> View:
    """Return the view with these transactions in its books. Raises LedgerError, with nothing posted."""
    new = tuple(transactions)
    return replace(view, book=view.book.post(view.round, new), posted=view.posted + new) if new else view


def _grants(setup: Setup, view: View) -> list[Transaction]:
    """Return the grants of clients that are here for the first time; a client is its key, whatever it calls itself."""
    if setup.mechanism.settle is None or setup.grant == 0:
        return []
    return [
        Transaction(f"grant/{c.id}", "grant", ((MINT, -setup.grant), (account_of(c.id), setup.grant)))
        for c in view.roster
        if account_of(c.id) not in view.book.balances
    ]


def _without_leavers(setup: Setup, states: Mapping[str, State], view: View) -> View:
    """Return the view without the clients that have left."""
    if setup.feedback is None:
        return view
    gone = set(setup.feedback.gone(view, states["feedback"]).tolist())
    return replace(view, roster=Roster(c for c in view.roster if c.id not in gone)) if gone else view


def _questions(setup: Setup, states: Mapping[str, State], view: View, stage: Stage) -> list[Request]:
    """Gather what all parts want to know at a stage, one request a client."""
    view = replace(view, stage=stage)
    parts = setup.parts().items()
    return merge([r for slot, part in parts for r in part.asks(view, states[slot])])


def _enough(view: View, least: int) -> View:
    """Return the view as it is, or an empty round's if fewer seats than ``least`` answered soundly."""
    updates = view.trained
    if len(updates) >= least:
        return view
    reason = f"the round had {len(updates)} sound updates, {least} are needed"
    refused = (*view.refusals, *((int(c), reason) for c in updates.seats.client))
    none = np.zeros(0, np.int64)
    empty = Updates(
        updates.seats.take(none), updates.rows[:0], updates.num_samples[:0], updates.loss[:0], updates.steps[:0]
    )
    return replace(view, updates=empty, refusals=refused)


def _weigh(mechanism: Mechanism, states: Mapping[str, State], view: View) -> Mix:
    """Return the part's mix; if nobody answered, every row stays."""
    if len(view.trained) == 0:
        return Mix(np.eye(view.table.size), view.table.owner, view.home)
    return mechanism.weigh.decide(view, states["weigh"])


def _mixed(view: View) -> Table:
    """Apply the mix; withheld rows stay as they were."""
    proposed, settlement = view.mixed, view.settlement
    W = proposed.W
    if settlement is not None and settlement.withheld:
        W = W.copy()
        for row in settlement.withheld:
            W[row] = 0.0
            W[row, len(view.trained) + row] = 1.0
    return Table(mix(W, view.trained.rows, view.table.rows), proposed.owner)
