"""Clients that deviate in any way that their mechanism allows. ``hanse attack`` searches among these ways.

Everything that a client sends is one of the port's result types, and every answer to a question has declared fields.
:class:`Deviant` changes messages by their type, so one behaviour covers all deviations under any mechanism.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Annotated, Literal, cast, get_args, get_type_hints

import torch
from pydantic import Field
from torch import Tensor

from hanse.base.errors import UserError
from hanse.base.factories import Count, Weight
from hanse.base.streams import stream
from hanse.base.toml import flat
from hanse.core.port import Ask, Derived, Gradient, Reply, Request, Result, Train
from hanse.core.telling import Conduct
from hanse.data.samples import Samples
from hanse.federation.behaviour import (
    Attack,
    Attacker,
    Me,
    OfSome,
    from_centres,
    reported,
    updates,
    with_training,
    with_updates,
)
from hanse.federation.policy import ANSWERS

NUMBERS = ("samples", "steps", "loss", "accuracy")  # what is reported with updates and scores
KINDS = get_args(Attack)
Said = bool | Annotated[float, Field(allow_inf_nan=False)] | Literal["none", "all"]


@dataclass(frozen=True)
class Deviant(OfSome):
    """Some clients deviate in what they send, report and answer, and in when they do so.

    Attributes:
        clients: the ids of the clients. Several deviate in the same way, and lie about gradients together.
        second: what several deviants send together. "same": what they would send by themselves. "copied": the others
            send the first one's update. "mean": all send the mean of their updates. "opposed": the first adds noise of
            three times its update's length, and the others send this noise alone with the opposite sign. With "turns"
            they are there in odd rounds and the first in even ones.
        sends: what they send as their update. "trained": what they trained. "nothing": the model that came. "copied":
            this round's update of the honest client with the lowest id. "last": how the model that they are sent
            differs from the one before. "echo": a step as long as their update, but towards the models that they
            bought, as if their own samples had led there. The other choices are the kinds of
            :class:`hanse.federation.behaviour.Attacker`.
        adds: what they add to that update: "copied", so many times the same honest client's update; "noise", so many
            times as long as what they send.
        trains_on: the samples that deviants train on: their "own", the "judge"'s (the server's validation samples), or
            "public" ones (the server's test samples, which nobody else trains on). They still report the number of
            their own.
        longer: how many times as long they train as they are asked to.
        of: whether such a kind replaces the "update" or the whole "model".
        start: from which model they continue. "own": their start by the rules. "sent": the centre that they were sent,
            which is made of what they bought (iPFL, FedAMP); if they also send "nothing" of their own, they resell
            that. "kept": the model that they sent last.
        scale: a factor of the update that is sent.
        times: factors of numbers that deviants report. The numbers are "samples", "steps", "loss" and "accuracy" of
            updates and scores (an accuracy stays within 0 and 1), or the numbers of an answer, as in "declare.cost" or
            "buy.weights".
        says: what deviants answer, whatever the truth is, by question and field. It is a number ("declare.cost" = 0),
            true or false ("offer.sell"), or "none" or "all" of a list ("bid.tiers", "buy.sellers").
        gradient: the length of a false gradient that they send when asked for one. It makes their own update of the
            round seem the best. 0: they send the true gradient.
        silent: whether deviants do not answer when they are asked to train.
        since: the first round in which clients deviate.
        leaves: the first round in which deviants are gone. None: they stay.

    Examples:
        A deviant that claims twice its samples, and sends back the received model:

        >>> import torch
        >>> from hanse.core.port import Trained
        >>> from hanse.core.recipe import Recipe
        >>> me = Me(2, num_clients=4, seed=0, recipe=Recipe(), num_parameters=3)
        >>> request = Request(2, (Train(seat=0, row=0, start=torch.zeros(3)),))
        >>> reply = Reply(2, (Trained(seat=0, row=torch.ones(3), num_samples=20, loss=0.5, steps=2),))
        >>> sent = Deviant(clients=[2], sends="nothing", times={"samples": 2.0}).on_reply(me, 0, request, reply)
        >>> sent.results[0].row, sent.results[0].num_samples
        (tensor([0., 0., 0.]), 40.0)
    """

    sends: Literal["trained", "nothing", "copied", "last", "echo"] | Attack = "trained"
    adds: Mapping[Literal["copied", "noise"], Weight] = field(default_factory=dict)
    trains_on: Literal["own", "judge", "public"] = "own"
    longer: Annotated[int, Field(ge=1, le=1000)] = 1
    of: Literal["update", "model"] = "update"
    start: Literal["own", "sent", "kept"] = "own"
    scale: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    times: Mapping[str, Weight] = field(default_factory=dict)
    says: Mapping[str, Said] = field(default_factory=dict)
    gradient: Weight = 0.0
    silent: bool = False
    since: Count = 0
    leaves: Count | None = None
    second: Literal["same", "copied", "mean", "opposed", "turns"] = "same"
    steps: dict[int, Tensor] = field(default_factory=dict, init=False, compare=False, repr=False)
    memory: dict[str, Tensor] = field(default_factory=dict, init=False, compare=False, repr=False)
    sent: dict[tuple[int, int], tuple[int, Tensor]] = field(default_factory=dict, init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        lines = [
            f"times.{key}: must be {_options()}"
            for key in self.times
            if key not in NUMBERS and not _right(key, float) and key != "buy.weights"
        ]
        for key, value in self.says.items():
            kind = bool if isinstance(value, bool) else list if isinstance(value, str) else float
            if not _right(key, kind):
                lines.append(f"says.{key}: {value!r}: must be an answer's field of that type, such as {_options()}")
        if lines:
            raise UserError(*lines)

    def present(self, me: Me, round: int) -> bool:
        """Return whether the client is present."""
        if me.id not in self.clients:
            return True
        turn = self.second != "turns" or round < self.since or (round % 2 == 0) == (me.id == self.clients[0])
        return turn and (self.leaves is None or round < self.leaves)

    def on_request(self, me: Me, round: int, request: Request) -> Request | None:
        """Return the request, or None if it asks a silent client to train."""
        if me.id not in self.clients or round < self.since:
            return request
        if self.silent and any(isinstance(task, Train) for task in request.tasks):
            return None
        if self.longer > 1:
            whole = me.recipe.steps if me.recipe.steps is not None else me.recipe.epochs
            request = with_training(request, lambda task: replace(task, work=self.longer * (task.work or whole)))
        if self.start == "kept" and (go_on := self.memory.get(f"kept/{me.id}")) is not None:
            return with_training(request, lambda task: replace(task, start=go_on))
        return from_centres(request) if self.start == "sent" else request

    def studies(self, me: Me, round: int, sets: Mapping[str, Samples]) -> Samples | None:
        """Return the samples that the client trains on instead of its own. Raises UserError if there are none."""
        if me.id not in self.clients or round < self.since or self.trains_on == "own":
            return None
        if self.trains_on not in sets:
            raise UserError(f"deviant.trains_on: '{self.trains_on}': these samples are not here; try 'own'")
        return sets[self.trains_on]

    def overhears(self, round: int, told: Mapping[int, tuple[Request, Reply]]) -> None:
        """Note the round's updates of the deviants, and of the honest client with the lowest id."""
        if not any(isinstance(task, Train) for request, _ in told.values() for task in request.tasks):
            return
        self.steps.clear()
        for client, (request, reply) in sorted(told.items()):
            if client in self.clients or self._copied() is None:
                for task, result in updates(request, reply):
                    self.steps[client] = result.row - task.start.to(result.row.device)
                    if client in self.clients and self.sends == "last":  # its model beside the one before
                        before = self.memory.get(f"start/{client}", task.start)
                        self.memory.update({f"moved/{client}": task.start - before, f"start/{client}": task.start})

    def on_reply(self, me: Me, round: int, request: Request, reply: Reply) -> Reply:
        """Return the reply with the client's deviations."""
        if me.id not in self.clients or round < self.since:
            return reply
        reply = with_updates(request, reply, lambda task, r: replace(r, row=self._row(me, round, task, r.row)))
        asked = {task.name: task for task in request.tasks if isinstance(task, Ask | Gradient)}
        told = (self._told(round, asked.get(getattr(r, "name", "")), r) for r in reply.results)
        return replace(reply, results=tuple(told))

    def tells(self, num_clients: int, seed: int) -> Conduct:
        """Return the clients that deviate, as cheats, and how."""
        told = f"Deviants do what would pay them ({said_of(self)})."
        return Conduct("deviants", told, self.those(num_clients), cheats=True)

    def _row(self, me: Me, round: int, task: Train, row: Tensor) -> Tensor:
        """Return the model that is sent instead of the trained ``row [P]``; buffers follow the update."""
        start, width, lead = task.start.to(row.device), me.num_parameters, me.id == self.clients[0]
        mine = [step for client, step in self.steps.items() if client in self.clients]

        def moved(step: Tensor | None) -> Tensor:
            """Return the received model with a step; None: no step."""
            return start.clone() if step is None else start + step.to(start.device)

        if self.second == "mean":
            row = moved(torch.stack(mine).mean(0) if mine else None)
        elif self.second == "copied" and not lead:
            row = moved(self.steps.get(self.clients[0]))
        copied = self._copied()
        if self.sends in KINDS:
            attacker = Attacker(self.clients, kind=cast(Attack, self.sends), scale=self.scale, of=self.of)
            row = attacker.spoilt(me, round, task, row)
        elif self.sends == "echo":
            first = self.memory.setdefault(f"first/{me.id}", task.start)  # where it first deviated
            if task.centre is not None and task.mu:  # or it has bought nothing
                bought = (task.centre - first).to(row.device)
                row = moved((row - start).norm() * (self.scale * bought / (bought.norm() + 1e-12)))
        elif self.sends != "trained":
            step = {"copied": copied, "last": self.memory.get(f"moved/{me.id}")}.get(self.sends)
            row = moved(None if step is None else self.scale * step)
        elif self.scale != 1:
            row = row.clone()
            row[:width] = start[:width] + self.scale * (row[:width] - start[:width])
        if self.adds:
            step = row - start
            added = torch.zeros_like(step)
            if copied is not None:
                added += self.adds.get("copied", 0.0) * copied.to(step.device)
            if share := self.adds.get("noise", 0.0):
                noise = _direction(me, "added noise", round, width, me.id).to(step)
                added[:width] += share * step[:width].norm() * noise
            row = row + added
        if self.start == "kept":
            self.memory[f"kept/{me.id}"] = row
        if self.second == "opposed":
            noise, lead_step = torch.zeros_like(row), self.steps.get(self.clients[0])
            if lead_step is not None:
                noise[:width] = 3 * lead_step[:width].norm() * _direction(me, "opposed", round, width).to(noise)
            row = row + noise if lead else moved(-noise)
        if self.gradient:
            self.sent[me.id, task.row] = round, row
        return row

    def _copied(self) -> Tensor | None:
        """Return this round's update of the honest client with the lowest id. None: nobody honest trained."""
        return next((step for client, step in self.steps.items() if client not in self.clients), None)

    def _told(self, round: int, asked: Ask | Gradient | None, result: Result) -> Result:
        """Return a result as reported."""
        if isinstance(result, Derived) and self.gradient and isinstance(asked, Gradient):
            return replace(result, gradients=self._gradients(round, asked.models, result.gradients))
        return reported(result, self.times, self.says, asked.values if isinstance(asked, Ask) else {})

    def _gradients(self, round: int, models: Tensor, true: Tensor) -> Tensor:
        """Return gradients ``[C, P]`` that point away from what the deviants sent this round.

        A model is matched with the nearest update that each deviant sent.
        """
        rows: dict[int, list[Tensor]] = {}
        for (client, _), (sent_in, row) in self.sent.items():
            if sent_in == round:
                rows.setdefault(client, []).append(row.to(models.device))
        found = true.clone()
        for c, model in enumerate(models if rows else ()):
            nearest = [min(mine, key=lambda row: float((row - model).norm())) for mine in rows.values()]
            moved = torch.stack([row - model for row in nearest]).sum(0)
            found[c] = -self.gradient * moved[: found.shape[1]] / (moved.norm() + 1e-12)
        return found


def said_of(deviant: Deviant) -> str:
    """Return what a deviant does: the options of ``[behaviour.deviant]`` that honesty does not have."""
    options = {one.name: getattr(deviant, one.name) for one in fields(Deviant) if one.init and one.name != "clients"}
    changed = flat({name: said for name, said in options.items() if said != getattr(HONEST, name)})
    return ", ".join(f"{key} = {_shown(said)}" for key, said in sorted(changed)) or "nothing"


def _direction(me: Me, purpose: str, round: int, width: int, client: int | None = None) -> Tensor:
    """Return a random direction ``[width]``, of length 1; without a client, all deviants draw the same."""
    keys = {} if client is None else {"client": client}
    drawn = torch.from_numpy(stream(me.seed, purpose, round=round, **keys).standard_normal(width, dtype="float32"))
    return torch.nn.functional.normalize(drawn, dim=0)


def _shown(value: bool | float | str) -> str:
    return str(value).lower() if isinstance(value, bool) else value if isinstance(value, str) else f"{value:g}"


def fields_of(question: str) -> Mapping[str, type]:
    """Return the fields of the answer to a question that hanse's mechanisms ask, each as bool, float or list."""
    if question not in ANSWERS:
        return {}
    hints = get_type_hints(ANSWERS[question].kind)
    return {name: hint if hint in (bool, float) else list for name, hint in hints.items()}


def _right(key: str, kind: type) -> bool:
    """Return whether a key names an answer's field of a type. Questions of the user's own may have any field."""
    question, dot, name = key.partition(".")
    return bool(dot and name) and (question not in ANSWERS or fields_of(question).get(name) is kind)


def _options() -> str:
    return ", ".join([*NUMBERS, *(f"{q}.{name}" for q in ANSWERS for name in fields_of(q))])


HONEST = Deviant()
