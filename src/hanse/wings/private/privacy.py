"""Differential privacy at the client: every update is clipped and noised, and counted in the client's account.

``[federation] private = { clip = 1.0, noise = 1.1, epsilon = 8.0, delta = 1e-5 }`` turns it on. :class:`Private`
controls everything that leaves the client, after the client has done all else. Of what is made from its samples, only
what :class:`Privacy` allows gets out (a table of all results is in ``docs/privacy.md``). Updates and gradients get
noise. What cannot get any is left out or refused. The server is treated as the adversary. It may ask whatever, whenever
and whomever it likes, and no guarantee depends on what it does.

With ``unit = "client"`` a whole client is hidden: nobody can tell whether an update is the client's own or no update at
all (a step of zero). An update changes by at most ``clip`` then, and gets normal noise of ``noise * clip`` at each
number. With ``unit = "sample"`` one sample is hidden, and training itself is private (DP-SGD,
:mod:`hanse.wings.private.private_loop`).
"""

from __future__ import annotations

import hashlib
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, NotRequired

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import ConfigDict, Field, with_config
from torch import Tensor
from typing_extensions import TypedDict

from hanse.base.errors import UserError
from hanse.base.factories import call
from hanse.core import port
from hanse.core.recipe import Recipe
from hanse.federation.behaviour import secret_stream
from hanse.federation.codec import pack
from hanse.federation.wrapped import BUDGET, DELTA, EPSILON, MOST_EPSILON, NOISE, SURELY, WITHIN, Wrapped
from hanse.learning.job import LOOP
from hanse.wings.private.account import AccountFile, PrivacyAccount, Release, Unit, library, noise_for

log = logging.getLogger("hanse.federation")

LEAST_CLIP, MOST_CLIP = 1e-9, 1e6  # below, float32 may round up what is clipped; above, noise outgrows what may be sent
Noise = Annotated[float, Field(gt=0, le=1e6)]
Epsilon = Annotated[float, Field(gt=0, le=MOST_EPSILON, allow_inf_nan=False)]
DROWNED = 1e3  # noise, in multiples of the clip
NOT_SAID = "it answers no questions about its samples: it has a privacy account (federation.private)"


@with_config(ConfigDict(extra="forbid"))
class Stricter(TypedDict):
    """A smaller budget for some clients, instead of the others' budget.

    Attributes:
        clients: the ids of the clients.
        epsilon: the budget of each of these clients.
        noise: as in :class:`Privacy`. If left out, the least noise with which this budget lasts.
    """

    clients: Annotated[Sequence[Annotated[int, Field(ge=0)]], Field(min_length=1)]
    epsilon: Epsilon
    noise: NotRequired[Noise | None]


