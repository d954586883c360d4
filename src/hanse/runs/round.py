"""One round, for every mechanism: present, ask, select, train, weigh, value, settle, mix, deploy.

Read this module for the order in which a mechanism's parts are called, and for what each can know. :func:`first_state`
makes the state before round 0. :func:`play_round` turns one :class:`LoopState` into the next. :func:`finish` settles
what the last round left open. :class:`Session` stays the same for the whole run.

Nothing here keeps state or writes files. The only side effects of a round go through the federation port. A failed
round can therefore be dropped, and played again from the state before it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from hanse.base.errors import PartError
from hanse.core.book import Book
from hanse.core.calling import States, call, check_figures, check_rows, checked_state, decide, guarded, name_of
from hanse.core.entry import TOKEN, Transaction
from hanse.core.entry import client as account_of
from hanse.core.history import NEVER, History
from hanse.core.mixing import proposed_mix
from hanse.core.part import Questions, Settlement, Stage, State, View
from hanse.core.port import Request, Roster
from hanse.core.table import Floats, Ints, Mix, Seats, Table, Updates, copies
from hanse.mechanisms.feedback import gone
from hanse.mechanisms.value_noise import unknown_without
from hanse.runs.arrivals import Underway
from hanse.runs.exchange import Exchange, continued, merge, sent, training
from hanse.runs.grants import grant
from hanse.runs.session import Session
from hanse.runs.settle_inputs import WatchedCall


@dataclass(frozen=True)
class LoopState:
    """Everything that changes over a run; a checkpoint holds exactly this.

    Attributes:
        round: the number of the next round, from 0.
        table: the models in play, a row each.
        home: ``[N]``, the row from which each client starts.
        states: the parts' states, by :meth:`Session.key`.
        book: the balances, and the hash of the last transaction.
        personal: ``[N, K]``, the weights with which each client mixes the table's rows into its personal model. None:
            no client has such a model.
        finished: whether :func:`finish` has settled the last round.
        moved: ``[K]``, for each private row the round in which its owner's last accepted update was taken (NEVER:
            none). Rows beyond its end never did.
        history: what is remembered of clients' earlier training, if the recipe depends on it.
        held: ``[N]``, the row that each client holds, if it is not its home row. None: all hold their home rows.
        underway: who still trains, and the virtual clock.
        on_server: ``[2, K]``, loss and accuracy on the server's test set of rows that have not changed since they were
            tested (NaN: all other rows). Checkpoints keep it because scoring a row again in another batch may change
            its last bits.
        accounts: what each client of a simulation has spent of its privacy budget, by client. None: there are no
            budgets, or clients keep them themselves.

    Examples:
        >>> from hanse.runs.rehearsal import rehearse
        >>> session = rehearse("fedavg").setup
        >>> state = first_state(session)
        >>> state.round, state.table.size, sorted(state.states)
        (0, 1, ['deploy', 'select', 'train', 'weigh'])
        >>> play_round(session, state).state.round
        1
    """

    round: int
    table: Table
    home: Ints
    states: States
    book: Book = field(default_factory=Book)
    personal: Floats | None = None
    finished: bool = False
    moved: Ints = field(default_factory=lambda: np.zeros(0, np.int64))  # no entry: never
    history: History | None = None
    held: Ints | None = None
    underway: Underway = field(default_factory=Underway)
    on_server: Floats | None = None
    accounts: Mapping[int, Any] | None = None


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


@dataclass(frozen=True)
class _Now:
    """A round in progress: what is known of it, the parts' states so far, and its exchange with the clients.

    Every stage takes one and returns the next, so nothing is changed in place.
    """

    view: View
    states: States
    port: Exchange
    history: History | None = None
    underway: Underway = field(default_factory=Underway)

    def knowing(self, **known: Any) -> _Now:
        """Return the round with these fields of its view set."""
        return replace(self, view=replace(self.view, **known))

    def handing_on(self, found: Iterable[Any]) -> _Now:
        """Return the round in which later parts find these values by their types (``view.get(Type)``)."""
        new = {type(value): value for value in found}
        return self.knowing(found={**self.view.found, **new}) if new else self


def first_state(session: Session) -> LoopState:
    """Return the state before round 0: each part's initial state, the train part's table, empty books.

    Raises:
        PartError: a part's ``init`` returns what a checkpoint cannot store, or its ``home`` returns anything but rows
            of the table.
    """
    train, context = session.mechanism.train, session.context
    states: dict[str, State] = {}
    for key, part in session.parts().items():
        with guarded(f"the {key} part {type(part).__name__}: its init returned"):
            states[key] = checked_state(part.init(context))
    table = Table.laid_out(tuple(train.blocks()), context.num_clients, context.initial)
    home = train.home(table, context)
    with guarded(f"the train part {type(train).__name__}: its home returned"):
        check_rows("rows", home, (context.num_clients,), table.size)
    recipe, first = context.recipe, context.initial(0)
    history = History.of(recipe, context.num_clients, context.layout, first) if recipe.remembers else None
    kept = session.of_guards("accounts")
    accounts = None if kept is None else kept.opened(context.num_clients)
    book = Book(floor=round(session.experiment.ledger.floor * TOKEN))
    return LoopState(0, table, home, states, book, history=history, accounts=accounts)


def play_round(session: Session, state: LoopState) -> Played:
    """Play one round and return the next state with all decisions.

    The result depends only on the arguments and the clients' answers. Nothing is written, and ``state`` is not changed.

    Args:
        session: what stays the same over the run.
        state: the state before the round, which comes from :func:`first_state`, the previous round, or a checkpoint.

    Raises:
        PartError: a part returns something invalid, or writes into its arguments.
        LedgerError: a settlement does not sum to zero, or overdraws an account. Nothing of it is posted.
    """
    accounts = session.of_guards("accounts")
    if accounts is not None:
        accounts.accounts = state.accounts or {}
    now = _begin(session, state, "open")
    # grants come first: a bid that is asked for below may already be paid from one
    now = _proved(session, _without_leavers(session, _granted(session, now)))
    now = _without_leavers(session, _ask(session, now, "open"))  # and those who say now that they leave
    now = _settled(session, now)

    now = _select(session, now)
    now = _train(session, now)

    now = _ask(session, now, "close")
    now = _weigh(session, now)
    now = _value(session, now)

    now, table = _settle_and_mix(session, now)
    now = _deploy(session, now)

    view = now.view
    learned, view = _learned(session, now)
    personal = None if view.deployment is None else view.deployment.weights
    moved = _moved(state, view, table)
    history = None if state.history is None else state.history.after(state.round, view.trained)
    after = LoopState(
        state.round + 1, table, view.mixed.home, learned, view.book, personal,
        moved=moved, history=history, held=_held(view), underway=now.underway,
        accounts=None if accounts is None else accounts.accounts,
    )  # fmt: skip
    waited = _waited(session, now.underway, view.trained)
    return Played(after, view, now.port.seconds, now.port.down, now.port.up, _figures(session, learned), waited)


def _waited(session: Session, underway: Underway, updates: Updates) -> dict[str, float]:
    """Return what is recorded of a round that need not have waited for all clients.

    That is how many updates were late, by how many rounds the latest was, how many are still under way, and the virtual
    time at its end in seconds. A round that waits for everybody has no such metrics.
    """
    metrics: dict[str, float] = {}
    if session.waiting.active:
        late = updates.staleness[updates.staleness > 0]
        metrics |= {"late/mixed": len(late), "late/staleness": int(late.max(initial=0))}
        metrics["late/under_way"] = len(underway.flights)
    return metrics | ({"clock_s": underway.clock} if underway.clock else {})


def _held(view: View) -> Ints | None:
    """Return the row that each client holds, ``[N]``, if any client's is not its home."""
    if view.deployment is None or np.array_equal(view.deployment.rows, view.mixed.home):
        return None
    return view.deployment.rows


