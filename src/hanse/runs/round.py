"""One round, for every mechanism: present, ask, select, train, weigh, value, settle, mix, deploy.

Read this module for the order in which a mechanism's parts are called, and for what each can know. :func:`first_state`
makes the state before round 0. :func:`play_round` turns one :class:`LoopState` into the next. :func:`finish` settles
what the last round left open. :class:`Session` stays the same for the whole run.

Nothing here keeps state or writes files. The only side effects of a round go through the federation port. A failed
round can therefore be dropped, and played again from the state before it.

The federation port works with one request and one reply per client, a round with seats and questions. :class:`Exchange`
translates: :func:`training` makes tasks of seats; :meth:`Exchange.train` sends them and returns the valid updates,
:meth:`Exchange.ask` sends questions and returns the valid answers. What a stage trains and asks travels together. An
exchange also remembers what the record of a failed round and an auditor need.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from hanse.base.errors import PartError, PartWarning, blamed
from hanse.base.plain_text import quantity
from hanse.base.pytorch import Tensor, torch
from hanse.core.book import Book
from hanse.core.calling import States, called, check_figures, check_rows, checked_state, decide, naming, proposed_mix
from hanse.core.entry import BONDS, LEAVE, TOKEN, Transaction, grant
from hanse.core.entry import client as account_of
from hanse.core.part import Choice, Deployment, Questions, Settlement, Stage, State, Unproved, Values, View
from hanse.core.port import Call, Federation, Payload, Reply, Request, Roster, Task, Train, Trained
from hanse.core.recipe import NEVER, History
from hanse.core.table import Floats, Ints, Mix, Seats, Table, Updates, copies, mix, outsized
from hanse.federation.check import heard
from hanse.learning.generator import unsound
from hanse.mechanisms.weigh import noise_of
from hanse.runs.arrivals import Landed, Training, Underway, Waiting, joined, updates_in, updates_of
from hanse.runs.checkpoint import LoopState
from hanse.runs.recomputable import RoundAnswers
from hanse.runs.settle_inputs import WatchedCall
from hanse.runs.setup import Session


@dataclass
class Exchange(Federation):
    """One round's way to the clients: sends requests, checks the replies, and remembers what the record needs of them.

    Attributes:
        federation: the port to the clients.
        round: the round's number.
        deadline_s: how many seconds each exchange may take. None: no limit.
        answers: all answers, for an auditor. None: they are not kept.
        seconds: wall-clock seconds so far, by stage.
        down: bytes sent to the clients so far.
        up: bytes received so far.
        roster: who was present when the round began.
        sat: ``(client, start row)`` of each seat that was asked to train.
        lost: whether the federation itself raised an exception. Then the network is lost, and no part is to blame.
        told: what requests tell the owners of private rows on a network: by client, ``(row, round)`` of the last update
            of each row that was accepted. None: a simulation, in which they are told nothing.

    Examples:
        >>> from hanse.core.port import Ask
        >>> from hanse.runs.rehearsal import rehearse
        >>> small = rehearse("fedavg")
        >>> exchange = Exchange(small.session.federation, 0, None)
        >>> view = exchange.ask([Request(1, (Ask("stay", {}),))], small.view)
        >>> (1, "stay") in view.answers
        True
    """

    federation: Federation
    round: int
    deadline_s: float | None
    answers: RoundAnswers | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    down: int = 0
    up: int = 0
    roster: Roster = field(default_factory=Roster)
    sat: list[tuple[int, int]] = field(default_factory=list)
    lost: bool = False
    told: Mapping[int, tuple[tuple[int, int], ...]] | None = None

    def present(self, round: int) -> Roster:
        """Return the clients that are here."""
        self.lost = True  # unless it answers
        self.roster = self.federation.present(round)
        self.lost = False
        if self.answers is not None:
            self.answers.present(self.roster)
        return self.roster

    @contextmanager
    def clock(self, name: str) -> Iterator[None]:
        """Add the block's seconds to this stage."""
        begun = time.perf_counter()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - begun

    def ask(self, questions: Sequence[Request], view: View) -> View:
        """Ask questions and return the view with the valid answers and the refusals added.

        Without questions nothing is sent, so a mechanism whose parts ask nothing costs no exchange.
        """
        if not questions:
            return view
        replies = self.exchange(Call(self.round, questions, self.deadline_s))
        sound, refused = heard(self.round, questions, replies, view.roster)
        return _knowing(view, sound, refused)

    def train(
        self, requests: Sequence[Request], view: View, before: Underway, waiting: Waiting
    ) -> tuple[View, Underway]:
        """Send training tasks, and the questions that travel with them, and wait as the experiment says.

        Args:
            requests: at most one per client.
            view: the round so far, with its seats.
            before: what was still under way when the round began.
            waiting: when TRAIN ends, and what becomes of late updates.

        Returns:
            Two results: the view with updates in the order of the seats, then late ones, with answers and refusals (a
            refused seat leaves no gap); and what is still outstanding.
        """
        seats, landed = view.seats, Landed({}, (), (), before)
        assert seats is not None
        if requests or before.flights:
            came = self.exchange(Call(self.round, requests, self.deadline_s, waiting.closing(self.round)))
            if waiting.active or before.flights or before.clock or any(reply.arrival is not None for reply in came):
                landed = Training(view, requests, before, waiting, self.deadline_s).land(came)
            else:  # everybody was waited for, and no clock runs: nothing can be late
                sound, refused = heard(self.round, requests, came, view.roster)
                landed = Landed(sound, tuple(refused), (), before)
        view = _knowing(view, landed.replies, landed.refusals)
        found = {one.seat: one for reply in landed.replies.values() for one in updates_in(reply)}
        at = sorted(found)
        fresh = updates_of(seats.take(np.array(at, np.int64)), [found[s] for s in at], view.table.rows)
        return replace(view, updates=joined(fresh, landed.late, view.round, view.table)), landed.underway

    def exchange(self, call: Call) -> Sequence[Reply]:
        """Return the replies, and note what was asked and answered."""
        self.sat += [(r.client, task.row) for r in call.requests for task in r.tasks if isinstance(task, Train)]
        if self.told is not None:
            told = [replace(request, accepted=self.told.get(request.client, ())) for request in call.requests]
            call = replace(call, requests=told)
        self.lost = True  # unless it answers
        replies = self.federation.exchange(call)
        self.lost = False
        self.down += sum(reply.bytes_down for reply in replies)
        self.up += sum(reply.bytes_up for reply in replies)
        if self.answers is not None:
            self.answers.exchanged(call.requests, replies)
        return replies