@dataclass(frozen=True)
class Privacy:
    """What a client releases, and how much of it.

    Attributes:
        clip: the largest length of an update, in the unit of the parameters. With unit "sample", the largest length of
            each sample's gradient. Anything longer is shortened to this length.
        epsilon: each client's budget over the run. A client that has spent it sits out.
        delta: the probability with which the guarantee may fail. It is above 0, at most 0.01, and below one divided by
            the number of clients (unit "sample": of the client's samples).
        noise: the standard deviation of the noise at each number, in multiples of ``clip``. None: the least noise with
            which the budget lasts for as many rounds as a client is expected to be asked.
        unit: what is hidden: the whole "client", or one "sample" of the client.
        quantile: the share of the updates that should not be shortened. The clip follows this quantile from round to
            round (:mod:`hanse.wings.private.clipping`), and each client says, with noise, whether its update was within
            the clip. None: the clip stays.
        rate: how fast the clip follows.
        bits: the standard deviation of the noise on what each client says of the clip. This answer is charged to the
            account too.
        stricter: clients with a smaller budget.
    """

    clip: Annotated[float, Field(ge=LEAST_CLIP, le=MOST_CLIP)]
    epsilon: Epsilon
    delta: Annotated[float, Field(gt=0, le=0.01)]  # a server says how many clients there are: 1/n alone is no bound
    noise: Noise | None = None
    unit: Unit = "client"
    quantile: Annotated[float, Field(gt=0, lt=1)] | None = None
    rate: Annotated[float, Field(gt=0, le=2)] = 0.2
    bits: Noise = 4.0
    stricter: Sequence[Stricter] = ()

    def __post_init__(self) -> None:
        library()
        if self.quantile is not None and self.unit == "sample":
            raise UserError(f"quantile: {self.quantile:g}: not with unit 'sample', whose clip stays")
        for name, usual in (("rate", 0.2), ("bits", 4.0)):
            if self.quantile is None and getattr(self, name) != usual:
                raise UserError(f"{name}: {getattr(self, name):g}: only with a quantile for the clip to follow")
        named = [client for one in self.stricter for client in one["clients"]]
        if len(set(named)) < len(named):
            raise UserError(f"stricter: client {max(named, key=named.count)} is named twice; allowed: once")
        for one in self.stricter:
            if one["epsilon"] > self.epsilon:
                raise UserError(f"stricter: epsilon {one['epsilon']:g}: must be at most {self.epsilon:g}, the others'")
            if (noise := one.get("noise")) is not None and self.noise is not None and noise < self.noise:
                raise UserError(f"stricter: noise {noise:g}: must be at least {self.noise:g}, the others'")

    def of(self, client: int) -> Privacy:
        """Return the settings of one client: these, or those that ``stricter`` has for it."""
        for one in self.stricter:
            if client in one["clients"]:
                noise = one.get("noise")
                return replace(self, epsilon=one["epsilon"], noise=self.noise if noise is None else noise, stricter=())
        return self

    def bearing(self, clients: int, samples: int) -> Privacy:
        """Return these settings, after checking them for a client with so many samples that is one of so many clients.

        Raises:
            UserError: delta is so large that even revealing one client (or sample) completely would satisfy it.
        """
        number, of = (clients, "clients") if self.unit == "client" else (samples, "samples of one client")
        if self.delta * number >= 1:
            raise UserError(f"federation.private.delta: {self.delta:g}: must be below 1/{number}, one in the {of}")
        return self

    def needs(self, rounds: int, share: float, one: Release) -> float:
        """Return the noise. If it was not given, return the least noise with which the budget lasts.

        Args:
            rounds: the number of rounds of the run.
            share: the expected share of the rounds in which a client is asked to train.
            one: what one update releases. Its noise is not read.

        Raises:
            UserError: no noise is enough; the line begins with the option's name.
        """
        if self.noise is not None:
            return self.noise
        asked = max(1, math.ceil(rounds * share - 1e-9))
        beside = self.opened().charged(self._beside * asked)
        if beside.spent > self.epsilon:
            raise UserError(
                f"epsilon: {self.epsilon:g}: what a client says of the clip with noise bits = {self.bits:g} costs "
                f"{beside.spent:.3g} in {asked} answers; needs larger bits, or no quantile"
            )
        return noise_for(beside, [one] * asked)

    @property
    def _beside(self) -> list[Release]:
        """What is given out with each update."""
        return [] if self.quantile is None else [Release(self.bits)]

    def drowned(self) -> list[str]:
        """Return a line for a budget with which nothing is learned. The noise must be known."""
        terms = [(self.noise, self.epsilon), *((one.get("noise"), one["epsilon"]) for one in self.stricter)]
        noise, epsilon = max((noise or 0.0, epsilon) for noise, epsilon in terms)
        if noise <= DROWNED:
            return []
        return [
            f"warning: federation.private.epsilon: {epsilon:g}: adds to each number noise that is {noise:.3g} times as "
            "large as the largest update, so that nothing is learned; 1 is a strong budget already"
        ]

    def opened(self) -> PrivacyAccount:
        """Return a new account with nothing spent."""
        return PrivacyAccount(self.epsilon, self.delta, self.unit)

    def over(self, account: PrivacyAccount | None) -> PrivacyAccount:
        """Return an account with the smaller of its own terms and these; without an account, one that is opened now."""
        return self.opened() if account is None else account.within(self.epsilon, self.delta)

    def release(self, samples: int, recipe: Recipe, work: int | None = None) -> Release:
        """Return what one update gives out.

        Args:
            samples: how many the client has.
            recipe: how the client trains.
            work: epochs or steps instead of the recipe's.
        """
        noise = 1.0 if self.noise is None else self.noise
        if self.unit == "client":
            return Release(noise)
        batches, steps = recipe.sampling(samples, work)
        return Release(noise, 1 / batches, max(1, steps))

    def update(self, samples: int, recipe: Recipe, work: int | None = None) -> list[Release]:
        """Return everything that is released with one update. The arguments are those of :meth:`release`."""
        return [self.release(samples, recipe, work), *self._beside]

    def clip_of(self, task: port.Train) -> float:
        """Return the length to which an update is shortened. The server may choose it: noise is a multiple of it."""
        return self.clip if self.quantile is None or task.clip is None else task.clip

    def level(self, samples: int, recipe: Recipe, lr: float, task: port.Train) -> float:
        """Return the standard deviation of the noise at each number of an update.

        In DP-SGD it is that of all steps' noise together, as if gradients did not react to it.

        Args:
            samples: how many the client has.
            recipe: how the client trains.
            lr: the round's learning rate.
            task: the update's training task, of which the work and the clip count.
        """
        noise = 0.0 if self.noise is None else self.noise
        if self.unit == "client":
            return noise * self.clip_of(task)
        batches, steps = recipe.sampling(samples, task.work)
        # with momentum m a step's noise moves the steps after it too: the k-th from the end counts (1 - m^k) / (1 - m)
        m, n = recipe.momentum, steps
        squares = (n - 2 * m * (1 - m**n) / (1 - m) + m**2 * (1 - m ** (2 * n)) / (1 - m**2)) / (1 - m) ** 2
        return lr * noise * self.clip * batches / max(1, samples) * math.sqrt(squares)

    def longest(self, samples: int, recipe: Recipe, lr: float, task: port.Train) -> float:
        """Return how long an update can be without its noise.

        With DP-SGD this is true almost surely (Bernstein's inequality).

        Args:
            samples: as in :meth:`level`.
            recipe: as in :meth:`level`; with a weight decay there is no bound.
            lr: as in :meth:`level`.
            task: as in :meth:`level`.
        """
        if self.unit == "client":
            return self.clip_of(task)
        if recipe.weight_decay:
            return math.inf
        (batches, steps), m = recipe.sampling(samples, task.work), recipe.momentum
        mean, x = max(1, samples) / batches, SURELY + math.log(max(1, steps))
        drawn = min(max(1, samples), mean + math.sqrt(2 * mean * x) + x)
        return lr * self.clip * drawn / mean * (steps - m * (1 - m**steps) / (1 - m)) / (1 - m)

    def releases(self, request: port.Request, samples: int, recipe: Recipe) -> tuple[Release, ...]:
        """Return what a sound answer to a request gives out."""
        found = list[Release]()
        for task in request.tasks:
            if isinstance(task, port.Train) and not task.private:
                found += self.update(samples, recipe, task.work)
            elif isinstance(task, port.Gradient):
                found += [Release(1.0 if self.noise is None else self.noise)] * len(task.models)
        return tuple(found)

    def refuses(self, task: port.Task) -> bool:
        """Return whether a task asks for something that gets no noise and so does not leave the client."""
        if isinstance(task, port.Train):
            return task.payload is not None
        if isinstance(task, port.Gradient):
            return self.unit == "sample"  # a gradient's mean is over samples that are not drawn by the client
        if isinstance(task, port.Ask):
            return task.models is not None
        return not isinstance(task, port.Test)


