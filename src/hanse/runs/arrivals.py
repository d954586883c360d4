"""Late updates: when training (TRAIN) closes, who still trains then, and how a late update joins a later round.

For experiments that do not wait for everybody (``[federation] enough``, ``late``, ``max_staleness``, ``replay``).
:class:`Waiting` holds the experiment's settings, and :class:`Underway` what is still outstanding between rounds.
:meth:`Training.land` decides what counts.

In a simulation every reply arrives at once and says how many seconds its client took. The loop's virtual clock decides
which updates are in time. Late ones wait in the loop's state. On a network, the federation says who is still training,
and delivers late replies with later exchanges.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from hanse.base.plain_text import quantity
from hanse.base.pytorch import Tensor, torch
from hanse.core.part import View
from hanse.core.port import Closing, Reply, Request, Roster, Trained
from hanse.core.table import Seats, Table, Updates, as_one
from hanse.federation.check import heard, refusal
from hanse.runs.chance import STILL

LOST = "lost with a round that failed"


@dataclass(frozen=True)
class Waiting:
    """How long a round's training waits, and what happens to late updates.

    Attributes:
        enough: training ends once this many valid replies have come. None: it waits for all.
        late: "drop" discards late updates. "next" mixes them into the round in which they arrive.
        max_staleness: with "next": the most rounds by which an update may be late. None: any number.

    Examples:
        >>> Waiting(enough=3, late="next").closing(5)
        Closing(enough=3, since=0)
    """

    enough: int | None = None
    late: Literal["drop", "next"] = "drop"
    max_staleness: int | None = None

    @property
    def active(self) -> bool:
        """Whether a round may end before all have answered, or have updates of another round."""
        return self.enough is not None or self.late == "next"

    def oldest(self, round: int) -> int:
        """Return the first round whose updates are accepted in ``round``: the round itself if late ones are dropped."""
        if self.late == "drop":
            return round
        return 0 if self.max_staleness is None else max(0, round - self.max_staleness)

    def closing(self, round: int) -> Closing | None:
        """Return when the federation may stop waiting, or None if it waits for all."""
        return Closing(self.enough, self.oldest(round)) if self.active else None


@dataclass(frozen=True)
class Flight:
    """One client's outstanding training.

    In a simulation the answer is already known and waits here until the clock reaches ``due``: ``updates``, or why they
    are ``refused``. On a network the ``request`` is kept, to check a later answer against it. A restarted server has
    lost it, so it cannot accept the answer.

    Attributes:
        round: the round in which the client was asked.
        seats: the client's seats, ``m`` of them.
        start: ``[m, P]``, the models that the client was sent.
        due: the virtual time in seconds at which the client answers. None: not known, as on a network.
        updates: the client's ``m`` updates, if they are sound and may still count.
        refused: why there are no updates.
        request: what the client was asked, on a network.
    """

    round: int
    seats: Seats
    start: Tensor
    due: float | None = None
    updates: Updates | None = None
    refused: str | None = None
    request: Request | None = None

    @property
    def client(self) -> int:
        """The client's id."""
        return int(self.seats.client[0])

    @property
    def lost(self) -> bool:
        """Whether the answer can no longer be accepted because the server was restarted."""
        return self.due is None and self.updates is None and self.request is None


@dataclass(frozen=True)
class Underway:
    """What is outstanding between two rounds.

    Attributes:
        clock: the virtual time in seconds.
        flights: the training that clients have not finished, by client id.

    Examples:
        At the start of a run, nobody:

        >>> from hanse.runs.rehearsal import rehearse
        >>> state = rehearse("fedavg").played.state
        >>> dict(state.underway.flights)
        {}

        One slow client of four still trains after a round that did not wait for it:

        >>> slow = {"speed": {"seconds": [9.0, 1.0, 1.0, 1.0]}}
        >>> federation = {"enough": 3, "late": "next"}
        >>> small = rehearse("fedavg", behaviour=slow, federation=federation)
        >>> list(small.played.state.underway.flights)
        [0]
    """

    clock: float = 0.0
    flights: Mapping[int, Flight] = field(default_factory=dict)

    def here(self, roster: Roster, left: Collection[int] = ()) -> Roster:
        """Return the clients that can be asked in a round.

        In a simulation these are the present clients that do not still train. (On a network, the federation itself
        leaves out clients that do.)

        Args:
            roster: the present clients.
            left: the clients that have left the run.
        """
        roster = Roster(c for c in roster if c.id not in left) if left else roster
        busy = {client for client, flight in self.flights.items() if flight.due is not None}
        return Roster(c for c in roster if c.id not in busy) if busy else roster

    def without_lost(self) -> tuple[Underway, tuple[tuple[int, str], ...]]:
        """Return what may still arrive, and ``(client, reason)`` of what was lost when the server was restarted."""
        lost = {client: flight for client, flight in self.flights.items() if flight.lost}
        kept = {client: flight for client, flight in self.flights.items() if client not in lost}
        reason = "its update of round {}: lost, the server was restarted"
        return replace(self, flights=kept), tuple((c, reason.format(f.round)) for c, f in sorted(lost.items()))