def _knowing(view: View, replies: Mapping[int, Reply], refusals: Sequence[tuple[int, str]]) -> View:
    """Return the view with the answers of sound replies, what their clients authorised for payment, and these
    refusals.
    """
    answers, authorised = dict(view.answers), dict(view.authorised)
    for client, reply in replies.items():
        if reply.authorise is not None:
            authorised[client] = reply.authorise
        answers |= {(client, one.name): one for one in reply.results if not isinstance(one, Trained)}
    return replace(view, answers=answers, authorised=authorised, refusals=(*view.refusals, *refusals))


def merge(requests: Sequence[Request]) -> list[Request]:
    """Return one request per client, by ascending client. A question that two parts ask under the same name is sent
    once.
    """
    tasks: dict[int, dict[int | str, Task]] = {}
    for request in requests:
        mine = tasks.setdefault(request.client, {})
        for task in request.tasks:
            mine.setdefault(task.seat if isinstance(task, Train) else task.name, task)
    return [Request(client, tuple(mine.values())) for client, mine in sorted(tasks.items())]


def training(seats: Seats, table: Table, payload: Payload | None, history: History | None = None) -> list[Request]:
    """Turn seats into training tasks with ``centre = R M`` and ``tilt = L M``.

    Args:
        seats: who trains, from which row, and pulled to what.
        table: the models ``M [K, P]``.
        payload: what the train part sends with every task. None: nothing.
        history: if the recipe depends on each client's earlier training, what is remembered of it: then the start model
            gets the client's own batch-norm statistics, and the task says how many optimiser steps it has taken, and in
            which round it trained last.

    Returns:
        One request per seat, in order. :func:`merge` combines those of a client with several seats.
    """
    rows, starts = table.rows, seats.start.tolist()
    models = {row: rows[row] for row in set(starts)}  # one tensor per row: an engine sees who starts alike
    centres = None if seats.R is None else _combine(seats.R, rows)
    tilts = None if seats.L is None else _combine(seats.L, rows)
    requests = []
    for s, (client, row) in enumerate(zip(seats.client.tolist(), starts, strict=True)):
        task = Train(
            seat=s,
            row=row,
            start=models[row],
            centre=None if centres is None else centres[s],
            mu=0.0 if seats.mu is None else float(seats.mu[s]),
            tilt=None if tilts is None else tilts[s],
            private=bool(table.owner[row] == client),
            payload=payload,
        )
        if history is not None:
            steps, last = int(history.steps[client]), int(history.last[client])
            start = history.model(client, task.start)
            task = replace(task, start=start, before=steps, last=None if last == NEVER else last)
        requests.append(Request(client, (task,)))
    return requests


