"""The embedded federation: every client lives in this process, and a round's seats are trained by one engine at
once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from hanse.core.port import (
    Answered,
    Ask,
    ClientInfo,
    Gradient,
    Nearest,
    Reply,
    Request,
    Result,
    Roster,
    Score,
    Scored,
    Task,
    Test,
    Train,
    Trained,
)
from hanse.core.recipe import Recipe
from hanse.data.federated import FederatedData
from hanse.data.samples import Samples
from hanse.federation.answers import Share, confusion, gradient, nearest
from hanse.federation.behaviour import Behaviour, Me
from hanse.federation.policy import Loyal, answer
from hanse.federation.scores import Wanted, score_shares
from hanse.federation.tests import answer_tests
from hanse.federation.wire import Wire
from hanse.learning.halves import half_of, unsound
from hanse.learning.job import Engine, Problem, SeatJob, batch_plan

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
    profiles: Sequence[Mapping[str, Any]] = ()  # one a client, or none at all (see hanse.federation.profiles)
    secret: bytes = field(default=b"", repr=False)  # the participant's own, on a network (see hanse.federation.secret)
    _clients: Roster = field(init=False, repr=False)
    _wire: Wire = field(default_factory=Wire, init=False, repr=False)

    def __post_init__(self) -> None:
        sizes = enumerate(self.data.sizes)
        profiles = self.profiles or [{}] * self.data.num_clients
        clients = Roster(ClientInfo(i, f"client {i}", f"local-{i}", int(n), profiles[i]) for i, n in sizes)
        object.__setattr__(self, "_clients", clients)

    def present(self, round: int) -> Roster:
        """Return the clients that no behaviour keeps away, all of them if none does."""
        away = {c.id for c in self._clients if not all(b.present(self._me(c.id), round) for b in self._movers)}
        return Roster(c for c in self._clients if c.id not in away) if away else self._clients

    @property
    def _movers(self) -> Sequence[Behaviour]:
        """The behaviours that decide who is there."""
        return [b for b in self.behaviours if type(b).present is not Behaviour.present]

    def exchange(
        self, round: int, requests: Sequence[Request], deadline_s: float | None, min_replies: int
    ) -> Sequence[Reply]:
        """Answer the requests: all training in one engine call, all scores of the same models in another, then the
        other tasks, client by client.

        Tests are answered apart. Who runs an experiment measures with them, so that no behaviour touches them, clients
        that are away answer too, and no bytes are counted.
        """
        tests = [r for r in requests if _is_test(r)]
        taken = [(r, self._me(r.client)) for r in requests if not _is_test(r)]
        heard = [(self._wrap_request(me, round, r), me) for r, me in taken]
        answering = [(r, me) for r, me in heard if r is not None]
        trained = self._train(round, [r for r, _ in answering])
        scored = self._score(round, [r for r, _ in answering])
        replies = []
        for request, me in answering:
            reply = self._reply(round, request, trained, scored)
            for behaviour in self.behaviours:
                with _named(behaviour, "on_reply"):
                    reply = _of(Reply, behaviour.on_reply(me, round, request, reply))
            replies.append(reply)
        return replies + self._test(tests)

    def _test(self, requests: Sequence[Request]) -> list[Reply]:
        """Answer the tests of all clients at once. A test that does not stand alone in its request is refused."""
        if not requests:
            return []
        alone = [(r, r.tasks[0]) for r in requests if len(r.tasks) == 1]
        asked = [(r.client, task) for r, task in alone if isinstance(task, Test)]
        found = answer_tests(asked, self.data, self.engine)
        replies = [Reply(client, (result,)) for (client, _), result in zip(asked, found, strict=True)]
        return replies + [Reply(r.client, refused="a test is asked for alone") for r in requests if len(r.tasks) > 1]

    def _reply(
        self,
        round: int,
        request: Request,
        trained: Mapping[int, Trained | str],
        scored: Mapping[tuple[int, str], Scored],
    ) -> Reply:
        down = self._wire.down(round, request)
        try:
            results = tuple(self._result(round, request.client, t, trained, scored) for t in request.tasks)
        except _NoAnswerError as reason:
            return Reply(request.client, refused=str(reason), bytes_down=down)
        most = self._authorise(round, request)
        return Reply(request.client, results, None, most, down, self._wire.up(request, results))

    def _authorise(self, round: int, request: Request) -> int | None:
        """Return the most that the client's policy agrees to pay in a round in which it trains; None: it names none."""
        if not any(isinstance(t, Train) for t in request.tasks):
            return None
        told = {"profile": self._clients[request.client].profile, "round": round}
        decide = getattr(self.policy, "authorise", None)
        most: int | None = None if decide is None else decide(self._me(request.client), round, told)
        return most

    def _me(self, client: int) -> Me:
        layout = self.problem.layout
        return Me(client, self.data.num_clients, self.seed, self.recipe, layout.num_parameters, self.secret)

    def _wrap_request(self, me: Me, round: int, request: Request) -> Request | None:
        taken: Request | None = request
        for behaviour in self.behaviours:
            if taken is not None:
                with _named(behaviour, "on_request"):
                    taken = _of(Request | None, behaviour.on_request(me, round, taken))
        return taken

    def _train(self, round: int, requests: Sequence[Request]) -> Mapping[int, Trained | str]:
        """Train every seat that is asked for, in one call; return by seat its update, or why there is none."""
        asked = [(r.client, t) for r in requests for t in r.tasks if isinstance(t, Train)]
        unable = self._unable(asked)
        seats = [(client, task) for client, task in asked if task.seat not in unable]
        if not seats:
            return unable
        pool, index = self.data.pool([client for client, _ in seats])
        for behaviour in self.behaviours:
            with _named(behaviour, "holds"):
                held = [behaviour.holds(self._me(c), round, pool.y, i) for (c, _), i in zip(seats, index, strict=True)]
                index = [_of(Tensor, some) for some in held]
        jobs = [
            SeatJob(i, t.start, (self.seed, round, c, t.row), t.centre, t.mu, t.tilt, t.work, t.payload)
            for (c, t), i in zip(seats, index, strict=True)
        ]
        found: dict[int, Trained | str] = dict(unable)
        for samples, some in self._lots(round, pool, jobs):
            mine = list(some.values())
            done = self.engine.train(samples, mine, self.recipe, self.recipe.lr_at(round))
            for k, (s, job) in enumerate(some.items()):
                seat, count = seats[s][1].seat, float(len(job.index))
                loss, steps = float(done.loss[k]), int(done.steps[k])
                found[seat] = Trained(seat, done.rows[k], count, loss, steps, self._extras(samples, job))
        return found

    def _lots(self, round: int, pool: Samples, jobs: Sequence[SeatJob]) -> list[tuple[Samples, dict[int, SeatJob]]]:
        """Return what is trained in one call of the engine: samples, and the jobs on them by position. Clients whom a
        behaviour shows other targets get samples of their own; those of the others are not copied.
        """
        seen = {s: y for s, job in enumerate(jobs) if (y := self._seen(round, job, pool)) is not None}
        as_they_are = {s: job for s, job in enumerate(jobs) if s not in seen}
        if not seen:
            return [(pool, as_they_are)]
        taken = torch.cat([jobs[s].index for s in seen]).to(pool.x.device)
        changed = Samples(pool.x.index_select(0, taken), torch.cat(list(seen.values())))
        own, first = dict[int, SeatJob](), 0
        for s, y in seen.items():
            place = torch.arange(first, first + len(y), device=jobs[s].index.device)
            own[s], first = replace(jobs[s], index=place), first + len(y)
        return [(pool, as_they_are), (changed, own)] if as_they_are else [(changed, own)]

    def _seen(self, round: int, job: SeatJob, pool: Samples) -> Tensor | None:
        """Return the targets ``[n, ...]`` that a behaviour shows a job's client; None: those that there are.

        Raises ValueError if they are no targets of these samples.
        """
        showing = [b for b in self.behaviours if type(b).sees is not Behaviour.sees]
        if not showing or not len(job.index):
            return None
        true = pool.y.index_select(0, job.index.to(pool.y.device))
        seen = true.clone()
        for behaviour in showing:
            with _named(behaviour, "sees"):
                seen = _of(Tensor, behaviour.sees(self._me(job.key[2]), round, seen))
                if (wrong := _no_targets(seen, true, self.data.num_classes)) is not None:
                    raise ValueError(f"behaviour {type(behaviour).__name__}: its sees returned {wrong}")
        return None if torch.equal(seen, true) else seen

    def _extras(self, pool: Samples, job: SeatJob) -> Mapping[str, Tensor]:
        if job.payload is None:
            return {}
        plan = batch_plan(len(job.index), self.recipe, job.key, job.work, self.least)
        return half_of(job.payload.name).reports(job.payload, pool.y[job.index], plan)

    def _unable(self, asked: Sequence[tuple[int, Train]]) -> dict[int, str]:
        """Return by seat why its client cannot train it; a payload that many seats share is looked at once."""
        payloads = {id(t.payload): t.payload for _, t in asked if t.payload is not None}
        wrong = {key: unsound(payload, self.problem.layout) for key, payload in payloads.items()}
        reasons = {t.seat: reason for _, t in asked if (reason := wrong.get(id(t.payload))) is not None}
        few = {t.seat: int(self.data.sizes[c]) for c, t in asked if self.data.sizes[c] < self.least}
        return reasons | {s: f"has {n} samples to train on; {self.least} are needed" for s, n in few.items()}

    def _score(self, round: int, requests: Sequence[Request]) -> Mapping[tuple[int, str], Scored]:
        """Score all models that are asked for; return the results by client and question."""
        tasks = [(r.client, t) for r in requests for t in r.tasks if isinstance(t, Score | Ask)]
        asked = [(client, t, t.models) for client, t in tasks if t.models is not None]
        wanted = [Wanted(client, models, t.share, t.limit) for client, t, models in asked]
        found = score_shares(wanted, self.data, self.engine, self.seed, round)
        return {
            (client, t.name): Scored(
                t.name, torch.from_numpy(s.loss), torch.from_numpy(s.accuracy), int(s.count.max(initial=0))
            )
            for (client, t, _), s in zip(asked, found, strict=True)
        }

    def _result(
        self,
        round: int,
        client: int,
        task: Task,
        trained: Mapping[int, Trained | str],
        scored: Mapping[tuple[int, str], Scored],
    ) -> Result:
        if isinstance(task, Score):
            return scored[client, task.name]
        if isinstance(task, Train):
            update = trained[task.seat]
            if isinstance(update, str):
                raise _NoAnswerError(update)
            return update
        if isinstance(task, Ask):
            told = task.values if task.models is None else {**task.values, **_own(scored[client, task.name])}
            said = answer(self.policy, task.name, self._me(client), round, told)
            if said is None:
                raise _NoAnswerError(f"its policy does not answer '{task.name}'")
            return Answered(task.name, said)
        assert not isinstance(task, Test)  # answered apart
        pool, [index] = self.data.pool([client], task.share)
        share = Share(pool, index).limited(task.limit, self.seed, round, client)
        if isinstance(task, Nearest):
            return nearest(task, share, self.engine)
        if isinstance(task, Gradient):
            return gradient(task, share, self.problem)
        if self.data.num_classes is None:
            raise _NoAnswerError("confusion counts were asked for, but the targets are not classes")
        return confusion(task, share, self.problem, self.data.num_classes)


