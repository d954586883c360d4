"""One exchange with the clients: questions are merged, seats become training tasks, replies are checked and ordered.

The round (:mod:`hanse.runs.round`) works with seats and questions, the federation port with one request and one reply
per client. This module translates. :func:`training` makes tasks of seats; :meth:`Exchange.train` sends them and returns
the valid updates, :meth:`Exchange.ask` sends questions and returns the valid answers. What a stage trains and asks
travels together. An exchange also remembers what the record of a failed round and an auditor need.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np
from torch import Tensor

from hanse.base.errors import PartError
from hanse.core.calling import called
from hanse.core.part import State, TrainPart, View
from hanse.core.payload import Payload
from hanse.core.port import Closing, Federation, Reply, Request, Roster, Task, Train, Trained
from hanse.core.recipe import NEVER, History
from hanse.core.table import Seats, Table, copies, mix
from hanse.federation.check import heard
from hanse.learning.client_payloads import unsound
from hanse.runs.arrivals import Landed, Training, Underway, Waiting, joined, updates_in, updates_of
from hanse.runs.recomputable import Keeping


@dataclass
class Exchange(Federation):
    """One round's way to the clients: sends requests, checks the replies, and remembers what the record needs of them.

    Attributes:
        federation: the port to the clients.
        round: the round's number.
        deadline_s: how many seconds each exchange may take. None: no limit.
        kept: all answers, for an auditor. None: they are not kept.
        seconds: wall-clock seconds so far, by stage.
        down: bytes sent to the clients so far.
        up: bytes received so far.
        roster: who was present when the round began.
        sat: ``(client, start row)`` of each seat that was asked to train.
        lost: whether the federation itself raised an exception. Then the network is lost, and no part is to blame.

    Examples:
        >>> from hanse.core.port import Ask
        >>> from hanse.runs.rehearsal import rehearse
        >>> small = rehearse("fedavg")
        >>> exchange = Exchange(small.setup.federation, 0, None)
        >>> view = exchange.ask([Request(1, (Ask("stay", {}),))], small.view)
        >>> (1, "stay") in view.answers
        True
    """

    federation: Federation
    round: int
    deadline_s: float | None
    kept: Keeping | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    down: int = 0
    up: int = 0
    roster: Roster = field(default_factory=Roster)
    sat: list[tuple[int, int]] = field(default_factory=list)
    lost: bool = False

    def present(self, round: int) -> Roster:
        """Return the clients that are here."""
        self.lost = True  # unless it answers
        self.roster = self.federation.present(round)
        self.lost = False
        if self.kept is not None:
            self.kept.present(self.roster)
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
        replies = self.exchange(self.round, questions, self.deadline_s, None)
        sound, refused = heard(self.round, questions, replies, view.context.layout.size, view.roster)
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
            came = self.exchange(self.round, requests, self.deadline_s, waiting.closing(self.round))
            if waiting.active or before.flights or before.clock or any(reply.arrival is not None for reply in came):
                asked = (self.round, requests, seats, view.table, view.roster)
                landed = Training(*asked, before, waiting, self.deadline_s).land(came)
            else:  # everybody was waited for, and no clock runs: nothing can be late
                sound, refused = heard(self.round, requests, came, view.table.rows.shape[1], view.roster)
                landed = replace(landed, replies=sound, refusals=tuple(refused))
        view = _knowing(view, landed.replies, landed.refusals)
        found = {one.seat: one for reply in landed.replies.values() for one in updates_in(reply)}
        at = sorted(found)
        fresh = updates_of(seats.take(np.array(at, np.int64)), [found[s] for s in at], view.table.rows)
        return replace(view, updates=joined(fresh, landed.late, view.round, view.table)), landed.underway

    def exchange(
        self, round: int, requests: Sequence[Request], deadline_s: float | None, closing: Closing | None
    ) -> Sequence[Reply]:
        """Return the replies, and note what was asked and answered."""
        self.sat += [(r.client, task.row) for r in requests for task in r.tasks if isinstance(task, Train)]
        self.lost = True  # unless it answers
        replies = self.federation.exchange(round, requests, deadline_s, closing)
        self.lost = False
        self.down += sum(reply.bytes_down for reply in replies)
        self.up += sum(reply.bytes_up for reply in replies)
        if self.kept is not None:
            self.kept.exchanged(requests, replies)
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


def training(seats: Seats, table: Table, payload: Payload | None) -> list[Request]:
    """Turn seats into training tasks with ``centre = R M`` and ``tilt = L M``.

    Args:
        seats: who trains, from which row, and pulled to what.
        table: the models ``M [K, P]``.
        payload: what the train part sends with every task. None: nothing.

    Returns:
        One request per seat, in order. :func:`merge` combines those of a client with several seats.
    """
    rows, starts = table.rows, seats.start.tolist()
    models = {row: rows[row] for row in set(starts)}  # one tensor per row: an engine sees who starts alike
    centres = None if seats.R is None else _combine(seats.R, rows)
    tilts = None if seats.L is None else _combine(seats.L, rows)
    return [
        Request(
            int(seats.client[s]),
            (
                Train(
                    seat=s,
                    row=starts[s],
                    start=models[starts[s]],
                    centre=None if centres is None else centres[s],
                    mu=0.0 if seats.mu is None else float(seats.mu[s]),
                    tilt=None if tilts is None else tilts[s],
                    private=bool(table.owner[seats.start[s]] == seats.client[s]),
                    payload=payload,
                ),
            ),
        )
        for s in range(len(seats))
    ]


def continued(requests: Sequence[Request], history: History) -> list[Request]:
    """Return training requests that continue each client's earlier training.

    The start model gets the client's own batch-norm statistics. If the recipe depends on them, two numbers are added:
    of optimiser steps so far, and of the last round of training.
    """

    def one(client: int, task: Train) -> Train:
        steps, last = int(history.steps[client]), int(history.last[client])
        start = history.model(client, task.start)
        return replace(task, start=start, before=steps, last=None if last == NEVER else last)

    return [replace(r, tasks=tuple(one(r.client, t) for t in r.tasks if isinstance(t, Train))) for r in requests]


def _combine(weights: np.ndarray, rows: Tensor) -> Sequence[Tensor]:
    """Return ``weights [S, K] @ rows [K, P]``; a seat that takes one row as it is gets that row itself, not a copy."""
    if copies(weights).all():
        return [rows[int(k)] for k in weights.argmax(axis=1)]
    return list(mix(weights, rows[:0], rows))


def sent(part: TrainPart, view: View, state: State) -> Payload | None:
    """Return what the train part sends with this round's training tasks, or None for nothing.

    Args:
        part: the train part.
        view: the round, after selection.
        state: the part's state.

    Raises:
        PartError: no client's half has this name, or it is not what the half declares.
    """
    with called("train", part.sends, view, state) as who:
        payload = part.sends(view, state)
    if payload is None:
        return None
    if (wrong := unsound(payload, view.context.layout)) is not None:
        raise PartError(f"{who}, cannot send its {wrong}")
    return payload