def clipped(step: Tensor, clip: float) -> Tensor:
    """Return a step ``[P]`` in float64, shortened to the length ``clip``; all zeros if a number in it is not finite."""
    step = step.double()
    length = float(torch.linalg.vector_norm(step))
    if not math.isfinite(length):
        return torch.zeros_like(step)
    return step * min(1.0, clip / length) if length else step


@dataclass
class InState:
    """The accounts of a simulation's clients: a part of the run's state.

    An account stays as it was opened, as a participant's own does. A run that is resumed with other terms keeps within
    both.

    Attributes:
        rule: opens accounts.
        accounts: the accounts opened so far, by client. :meth:`opened` makes one for everybody.
    """

    rule: Privacy
    accounts: Mapping[int, PrivacyAccount] = field(default_factory=dict)

    def opened(self, clients: int) -> dict[int, PrivacyAccount]:
        """Return everybody's account as a run begins, so that later terms also bind clients that never answered."""
        return {client: self.rule.of(client).opened() for client in range(clients)}

    def of(self, client: int) -> PrivacyAccount:
        """Return a client's account, with the lesser of its budget and the rule's."""
        return self.rule.of(client).over(self.accounts.get(client))

    def charge(self, client: int, releases: Sequence[Release], digest: Callable[[], str]) -> PrivacyAccount | None:
        """Charge an answer, if it fits into the budget. A simulation's clients are asked once for each answer."""
        if not self.of(client).affords(releases):
            return None
        kept = self.accounts.get(client) or self.rule.of(client).opened()
        self.accounts = {**self.accounts, client: kept.charged(releases)}
        return self.of(client)