def _is_test(request: Request) -> bool:
    return any(isinstance(task, Test) for task in request.tasks)


def _own(scored: Scored) -> Mapping[str, Any]:
    """Return what a policy is told of its own scores."""
    lists = {"loss": scored.loss.tolist(), "accuracy": scored.accuracy.tolist(), "num_samples": scored.num_samples}
    return {"scores": lists}


def _no_targets(seen: Tensor, true: Tensor, classes: int | None) -> str | None:
    """Return why ``seen`` cannot stand in the place of the targets ``true [n, ...]``, or None."""
    if seen.shape != true.shape or seen.dtype != true.dtype:
        return f"{list(seen.shape)} of {seen.dtype}: must be {list(true.shape)} of {true.dtype}, as the samples have"
    strange = [] if classes is None else seen[(seen != true) & ((seen < 0) | (seen >= classes))].tolist()
    return f"class {strange[0]}: allowed: 0 to {classes - 1}" if strange and classes is not None else None


@contextmanager
def _named(behaviour: Behaviour, method: str) -> Iterator[None]:
    """Say of whatever is raised which behaviour raised it."""
    try:
        yield
    except Exception as wrong:
        wrong.add_note(f"raised by the behaviour {type(behaviour).__name__}, in its {method}")
        raise


def _of(kind: Any, said: Any) -> Any:
    """Return what a behaviour said. Raises TypeError if it is of another type."""
    if not isinstance(said, kind):
        wanted = getattr(kind, "__name__", str(kind))
        raise TypeError(f"a behaviour returned {type(said).__name__}: must be {wanted}")
    return said


class _NoAnswerError(Exception):
    """The client cannot answer; what it says becomes its refusal."""
