"""Behaviours: what a client does to requests, to its data and to its replies. A client without a behaviour is honest.

They are for experiments: stragglers, noise, silence, clients that join or leave, free riders, liars and attackers. A
table ``[behaviour.NAME]`` of an experiment adds one, with its options. NAME is a key of
:data:`BEHAVIOURS`, or the import path of your own class. Behaviours act at the port, so they
are the same in every engine. Each behaviour is a frozen dataclass that draws from keyed streams. Who is affected
therefore does not depend on the order of work.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Real
from types import MappingProxyType
from typing import Annotated, Any, Literal, Protocol

import numpy as np
from pydantic import Field

from hanse.base.errors import UserError
from hanse.base.factories import Count, Positive, Rate, Share, SomeShare, Weight
from hanse.base.plain_text import quantity
from hanse.base.pytorch import Tensor, torch
from hanse.base.streams import places, stream
from hanse.base.wings import Names
from hanse.core.port import Answered, Reply, Request, Result, Scored, Train, Trained
from hanse.core.recipe import Recipe
from hanse.core.telling import Conduct
from hanse.data.commitment import Committed
from hanse.data.samples import Samples


@dataclass(frozen=True)
class Me:
    """The client that a behaviour wraps, or for which a policy decides.

    Attributes:
        id: the client's number.
        num_clients: how many clients are registered.
        seed: the run's seed.
        recipe: the local training recipe.
        num_parameters: how many columns of a model's row are parameters. The rest are buffers.
        secret: bytes that only this client knows. Simulated clients have none, so runs can be repeated.

    Examples:
        Client 2 of four, with a model of 650 numbers, adds noise to its reply:

        >>> import torch
        >>> from hanse.core.port import Trained
        >>> me = Me(2, num_clients=4, seed=0, recipe=Recipe(), num_parameters=650)
        >>> reply = Reply(2, (Trained(seat=0, row=torch.ones(650), num_samples=20, loss=0.5, steps=2),))
        >>> Noisy(sigma=0.1).on_reply(me, 0, Request(2, ()), reply).client
        2
    """

    id: int
    num_clients: int
    seed: int
    recipe: Recipe
    num_parameters: int
    secret: bytes = field(default=b"", repr=False)


class Behaviour(Protocol):
    """Wraps a client: it may change what the client does and sends, keep it silent, or keep it away.

    Override the methods that you need. The others change nothing. Every method but ``tells`` and ``overhears`` gets the
    client and the round.

    Attributes:
        memory: what it keeps from round to round, by name: tensors, arrays and numbers. A behaviour that keeps anything
            has a dictionary of its own here, which is empty before round 0, and which it may change; a checkpoint of a
            simulation holds it.

    Examples:
        A behaviour that makes its clients send zeros:

        >>> from dataclasses import dataclass, replace
        >>> from hanse.core.port import Trained
        >>> @dataclass(frozen=True)
        ... class Silent(Behaviour):
        ...     def on_reply(self, me, round, request, reply):
        ...         return replace(reply, results=tuple(replace(one, row=one.row * 0) for one in reply.results))
        >>> import torch
        >>> me = Me(2, num_clients=4, seed=0, recipe=Recipe(), num_parameters=3)
        >>> reply = Reply(2, (Trained(seat=0, row=torch.ones(3), num_samples=20, loss=0.5, steps=2),))
        >>> Silent().on_reply(me, 0, Request(2, ()), reply).results[0].row
        tensor([0., 0., 0.])
    """

    memory: Mapping[str, Any] = MappingProxyType({})

    def present(self, me: Me, round: int) -> bool:
        """Return whether the client is present in a round."""
        return True

    def holds(self, me: Me, round: int, targets: Tensor, index: Tensor) -> Tensor:
        """Return which of its train samples the client holds in a round.

        Args:
            me: the client.
            round: the round's number.
            targets: the targets of the pool, ``[N, ...]``.
            index: the positions of the client's train samples in the pool, ``[n]``; return some or all of them.
        """
        return index

    def sees(self, me: Me, round: int, targets: Tensor) -> Tensor:
        """Return the targets that the client trains with in a round.

        Args:
            me: the client.
            round: the round's number.
            targets: a copy of the true targets of the samples that the client holds, ``[n, ...]``. Return the same
                shape, type and range of classes. Only training uses the result.
        """
        return targets

    def studies(self, me: Me, round: int, sets: Mapping[str, Samples]) -> Samples | None:
        """Return samples that the client trains on instead of its own; None: its own.

        Args:
            me: the client.
            round: the round's number.
            sets: in a simulation, the server's samples: "judge" for validation, "public" for tests. Only what there is.
                If the behaviour names one as its attribute ``trains_on`` ("own": none), a run without it is refused.
        """
        return None

    def overhears(self, round: int, told: Mapping[int, tuple[Request, Reply]]) -> None:
        """Note what clients would truly answer, before any behaviour changes it; for clients that cheat together.

        Args:
            round: the round's number.
            told: by client, the request as it understood it and its reply. On a network, only the node's own.
        """
        return None

    def claims(self, me: Me, held: Committed) -> Committed:
        """Return what the client commits to if sizes are proved, instead of ``held``, its distinct samples."""
        return held

    def on_request(self, me: Me, round: int, request: Request) -> Request | None:
        """Return the request as the client understands it, or None if the client does not answer."""
        return request

    def on_reply(self, me: Me, round: int, request: Request, reply: Reply) -> Reply:
        """Return the reply to ``request`` as the client sends it."""
        return reply

    def takes(self, me: Me, round: int, request: Request, reply: Reply) -> float:
        """Return how many seconds of a simulation's virtual clock the client needs for a training request.

        The times of several behaviours add up.

        Args:
            me: the client.
            round: the round's number.
            request: the request. It asks to train at least one seat.
            reply: the client's answer, with the steps that it took.
        """
        return 0.0

    def tells(self, num_clients: int, seed: int) -> Conduct:
        """Return, for reports, which clients this behaviour affects and how; nothing by default."""
        return Conduct()


def place(me: Me, purpose: str) -> int:
    """Return the client's place ``0..N-1`` in a random order that all clients of a run share.

    Behaviours that affect a fraction of the clients affect those with the first places.

    Args:
        me: the client, with the run's seed and the number of clients.
        purpose: the order's name; each purpose has its own order.
    """
    return int(places(me.seed, purpose, me.num_clients)[me.id])


def first_places(seed: int, purpose: str, num_clients: int, until: float) -> tuple[int, ...]:
    """Return, ascending, the ids of the clients that come first in a run's random order: about ``until`` of them.

    Args:
        seed: the run's seed.
        purpose: the order's name, as for :func:`place`.
        num_clients: how many clients are registered.
        until: the bound below which a client's place (from 0) must lie. It need not be a whole number.
    """
    return tuple(np.flatnonzero(places(seed, purpose, num_clients) < until).tolist())


def with_updates(
    request: Request, reply: Reply, change: Callable[[Train, Trained], Trained], *, private: bool = False
) -> Reply:
    """Return the reply with each update replaced by ``change(task, update)``.

    Args:
        request: what the client was asked, with a training task for each update.
        reply: what the client answers.
        change: the function called with each seat's task and update.
        private: whether to change also the updates of private rows, which are never sent.
    """
    tasks = {t.seat: t for t in request.tasks if isinstance(t, Train) and (private or not t.private)}
    changed = (change(tasks[r.seat], r) if isinstance(r, Trained) and r.seat in tasks else r for r in reply.results)
    return replace(reply, results=tuple(changed))


def updates(request: Request, reply: Reply) -> Iterator[tuple[Train, Trained]]:
    """Yield each update of a reply, but those of private rows, with the task that it answers."""
    tasks = {t.seat: t for t in request.tasks if isinstance(t, Train) and not t.private}
    yield from ((tasks[r.seat], r) for r in reply.results if isinstance(r, Trained) and r.seat in tasks)


def with_training(request: Request, change: Callable[[Train], Train]) -> Request:
    """Return the request with each training task replaced by ``change(task)``."""
    return replace(request, tasks=tuple(change(t) if isinstance(t, Train) else t for t in request.tasks))


@dataclass(frozen=True)
class OfSome(Behaviour):
    """The base of behaviours that affect some clients, named by their ids.

    Attributes:
        clients: the ids.
    """

    clients: Sequence[int] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "clients", tuple(self.clients))

    def those(self, num_clients: int) -> tuple[int, ...]:
        """Return the ids in ``clients`` that exist, without repetition, ascending."""
        return tuple(sorted({int(c) for c in self.clients if 0 <= int(c) < num_clients}))


@dataclass(frozen=True)
class Straggler(Behaviour):
    """Some clients complete only part of the requested training.

    They train 1 to E epochs, drawn uniformly (GreedyFed section IV). If the recipe counts steps, they train 1 to all
    steps.

    Attributes:
        fraction: the share of clients that are stragglers, from 0 to 1.
        redraw: how often the amount is drawn: in every "round", or "once" per client, as in the authors' code.
    """

    fraction: Share = 0.5
    redraw: Literal["round", "once"] = "round"

    def on_request(self, me: Me, round: int, request: Request) -> Request:
        """Return the request with less work, if the client is a straggler."""
        if place(me, "stragglers") >= self.fraction * me.num_clients:
            return request
        most = me.recipe.steps if me.recipe.steps is not None else me.recipe.epochs
        key = round if self.redraw == "round" else -1
        work = int(stream(me.seed, "straggler", round=key, client=me.id).integers(1, most + 1))
        return with_training(request, lambda task: replace(task, work=work))

    def tells(self, num_clients: int, seed: int) -> Conduct:
        """Return which clients do less than they are asked to."""
        found = first_places(seed, "stragglers", num_clients, self.fraction * num_clients)
        return Conduct(sentence="Stragglers complete only a part of the training they are asked for.", clients=found)


@dataclass(frozen=True)
class Noisy(Behaviour):
    """Clients add normal noise to each parameter that they send.

    Client k of a random permutation adds N(0, sigma_k^2) with ``sigma_k = (k-1) sigma/N``, k = 1..N (GreedyFed section
    IV, privacy heterogeneity). The noise is drawn from the client's secret. Without a secret it is drawn from the run's
    seed, which the server knows.

    Attributes:
        sigma: the scale of the noise, in the unit of the parameters; 0 adds none.
        levels: "spread" as above, or "same": every such client adds N(0, sigma^2).
    """

    sigma: Weight = 0.1
    levels: Literal["spread", "same"] = "spread"

    def on_reply(self, me: Me, round: int, request: Request, reply: Reply) -> Reply:
        """Return the reply with noise on the client's updates."""
        level = self.sigma if self.levels == "same" else place(me, "noisy") * self.sigma / me.num_clients
        if level == 0:
            return reply

        def add(task: Train, result: Trained) -> Trained:
            draw = secret_stream(me.secret, me.seed, "noise", round, me.id, result.row, start=task.row)
            noise = torch.from_numpy(draw.standard_normal(me.num_parameters, dtype="float32")) * level
            row = result.row.clone()
            row[: me.num_parameters] += noise.to(row.device)
            return replace(result, row=row)

        return with_updates(request, reply, add)

    def tells(self, num_clients: int, seed: int) -> Conduct:
        """Return the half of the clients that adds more noise."""
        if self.sigma == 0:
            return Conduct()
        if self.levels == "same":
            return Conduct(sentence="All clients add noise to what they send.", clients=tuple(range(num_clients)))
        # half of the places have the smaller levels; the rest are the noisier clients
        quiet = set(first_places(seed, "noisy", num_clients, num_clients / 2))
        louder = tuple(c for c in range(num_clients) if c not in quiet)
        told = "All clients add noise to what they send, some more than others."
        return Conduct("the noisier half", told, louder)