def _learned(session: Session, now: _Now) -> tuple[dict[str, State], View]:
    """Return the parts' states after the round, once each part has seen it as a whole, and the round with what the
    settle part read of it.
    """
    learned = {}
    for key, part in session.parts().items():
        watched = WatchedCall(part.learn, alone=True)
        state = call(key, watched if key == "settle" else part.learn, now.view, now.view, now.states[key])
        with guarded(f"{name_of(key, part.learn, now.view)}: its learn returned"):
            learned[key] = checked_state(state)
        if key == "settle":  # a part that stands in no other slot
            now = now.handing_on([watched.inputs(now.view, "learn")])
    return learned, now.view


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


def finish(session: Session, state: LoopState) -> Played:
    """Settle what the last round left open. If the settle part asks questions, this takes one more exchange.

    Bonds of audits that the run left no time for go back. PI-FL, for example, settles a round with the accuracies that
    come with the next round's bids. After the last round, it asks for them here. The returned view has the postings,
    and its stage is "end".

    Args:
        session: what the run is played with.
        state: the state after the last round, in :class:`Played`.
    """
    now = _begin(session, state, "end")
    settle = session.mechanism.settle
    if settle is not None:
        now = _without_leavers(session, now)
        questions = merge(call("settle", settle.asks, now.view, now.view, now.states[session.key("settle")]))
        now = replace(now, view=now.port.ask(questions, now.view))
        now = _settled(session, now)
    if session.sizes is not None:
        heard = session.sizes.released(now.states["sizes"])
        now = replace(now, view=_post(now.view, heard.transactions), states={**now.states, "sizes": heard.state})
    port = now.port
    after = replace(state, states=now.states, book=now.view.book, finished=True)
    return Played(after, now.view, port.seconds, port.down, port.up)


