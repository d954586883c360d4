"""What a charter puts between a run's clients and its server: members only, a quorum, and no question beyond it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from hanse.base.errors import UserError
from hanse.base.plain_text import quantity
from hanse.core.port import Call, Federation, Mask, Reply, Request, Roster, Train
from hanse.core.table import Ints
from hanse.data.federated import FederatedData
from hanse.federation.check import refusal
from hanse.federation.wrapped import Wrapped
from hanse.runs.config import Experiment
from hanse.runs.guards import Guard
from hanse.wings.charter.charter import Charter, charter_of


@dataclass(frozen=True)
class Chartered(Wrapped):
    """A federation under a charter.

    Attributes:
        charter: the charter.
        members: the member of each client that was present so far, by the client's number.
    """

    charter: Charter
    members: dict[int, str] = field(default_factory=dict)

    def present(self, round: int) -> Roster:
        """Return the present clients of members. Others take no part."""
        here, of = self.inner.present(round), self.charter.by_client
        mine = [client for client in here if client.key in of or client.name in of]
        self.members.update({client.id: client.member(of) for client in mine})
        return here if len(mine) == len(here) else Roster(mine)

    def exchange(self, call: Call) -> Sequence[Reply]:
        """Ask members only what they answer. Training without a quorum has no updates: the model stays as it is."""
        barred = {request.client: why for request in call.requests if (why := self._barred(request))}
        asked = [request for request in call.requests if request.client not in barred]
        replies = [*super().exchange(replace(call, requests=asked))]
        replies += [Reply(client, refused=why) for client, why in barred.items()]
        train = {r.client: r for r in asked if any(isinstance(task, Train | Mask) for task in r.tasks)}
        sound = {r.client for r in replies if r.client in train and refusal(train[r.client], r) is None}
        lack = self.charter.lacks({self.members[client] for client in sound & self.members.keys()})
        return [
            replace(r, results=(), refused=f"no quorum: {lack}") if lack and r.client in sound else r for r in replies
        ]

    def _barred(self, request: Request) -> str:
        """Return why a client is not asked, or ""."""
        member = self.members.get(request.client, "")  # absent clients are tested, too
        answers = self.charter.answered_by(member)
        beyond = sorted({type(task).__name__ for task in request.tasks} - {*answers}) if answers is not None else []
        return f"{member} has not agreed to answer {beyond[0]}" if beyond else ""


class CharterGuard(Guard):
    """The charter of a run."""

    def __init__(self, experiment: Experiment, remote: bool = False) -> None:
        super().__init__(experiment, remote)
        self.charter = charter_of(experiment)
        self.agreement, self.answers = self.charter.hash, self.charter.answers
        if self.charter.sees and "Ask" not in (self.answers or ("Ask",)):
            raise UserError("charter.answers: sees is told in a question: must have 'Ask', or sees be left out")

    def settle(self, sizes: Ints | None) -> None:
        """Raise UserError if no round could have a quorum."""
        seats = self.experiment.mechanism.built.most_seats(self.experiment.data.clients)
        weights = self.charter.weights or {}
        heaviest = sorted(self.charter.members, key=lambda name: -weights.get(name, 0.0))[:seats]
        if lack := self.charter.lacks({*heaviest}):
            train = quantity(seats, "client trains", "clients train")
            raise UserError(f"charter.quorum: {train} in a round: no round could have it: {lack}")

    def clients(self, inner: Federation, data: FederatedData) -> Federation:
        """Raise UserError if the charter leaves a client out."""
        names, listed = data.names or [f"client {k}" for k in range(data.num_clients)], self.charter.by_client
        if out := [f"charter.members: '{one}' is a client, and no member's" for one in names if one not in listed]:
            raise UserError(*out)
        return inner

    def server(self, inner: Federation) -> Federation:
        """Return the federation under the charter."""
        return Chartered(inner, self.charter)

    def warns(self, sizes: Ints) -> list[str]:
        """Return a note with the charter's hash, and whether it can be amended."""
        more = f"; it {self.charter.stuck}" * bool(self.charter.stuck)
        return [f"note: under the charter '{self.charter.title}', {self.charter.hash}{more}"]
