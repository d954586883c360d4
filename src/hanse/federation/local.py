"""The federation in one process: every client lives here, and one engine trains a round's seats together.

:class:`LocalFederation` answers through the same port as a network does, so mechanisms and rounds cannot tell the
difference. A node on a network also uses it, for its one client.

Copies of augmented images for a seat's batches are made before its training (:func:`augmented`), and their order is
part of the job. So every engine trains on the same numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from itertools import chain
from pathlib import Path
from types import NoneType
from typing import Any, ParamSpec, TypeVar

import numpy as np

from hanse.base.errors import RAISED, UserError, blamed, gated, out_of_memory
from hanse.base.plain_text import quantity
from hanse.base.pytorch import Tensor, torch
from hanse.base.streams import stream
from hanse.base.wings import Names
from hanse.core import port
from hanse.core.recipe import Recipe
from hanse.data.augment import Augment
from hanse.data.commitment import Committed, commit
from hanse.data.federated import FederatedData
from hanse.data.samples import Samples
from hanse.federation.answers import Share, answer_tests, confusion, gradient, nearest, score_shares
from hanse.federation.behaviour import Behaviour, Me
from hanse.federation.codec import Traffic
from hanse.federation.policy import Loyal, answer
from hanse.learning.generator import labels_met, unsound
from hanse.learning.job import Drawn, Engine, Problem, SeatJob, TrainedRows, batch_plan, plan_of, smallest_batch

P = ParamSpec("P")
T = TypeVar("T")
At = tuple[int, int]  # a task of an exchange: the client, and the task's place in its request
Found = port.Trained | port.Scored | str  # what comes of one that an engine works on; a text: why nothing does

# what wings answer: by the name of an Ask, or of another task's class, answer(federation, client, task), which may
# raise NoAnswerError
WING_ANSWERS: Mapping[str, Any] = Names({}, "answers")


@dataclass(frozen=True)
class LocalFederation:
    """All clients of ``data`` in one process, behind the port.

    Attributes:
        data: the clients' samples.
        problem: the model's layout, loss and metrics.
        engine: trains and scores.
        recipe: the local training recipe.
        seed: the run's seed.
        behaviours: the behaviours that wrap each client, in this order.
        policy: what a client decides for itself (:mod:`hanse.federation.policy`).
        profiles: one for each client, or none at all (:mod:`hanse.federation.policy`).
        secret: the participant's secret, on a network (:mod:`hanse.federation.node`); empty in a simulation.
        run: the run's name, on a network.
        folder: the participant's folder of the run, on a network. None: a simulation.
    """

    data: FederatedData
    problem: Problem
    engine: Engine
    recipe: Recipe
    seed: int
    _: KW_ONLY
    behaviours: Sequence[Behaviour] = ()
    policy: Any = field(default_factory=Loyal)
    profiles: Sequence[Mapping[str, Any]] = ()
    secret: bytes = field(default=b"", repr=False)
    run: str = ""
    folder: Path | None = None
    _clients: port.Roster = field(init=False, repr=False)
    _traffic: Traffic = field(default_factory=Traffic, init=False, repr=False)

    def __post_init__(self) -> None:
        sizes = enumerate(self.data.sizes)
        profiles = self.profiles or [{}] * self.data.num_clients
        names = self.data.names or [f"client {i}" for i in range(self.data.num_clients)]
        clients = port.Roster(port.ClientInfo(i, names[i], f"local-{i}", int(n), profiles[i]) for i, n in sizes)
        object.__setattr__(self, "_clients", clients)

    def present(self, round: int) -> port.Roster:
        """Return the clients that no behaviour keeps away; a round begins with it."""
        self._traffic.anew()
        # only behaviours that override `present` are asked: a round with none of them reuses the roster and its arrays
        movers = [b for b in self.behaviours if type(b).present is not Behaviour.present]
        if not movers:
            return self._clients
        away = {c.id for c in self._clients if not all(b.present(self._me(c.id), round) for b in movers)}
        return port.Roster(c for c in self._clients if c.id not in away) if away else self._clients

    def exchange(self, call: port.Call) -> Sequence[port.Reply]:
        """Answer the requests of all clients at once.

        All training is one engine call, all scores of the same models are another, and the other tasks follow client by
        client. Tests are the experimenter's measurements and are answered separately. No behaviour changes them, absent
        clients answer too, and no bytes are counted. Nobody is late here, so nobody waits.
        """
        round, tests, answering = call.round, list[port.Request](), list[tuple[port.Request, Me]]()
        for request in call.requests:
            if any(isinstance(task, port.Test) for task in request.tasks):
                tests.append(request)
                continue
            me = self._me(request.client)
            taken: port.Request | None = request
            for behaviour in self.behaviours:
                taken = taken and _call(port.Request | None, behaviour.on_request, me, round, taken)
            answering += [(taken, me)] if taken is not None else []
        asked = [request for request, _ in answering]
        tasks = {(r.client, place): task for r in asked for place, task in enumerate(r.tasks)}
        updates = self.train(round, {at: task for at, task in tasks.items() if isinstance(task, port.Train)})
        scores = self._score(round, {at: one for at, task in tasks.items() if (one := _scores_of(task)) is not None})
        found = {**updates, **scores}
        truly = [self._reply(round, request, found) for request in asked]
        told = {r.client: (r, reply) for r, reply in zip(asked, truly, strict=True)} if self.behaviours else {}
        for behaviour in self.behaviours:
            _call(NoneType, behaviour.overhears, round, told)
        replies = []
        for (request, me), reply in zip(answering, truly, strict=True):
            for behaviour in self.behaviours:
                reply = _call(port.Reply, behaviour.on_reply, me, round, request, reply)
            replies.append(self._timed(me, round, request, reply))
        return replies + self._test(tests)

    def _test(self, requests: Sequence[port.Request]) -> list[port.Reply]:
        """Answer the tests of all clients at once. A test that shares its request with other tasks is refused."""
        if not requests:
            return []
        alone = [(r, r.tasks[0]) for r in requests if len(r.tasks) == 1]
        asked = [(r.client, task) for r, task in alone if isinstance(task, port.Test)]
        found = answer_tests(asked, self.data, self.engine, self.problem)
        replies = [port.Reply(client, (result,)) for (client, _), result in zip(asked, found, strict=True)]
        crowded = [r.client for r in requests if len(r.tasks) > 1]
        return replies + [port.Reply(client, refused="a test is asked for alone") for client in crowded]

    def _timed(self, me: Me, round: int, request: port.Request, reply: port.Reply) -> port.Reply:
        """Return the reply with the virtual time that its client took to train.

        It is unchanged if no behaviour says how long clients take.

        Raises:
            ValueError: a behaviour says a time that is negative or not finite.
        """
        timing = [b for b in self.behaviours if type(b).takes is not Behaviour.takes]
        if not timing or not any(isinstance(task, port.Train) for task in request.tasks):
            return reply
        seconds = sum(_call(float, b.takes, me, round, request, reply) for b in timing)
        if not 0 <= seconds < math.inf:
            raise ValueError(f"client {me.id} takes {seconds} seconds: must be a number from 0 on")
        return replace(reply, arrival=port.Arrival(seconds=seconds))

    def _reply(self, round: int, request: port.Request, found: Mapping[At, Found]) -> port.Reply:
        """Return a client's reply to its request, or its refusal if it cannot answer all of it.

        Args:
            round: the round's number.
            request: what the client was asked.
            found: updates, and scores, or why there is no update.
        """
        down, results = self._traffic.down(request), list[port.Result]()
        try:
            for place, task in enumerate(request.tasks):
                made = found.get((request.client, place))
                if isinstance(made, str):
                    raise NoAnswerError(made)
                if isinstance(made, port.Trained):
                    results.append(made)
                else:
                    results.append(self._answer(round, request.client, task, made))
        except NoAnswerError as reason:
            return port.Reply(request.client, refused=str(reason), bytes_down=down)
        most, decide = None, getattr(self.policy, "authorise", None)
        if decide is not None and any(isinstance(task, port.Train) for task in request.tasks):
            # the most that it agrees to pay, in units
            told = {"profile": self._clients[request.client].profile, "round": round}
            most = decide(self._me(request.client), round, told)
        return port.Reply(request.client, tuple(results), None, most, down, self._traffic.up(request, results))

    def _me(self, client: int) -> Me:
        """Return what behaviours and policies know about a client."""
        layout = self.problem.layout
        return Me(client, self.data.num_clients, self.seed, self.recipe, layout.num_parameters, self.secret)

    def train(self, round: int, tasks: Mapping[At, port.Train]) -> Mapping[At, port.Trained | str]:
        """Train seats, and return the update of each, or why there is none."""
        unable = self._unable(tasks)
        # by seat, so that the engine's rows are the round's table without a copy
        able = sorted((at for at in tasks if at not in unable), key=lambda at: tasks[at].seat)
        done = self._fitted(round, [(at[0], tasks[at]) for at in able])
        return unable | dict(zip(able, done, strict=True))

    def _fitted(self, round: int, seats: Sequence[tuple[int, port.Train]]) -> list[port.Trained | str]:
        """Return the update of each seat, all of which can be trained, or why a user's own loop made none."""
        if not seats:
            return []
        pool, index = self.data.pool([client for client, _ in seats])
        for behaviour in self.behaviours:
            index = [
                _call(Tensor, behaviour.holds, self._me(c), round, pool.y, i)
                for (c, _), i in zip(seats, index, strict=True)
            ]
        # stable, so samples of one class keep the client's own order
        if self.recipe.order == "by_class":
            index = [i[torch.argsort(pool.y[i.to(pool.y.device)], stable=True).to(i.device)] for i in index]
        jobs = [
            SeatJob(
                i, t.start, (self.seed, round, c, t.row), t.centre, t.mu, t.tilt, t.work, t.payload, t.before,
                name=self._clients[c].name,
            )
            for (c, t), i in zip(seats, index, strict=True)
        ]  # fmt: skip
        trained: list[port.Trained | str] = [""] * len(seats)
        lots = self._lots(round, pool, jobs)
        # what each seat holds: the engine may be given changed copies of it, which do not count as its samples
        own = {s: (samples, job) for samples, by_seat in lots for s, job in by_seat.items()}
        augment, recipe, least = self.data.augment, self.recipe, smallest_batch(self.problem)
        copies = lots if augment is None else chain(*(augmented(augment, *lot, recipe, least) for lot in lots))
        for samples, by_seat in copies:
            # all train at the round's rate, unless it depends on when each client last trained
            at = {s: round if recipe.lr_decay_by == "round" else seats[s][1].last or 0 for s in by_seat}
            rates = {s: recipe.lr_at(when) for s, when in at.items()}
            for lr in dict.fromkeys(rates.values()):
                alike = [s for s in by_seat if rates[s] == lr]
                done = self._trained(round, samples, [by_seat[s] for s in alike], lr)
                for k, s in enumerate(alike):
                    trained[s] = self._update(seats[s][1].seat, done, k, float(len(jobs[s].index)), *own[s])
        return trained

    def _trained(self, round: int, samples: Samples, jobs: Sequence[SeatJob], lr: float) -> TrainedRows:
        """Return what the engine trains. If the user's module or loss raises, say at whose training it does so."""
        try:
            return self.engine.train(samples, jobs, self.recipe, lr)
        except RAISED as wrong:
            if isinstance(wrong, UserError) or out_of_memory(wrong):
                raise
            for job in jobs:  # one after another, until one fails
                with gated(f"round {round}: client {self._who(job.key[2])}: the model cannot be trained"):
                    self.engine.train(samples, [job], self.recipe, lr)
            raise

    def _update(
        self, seat: int, done: TrainedRows, k: int, count: float, held: Samples, job: SeatJob
    ) -> port.Trained | str:
        """Return a seat's update, or the reason that the user's own training loop gives for having none.

        Args:
            seat: its number in the round.
            done: the seats that were trained together.
            k: its position among them.
            count: how many samples it has.
            held: the samples that it trained on.
            job: its training, with positions in ``held``.
        """
        loss, steps = float(done.loss[k]), int(done.steps[k])
        if not done.said:
            if math.isnan(loss):
                return "ended with NaN or infinite numbers: train.lr or targets are too large, or the model returns NaN"
            extras: Mapping[str, Tensor] = {}
            if job.payload is not None:
                least = smallest_batch(self.problem)
                plan = batch_plan(len(job.index), self.recipe, job.key, job.work, least, job.before)
                extras = {port.MET: labels_met(held.y[job.index], plan, job.payload.classes)}
            return port.Trained(seat, done.rows[k], count, loss, steps, extras)
        said = done.said[k]
        if said.refused is not None:
            return said.refused
        count = count if said.samples is None else float(said.samples)
        return port.Trained(
            seat, done.rows[k], count, None if math.isnan(loss) else loss, steps, metrics=dict(said.metrics)
        )

    def _lots(self, round: int, pool: Samples, jobs: Sequence[SeatJob]) -> list[tuple[Samples, dict[int, SeatJob]]]:
        """Return what is trained in one call of the engine: samples, and the jobs on them by position.

        Clients to which a behaviour shows other targets or samples get their own copies; others' are not copied.
        """
        seen = {s: found for s, job in enumerate(jobs) if (found := self._seen(round, job, pool)) is not None}
        as_they_are = {s: job for s, job in enumerate(jobs) if s not in seen}
        if not seen:
            return [(pool, as_they_are)]
        changed = Samples.joined(list(seen.values()))
        own, first = dict[int, SeatJob](), 0
        for s, found in seen.items():
            place = torch.arange(first, first + len(found), device=jobs[s].index.device)
            own[s], first = replace(jobs[s], index=place), first + len(found)
        return [(pool, as_they_are), (changed, own)] if as_they_are else [(changed, own)]

    def _seen(self, round: int, job: SeatJob, pool: Samples) -> Samples | None:
        """Return the samples that behaviours make a job's client train on; None if they are its true ones.

        Raises:
            ValueError: what a behaviour shows cannot be targets of these samples.
        """
        me = self._me(job.key[2])
        if not len(job.index):
            return None
        for behaviour in self.behaviours:
            if (found := _call(Samples | None, behaviour.studies, me, round, server_sets(self.data))) is not None:
                return found.to(pool.x.device)
        showing = [b for b in self.behaviours if type(b).sees is not Behaviour.sees]
        if not showing:
            return None
        index = job.index.to(pool.x.device)
        true = pool.y.index_select(0, index.to(pool.y.device))
        seen = true.clone()
        for behaviour in showing:
            seen = _call(Tensor, behaviour.sees, me, round, seen)
            with blamed(f"the behaviour {type(behaviour).__name__}, in its sees"):
                if (wrong := _no_targets(seen, true, self.data.num_classes)) is not None:
                    raise ValueError(f"behaviour {type(behaviour).__name__}: its sees returned {wrong}")
        return None if torch.equal(seen, true) else Samples(pool.x.index_select(0, index), seen, pool.inputs)

    def _unable(self, asked: Mapping[At, port.Train]) -> dict[At, port.Trained | str]:
        """Return why seats cannot be trained; a payload that many seats share is checked once."""
        payloads = {id(t.payload): t.payload for t in asked.values() if t.payload is not None}
        wrong = {key: unsound(payload, self.problem.layout) for key, payload in payloads.items()}
        least, sizes = smallest_batch(self.problem), self.data.sizes
        found = dict[At, port.Trained | str]()
        for (client, place), task in asked.items():
            if sizes[client] < least:
                found[client, place] = f"has {quantity(int(sizes[client]), 'sample')} to train on; {least} are needed"
            elif (why := wrong.get(id(task.payload))) is not None:
                found[client, place] = why
        return found

    def _score(self, round: int, asked: Mapping[At, port.Score]) -> Mapping[At, port.Scored]:
        """Score all models that are asked for."""
        tasks = [(client, task) for (client, _), task in asked.items()]
        found = score_shares(tasks, self.data, self.engine, self.seed, round)
        return {
            at: port.Scored(t.name, torch.from_numpy(s.loss), torch.from_numpy(s.accuracy), int(s.count.max(initial=0)))
            for (at, t), s in zip(asked.items(), found, strict=True)
        }

    def _answer(self, round: int, client: int, task: port.Task, scored: port.Scored | None) -> port.Answer:
        """Return the answer to one question; ``scored`` are the scores that it asks for, or that the policy sees."""
        if isinstance(task, port.Score):
            assert scored is not None
            return scored
        key = task.name if isinstance(task, port.Ask) else type(task).__name__
        if key in WING_ANSWERS:
            found: port.Answer = WING_ANSWERS[key](self, client, task)
            return found
        if isinstance(task, port.Ask):
            told = dict(task.values)
            if scored is not None:
                told["scores"] = {
                    "loss": scored.loss.tolist(),
                    "accuracy": scored.accuracy.tolist(),
                    "num_samples": scored.num_samples,
                }
            said = answer(self.policy, task.name, self._me(client), round, told)
            if said is None:
                raise NoAnswerError(f"its policy does not answer '{task.name}'")
            return port.Answered(task.name, said)
        if isinstance(task, port.Mask | port.CommitSize | port.AuditSize):  # a node's guard answers masks
            raise NoAnswerError(f"no wing here answers {key}")
        assert not isinstance(task, port.Train | port.Test)  # answered apart
        pool, [index] = self.data.pool([client], task.share)
        share = Share(pool, index).limited(task.limit, self.seed, round, client)
        if isinstance(task, port.Nearest):
            return nearest(task, share, self.engine)
        if self.data.num_classes is None and not isinstance(task, port.Gradient):
            raise NoAnswerError("confusion counts were asked for, but the targets are not classes")
        with gated(f"round {round}: client {self._who(client)}: the model fails on its samples"):
            if isinstance(task, port.Gradient):
                return gradient(task, share, self.problem)
            return confusion(task, share, self.problem, self.data.num_classes or 0)

    def _who(self, client: int) -> str:
        """Return a client's number, and its name if it has one."""
        name = self._clients[client].name
        return str(client) if name == f"client {client}" else f"{client} ({name})"

    def claim(self, client: int, key: bytes) -> Committed:
        """Return what a client commits to: its distinct train samples, perhaps falsified by a behaviour.

        Args:
            client: the client.
            key: the key of its samples' tags.
        """
        pool, [index] = self.data.pool([client])
        held = commit(pool.take(index), key)
        for behaviour in self.behaviours:
            held = _call(Committed, behaviour.claims, self._me(client), held)
        return held


