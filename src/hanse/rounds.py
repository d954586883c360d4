"""One round, for every mechanism: present, ask, select, train, weigh, value, settle, mix, deploy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from hanse.exchange import Exchange, accepted, merge, training
from hanse.federation.port import Federation, Request, Roster
from hanse.federation.private import NEVER
from hanse.ledger.book import Book
from hanse.ledger.entry import MINT, Transaction
from hanse.ledger.entry import client as account_of
from hanse.mechanisms.calling import call
from hanse.mechanisms.feedback import Feedback
from hanse.mechanisms.part import Context, Floats, Ints, Mechanism, Part, Server, Stage, State, View
from hanse.table import Mix, Seats, Table, Updates, mix

__all__ = ["LoopState", "Played", "Setup", "failed_round", "finish", "first_state", "play_round"]


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
    the books, the weights ``[N, K]`` of the clients' personal models if there are any, whether the run is finished, and
    the round in which each private row ``moved [K]``, taking its owner's last accepted update (NEVER: none).
    """

    round: int
    table: Table
    home: Ints
    states: Mapping[str, State]
    book: Book = field(default_factory=Book)
    personal: Floats | None = None
    finished: bool = False
    moved: Ints = field(default_factory=lambda: np.zeros(0, np.int64))  # no entry: never


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
            view = _post(view, call("settle", mechanism.settle.open, view, states))
    with port.clock("select"):
        view = replace(view, choice=call("select", mechanism.select.decide, view, states))
        seats = call("train", mechanism.train.decide, view, states)
        view = replace(view, seats=seats, stage="train")
    with port.clock("train"):
        questions = _questions(setup, states, view, "train")
        guide = call("train", mechanism.train.guide, view, states)
        view = port.send(merge([*training(seats, view.table, guide), *questions]), view)
        view = _enough(replace(view, updates=accepted(seats, view), stage="close"), setup.min_replies)
    with port.clock("ask"):
        view = port.send(_questions(setup, states, view, "close"), view)
    with port.clock("weigh"):
        weighed = _weigh(mechanism, states, view)
        view = replace(view, mix=weighed, refusals=(*view.refusals, *weighed.refused))
    if mechanism.value is not None and len(view.trained):
        with port.clock("value"):
            view = replace(view, values=call("value", mechanism.value.decide, view, states))
    view, table = _settled(mechanism, states, view, port)
    if mechanism.deploy is not None:
        view = replace(view, deployment=call("deploy", mechanism.deploy.decide, view, states))
    learned = {slot: call(slot, part.learn, view, states) for slot, part in setup.parts().items()}
    personal = None if view.deployment is None else view.deployment.weights
    after = LoopState(
        state.round + 1, table, view.mixed.home, learned, view.book, personal, moved=_moved(state, view, table)
    )
    return Played(after, view, port.seconds, port.down, port.up)


def _moved(state: LoopState, view: View, table: Table) -> Ints:
    """Return the round in which each private row of the new table took an update of its owner's, ``[K']``."""
    moved = np.full(table.size, NEVER, np.int64)
    moved[: len(state.moved)] = state.moved
    seats, withheld = view.trained.seats, () if view.settlement is None else sorted(view.settlement.withheld)
    own = np.flatnonzero(view.table.owner[seats.start] == seats.client)
    took = seats.start[own][view.mixed.W[seats.start[own], own] != 0]
    moved[np.setdiff1d(took, np.array(withheld, np.int64))] = view.round
    return moved


def failed_round(setup: Setup, state: LoopState, roster: Roster, seats: Seats, reason: str) -> Played:
    """Return a round in which something raised: nothing of it counts, and the next one begins where it began. The
    clients in ``seats`` are refused for this ``reason``.
    """
    view = View(setup.context, state.round, "close", roster, state.table, state.home, setup.server, book=state.book)
    refused = tuple((client, reason) for client in dict.fromkeys(seats.client.tolist()))
    empty = _nothing(state.table, seats)
    view = replace(view, seats=seats, updates=empty, mix=_keep_all(state.table, 0, state.home), refusals=refused)
    return Played(replace(state, round=state.round + 1), view, {}, 0, 0)