def _combine(weights: np.ndarray, rows: Tensor) -> Sequence[Tensor]:
    """Return ``weights [S, K] @ rows [K, P]``; a seat that takes one row as it is gets that row itself, not a copy."""
    if copies(weights).all():
        return [rows[int(k)] for k in weights.argmax(axis=1)]
    return list(mix(weights, rows[:0], rows))


@dataclass(frozen=True)
class Played:
    """A finished round with all its decisions.

    Attributes:
        state: the state after the round.
        view: what was known at the round's end: roster, choice, seats, updates, mix, values, settlement, refusals.
        seconds: wall-clock seconds by stage.
        bytes_down: bytes sent to the clients.
        bytes_up: bytes received from them.
        figures: the parts' figures of each client ``[N]`` after the round, by name.
        waited: metrics of a round that did not wait for all clients or had a virtual clock.

    Examples:
        >>> from hanse.runs.rehearsal import rehearse
        >>> played = rehearse("greedyfed").played
        >>> played.state.round, len(played.view.trained), played.view.values.per_seat.shape
        (1, 4, (4,))
    """

    state: LoopState
    view: View
    seconds: Mapping[str, float]
    bytes_down: int
    bytes_up: int
    figures: Mapping[str, Floats] = field(default_factory=dict)
    waited: Mapping[str, float] = field(default_factory=dict)


def first_state(session: Session) -> LoopState:
    """Return the state before round 0: each part's initial state, the train part's table, empty books.

    Raises:
        PartError: a part's ``init`` returns what a checkpoint cannot store, or its ``home`` returns anything but rows
            of the table.
    """
    train, context = session.mechanism.train, session.context
    states: dict[str, State] = {}
    for key, part in session.parts().items():
        with naming(f"the {key} part {type(part).__name__}: its init returned"):
            states[key] = checked_state(part.init(context))
    table = Table.laid_out(tuple(train.blocks(context)), context.num_clients, context.initial)
    home = train.home(table, context)
    with naming(f"the train part {type(train).__name__}: its home returned"):
        check_rows("rows", home, (context.num_clients,), table.size).flags.writeable = False
    recipe, first = context.recipe, context.initial(0)
    history = History.of(recipe, context.num_clients, context.layout, first) if recipe.remembers else None
    accounts = None if session.accounts is None else session.accounts.opened(context.num_clients)
    book = Book(floor=round(session.experiment.ledger.floor * TOKEN))
    return LoopState(0, table, home, states, book, history=history, accounts=accounts)