@dataclass(frozen=True)
class InFile:
    """A participant's account in its own folder, over all runs.

    An account that the file holds stays as it was opened. A participant keeps within the account's terms and within
    ``rule``, whichever allows less.

    Attributes:
        file: the account's file.
        rule: the rule that opens the account, if there is none yet.
    """

    file: AccountFile
    rule: Privacy

    def of(self, client: int) -> PrivacyAccount:
        """Return the account, with the lesser of its budget and the rule's."""
        return self.rule.over(self.file.read())

    def charge(self, client: int, releases: Sequence[Release], digest: Callable[[], str]) -> PrivacyAccount | None:
        """Charge an answer and write the account to disk, if the budget allows it; None if not.

        The same answer given again costs nothing.
        """
        sent = digest()
        with self.file.held():
            kept = self.file.read()
            now = kept or self.rule.opened()
            if sent not in now.sent:
                if not self.rule.over(now).affords(releases):
                    return None
                now = now.charged(releases, sent)
                self.file.write(now)
                if kept is None:
                    log.warning("privacy account opened: epsilon %g at delta %g over all runs", now.epsilon, now.delta)
        return self.rule.over(now)


@dataclass(frozen=True)
class Private(Wrapped):
    """Clients behind the port that release only what their privacy accounts allow.

    Attributes:
        rule: the rule that says what is released.
        accounts: where the accounts are kept.
        recipe: how clients train.
        sizes: ``[N]``, how many samples each client joined with.
        seed: the run's seed.
        secret: the participant's own secret, on a network. Empty: the noise comes from the run's seed.
        own: whether these are participants on a network, whose tests are questions like any other.
    """

    rule: Privacy
    accounts: InState | InFile
    recipe: Recipe
    sizes: NDArray[np.int64]
    seed: int
    secret: bytes = field(default=b"", repr=False)
    own: bool = False

    def exchange(self, call: port.Call) -> Sequence[port.Reply]:
        """Answer the requests that the accounts allow, and refuse the others, untrained."""
        instead = {r.client: reply for r in call.requests if (reply := self._instead(r)) is not None}
        of = {r.client: r for r in call.requests if r.client not in instead}
        replies = self._answers(replace(call, requests=list(of.values()))) if of else []
        return [*instead.values(), *(self._let_out(call.round, of[reply.client], reply) for reply in replies)]

    def _answers(self, call: port.Call) -> Sequence[port.Reply]:
        """Return what the clients themselves answer; a participant tells an error to its own log alone."""
        try:
            return self.inner.exchange(call)
        except Exception:  # of whatever class: its text may be made of samples
            if not self.own:
                raise
            log.warning("round %d: it could not answer", call.round, exc_info=True)
            return [port.Reply(request.client, refused=LOOP) for request in call.requests]

    def _instead(self, request: port.Request) -> port.Reply | None:
        """Return the reply to a request that the clients need not see, or None."""
        client, tasks = request.client, request.tasks
        tests = [task for task in tasks if isinstance(task, port.Test)]
        if tests and len(tasks) > 1:
            return port.Reply(client, refused="a test is asked for alone")
        if tests and self.own:
            return port.Reply(client, tuple(port.Tested(task.name, None, None, 0) for task in tests))
        if any(self.rule.refuses(task) for task in tasks):
            return port.Reply(client, refused=NOT_SAID)
        account = self.accounts.of(client)
        releases = self.rule.of(client).releases(request, int(self.sizes[client]), self.recipe)
        return None if account.affords(releases) else port.Reply(client, refused=account.refuses(releases))

    def _let_out(self, round: int, request: port.Request, reply: port.Reply) -> port.Reply:
        """Return a reply as it leaves: noised, and charged before."""
        if any(isinstance(task, port.Test) for task in request.tasks):
            return reply
        client, size = request.client, int(self.sizes[request.client])
        loop = reply.refused is not None and reply.refused.startswith(LOOP)
        if loop and self.own and self.rule.unit == "client":
            reply = _standing_still(request, reply)  # that training fails may tell of samples
        if reply.refused is not None or len(reply.results) != len(request.tasks):
            # a reason may be made of samples, as an exception's text is
            return replace(reply, results=(), refused=f"{LOOP} gave no update" if loop else "it cannot answer")
        results = [self._noised(round, client, t, r) for t, r in zip(request.tasks, reply.results, strict=True)]
        releases = self.rule.of(client).releases(request, size, self.recipe)
        if releases:
            after = self.accounts.charge(client, releases, lambda: _digest(round, client, results))
            if after is None:  # another process has spent the rest meanwhile
                return replace(reply, results=(), refused=self.accounts.of(client).refuses(releases))
            results = [_saying(t, r, after) for t, r in zip(request.tasks, results, strict=True)]
        return replace(reply, results=tuple(results))

    def _noised(self, round: int, client: int, task: port.Task, result: port.Result) -> port.Result:
        """Return a result as it may be seen."""
        rule, samples = self.rule.of(client), int(self.sizes[client])
        if isinstance(task, port.Gradient) and isinstance(result, port.Derived):
            noised = torch.empty_like(result.gradients)  # of no models there are none
            for c, pair in enumerate(zip(task.models, result.gradients, strict=True)):
                noised[c] = self._step(round, client, f"gradient {task.name} {c}", *pair, rule.clip)
            return replace(result, gradients=noised, num_samples=samples)
        if not isinstance(task, port.Train) or not isinstance(result, port.Trained):
            return result
        row, steps, said = result.row, self.recipe.sampling(samples, task.work)[1], dict[str, float]()
        if not task.private:
            said[NOISE] = rule.level(samples, self.recipe, self.recipe.lr_at(round), task)
        if not task.private and rule.unit == "client":
            start, clip = task.start.to(row.device), rule.clip_of(task)
            step = row - start
            if rule.quantile is not None:
                within = float(torch.linalg.vector_norm(step.double()) <= clip)
                told = (self.secret, self.seed, f"privacy within {task.row}", round, client)
                scale = torch.tensor([clip, rule.bits], dtype=torch.float64)
                draw = secret_stream(*told, start, step, scale)
                said[WITHIN] = within + rule.bits * float(draw.standard_normal())
            moved = self._step(round, client, f"update {task.row}", start, step, clip)
            row = (start.double() + moved).to(row.dtype)
        return port.Trained(result.seat, row, float(samples), None, steps, metrics=said)

    def _step(self, round: int, client: int, what: str, at: Tensor, step: Tensor, clip: float) -> Tensor:
        """Return a step ``[P]`` (float64), clipped and with noise.

        With a secret the noise follows from all that the answer depends on: the same answer is given with the same
        noise, and two different ones with independent noise, so nothing cancels in their difference.
        """
        noise = self.rule.of(client).noise
        assert noise is not None
        short, scale = clipped(step, clip), torch.tensor([clip, noise], dtype=torch.float64)
        draw = secret_stream(self.secret, self.seed, f"privacy {what}", round, client, at, step, scale)
        drawn = torch.from_numpy(draw.standard_normal(len(short))).to(short.device)
        return short + noise * clip * drawn