def _figures(session: Session, states: States) -> dict[str, Floats]:
    """Return the parts' figures of each client ``[N]`` by name, for ``clients.jsonl``."""
    by_name: dict[str, Floats] = {}
    for key, part in session.parts().items():
        figures = part.figures(states[key])
        with guarded(f"the {key} part {type(part).__name__}: its figures returned"):
            check_figures(figures, session.context.num_clients)
        by_name |= figures
    return by_name


def _begin(session: Session, state: LoopState, stage: Stage) -> _Now:
    """Return the round before anything is decided: who is present, and what was lost while the server was down."""
    port = Exchange(session.federation, state.round, session.experiment.federation.deadline_s)
    underway, lost = state.underway.without_lost()
    present = underway.here(session.federation.present(state.round), state.round, session.waiting)
    view = View(
        session.context,
        state.round,
        stage,
        present,
        state.table,
        state.home,
        session.judge,
        book=state.book,
        refusals=lost,
    )
    return _Now(view, state.states, port, state.history, underway)


def _proved(session: Session, now: _Now) -> _Now:
    """Let members prove their sizes, and return the round in which nobody has more samples than it has proved."""
    sizes = session.sizes
    if sizes is None:
        return now
    view, state = now.view, now.states["sizes"]
    steps = ((sizes.ask_commitments, sizes.hear_commitments), (sizes.ask_audits, sizes.hear_audits))
    with now.port.clock("ask"):
        for ask, hear in steps:
            asked, state = ask(view, state)
            view = now.port.ask(asked, view)
            heard = hear(view, state)
            view = _post(replace(view, refusals=(*view.refusals, *heard.refused)), heard.transactions)
            state = heard.state
    return replace(
        now, view=replace(view, roster=sizes.roster(view.roster, state)), states={**now.states, "sizes": state}
    )


def _ask(session: Session, now: _Now, stage: Stage) -> _Now:
    """Send the parts' questions of a stage and add the answers to the view."""
    with now.port.clock("ask"):
        questions, found = _questions(session, now, stage)
        return replace(now, view=now.port.ask(questions, now.view)).handing_on(found)


def _select(session: Session, now: _Now) -> _Now:
    """Choose who trains (SELECT), and let the train part turn the choice into seats."""
    mechanism = session.mechanism
    with now.port.clock("select"):
        choice, states = decide("select", mechanism.select.select, now.view, now.states, session.key("select"))
        now = replace(now, states=states).knowing(choice=choice).handing_on(choice.found)
        seats, states = decide("train", mechanism.train.seats, now.view, now.states, session.key("train"))
        return replace(now, states=states).knowing(seats=seats, stage="train")