@dataclass(frozen=True)
class Landed:
    """The outcome of TRAIN.

    Attributes:
        replies: the valid replies that came in time, by client.
        refusals: ``(client, reason)`` for each of the other clients.
        late: updates of earlier rounds that arrived in this one and count.
        underway: what is still outstanding, and the time of the clock at the end.
    """

    replies: Mapping[int, Reply]
    refusals: tuple[tuple[int, str], ...]
    late: tuple[Flight, ...]
    underway: Underway


@dataclass(frozen=True)
class Training:
    """The training of one round in progress.

    Attributes:
        view: the round, with its seats.
        requests: what clients were asked, one request each.
        before: what was under way when the round began.
        waiting: when TRAIN ends, and what becomes of late updates.
        deadline_s: the most seconds that the round waits, by the virtual clock in a simulation. None: no limit.
    """

    view: View
    requests: Sequence[Request]
    before: Underway
    waiting: Waiting
    deadline_s: float | None

    def land(self, replies: Sequence[Reply]) -> Landed:
        """Decide what is in time, which late updates have arrived, and what is still outstanding.

        Args:
            replies: all replies from the federation: those of this round and, on a network, also answers to earlier
                requests.
        """
        # on a network an exchange may hand over answers to requests of earlier rounds
        earlier = {r.client: r for r in replies if r.arrival is not None and r.arrival.round is not None}
        now = [r for r in replies if r.arrival is None or r.arrival.round is None]
        sound, refused = heard(self.view.round, self.requests, now, self.view.roster)
        asked = {r.client for r in self.requests}
        old = {c: self._answered(f, earlier.get(c)) for c, f in self.before.flights.items() if c not in asked}
        due = {r.client: self.before.clock + (0.0 if r.arrival is None else r.arrival.seconds) for r in now}
        due |= {r.client: math.inf for r in now if r.arrival is not None and r.arrival.open}  # not in this round
        clock = self._closes(due, sound, old)
        # whose answers are here when the round stops waiting, or who stayed silent
        came = {r.client for r in self.requests if due.get(r.client, clock) <= clock}
        came |= {c for c, f in old.items() if f.due is not None and f.due <= clock}

        reasons = dict(reversed(refused))  # the first of each client
        # who is not here yet stays under way, from this round or an earlier one
        left = {c: f for c, f in old.items() if c not in came}
        left |= {r.client: self._flight(r, due, sound, reasons) for r in self.requests if r.client not in came}
        refusals = [(c, reason) for c, reason in refused if c in came or c not in asked]
        refusals += [(c, STILL) for c in sorted(asked - came)]
        # on a network who was asked is free: an answer that came is lost with the round that heard it and failed
        lost = [f for c, f in self.before.flights.items() if c in asked and f.request is not None]
        refusals += [(f.client, f"its update of round {f.round}: {LOST}") for f in lost]
        landed = sorted((f for c, f in old.items() if c in came), key=lambda f: (f.round, f.client))
        landed = landed if self.waiting.late == "next" else []
        wrong = {f.client: said for f in landed if (said := self._wrong(f)) is not None}
        return Landed(
            {c: reply for c, reply in sound.items() if c in came},
            (*refusals, *wrong.items()),
            tuple(f for f in landed if f.client not in wrong),
            Underway(clock, dict(sorted(left.items()))),
        )

    def _closes(self, due: Mapping[int, float], sound: Collection[int], old: Mapping[int, Flight]) -> float:
        """Return the virtual time at which the round stops waiting: for all, for ``enough``, or at the deadline.

        Args:
            due: when each client that was asked in this round answers.
            sound: the clients among them whose answers are sound; only these count towards ``enough``.
            old: what was under way from earlier rounds.
        """
        begun, enough = self.before.clock, self.waiting.enough
        # late updates count towards "enough" only if they will be mixed
        flying = {c: f.due for c, f in old.items() if f.due is not None}
        counted = {c: t for c, t in flying.items() if old[c].updates is not None and self._wrong(old[c]) is None}
        counted = counted if self.waiting.late == "next" else {}
        here = [t for t in due.values() if t < math.inf]
        # who still trains is only waited for where that may count, or where there is nobody else
        last = max([*here, *(counted.values() if enough is not None else ())], default=begun)
        if not due and not (counted and enough is not None):
            last = min(flying.values(), default=begun)
        coming = sorted([*(t for c, t in due.items() if c in sound), *counted.values()])
        if enough is not None and len(coming) >= enough:
            last = min(last, coming[enough - 1])
        return max(begun, last if self.deadline_s is None else min(last, begun + self.deadline_s))

    def _flight(
        self, request: Request, due: Mapping[int, float], sound: Mapping[int, Reply], reasons: Mapping[int, str]
    ) -> Flight:
        """Return the outstanding training of a client that was asked in this round and did not answer in time."""
        client, seats = request.client, self.view.seats
        assert seats is not None
        begun = seats.take(np.flatnonzero(seats.client == client)).plain()
        flight = Flight(self.view.round, begun, self.view.table.rows[begun.start].clone(), request=request)
        if client in due and due[client] == math.inf:
            return flight
        flight = replace(flight, due=due.get(client, self.before.clock), request=None)
        if client in sound and self.waiting.late == "next":
            return replace(flight, updates=updates_of(begun, updates_in(sound[client]), flight.start))
        return replace(flight, refused=reasons.get(client))

    def _answered(self, flight: Flight, reply: Reply | None) -> Flight:
        """Return outstanding training on a network with the answer that has arrived; unchanged if none has."""
        arrival, request = None if reply is None else reply.arrival, flight.request
        if reply is None or arrival is None or arrival.round != flight.round or request is None:
            return flight
        reason = refusal(request, reply)
        flight = replace(flight, due=self.before.clock, refused=reason)
        if reason is not None:
            return flight
        return replace(flight, updates=updates_of(flight.seats, updates_in(reply), flight.start))

    def _wrong(self, flight: Flight) -> str | None:
        """Return why a late update does not count; None: it does."""
        late = quantity(self.view.round - flight.round, "round")
        if flight.refused is not None or flight.updates is None:
            return f"its update of round {flight.round}: {flight.refused or 'no reply'}"
        if flight.round < self.waiting.oldest(self.view.round):
            most = self.waiting.max_staleness
            return f"its update of round {flight.round}: is {late} late: at most {most} (max_staleness)"
        return None