def finish(setup: Setup, state: LoopState) -> Played:
    """Settle what the last round left open, with one more exchange if the settle part asks for it."""
    port = _exchange(setup, state.round)
    present = setup.federation.present(state.round)
    view = View(setup.context, state.round, "end", present, state.table, state.home, setup.server, book=state.book)
    settle = setup.mechanism.settle
    if settle is not None:
        view = _without_leavers(setup, state.states, view)
        view = port.send(merge(call("settle", settle.asks, view, state.states)), view)
        view = _post(view, call("settle", settle.finish, view, state.states))
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
    return merge([r for slot, part in parts for r in call(slot, part.asks, view, states)])


def _enough(view: View, least: int) -> View:
    """Return the view as it is, or an empty round's if fewer seats than ``least`` answered soundly."""
    updates = view.trained
    if len(updates) >= least:
        return view
    reason = f"the round had {len(updates)} sound updates, {least} are needed"
    refused = (*view.refusals, *((int(c), reason) for c in updates.seats.client))
    return replace(view, updates=_nothing(view.table, updates.seats), refusals=refused)


def _nothing(table: Table, seats: Seats) -> Updates:
    """Return the updates of nobody."""
    none, zero = np.zeros(0, np.int64), np.zeros(0)
    return Updates(seats.take(none), table.rows[:0], zero, zero, none)


def _weigh(mechanism: Mechanism, states: Mapping[str, State], view: View) -> Mix:
    """Return the part's mix; if nobody answered, every row stays."""
    if len(view.trained) == 0:
        return _keep_all(view.table, 0, view.home)
    return call("weigh", mechanism.weigh.decide, view, states)


def _keep_all(table: Table, seats: int, home: Ints) -> Mix:
    """Return the mix beside so many ``seats`` in which every row stays."""
    return Mix(np.eye(table.size, seats + table.size, seats), table.owner, home)


def _settled(mechanism: Mechanism, states: Mapping[str, State], view: View, port: Exchange) -> tuple[View, Table]:
    """Settle and mix. A row that would not be finite stays as it was, and then nobody pays for it: the round is settled
    again without it.
    """

    def settle(view: View) -> View:
        if mechanism.settle is None:
            return view
        with port.clock("settle"):
            settlement = call("settle", mechanism.settle.decide, view, states)
            return _post(replace(view, settlement=settlement), settlement.transactions)

    settled = settle(view)
    with port.clock("mix"):
        table, broken = _mixed(settled)
    if broken:
        settled = settle(_without(view, broken))
        table, _ = _mixed(settled)
    return settled, table


def _mixed(view: View) -> tuple[Table, Sequence[int]]:
    """Apply the mix; withheld rows stay as they were. Return the table, and which of its rows are not finite now."""
    proposed, settlement, count = view.mixed, view.settlement, len(view.trained)
    W = proposed.W
    if settlement is not None and settlement.withheld:
        W = W.copy()
        for row in settlement.withheld:
            W[row] = 0.0
            W[row, count + row] = 1.0
    table = Table(mix(W, view.trained.rows, view.table.rows), proposed.owner)
    copied = (np.count_nonzero(W, axis=1) == 1) & (W.max(axis=1, initial=0.0) == 1.0)  # of what is sound already
    mixed = np.flatnonzero(~copied).tolist()
    if not mixed:
        return table, ()
    # a finite sum has finite terms, and takes one pass without a copy; only where it is not, each number is looked at
    sums = torch.stack([table.rows[row].sum() for row in mixed]).isfinite().tolist()
    suspects = [row for row, sound in zip(mixed, sums, strict=True) if not sound]
    return table, [row for row in suspects if not bool(table.rows[row].isfinite().all())]


def _without(view: View, broken: Sequence[int]) -> View:
    """Return the view with a mix that leaves these rows as they are (or all of them, if one of these is new), and with
    the seats that made them refused.
    """
    proposed, seats, K = view.mixed, view.trained.seats, view.table.size
    count, rows = len(seats), list(broken)
    makers = seats.client[(proposed.W[rows, :count] != 0).any(axis=0)].tolist()
    named = ", ".join(map(str, rows[:10])) + (", ..." if len(rows) > 10 else "")
    reason = f"its update made row {named} of the table infinite or NaN: the old one stays"
    if max(rows) >= K:
        kept = _keep_all(view.table, count, view.home)
    else:
        W = proposed.W.copy()
        W[rows] = np.eye(K, count + K, count)[rows]
        kept = replace(proposed, W=W)
    refused = tuple((client, reason) for client in dict.fromkeys(makers))
    return replace(view, mix=kept, refusals=(*view.refusals, *refused))