def _train(session: Session, now: _Now) -> _Now:
    """Train the seats and collect the parts' questions that travel with the tasks.

    If fewer than ``min_replies`` seats answer soundly, the round has no updates at all.
    """
    train, seats = session.mechanism.train, now.view.seats
    assert seats is not None
    with now.port.clock("train"):
        questions, found = _questions(session, now, "train")
        now = now.handing_on(found)
        payload = sent(train, now.view, now.states[session.key("train")])
        asked = training(seats, now.view.table, payload)
        asked = asked if now.history is None else continued(asked, now.history)
        clipping = session.of_guards("clipping")
        asked = asked if clipping is None else clipping.sent(asked, now.states["clipping"])
        view, underway = now.port.train(merge([*asked, *questions]), now.view, now.underway, session.waiting)
        updates = view.trained
        if session.sizes is not None:
            proved = session.sizes.proved(now.states["sizes"])[updates.seats.client]
            updates = replace(updates, num_samples=np.minimum(updates.num_samples, proved))
        view = _enough(replace(view, updates=updates, stage="close"), session.experiment.federation.min_replies)
    return replace(now, view=view, underway=underway)


def _weigh(session: Session, now: _Now) -> _Now:
    """Propose the next table; if nobody answered, every row stays as it was."""
    with now.port.clock("weigh"):
        if len(now.view.trained) == 0:
            return now.knowing(mix=Mix.keeping(now.view.table, 0, now.view.home))
        mixed, found, states = proposed_mix(session.mechanism, now.view, now.states)
        now = replace(now, states=states).knowing(mix=mixed, refusals=(*now.view.refusals, *mixed.refused))
        return now.handing_on(found)


def _value(session: Session, now: _Now) -> _Now:
    """Value the updates, if the mechanism has a value part and there is anything to value.

    Whatever part values them, an update of weight 0 is worth 0: the new table has nothing of it.
    """
    value = session.mechanism.value
    if value is None or not len(now.view.trained):
        return now
    with now.port.clock("value"):
        values, states = decide("value", value.value, now.view, now.states, session.key("value"))
        values = unknown_without(values, now.view.trained)
        if (idle := now.view.weights == 0).any():
            values = values.without(idle)
    return replace(now, states=states).knowing(values=values).handing_on(values.found)


def _settle_and_mix(session: Session, now: _Now) -> tuple[_Now, Table]:
    """Settle the round and apply the mix.

    A row that would become infinite or NaN stays as it was, and nobody may pay for it. So the round is settled again
    from before, without that row and without what updates to it were worth, which is nothing. The same holds for
    updates to rows that a payment withholds.
    """
    settled = _settled(session, now)
    with now.port.clock("mix"):
        table, broken = _mixed(settled.view)
    if broken:
        # if a row that is new in this round is broken, all rows stay
        all_stay = max(broken) >= now.view.table.size
        stay = set(now.view.trained.seats.target.tolist()) if all_stay else set(broken)
        settled = _settled(session, _worth_nothing(replace(now, view=_without(now.view, broken)), stay))
        table, _ = _mixed(settled.view)
    settlement = settled.view.settlement
    return _worth_nothing(settled, set() if settlement is None else settlement.withheld), table


def _worth_nothing(now: _Now, stay: Collection[int]) -> _Now:
    """Return the round in which updates to rows that ``stay`` as they are were worth nothing."""
    values, target = now.view.values, now.view.trained.seats.target
    if values is None or not stay:
        return now
    return now.knowing(values=values.without(np.isin(target, sorted(stay)), stay))


def _deploy(session: Session, now: _Now) -> _Now:
    """Let the deploy part say which model each client holds; without one, clients hold their home rows."""
    deploy = session.mechanism.deploy
    if deploy is None:
        return now
    deployment, states = decide("deploy", deploy.deploy, now.view, now.states, session.key("deploy"))
    return replace(now, states=states).knowing(deployment=deployment)