def server_sets(data: FederatedData) -> dict[str, Samples]:
    """Return the server's samples that a behaviour may let clients train on (``Behaviour.studies``), by name."""
    sets = {"judge": data.server_validation, "public": data.server_test}
    return {name: samples for name, samples in sets.items() if samples is not None and len(samples)}


def _scores_of(task: port.Task) -> port.Score | None:
    """Return the scores that a task asks for, for the server or for a policy. None: it asks for none."""
    if not isinstance(task, port.Score | port.Ask) or task.models is None or task.name in WING_ANSWERS:
        return None
    return port.Score(task.name, task.models, task.share, task.limit)


def _no_targets(seen: Tensor, true: Tensor, classes: int | None) -> str | None:
    """Return why ``seen`` cannot replace the targets ``true [n, ...]``, or None."""
    if seen.shape != true.shape or seen.dtype != true.dtype:
        return f"{list(seen.shape)} of {seen.dtype}: must be {list(true.shape)} of {true.dtype}, as the samples have"
    strange = [] if classes is None else seen[(seen != true) & ((seen < 0) | (seen >= classes))].tolist()
    return f"class {strange[0]}: allowed: 0 to {classes - 1}" if strange and classes is not None else None


def _call(kind: Any, method: Callable[P, T], *given: P.args, **more: P.kwargs) -> T:
    """Return what a method of a behaviour returns, checked for its type ``kind``.

    An exception gets a note that names the behaviour.

    Raises:
        TypeError: the method returned something else than a ``kind``.
        ValueError: it wrote into what the client was sent, which in a simulation are the server's own rows.
    """
    name = type(getattr(method, "__self__", method)).__name__
    asked = [task for request in given if isinstance(request, port.Request) for task in request.tasks]
    sent = [x for task in asked for x in vars(task).values() if isinstance(x, Tensor) and not x.is_inference()]
    versions = [x._version for x in sent]
    with blamed(f"the behaviour {name}, in its {getattr(method, '__name__', 'method')}"):
        result = method(*given, **more)
        if [x._version for x in sent] != versions:
            raise ValueError("a task's tensor was written into in place: change a copy")
        if not isinstance(result, kind):
            wanted = getattr(kind, "__name__", str(kind))
            raise TypeError(f"a behaviour returned {type(result).__name__}: must be {wanted}")
    return result


