"""Clients that bid and take, and do no work."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

from pydantic import Field

from hanse.core.port import Reply, Request, Train, Trained
from hanse.core.telling import Conduct
from hanse.federation.behaviour.basic import Behaviour, Me, first_places, place

__all__ = ["FreeRider"]


@dataclass(frozen=True)
class FreeRider(Behaviour):
    """A ``fraction`` of the clients sends back the model as it was sent, as if it had trained it."""

    fraction: Annotated[float, Field(ge=0, le=1)] = 0.2

    def on_reply(self, me: Me, round: int, request: Request, reply: Reply) -> Reply:
        """Put the model that came in place of the update."""
        if place(me, "free riders") >= self.fraction * me.num_clients:
            return reply
        start = {t.seat: t.start for t in request.tasks if isinstance(t, Train)}
        results = tuple(
            replace(r, row=start[r.seat].clone()) if isinstance(r, Trained) and r.seat in start else r
            for r in reply.results
        )
        return replace(reply, results=results)

    def tells(self, num_clients: int, seed: int) -> Conduct:
        """Return who rides for free."""
        found = first_places(seed, "free riders", num_clients, self.fraction * num_clients)
        told = "Free riders send back the model that they were sent, as if they had trained it."
        return Conduct("free riders", told, found, cheats=True, rank=10)