def play_round(session: Session, state: LoopState, port: Exchange | None = None) -> Played:
    """Play one round and return the next state with all decisions.

    The result depends only on the arguments and the clients' answers. Nothing is written, and ``state`` is not changed.

    Args:
        session: what stays the same over the run.
        state: the state before the round, which comes from :func:`first_state`, the previous round, or a checkpoint.
        port: the round's way to the clients. None: a new one, :func:`port_of`.

    Raises:
        PartError: a part returns something invalid, or writes into its arguments.
        LedgerError: a settlement does not sum to zero, or overdraws an account. Nothing of it is posted.
    """
    accounts = session.accounts
    if accounts is not None:
        accounts.accounts = state.accounts or {}
    for name, memory in session.memories.items():
        memory.clear()
        memory.update(state.memories.get(name, {}))
    now = _Round(session, state, "open", port)
    now.grant()  # first: a bid that is asked for below may already be paid from one
    now.let_leave()
    now.help("before")  # what is due to clients or asked of them beside the mechanism, such as proofs of their sizes
    now.ask_parts("open")
    now.let_leave()  # and those who say now that they leave
    now.settle()

    now.select()
    now.train()
    now.help("trained")  # proofs that they trained

    now.ask_parts("close")
    now.weigh()
    now.value()

    table = now.settle_and_mix()
    now.deploy()
    now.learn()

    view, port, given = now.view, now.port, now.view.deployment
    held = None if given is None or np.array_equal(given.rows, view.mixed.home) else given.rows
    personal = None if given is None else given.weights
    after = LoopState(
        state.round + 1, table, view.mixed.home, now.states, view.book, personal,
        moved=_moved(state, view, table), held=held, underway=now.underway, left=state.left,
        history=None if state.history is None else state.history.after(state.round, view.trained),
        accounts=None if accounts is None else accounts.accounts, quit=np.union1d(state.quit, view.leaving),
        memories={name: dict(memory) for name, memory in session.memories.items()},
    )  # fmt: skip
    waited = _waited(session, now.underway, view.trained)
    return Played(after, view, port.seconds, port.down, port.up, _figures(session, now.states), waited)


def _waited(session: Session, underway: Underway, updates: Updates) -> dict[str, float]:
    """Return what is recorded of a round that need not have waited for all clients.

    That is how many updates were late, by how many rounds the latest was, how many are still under way, and the virtual
    time at its end in seconds. A round that waits for everybody has no such metrics.
    """
    clock: dict[str, float] = {"clock_s": underway.clock} if underway.clock else {}
    if not session.waiting.active:
        return clock
    late, flying = updates.staleness[updates.staleness > 0], len(underway.flights)
    return {"late/mixed": len(late), "late/staleness": int(late.max(initial=0)), "late/under_way": flying} | clock


def _moved(state: LoopState, view: View, table: Table) -> Ints:
    """Return the round in which each private row of the new table last took an update of its owner's, ``[K']``.

    On a network the server cannot read this off the rows, which it never sees. It tells owners by it which of their
    updates were accepted.
    """
    moved = np.full(table.size, NEVER, np.int64)
    moved[: len(state.moved)] = state.moved
    seats, withheld = view.trained.seats, () if view.settlement is None else sorted(view.settlement.withheld)
    # an own update counts if the mix takes something of it and its row was not withheld
    own = np.flatnonzero(view.table.owner[seats.start] == seats.client)
    took = seats.start[own][view.mixed.W[seats.start[own], own] != 0]
    moved[np.setdiff1d(took, np.array(withheld, np.int64))] = view.round
    return moved


def failed_round(session: Session, state: LoopState, roster: Roster, seats: Seats, reason: str) -> Played:
    """Return a failed round: nothing of it counts, and the next one starts from the same state.

    Args:
        session: what stays the same over the run.
        state: the state before the round, of :func:`first_state` or in :class:`Played`.
        roster: the clients that were present.
        seats: the seats that had been asked to train. Their clients are refused.
        reason: the reason, for the record.
    """
    view = View(session.context, state.round, "close", roster, state.table, state.home, session.judge, book=state.book)
    refused = tuple((client, reason) for client in dict.fromkeys(seats.client.tolist()))
    empty = _nothing(state.table, seats)
    view = replace(view, seats=seats, updates=empty, mix=Mix.keeping(state.table, 0, state.home), refusals=refused)
    waited = _waited(session, state.underway, empty)
    return Played(replace(state, round=state.round + 1), view, {}, 0, 0, _figures(session, state.states), waited)