def secret_stream(
    secret: bytes, seed: int, purpose: str, round: int, client: int, *made_of: Tensor, start: int | None = None
) -> np.random.Generator:
    """Return the random stream for the noise on what a client sends.

    With a secret, the noise also depends on the answer that it hides. The same question gets the same noise again, so
    it cannot be averaged out. Another question in the same round gets different noise, so it does not cancel in
    differences.

    Args:
        secret: the client's secret. Empty: the noise follows from the run's seed, which the server knows.
        seed: the seed of the run.
        purpose: the stream's name.
        round: the round's number.
        client: the client's number.
        made_of: everything that the answer depends on.
        start: the row that an update starts from.
    """
    if secret:
        hasher = hashlib.blake2b(key=secret, digest_size=32)
        for tensor in made_of:
            hasher.update(tensor.detach().cpu().contiguous().numpy().tobytes())
        seed = int.from_bytes(hasher.digest(), "little")
    keys = {} if start is None else {"start": start}
    return stream(seed, purpose, round=round, client=client, **keys)


@dataclass(frozen=True)
class DropOut(Behaviour):
    """Clients sometimes do not answer.

    Attributes:
        rate: the probability, from 0 to 1, that a client is silent in a round. It is drawn anew each round.
    """

    rate: Share = 0.1

    def on_request(self, me: Me, round: int, request: Request) -> Request | None:
        """Return the request, or None in a round in which the client is silent."""
        silent = stream(me.seed, "drop-out", round=round, client=me.id).random() < self.rate
        return None if silent else request

    def tells(self, num_clients: int, seed: int) -> Conduct:
        """Return that all clients are affected, and how often one does not answer."""
        told = f"In {100 * self.rate:g} % of the rounds a client does not answer."
        return Conduct(sentence=told, clients=tuple(range(num_clients)))


