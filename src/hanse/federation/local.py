"""The embedded federation: every client lives in this process, and a round's seats are trained by one engine at
once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from hanse.data.federated import FederatedData
from hanse.federation.behaviour import Behaviour, Me
from hanse.federation.port import (
    ClientInfo,
    Reply,
    Request,
    Result,
    Roster,
    Score,
    Scored,
    Task,
    Train,
    Trained,
)
from hanse.learning.job import Engine, Problem, Recipe, SeatJob
from hanse.streams import stream

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
    _clients: Roster = field(init=False, repr=False)

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
            results = tuple(self._result(round, request.client, t, trained) for t in request.tasks)
            reply = Reply(request.client, results, bytes_down=_bytes(request.tasks), bytes_up=_bytes(results))
            for behaviour in self.behaviours:
                reply = behaviour.on_reply(me, round, request, reply)
            replies.append(reply)
        return replies

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
        seats = [(r.client, t) for r in requests for t in r.tasks if isinstance(t, Train)]
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
            return trained[task.seat]
        if isinstance(task, Score):
            return self._score(round, client, task)
        raise NotImplementedError(f"the local federation does not answer {type(task).__name__} yet")

    def _score(self, round: int, client: int, task: Score) -> Scored:
        pool, [index] = self.data.pool([client], task.share)
        if task.limit is not None and len(index) > task.limit:
            order = stream(self.seed, "score", round=round, client=client).permutation(len(index))
            index = index[torch.from_numpy(np.sort(order[: task.limit]))]
        found = self.engine.score(task.models, pool, [index] * task.models.shape[0])
        loss, accuracy = torch.from_numpy(found.loss), torch.from_numpy(found.accuracy)
        return Scored(task.name, loss, accuracy, len(index))


def _bytes(things: Sequence[Task] | Sequence[Result]) -> int:
    """Return the bytes of the distinct tensors in tasks or results: what would cross a network."""
    seen: dict[tuple[int, int], int] = {}
    for thing in things:
        for value in vars(thing).values():
            if isinstance(value, Tensor):
                seen[value.data_ptr(), value.numel()] = value.numel() * value.element_size()
    return sum(seen.values())