def _standing_still(request: port.Request, reply: port.Reply) -> port.Reply:
    """Return the reply with steps and gradients of zero, if it was asked for nothing else."""
    results = list[port.Result]()
    for task in request.tasks:
        if isinstance(task, port.Train):
            results.append(port.Trained(task.seat, task.start, 0.0, None, 0))
        elif isinstance(task, port.Gradient):
            results.append(port.Derived(task.name, torch.zeros_like(task.models), 0))
        else:
            return reply
    return replace(reply, refused=None, results=tuple(results))


def _saying(task: port.Task, result: port.Result, account: PrivacyAccount) -> port.Result:
    """Return an update that says what its client has spent of which budget, which is no secret."""
    if not isinstance(result, port.Trained) or (isinstance(task, port.Train) and task.private):
        return result
    said = {EPSILON: account.spent, BUDGET: account.epsilon, DELTA: account.delta}
    return replace(result, metrics={**result.metrics, **said})


def _digest(round: int, client: int, results: Sequence[port.Result]) -> str:
    """Return the hash of all numbers and tensors that leave: equal for equal answers in one round."""
    said = pack(port.Reply(client, tuple(results))).header
    return hashlib.blake2b(f"{round} {said}".encode(), digest_size=16).hexdigest()


def answering(file: AccountFile, own: Privacy | None, asked: Mapping[str, Any] | None) -> Privacy | None:
    """Return the privacy settings with which a participant answers a run, or None if it has none.

    An existing account stays in force, whatever a run says: no server can raise its budget or turn it off.

    Args:
        file: the participant's account.
        own: the participant's own settings. None: those of the run hold.
        asked: the run's ``federation.private``. None: the run has none.

    Raises:
        UserError: the run has none although the participant has an account; or the two differ in ``unit``; or the
            settings name no ``noise``; or the account's file is damaged.
    """
    account = file.read()
    rule = own if own is not None else None if asked is None else call(Privacy, asked, "federation.private")
    if rule is None:
        if account is not None:
            raise UserError("this participant answers under its privacy account: the run has no federation.private")
        return None
    if rule.noise is None:
        raise UserError("federation.private.noise: a participant must be told it")
    if account is not None and account.unit != rule.unit:
        raise UserError(f"federation.private.unit: '{rule.unit}': this participant's account counts by {account.unit}")
    return rule