@dataclass(frozen=True)
class Speed(Behaviour):
    """How long clients train, on a simulation's virtual clock.

    Attributes:
        seconds: each client's time. Without it, each client's time is drawn once from a log-normal distribution.
        median: the median of that distribution, in seconds.
        sigma: the standard deviation of the time's logarithm, from 0 to 10. With 0.9, the slowest tenth of the clients
            take more than ten times as long as any of the fastest tenth.
        per: whether the time is for a training "request", or for each optimiser "step" in it.
    """

    seconds: Sequence[Rate] = ()
    median: Rate = 1.0
    sigma: Annotated[float, Field(ge=0, le=10)] = 0.5
    per: Literal["request", "step"] = "request"

    def __post_init__(self) -> None:
        object.__setattr__(self, "seconds", tuple(float(s) for s in self.seconds))

    def takes(self, me: Me, round: int, request: Request, reply: Reply) -> float:
        """Return the client's time for this request, in seconds."""
        one = self.time_of(me.id, me.seed)
        if self.per == "request":
            return one
        return one * sum(result.steps for result in reply.results if isinstance(result, Trained))

    def time_of(self, client: int, seed: int) -> float:
        """Return how long a client takes in a round, in seconds."""
        if self.seconds:
            return self.seconds[client]
        return self.median * float(np.exp(self.sigma * stream(seed, "speed", client=client).standard_normal()))

    def tells(self, num_clients: int, seed: int) -> Conduct:
        """Return how much the clients' times differ.

        Raises:
            UserError: the list of seconds does not have one entry per client.
        """
        if self.seconds and len(self.seconds) != num_clients:
            count = quantity(len(self.seconds), "number")
            raise UserError(f"behaviour.speed.seconds: {count}: must be {num_clients}, one for each client")
        times = [self.time_of(client, seed) for client in range(num_clients)]
        told = f"Clients take {min(times):.3g} to {max(times):.3g} s of virtual time for a {self.per} of training."
        return Conduct(sentence=told, clients=tuple(range(num_clients)))


