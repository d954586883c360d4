"""Attackers: clients that send something else than what they trained."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from hanse.base.streams import stream
from hanse.core.port import Reply, Request, Train, Trained
from hanse.core.telling import Conduct
from hanse.federation.behaviour.basic import Me, OfSome, with_updates

__all__ = ["Attack", "Attacker"]

Attack = Literal["random", "shuffle", "flip", "same", "gaussian"]
_SENT: dict[Attack, str] = {
    "random": "random models",
    "shuffle": "shuffled updates",
    "flip": "the opposite of their updates",
    "same": "one value everywhere",
    "gaussian": "noise",
}


@dataclass(frozen=True)
class Attacker(OfSome):
    """The ``clients`` send ``kind`` of thing instead of their models, from round ``since`` on (iPFL sec. E.4, 6.2).

    "random": a random model, drawn anew each round, with the spread of the one that it was sent; the others turn the
    update (what training changed): "shuffle" its elements, "flip" its sign, the "same" value at each element,
    "gaussian" noise, all of the update's own length times ``scale``.
    """

    kind: Attack = "random"
    scale: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    since: Annotated[int, Field(ge=0)] = 0

    def on_reply(self, me: Me, round: int, request: Request, reply: Reply) -> Reply:
        """Replace the client's uploads; a private row is its own and stays."""
        if me.id not in self.clients or round < self.since:
            return reply

        def spoil(task: Train, result: Trained) -> Trained:
            draw = stream(me.seed, "attack", round=round, client=me.id, start=task.row)
            width = me.num_parameters
            row = result.row.clone()
            row[:width] = self._spoilt(draw, task.start[:width].to(row.device), row[:width])
            return replace(result, row=row)

        return with_updates(request, reply, spoil)

    def tells(self, num_clients: int, seed: int) -> Conduct:
        """Return who attacks."""
        what = _SENT[self.kind]
        told = f"Attackers send {what} instead of the models that they trained, from round {self.since} on."
        return Conduct("attackers", told, self.those(num_clients), cheats=True)

    def _spoilt(self, draw: np.random.Generator, start: Tensor, row: Tensor) -> Tensor:
        """Return the parameters that are sent instead of ``row [P]``."""
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

    @staticmethod
    def _normal(draw: np.random.Generator, row: Tensor) -> Tensor:
        return torch.from_numpy(draw.standard_normal(len(row), dtype="float32")).to(row.device)
