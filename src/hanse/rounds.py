"""One round, for every mechanism: present, ask, select, train, weigh, value, settle, mix, deploy."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from hanse.federation.check import refusal
from hanse.federation.port import Federation, Reply, Request, Result, Roster, Task, Train, Trained
from hanse.learning.guide import Guide
from hanse.ledger.book import Book
from hanse.ledger.entry import MINT, Transaction
from hanse.ledger.entry import client as account_of
from hanse.mechanisms.feedback import Feedback
from hanse.mechanisms.part import Context, Floats, Ints, Mechanism, Part, Server, Stage, State, View
from hanse.table import Mix, Seats, Table, Updates, mix

__all__ = ["Finished", "LoopState", "Played", "Setup", "finish", "first_state", "play_round"]


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


@dataclass(frozen=True)
class Finished:
    """What follows the last round: the last settlement, and the bytes of its exchange."""

    state: LoopState
    view: View
    bytes_down: int
    bytes_up: int


def first_state(setup: Setup) -> LoopState:
    """Return the state before round 0."""
    table, home = setup.mechanism.train.table(setup.context)
    states = {slot: part.init(setup.context) for slot, part in setup.parts().items()}
    return LoopState(0, table, home, states, Book(floor=setup.floor))


@dataclass
class _Exchange:
    """Sends requests and checks replies; counts bytes and seconds on the way."""

    setup: Setup
    round: int
    seconds: dict[str, float] = field(default_factory=dict)
    down: int = 0
    up: int = 0

    @contextmanager
    def clock(self, name: str) -> Iterator[None]:
        begun = time.perf_counter()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - begun

    def send(self, requests: Sequence[Request], view: View) -> View:
        """Return the view with the sound answers and the refusals of one exchange."""
        if not requests:
            return view
        asked = {r.client: r for r in requests}
        replies = self.setup.federation.exchange(self.round, requests, self.setup.deadline_s, self.setup.min_replies)
        answers, refusals, authorised = dict(view.answers), list(view.refusals), dict(view.authorised)
        heard: set[int] = set()
        for reply in sorted(replies, key=lambda r: r.client):
            reason = self._refuse(reply, asked, heard, view)
            self.down, self.up = self.down + reply.bytes_down, self.up + reply.bytes_up
            if reason is not None:
                refusals.append((reply.client, reason))
                continue
            heard.add(reply.client)
            if reply.authorise is not None:
                authorised[reply.client] = reply.authorise
            for task, result in zip(asked[reply.client].tasks, reply.results, strict=True):
                answers[reply.client, _question(task)] = result
        spoke = {reply.client for reply in replies}
        refusals += [(c, "no reply") for c in asked if c not in spoke]
        return replace(view, answers=answers, authorised=authorised, refusals=tuple(refusals))

    def _refuse(self, reply: Reply, asked: Mapping[int, Request], heard: set[int], view: View) -> str | None:
        if reply.client not in asked:
            return "was not asked"
        if reply.client in heard:
            return "answered twice"
        return refusal(asked[reply.client], reply, view.context.layout.size)


def _question(task: Task) -> str:
    return f"seat {task.seat}" if isinstance(task, Train) else task.name


def play_round(setup: Setup, state: LoopState) -> Played:
    """Play one round and return the next state with everything that was decided. Pure but for the federation."""
    mechanism, states = setup.mechanism, state.states
    port = _Exchange(setup, state.round)
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
        view = port.send(_merge([*_training(seats, view.table, guide), *questions]), view)
        view = _enough(replace(view, updates=_accepted(seats, view), stage="close"), setup.min_replies)
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


def finish(setup: Setup, state: LoopState) -> Finished:
    """Settle what the last round left open, with one more exchange if the settle part asks for it."""
    port = _Exchange(setup, state.round)
    present = setup.federation.present(state.round)
    view = View(setup.context, state.round, "end", present, state.table, state.home, setup.server, book=state.book)
    settle = setup.mechanism.settle
    if settle is not None:
        view = _without_leavers(setup, state.states, view)
        view = port.send(_merge(settle.asks(view, state.states["settle"])), view)
        view = _post(view, settle.finish(view, state.states["settle"]))
    return Finished(replace(state, book=view.book, finished=True), view, port.down, port.up)


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
    return _merge([r for slot, part in parts for r in part.asks(view, states[slot])])


def _merge(requests: Sequence[Request]) -> list[Request]:
    """Return one request a client; a question that two parts ask is sent once."""
    tasks: dict[int, dict[str, Task]] = {}
    for request in requests:
        mine = tasks.setdefault(request.client, {})
        for task in request.tasks:
            mine.setdefault(_question(task), task)
    return [Request(client, tuple(mine.values())) for client, mine in sorted(tasks.items())]


def _training(seats: Seats, table: Table, guide: Guide | None) -> list[Request]:
    """Turn seats into training tasks: ``centre = R M``, ``tilt = L M``."""
    rows = table.rows
    centres = None if seats.R is None else _combine(seats.R, rows)
    tilts = None if seats.L is None else _combine(seats.L, rows)
    return [
        Request(
            int(seats.client[s]),
            (
                Train(
                    seat=s,
                    row=int(seats.start[s]),
                    start=rows[int(seats.start[s])],
                    centre=None if centres is None else centres[s],
                    mu=0.0 if seats.mu is None else float(seats.mu[s]),
                    tilt=None if tilts is None else tilts[s],
                    private=bool(table.owner[seats.start[s]] == seats.client[s]),
                    guide=guide,
                ),
            ),
        )
        for s in range(len(seats))
    ]


def _combine(weights: np.ndarray, rows: Tensor) -> Sequence[Tensor]:
    """Return ``weights [S, K] @ rows [K, P]``; a seat that takes one row as it is gets that row itself, not a copy."""
    single = (np.count_nonzero(weights, axis=1) == 1) & (weights.max(axis=1, initial=0.0) == 1.0)
    if single.all():
        return [rows[int(k)] for k in weights.argmax(axis=1)]
    return list(mix(weights, rows[:0], rows))


def _accepted(seats: Seats, view: View) -> Updates:
    """Return the updates that came back sound, in the order of the seats."""
    found: list[tuple[int, Trained]] = []
    for s in range(len(seats)):
        result: Result | None = view.answers.get((int(seats.client[s]), f"seat {s}"))
        if isinstance(result, Trained):
            found.append((s, result))
    rows = _stack([t.row for _, t in found], view.table.rows)
    extras = (
        {
            name: torch.stack([t.extras[name] for _, t in found])
            for name in set.intersection(*(set(t.extras) for _, t in found))
        }
        if found
        else {}
    )
    return Updates(
        seats=seats.take(np.array([s for s, _ in found], dtype=np.int64)),
        rows=rows,
        num_samples=np.array([t.num_samples for _, t in found], dtype=np.float64),
        loss=np.array([t.loss for _, t in found], dtype=np.float64),
        steps=np.array([t.steps for _, t in found], dtype=np.int64),
        extras=extras,
    )


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


def _stack(rows: Sequence[Tensor], table: Tensor) -> Tensor:
    return torch.stack(list(rows)) if rows else table[:0]


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