@dataclass(frozen=True)
class Joiner(OfSome):
    """Some clients join in a later round.

    Attributes:
        clients: the ids of the clients.
        at: the first round in which they are present.
    """

    at: Count = 1

    def present(self, me: Me, round: int) -> bool:
        """Return whether the client has joined."""
        return me.id not in self.clients or round >= self.at

    def tells(self, num_clients: int, seed: int) -> Conduct:
        """Return the clients that join late, and the round in which each does."""
        return Conduct(sentence=f"Some clients join in round {self.at}.", clients=self.those(num_clients))


@dataclass(frozen=True)
class Leaver(OfSome):
    """Some clients leave in some round.

    Attributes:
        clients: the ids of the clients.
        at: the first round in which they are gone.
    """

    at: Count = 1

    def present(self, me: Me, round: int) -> bool:
        """Return whether the client is still there."""
        return me.id not in self.clients or round < self.at

    def tells(self, num_clients: int, seed: int) -> Conduct:
        """Return the clients that leave early, and from which round on each is gone."""
        return Conduct(sentence=f"Some clients are gone from round {self.at} on.", clients=self.those(num_clients))


@dataclass(frozen=True)
class Drift(OfSome):
    """The data of some clients change from round to round.

    Each of the ``clients`` holds a window of its train samples, sorted by class. The window moves from one end to the
    other and stays there.

    Attributes:
        clients: the ids of these clients.
        share: the share of samples in the window, above 0, at most 1.
        rounds: how many rounds the window takes to reach the other end.
    """

    share: SomeShare = 0.5
    rounds: Positive = 10

    def holds(self, me: Me, round: int, targets: Tensor, index: Tensor) -> Tensor:
        """Return the samples in the window.

        Samples whose targets are not single numbers keep their order.
        """
        if me.id not in self.clients or len(index) == 0:
            return index
        order = torch.argsort(targets[index], stable=True) if targets.ndim == 1 else torch.arange(len(index))
        width = max(1, int(self.share * len(index)))
        first = (len(index) - width) * min(round, self.rounds) // self.rounds
        return index[torch.sort(order[first : first + width]).values]

    def tells(self, num_clients: int, seed: int) -> Conduct:
        """Return the clients whose data change, and how."""
        told = (
            f"The data of some clients change: {100 * self.share:g} % of their samples at a time, in order of classes."
        )
        return Conduct(sentence=told, clients=self.those(num_clients))