def finish(session: Session, state: LoopState, port: Exchange | None = None) -> Played:
    """Settle what the last round left open. If the settle part asks questions, this takes one more exchange.

    PI-FL, for example, settles a round with the accuracies that come with the next round's bids. After the last round,
    it asks for them here. Helpers end what they have open: bonds of audits that the run left no time for go back. The
    returned view has the postings, and its stage is "end".

    Args:
        session: what the run is played with.
        state: the state after the last round, in :class:`Played`.
        port: the way to the clients. None: a new one, :func:`port_of`.
    """
    now = _Round(session, state, "end", port)
    if (settle := session.mechanism.settle) is not None:
        now.let_leave()
        own = now.states[session.mechanism.key("settle")]
        with called("settle", settle.asks, now.view, own):
            asked = settle.asks(now.view, own)
        now.ask(merge(asked))
        now.settle()
    now.help("ended")
    after = replace(state, states=now.states, book=now.view.book, finished=True)
    return Played(after, now.view, now.port.seconds, now.port.down, now.port.up)


def port_of(session: Session, state: LoopState) -> Exchange:
    """Return the way to the clients in the round that follows a state.

    On a network, owners of private rows are told which of their updates were accepted. This follows from the state, so
    it is also right after a failed round and in a resumed run. If the run is recomputable, answers are kept.
    """
    told: dict[int, tuple[tuple[int, int], ...]] | None = None
    if session.remote:
        told, owner = {}, state.table.owner.tolist()
        for row in np.flatnonzero(state.moved != NEVER).tolist():
            told[owner[row]] = (*told.get(owner[row], ()), (row, int(state.moved[row])))
    answers = RoundAnswers() if session.recomputable else None
    return Exchange(session.federation, state.round, session.experiment.federation.deadline_s, answers, told=told)


def _figures(session: Session, states: States) -> dict[str, Floats]:
    """Return the parts' figures of each client ``[N]`` by name, for ``clients.jsonl``."""
    by_name: dict[str, Floats] = {}
    for key, part in session.parts().items():
        figures = part.figures(states[key])
        with naming(f"the {key} part {type(part).__name__}: its figures returned"):
            check_figures(figures, session.context.num_clients, by_name)
        by_name |= figures
    return by_name