class NoAnswerError(Exception):
    """The client cannot answer; the message becomes its refusal."""


# bytes of copies that are made at once
_BYTES = 256 << 20


def augmented(
    augment: Augment, samples: Samples, jobs: Mapping[int, SeatJob], recipe: Recipe, smallest: int
) -> Iterator[tuple[Samples, dict[int, SeatJob]]]:
    """Yield the jobs, some at a time, each with its own samples: a changed copy for every position in a batch.

    A sample is changed differently each time it is used, by draws from the stream ``(seed, "augment", round, client,
    start)`` of its job's key.

    Args:
        augment: what changes the images.
        samples: the pool that the jobs train on.
        jobs: the jobs by their position.
        recipe: the local training recipe, which determines how often samples are used.
        smallest: the smallest batch that the model can train on.

    Yields:
        Samples, and jobs that refer to them by position. The copies that are made at once stay near 256 MiB.
    """
    made: list[Samples] = []
    some: dict[int, SeatJob] = {}
    for place, job in jobs.items():
        first = sum(map(len, made))
        own, changed = _copies(augment, samples, job, recipe, smallest, first)
        made.append(own)
        some[place] = changed
        if sum(part.x.nbytes for part in made) >= _BYTES:
            yield _joined(made), some
            made, some = [], {}
    if some:
        yield _joined(made), some


def _copies(
    augment: Augment, samples: Samples, job: SeatJob, recipe: Recipe, smallest: int, first: int
) -> tuple[Samples, SeatJob]:
    """Return a job's copies in the order of its batches, and the job on them; they begin at position ``first``."""
    plan = plan_of(job, recipe, smallest)
    used = plan.batches >= 0
    seed, round, client, start = job.key
    taken = job.index[torch.from_numpy(plan.batches[used])].to(samples.x.device)
    draw = stream(seed, "augment", round=round, client=client, start=start)
    own = Samples(augment(samples.x.index_select(0, taken), draw), samples.y.index_select(0, taken))
    order = np.where(used, np.cumsum(used).reshape(used.shape) - 1, -1)
    return own, replace(job, index=first + torch.arange(len(own)), drawn=Drawn(order, plan.reported))


def _joined(parts: list[Samples]) -> Samples:
    """Return all parts as one; a single part is not copied."""
    return parts[0] if len(parts) == 1 else Samples.joined(parts)