Attack = Literal["random", "shuffle", "flip", "same", "gaussian"]
SENT: dict[Attack, str] = {  # in words, of "its update" or "their models"
    "random": "random numbers as {}",
    "shuffle": "{} shuffled",
    "flip": "the opposite of {}",
    "same": "one number everywhere in {}",
    "gaussian": "noise as {}",
}


@dataclass(frozen=True)
class Attacker(OfSome):
    """Some clients send something else instead of the models that they trained (iPFL section E.4, 6.2).

    Attributes:
        clients: the ids of the attackers.
        kind: what the attackers send. "random" is a random model, drawn each round, with the spread of the model that
            the client received. The other kinds replace the update (the change made by training): "shuffle" by its
            shuffled elements, "flip" by its negative, "same" by the same value in each element, "gaussian" by noise.
        scale: the factor of what is sent. With 1, a changed update has the length of the true update.
        since: the first round of the attack.
        of: what is replaced: the "update", or the whole "model" as in iPFL's public code. A model is shuffled, negated,
            all 1, or N(0, 1), times ``scale``.
        start: the model that the client starts from. "own": the model that the client is asked to train. If each client
            has its own row, this is its last upload, so its changes accumulate. "sent": the centre to which the client
            is pulled, which is made of others' models (iPFL, FedAMP). Without a centre it is the same as "own".
    """

    kind: Attack = "random"
    scale: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    since: Count = 0
    of: Literal["update", "model"] = "update"
    start: Literal["own", "sent"] = "own"

    def on_request(self, me: Me, round: int, request: Request) -> Request:
        """Return the request; if ``start`` is "sent", it trains from the centre. Private rows are not changed."""
        if self.start == "own" or me.id not in self.clients or round < self.since:
            return request
        return from_centres(request)

    def on_reply(self, me: Me, round: int, request: Request, reply: Reply) -> Reply:
        """Return the reply with the client's uploads replaced; private rows are not changed."""
        if me.id not in self.clients or round < self.since:
            return reply
        return with_updates(request, reply, lambda task, r: replace(r, row=self.spoilt(me, round, task, r.row)))

    def spoilt(self, me: Me, round: int, task: Train, row: Tensor) -> Tensor:
        """Return the model that is sent instead of a trained one, ``row [P]``. Its buffers are kept."""
        draw, width = stream(me.seed, "attack", round=round, client=me.id, start=task.row), me.num_parameters
        start, sent = task.start[:width].to(row.device), row.clone()
        sent[:width] = self._turned(draw, row[:width]) if self.of == "model" else self._moved(draw, start, row[:width])
        return sent

    def tells(self, num_clients: int, seed: int) -> Conduct:
        """Return the attackers, as cheats, and what they send instead of their models."""
        what = SENT[self.kind].format(f"their {self.of}s")
        told = f"Attackers send {what} instead of what they trained, from round {self.since} on."
        return Conduct("attackers", told, self.those(num_clients), cheats=True)

    def _moved(self, draw: np.random.Generator, start: Tensor, row: Tensor) -> Tensor:
        """Return the parameters that are sent instead of ``row [P]``, trained from ``start [P]``."""
        update = row - start
        spread = float(update.double().square().mean().sqrt())
        if self.kind == "random":
            return self.scale * float(start.double().std()) * self._normal(draw, row)
        if self.kind == "shuffle":
            return start + self.scale * update[torch.from_numpy(draw.permutation(len(row))).to(row.device)]
        if self.kind == "flip":
            return start - self.scale * update
        if self.kind == "same":
            return start + self.scale * spread
        return start + self.scale * spread * self._normal(draw, row)

    def _turned(self, draw: np.random.Generator, row: Tensor) -> Tensor:
        """Return what is sent of a whole model ``row [P]``."""
        if self.kind == "shuffle":
            return self.scale * row[torch.from_numpy(draw.permutation(len(row))).to(row.device)]
        if self.kind in ("flip", "same"):
            return self.scale * (-row if self.kind == "flip" else torch.ones_like(row))
        return self.scale * self._normal(draw, row)

    @staticmethod
    def _normal(draw: np.random.Generator, row: Tensor) -> Tensor:
        """Return standard normal numbers in the shape of ``row [P]``."""
        return torch.from_numpy(draw.standard_normal(len(row), dtype="float32")).to(row.device)