class _Round:
    """A round in progress: what is known of it, the parts' states so far, and its exchange with the clients.

    Each stage sets ``view`` and ``states`` anew. What they held before is never written into.
    """

    def __init__(self, session: Session, state: LoopState, stage: Stage, port: Exchange | None) -> None:
        """See who is present, and what was lost while the server was down."""
        self.session, self.states, self.history = session, state.states, state.history
        self.port = port_of(session, state) if port is None else port
        self.underway, lost = state.underway.without_lost()
        present = self.underway.here(self.port.present(state.round), state.left)
        judge = session.judge
        for guard in session.guards.values():
            judge = guard.judge(judge, state.round)
        self.view = View(
            session.context, state.round, stage, present, state.table, state.home, judge, book=state.book, refusals=lost
        )

    def hand_on(self, found: Iterable[Any]) -> None:
        """Let later parts find these values by their types (``view.get(Type)``)."""
        if new := {type(value): value for value in found}:
            self.view = replace(self.view, found={**self.view.found, **new})

    def keep(self, key: str, state: State) -> None:
        """Set a part's state."""
        self.states = {**self.states, key: state}

    def post(self, transactions: Iterable[Transaction]) -> None:
        """Post transactions to the round's books. Raises LedgerError, with nothing posted."""
        if new := tuple(transactions):
            book, posted = self.view.book.post(self.view.round, new), self.view.posted + new
            self.view = replace(self.view, book=book, posted=posted)

    def refuse(self, refused: Iterable[tuple[int, str]]) -> None:
        """Record why clients are refused, as ``(client, reason)``."""
        self.view = replace(self.view, refusals=(*self.view.refusals, *refused))

    def count(self, roster: Roster) -> None:
        """Let the present clients count as this roster says from here on."""
        self.view = replace(self.view, roster=roster)

    def grant(self) -> None:
        """Give grants to clients that are here for the first time, unless they get them in parts
        (:class:`hanse.runs.helpers.Vesting`).

        The account belongs to the client's number, which on a network belongs to its key. A member that comes back
        under another name gets no second grant.
        """
        session, view = self.session, self.view
        if session.pays and session.grant and session.experiment.clients.vests == 1:
            new = [c.id for c in view.roster if account_of(c.id) not in view.book.balances]
            self.post(grant(c, session.grant) for c in new)

    def let_leave(self) -> None:
        """Go on without the clients that have left by what they said to helpers."""
        for key, helper in self.session.helpers.items():
            if len(left := helper.gone(self.view, self.states[key])):
                self.count(Roster(c for c in self.view.roster if c.id not in left))

    def help(self, hook: Literal["before", "trained", "ended"]) -> None:
        """Let each helper act at this point of the round, by its method of this name."""
        with self.port.clock("ask"):
            for key, helper in self.session.helpers.items():
                self.keep(key, getattr(helper, hook)(self, self.states[key]))

    def ask(self, requests: Sequence[Request]) -> None:
        """Ask clients and add their answers to the view."""
        self.view = self.port.ask(requests, self.view)

    def questions(self, stage: Stage) -> list[Request]:
        """Return what all parts want to know at a stage, one request per client, and hand on what they found."""
        view = replace(self.view, stage=stage)
        requests: list[Request] = []
        for key, part in self.session.parts().items():
            with called(key, part.asks, view, self.states[key]):
                asked = part.asks(view, self.states[key])
            requests += asked
            self.hand_on(asked.found if isinstance(asked, Questions) else ())
        return merge(requests)

    def ask_parts(self, stage: Stage) -> None:
        """Send the parts' questions of a stage and add the answers to the view."""
        with self.port.clock("ask"):
            self.ask(self.questions(stage))

    def select(self) -> None:
        """Choose who trains (SELECT), and let the train part turn the choice into seats."""
        mechanism = self.session.mechanism
        with self.port.clock("select"):
            choice, self.states = decide(Choice, mechanism, "select", mechanism.select.select, self.view, self.states)
            self.view = replace(self.view, choice=choice)
            self.hand_on(choice.found)
            seats, self.states = decide(Seats, mechanism, "train", mechanism.train.seats, self.view, self.states)
            self.view = replace(self.view, seats=seats, stage="train")

    def train(self) -> None:
        """Train the seats and collect the parts' questions that travel with the tasks.

        If fewer than ``min_replies`` seats answer soundly, the round has no updates at all.
        """
        session, seats = self.session, self.view.seats
        assert seats is not None
        with self.port.clock("train"):
            questions = self.questions("train")
            part, own = session.mechanism.train, self.states[session.mechanism.key("train")]
            with called("train", part.sends, self.view, own) as who:
                payload = part.sends(self.view, own)
            if payload is not None and (wrong := unsound(payload, self.view.context.layout)) is not None:
                raise PartError(f"{who}, cannot send this: {wrong}")
            tasks: Sequence[Request] = training(seats, self.view.table, payload, self.history)
            for key, helper in session.helpers.items():
                tasks = helper.sent(tasks, self.states[key])
            requests = merge([*tasks, *questions])
            view, self.underway = self.port.train(requests, self.view, self.underway, session.waiting)
            updates = view.trained
            for key, helper in session.helpers.items():
                updates = helper.received(updates, self.states[key])
            view = replace(view, updates=updates, stage="close")
            self.view = _enough(view, session.experiment.federation.min_replies)

    def weigh(self) -> None:
        """Propose the next table; if nobody answered, every row stays as it was."""
        view = self.view
        with self.port.clock("weigh"):
            if len(view.trained) == 0:
                self.view = replace(self.view, mix=Mix.keeping(view.table, 0, view.home))
                return
            mixed, found, self.states = proposed_mix(self.session.mechanism, view, self.states)
            self.view = replace(self.view, mix=mixed, refusals=(*view.refusals, *mixed.refused))
            self.hand_on(found)

    def value(self) -> None:
        """Value the updates, if the mechanism has a value part and there is anything to value.

        Whatever part values them, an update of weight 0 is worth 0: the new table has nothing of it. So is a good one
        of a client that has not proved that it trained.
        """
        mechanism, value = self.session.mechanism, self.session.mechanism.value
        if value is None or not len(self.view.trained):
            return
        with self.port.clock("value"):
            values, self.states = decide(Values, mechanism, "value", value.value, self.view, self.states)
            # noise moves values by nobody knows how much
            if values.standard_errors is None and noise_of(self.view.trained).any():
                values = replace(values, standard_errors=np.full(len(values.per_seat), np.nan))
            idle, unproved = self.view.weights == 0, self.view.get(Unproved)
            if unproved is not None:
                idle |= np.isin(self.view.trained.seats.client, unproved.clients) & (values.per_seat > 0)
            if idle.any():
                values = values.without(idle)
        self.view = replace(self.view, values=values)
        self.hand_on(values.found)

    def settle(self) -> None:
        """Settle the round at its stage, if anything settles, and post the transactions.

        Raises:
            PartError: the payment rule posts a kind of transaction that it does not declare.
            LedgerError: the transactions do not sum to zero or overdraw an account; nothing is posted.
        """
        session, mechanism, settle = self.session, self.session.mechanism, self.session.mechanism.settle
        if settle is None:
            return
        with self.port.clock("settle"):
            watched = WatchedCall(settle.settle, alone=mechanism.key("settle") == "settle")
            settlement, self.states = decide(Settlement, mechanism, "settle", watched, self.view, self.states)
            if (before := self.view.settlement) is not None:  # that of the round's start: its records stay
                metrics, arrays = {**before.metrics, **settlement.metrics}, {**before.arrays, **settlement.arrays}
                settlement = replace(settlement, metrics=metrics, arrays=arrays)
            who, declared = f"the settle part {type(settle).__name__}", session.about.posted
            kinds = [one.kind for one in settlement.transactions]
            if taken := {"grant", LEAVE, *BONDS}.intersection(kinds):
                raise PartError(f"{who}: posts '{min(taken)}', a kind that only hanse itself posts: take another name")
            if declared and (odd := [kind for kind in kinds if kind not in declared]):
                named = ", ".join(sorted(declared))
                raise PartError(f"{who}: posts '{odd[0]}', which its tells does not name; it names {named}")
            inputs = watched.inputs(self.view, self.view.stage, settlement.found)
            self.view = replace(self.view, settlement=settlement)
            with blamed(f"{who}, round {self.view.round}"):
                self.post(settlement.transactions)
        self.hand_on([*settlement.found, inputs])

    def settle_and_mix(self) -> Table:
        """Settle the round, apply the mix, and return the new table.

        A row that would become infinite or NaN stays as it was, and nobody may pay for it. So the round is settled
        again from before, without that row and without what updates to it were worth, which is nothing. The same holds
        for updates to rows that a payment withholds.
        """
        before, states = self.view, self.states
        self.settle()
        with self.port.clock("mix"):
            table, broken = _mixed(self.view)
        if broken:
            # if a row that is new in this round is broken, all rows stay
            all_stay = max(broken) >= before.table.size
            self.view, self.states = _without(before, broken), states
            self.worth_nothing(set(before.trained.seats.target.tolist()) if all_stay else set(broken))
            self.settle()
            table, _ = _mixed(self.view)
        settlement = self.view.settlement
        self.worth_nothing(set() if settlement is None else settlement.withheld)
        return table

    def worth_nothing(self, stay: Collection[int]) -> None:
        """Say that updates to rows that ``stay`` as they are were worth nothing."""
        values, target = self.view.values, self.view.trained.seats.target
        if values is not None and stay:
            self.view = replace(self.view, values=values.without(np.isin(target, sorted(stay)), stay))

    def deploy(self) -> None:
        """Let the deploy part say which model each client holds; without one, clients hold their home rows."""
        mechanism, deploy = self.session.mechanism, self.session.mechanism.deploy
        if deploy is not None:
            given, self.states = decide(Deployment, mechanism, "deploy", deploy.deploy, self.view, self.states)
            self.view = replace(self.view, deployment=given)

    def learn(self) -> None:
        """Let each part see the round as a whole, and note what the settle part read of it."""
        for key, part in self.session.parts().items():
            watched = WatchedCall(part.learn, alone=True) if key == "settle" else None  # it stands in no other slot
            with called(key, part.learn, self.view, self.states[key]) as who:
                state = (watched or part.learn)(self.view, self.states[key])
            with naming(f"{who}: its learn returned"):
                self.keep(key, checked_state(state))
            if watched is not None:
                self.hand_on([watched.inputs(self.view, "learn")])