def _settled(session: Session, now: _Now) -> _Now:
    """Return the round settled at its stage, with the transactions in its books; unchanged if nothing settles.

    Raises:
        LedgerError: the transactions do not sum to zero or overdraw an account; nothing is posted.
    """
    settle = session.mechanism.settle
    if settle is None:
        return now
    settlement: Settlement
    with now.port.clock("settle"):
        watched = WatchedCall(settle.settle, alone=session.key("settle") == "settle")
        settlement, states = decide("settle", watched, now.view, now.states, session.key("settle"))
        if (before := now.view.settlement) is not None:  # that of the round's start: its records stay
            metrics, arrays = {**before.metrics, **settlement.metrics}, {**before.arrays, **settlement.arrays}
            settlement = replace(settlement, metrics=metrics, arrays=arrays)
        _declared(session, settlement.transactions)
        view = _post(replace(now.view, settlement=settlement), settlement.transactions)
    inputs = watched.inputs(now.view, now.view.stage, settlement.found)
    return replace(now, states=states, view=view).handing_on([*settlement.found, inputs])


def _declared(session: Session, transactions: Iterable[Transaction]) -> None:
    """Raise PartError if a payment rule posts a kind of transaction that it does not declare."""
    kinds = session.about.posted
    for transaction in transactions:
        if kinds and transaction.kind not in kinds:
            raise PartError(
                f"the settle part {type(session.mechanism.settle).__name__}: posts '{transaction.kind}', which its "
                f"tells does not name; it names {', '.join(sorted(kinds))}"
            )


def _post(view: View, transactions: Iterable[Transaction]) -> View:
    """Return the view with these transactions in its books. Raises LedgerError, with nothing posted."""
    new = tuple(transactions)
    return replace(view, book=view.book.post(view.round, new), posted=view.posted + new) if new else view


def _granted(session: Session, now: _Now) -> _Now:
    """Return the round with the grants of clients that are here for the first time, or the parts that are due.

    The account belongs to the client's number, which on a network belongs to its key. A member that comes back under
    another name gets no second grant.
    """
    view = now.view
    if not session.pays or session.grant == 0:
        return now
    if (vesting := session.vesting) is not None:
        posted, state = vesting.due(view, now.states["vesting"])
        return replace(now, view=_post(view, posted), states={**now.states, "vesting": state})
    new = [c.id for c in view.roster if account_of(c.id) not in view.book.balances]
    return replace(now, view=_post(view, [grant(c, session.grant) for c in new]))


def _without_leavers(session: Session, now: _Now) -> _Now:
    """Return the round without the clients that have left because of what they were told (see
    :mod:`hanse.mechanisms.feedback`).
    """
    if not session.experiment.clients.told:
        return now
    left = gone(now.view, now.states["feedback"])
    return now.knowing(roster=Roster(c for c in now.view.roster if not left[c.id])) if left.any() else now


def _questions(session: Session, now: _Now, stage: Stage) -> tuple[list[Request], list[Any]]:
    """Gather what all parts want to know at a stage, one request per client, and what they hand on with it."""
    view = replace(now.view, stage=stage)
    asked = [call(key, part.asks, view, view, now.states[key]) for key, part in session.parts().items()]
    found = [one for questions in asked if isinstance(questions, Questions) for one in questions.found]
    return merge([request for questions in asked for request in questions]), found


def _enough(view: View, least: int) -> View:
    """Return the view as it is, or that of an empty round if fewer than ``least`` seats answered soundly.

    The updates that did come are refused with that reason, so the record says why they do not count.
    """
    updates = view.trained
    if len(updates) >= least:
        return view
    reason = f"the round had {len(updates)} sound updates, {least} are needed"
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
    refused.

    If one of these rows is new in this round there is nothing to go back to: then all rows stay.
    """
    makers = view.trained.seats.client[view.mixed.makers(view.table, broken)].tolist()
    named = ", ".join(map(str, broken[:10])) + (", ..." if len(broken) > 10 else "")
    reason = f"its update made row {named} of the table infinite or NaN: the old one stays"
    refused = tuple((client, reason) for client in dict.fromkeys(makers))
    kept = view.mixed.without(view.table, broken, view.home)
    return replace(view, mix=kept, refusals=(*view.refusals, *refused))