def from_centres(request: Request) -> Request:
    """Return the request with each training task started from the centre to which it is pulled, if there is one."""

    def moved(task: Train) -> Train:
        if task.centre is None or task.mu == 0 or task.private:
            return task
        return replace(task, start=task.centre)

    return with_training(request, moved)


@dataclass(frozen=True)
class FreeRider(Behaviour):
    """Some clients send back the model that they were sent, as if they had trained it.

    Attributes:
        fraction: the share of clients that are free riders, from 0 to 1.
    """

    fraction: Share = 0.2

    def on_reply(self, me: Me, round: int, request: Request, reply: Reply) -> Reply:
        """Return the reply with the received model instead of the update, if the client is a free rider."""
        if place(me, "free riders") >= self.fraction * me.num_clients:
            return reply
        return with_updates(request, reply, lambda task, r: replace(r, row=task.start.clone()), private=True)

    def tells(self, num_clients: int, seed: int) -> Conduct:
        """Return the free riders, as cheats, and what they send instead."""
        found = first_places(seed, "free riders", num_clients, self.fraction * num_clients)
        told = "Free riders send back the model that they were sent, as if they had trained it."
        return Conduct("free riders", told, found, cheats=True)


@dataclass(frozen=True)
class Liar(OfSome):
    """Some clients report false numbers.

    Attributes:
        clients: the ids of the liars.
        size: the factor of the number of samples reported with each update. Above 1, the client also commits to
            invented samples if sizes are proved.
        cost: the factor of the cost declared to a market (iPFL Table 4).
        eagerness: the factor of the eagerness declared to a market.
        says: fixed numbers to declare. For example, the free riders of iPFL's figure 5 share at no cost and declare 1.
    """

    size: Weight = 1.0
    cost: Weight = 1.0
    eagerness: Weight = 1.0
    says: Mapping[Literal["cost", "eagerness"], Weight] = field(default_factory=dict)

    def on_reply(self, me: Me, round: int, request: Request, reply: Reply) -> Reply:
        """Return the reply with the client's reports changed."""
        if me.id not in self.clients:
            return reply
        times = {"samples": self.size, "declare.cost": self.cost, "declare.eagerness": self.eagerness}
        says = {f"declare.{name}": value for name, value in self.says.items()}
        always = dict.fromkeys(map(str, self.says))  # also where honesty would not say it
        return replace(reply, results=tuple(reported(r, times, says, always) for r in reply.results))

    def claims(self, me: Me, held: Committed) -> Committed:
        """Return a commitment with invented samples, at most ten times as many as the true ones. Audits detect this."""
        if me.id not in self.clients or self.size <= 1:
            return held
        return held.with_invented(round(held.commitment.size * (min(self.size, 10.0) - 1)))

    def tells(self, num_clients: int, seed: int) -> Conduct:
        """Return which clients state false numbers, and which numbers these are."""
        ratios = {"size of their data": self.size, "cost": self.cost, "eagerness": self.eagerness}
        lies = ", ".join(f"{name} times {ratio:g}" for name, ratio in ratios.items() if ratio != 1)
        lies = ", ".join(filter(None, (lies, *(f"{name} {value:g}" for name, value in self.says.items()))))
        told = f"Liars report false numbers: {lies}." if lies else "These liars report the truth."
        return Conduct("liars", told, self.those(num_clients), cheats=True)


