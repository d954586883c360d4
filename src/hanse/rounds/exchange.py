"""One exchange with the clients: questions merged, seats as training tasks, replies checked, updates in order."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from hanse.base.errors import PartError
from hanse.core.calling import call, name_of
from hanse.core.history import NEVER, History
from hanse.core.part import State, TrainPart, View
from hanse.core.payload import Payload
from hanse.core.port import Federation, Request, Result, Task, Train, Trained
from hanse.core.table import Seats, Table, Updates, copies, mix
from hanse.federation.check import heard
from hanse.learning.halves import unsound


@dataclass
class Exchange:
    """Sends requests and checks replies; counts bytes and seconds on the way."""

    federation: Federation
    round: int
    deadline_s: float | None
    min_replies: int
    seconds: dict[str, float] = field(default_factory=dict)
    down: int = 0
    up: int = 0

    @contextmanager
    def clock(self, name: str) -> Iterator[None]:
        """Count the seconds of a stage."""
        begun = time.perf_counter()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - begun

    def send(self, requests: Sequence[Request], view: View) -> View:
        """Return the view with the sound answers and the refusals of one exchange."""
        if not requests:
            return view
        replies = self.federation.exchange(self.round, requests, self.deadline_s, self.min_replies)
        self.down += sum(reply.bytes_down for reply in replies)
        self.up += sum(reply.bytes_up for reply in replies)
        found = heard(self.round, requests, replies, view.context.layout.size, view.roster)
        answers, authorised = dict(view.answers), dict(view.authorised)
        asked = {r.client: r for r in requests}
        for client, reply in found.replies.items():
            if reply.authorise is not None:
                authorised[client] = reply.authorise
            for task, result in zip(asked[client].tasks, reply.results, strict=True):
                answers[client, _question(task)] = result
        return replace(view, answers=answers, authorised=authorised, refusals=(*view.refusals, *found.refusals))


def _question(task: Task) -> str:
    return f"seat {task.seat}" if isinstance(task, Train) else task.name


def merge(requests: Sequence[Request]) -> list[Request]:
    """Return one request a client; a question that two parts ask is sent once."""
    tasks: dict[int, dict[str, Task]] = {}
    for request in requests:
        mine = tasks.setdefault(request.client, {})
        for task in request.tasks:
            mine.setdefault(_question(task), task)
    return [Request(client, tuple(mine.values())) for client, mine in sorted(tasks.items())]


def training(seats: Seats, table: Table, payload: Payload | None) -> list[Request]:
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
                    payload=payload,
                ),
            ),
        )
        for s in range(len(seats))
    ]


def continued(requests: Sequence[Request], history: History) -> list[Request]:
    """Return training requests that go on where each client's earlier training left it."""

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


def accepted(seats: Seats, view: View) -> Updates:
    """Return the updates that came back sound, in the order of the seats."""
    found: list[tuple[int, Trained]] = []
    for s in range(len(seats)):
        result: Result | None = view.answers.get((int(seats.client[s]), f"seat {s}"))
        if isinstance(result, Trained):
            found.append((s, result))
    rows = torch.stack([t.row for _, t in found]) if found else view.table.rows[:0]
    common = set.intersection(*(set(t.extras) for _, t in found)) if found else ()
    return Updates(
        seats=seats.take(np.array([s for s, _ in found], dtype=np.int64)),
        rows=rows,
        num_samples=np.array([t.num_samples for _, t in found], dtype=np.float64),
        loss=np.array([np.nan if t.loss is None else t.loss for _, t in found], dtype=np.float64),
        steps=np.array([t.steps for _, t in found], dtype=np.int64),
        extras={name: torch.stack([t.extras[name] for _, t in found]) for name in common},
        metrics=[t.metrics for _, t in found] if any(t.metrics for _, t in found) else (),
    )


def sent(part: TrainPart, view: View, state: State) -> Payload | None:
    """Return what the train part sends beside this round's training tasks. Raises PartError if that is not the payload
    that it announces, or not what the client's half declares.
    """
    payload = call("train", part.sends, view, view, state)
    if payload is None:
        return None
    announced = payload.name == part.payload
    wrong = unsound(payload, view.context.layout) if announced else f"payload {payload.name!r}: not {part.payload!r}"
    if wrong is not None:
        raise PartError(f"{name_of('train', part.sends, view)}, cannot send its {wrong}")
    return payload
