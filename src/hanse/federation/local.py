"""The embedded federation: every client lives in this process, and a round's seats are trained by one engine at
once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hanse.data.federated import FederatedData
from hanse.federation.answers import Share, confusion, gradient, score
from hanse.federation.behaviour import Behaviour, Me
from hanse.federation.policy import Loyal, answer
from hanse.federation.port import (
    Answered,
    Ask,
    ClientInfo,
    Gradient,
    Reply,
    Request,
    Result,
    Roster,
    Score,
    Task,
    Train,
    Trained,
)
from hanse.federation.wire import Wire
from hanse.learning.job import Engine, Problem, Recipe, SeatJob

__all__ = ["LocalFederation"]


@dataclass(frozen=True)
class LocalFederation:
    """All clients of ``data`` in one process, behind the port; ``behaviours`` wrap each of them in this order."""

    data: FederatedData
    problem: Problem
    engine: Engine
    recipe: Recipe
    seed: int
    behaviours: Sequence[Behaviour] = ()
    policy: Any = field(default_factory=Loyal)  # what a client decides for itself (see hanse.federation.policy)
    least: int = 1  # samples that a client needs to train (2 with batch norm)
    _clients: Roster = field(init=False, repr=False)
    _wire: Wire = field(default_factory=Wire, init=False, repr=False)

    def __post_init__(self) -> None:
        sizes = enumerate(self.data.sizes)
        clients = Roster(ClientInfo(i, f"client {i}", f"local-{i}", int(n)) for i, n in sizes)
        object.__setattr__(self, "_clients", clients)

    def present(self, round: int) -> Roster:
        """Return all clients."""
        return self._clients

    def exchange(
        self, round: int, requests: Sequence[Request], deadline_s: float | None, min_replies: int
    ) -> Sequence[Reply]:
        """Answer the requests: all training in one engine call, then the other tasks, client by client."""
        taken = [(r, self._me(r.client)) for r in requests]
        heard = [(self._wrap_request(me, round, r), me) for r, me in taken]
        answering = [(r, me) for r, me in heard if r is not None]
        trained = self._train(round, [r for r, _ in answering])
        replies = []
        for request, me in answering:
            reply = self._reply(round, request, trained)
            for behaviour in self.behaviours:
                reply = behaviour.on_reply(me, round, request, reply)
            replies.append(reply)
        return replies

    def _reply(self, round: int, request: Request, trained: Mapping[int, Trained]) -> Reply:
        down = self._wire.down(round, request)
        try:
            results = tuple(self._result(round, request.client, t, trained) for t in request.tasks)
        except _NoAnswerError as reason:
            return Reply(request.client, refused=str(reason), bytes_down=down)
        return Reply(request.client, results, bytes_down=down, bytes_up=self._wire.up(request, results))

    def _me(self, client: int) -> Me:
        layout = self.problem.layout
        return Me(client, self.data.num_clients, self.seed, self.recipe, layout.num_parameters)

    def _wrap_request(self, me: Me, round: int, request: Request) -> Request | None:
        taken: Request | None = request
        for behaviour in self.behaviours:
            if taken is not None:
                taken = behaviour.on_request(me, round, taken)
        return taken

    def _train(self, round: int, requests: Sequence[Request]) -> Mapping[int, Trained]:
        """Train every seat that is asked for, in one call; return the updates by seat."""
        asked = [(r.client, t) for r in requests for t in r.tasks if isinstance(t, Train)]
        seats = [(client, task) for client, task in asked if self.data.sizes[client] >= self.least]
        if not seats:
            return {}
        pool, index = self.data.pool([client for client, _ in seats])
        jobs = [
            SeatJob(i, t.start, (self.seed, round, c, t.row), t.centre, t.mu, t.tilt, t.work)
            for (c, t), i in zip(seats, index, strict=True)
        ]
        done = self.engine.train(pool, jobs, self.recipe, self.recipe.lr_at(round))
        return {
            t.seat: Trained(t.seat, done.rows[s], float(len(index[s])), float(done.loss[s]), int(done.steps[s]))
            for s, (_, t) in enumerate(seats)
        }

    def _result(self, round: int, client: int, task: Task, trained: Mapping[int, Trained]) -> Result:
        if isinstance(task, Train):
            if task.seat not in trained:
                raise _NoAnswerError(f"has {self.data.sizes[client]} samples to train on; {self.least} are needed")
            return trained[task.seat]
        if isinstance(task, Ask):
            said = answer(self.policy, task.name, self._me(client), round, task.values)
            if said is None:
                raise _NoAnswerError(f"its policy does not answer '{task.name}'")
            return Answered(task.name, said)
        pool, [index] = self.data.pool([client], task.share)
        share = Share(pool, index)
        if isinstance(task, Score):
            return score(task, share.limited(task.limit, self.seed, round, client), self.engine)
        if isinstance(task, Gradient):
            return gradient(task, share, self.problem)
        if self.data.num_classes is None:
            raise _NoAnswerError("confusion counts were asked for, but the targets are not classes")
        return confusion(task, share, self.problem, self.data.num_classes)


class _NoAnswerError(Exception):
    """The client cannot answer; what it says becomes its refusal."""