def reported(result: Result, times: Mapping[str, float], says: Mapping[str, Any], offers: Mapping[str, Any]) -> Result:
    """Return a result as a cheat reports it.

    Args:
        result: what it would report honestly.
        times: the factors of "samples", "steps", "loss" and "accuracy", and of an answer's numbers, such as
            "declare.cost".
        says: what takes the place of an answer's field, such as "declare.cost", that is answered or offered. "none" and
            "all" stand for a list of what is offered, and other lists then go along with it.
        offers: the values of the question.
    """
    samples, steps, loss, accuracy = (times.get(key, 1.0) for key in ("samples", "steps", "loss", "accuracy"))
    if isinstance(result, Trained):
        made, lost = math.floor(result.steps * steps + 0.5), None if result.loss is None else result.loss * loss
        return replace(result, num_samples=result.num_samples * samples, steps=made, loss=lost)
    if isinstance(result, Scored):
        return replace(result, loss=result.loss * loss, accuracy=(result.accuracy * accuracy).clamp(max=1.0))
    if not isinstance(result, Answered):
        return result
    found = {name: _times(value, times.get(f"{result.name}.{name}", 1.0)) for name, value in result.values.items()}
    for key, said in says.items():
        question, _, name = key.partition(".")
        if question == result.name and (name in result.values or name in offers):
            if isinstance(said, str):
                found = {k: v for k, v in found.items() if not isinstance(v, list | tuple) or k == name}
            found[name] = _list(said, offers.get(name)) if isinstance(said, str) else said
    return replace(result, values=found)


def _times(value: Any, factor: float) -> Any:
    """Return a finite number, or those of a list, times a factor; anything else, such as a text, as it is."""
    if isinstance(value, list):
        return [_times(one, factor) for one in value]
    number = isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
    return value * factor if number and factor != 1 else value


def _list(said: str, offered: Any) -> list[int]:
    """Return none or all of what a question offers: a list, or how many there are."""
    if said == "none" or offered is None:
        return []
    return list(range(offered)) if isinstance(offered, int) else list(offered)


BEHAVIOURS: Mapping[str, type[Behaviour]] = Names({
    "straggler": Straggler, "noisy": Noisy, "dropout": DropOut, "speed": Speed, "free_rider": FreeRider,
    "attacker": Attacker, "liar": Liar, "joiner": Joiner, "leaver": Leaver, "drift": Drift,
}, "behaviours")  # fmt: skip
"""All behaviours by their names in ``[behaviour.NAME]`` of an experiment."""