def _enough(view: View, least: int) -> View:
    """Return the view as it is, or that of an empty round if fewer than ``least`` seats answered soundly.

    The updates that did come are refused with that reason, so the record says why they do not count.
    """
    updates = view.trained
    if len(updates) >= least:
        return view
    reason = f"the round had {quantity(len(updates), 'sound update')}, {least} are needed"
    refused = (*view.refusals, *((int(c), reason) for c in updates.seats.client))
    return replace(view, updates=_nothing(view.table, updates.seats), uncounted=updates, refusals=refused)


def _nothing(table: Table, seats: Seats) -> Updates:
    """Return an :class:`Updates` with no updates in it, shaped for this table."""
    none, zero = np.zeros(0, np.int64), np.zeros(0)
    return Updates(seats.take(none), table.rows[:0], zero, zero, none)


def _mixed(view: View) -> tuple[Table, Sequence[int]]:
    """Apply the mix; withheld rows stay as they were.

    Returns:
        The new table, and the numbers of its rows that have an infinite or NaN entry.
    """
    proposed, settlement = view.mixed, view.settlement
    if settlement is not None and settlement.withheld:
        proposed = proposed.without(view.table, sorted(settlement.withheld), view.home)
    rows = proposed.rows(view.trained.rows, view.table.rows)
    table = Table(rows, proposed.owner, proposed.block, view.table.blocks)
    mixed = np.flatnonzero(~copies(proposed.W)).tolist()  # a copy is of what is sound already
    if not mixed:
        return table, ()
    # a finite sum has finite terms, and takes one pass without a copy; only where it is not, each number is looked at
    sums = torch.stack([table.rows[row].sum() for row in mixed]).isfinite().tolist()
    suspects = [row for row, sound in zip(mixed, sums, strict=True) if not sound]
    return table, [row for row in suspects if not bool(table.rows[row].isfinite().all())]


def _without(view: View, broken: Sequence[int]) -> View:
    """Return the view with a mix that leaves the ``broken`` rows as they are, and with the seats that made them
    refused. The reason says whose fault it is: that of an :func:`outsized` update, or without one the mechanism's.

    If one of these rows is new in this round there is nothing to go back to: then all rows stay.
    """
    makers, large = view.mixed.makers(view.table, broken), outsized(view.trained.rows)
    clients, at_fault = view.trained.seats.client, set(view.trained.seats.client[makers & large].tolist())
    named = ", ".join(map(str, broken[:10])) + (", ..." if len(broken) > 10 else "")
    end = f"made row {named} of the table infinite or NaN: the old one stays"
    others = f"another client's update {end}" if at_fault else f"the mechanism itself {end}"
    if not at_fault:
        who = type(view.context.slots["weigh"]).__name__
        warnings.warn(f"the weigh part {who}: of sound updates it {end}", PartWarning, stacklevel=2)
    refused = tuple(
        (client, f"its update {end}" if client in at_fault else others)
        for client in dict.fromkeys(clients[makers].tolist())
    )
    kept = view.mixed.without(view.table, broken, view.home)
    return replace(view, mix=kept, refusals=(*view.refusals, *refused))