def updates_in(reply: Reply) -> list[Trained]:
    """Return the updates in a sound reply, in the order of their seats."""
    return sorted((one for one in reply.results if isinstance(one, Trained)), key=lambda one: one.seat)


def updates_of(seats: Seats, trained: Sequence[Trained], none: Tensor) -> Updates:
    """Return updates in the order of their seats.

    Extras (named tensors that come with an update) are kept if all updates have them.

    Args:
        seats: the seats that answered, ``m``.
        trained: the clients' answers, in the same order.
        none: ``[.., P]``, an example of rows (width, dtype, device), which is used if there are no updates.
    """
    common = set.intersection(*(set(t.extras) for t in trained)) if trained else ()
    return Updates(
        seats=seats,
        rows=as_one([t.row for t in trained]) if trained else none[:0],
        num_samples=np.array([t.num_samples for t in trained], dtype=np.float64),
        loss=np.array([np.nan if t.loss is None else t.loss for t in trained], dtype=np.float64),
        steps=np.array([t.steps for t in trained], dtype=np.int64),
        extras={name: torch.stack([t.extras[name] for t in trained]) for name in common},
        metrics=[t.metrics for t in trained] if any(t.metrics for t in trained) else (),
    )


def rebased(update: Tensor, then: Tensor, now: Tensor) -> Tensor:
    """Return a late update rebased onto the current model: ``now + (update - then)``, summed in float64.

    Args:
        update: ``[P]``, as the client sent it.
        then: ``[P]``, the model that the client started from.
        now: ``[P]``, that model's current value. If it is unchanged, the update itself is returned, bit for bit.
    """
    if torch.equal(then, now):
        return update
    return (now.double() + (update.double() - then.double())).float()


def joined(fresh: Updates, late: Sequence[Flight], round: int, table: Table) -> Updates:
    """Return a round's updates followed by the late ones.

    Args:
        fresh: the updates of this round.
        late: the late updates that arrived.
        round: this round's number. An update's staleness is how many rounds ago it was asked for.
        table: the current models, onto which late updates are rebased. ``raw`` of the result has the originals.
    """
    if not late:
        return fresh
    came = [flight.updates for flight in late if flight.updates is not None]
    seats = fresh.seats.with_more([updates.seats for updates in came])
    then = torch.cat([flight.start for flight in late])
    raw = torch.cat([updates.rows for updates in came])
    starts = np.concatenate([updates.seats.start for updates in came])
    moved = torch.stack([rebased(raw[i], then[i], table.rows[int(row)]) for i, row in enumerate(starts)])
    every = [fresh, *came] if len(fresh) else came
    common = set.intersection(*(set(updates.extras) for updates in every))
    any_metrics = any(updates.metrics for updates in every)
    stale = [np.full(len(flight.seats), round - flight.round) for flight in late]
    return Updates(
        seats=seats,
        rows=torch.cat([fresh.rows, moved]),
        num_samples=np.concatenate([fresh.num_samples, *(updates.num_samples for updates in came)]),
        loss=np.concatenate([fresh.loss, *(updates.loss for updates in came)]),
        steps=np.concatenate([fresh.steps, *(updates.steps for updates in came)]),
        extras={name: torch.cat([updates.extras[name] for updates in every]) for name in common},
        metrics=[one for updates in every for one in updates.metrics or [{}] * len(updates)] if any_metrics else (),
        staleness=np.concatenate([np.zeros(len(fresh), np.int64), *stale]),
        raw={len(fresh) + i: raw[i] for i in range(len(raw))},
    )
