"""A bound on the norm of updates: a federation that refuses those far longer than the others of their round.

Off by default: it hides what a mechanism itself does to attackers, and it refuses honest updates where clients differ
much. It is a wrapper around any engine's federation, so it acts the same in all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import Field

from hanse.base.errors import named
from hanse.base.factories import call
from hanse.core.port import Closing, Federation, Reply, Request, Roster, Train, Trained
from hanse.federation.check import refusal


@dataclass(frozen=True)
class NormBound:
    """Refuses an update that is longer than ``times`` the median of its exchange; with fewer than ``least`` sound
    replies that trained, a median says too little and nothing is refused.
    """

    times: Annotated[float, Field(gt=1, allow_inf_nan=False)] = 3.0
    least: Annotated[int, Field(ge=5)] = 5

    def refusals(self, norms: Mapping[int, Sequence[float]]) -> Mapping[int, str]:
        """Return the reasons, by client; ``norms`` are the lengths of each client's updates (one a seat)."""
        if len(norms) < self.least:
            return {}
        median = float(np.median([norm for mine in norms.values() for norm in mine]))
        bound = self.times * median
        return {
            client: f"update of norm {max(mine):.4g}: the bound is {bound:.4g}, {self.times:g} times the median"
            for client, mine in norms.items()
            if max(mine) > bound
        }


REFUSALS: Mapping[str, Callable[..., Any]] = {"norm_bound": NormBound}


def build_refusal(given: str | Mapping[str, Any] | None) -> Any:
    """Return what ``[federation] refuse`` names, or None. Raises UserError."""
    if given is None:
        return None
    return call(*named(given, "federation.refuse", REFUSALS), "federation.refuse")


@dataclass(frozen=True)
class Bounded:
    """``inner`` with the updates refused that ``bound`` refuses.

    ``size`` is P; a norm is taken of the first ``width`` columns, the parameters, relative to the row that was sent.
    Private rows are not seen by the server and not bounded.
    """

    inner: Federation
    bound: Any
    size: int
    width: int = field(default=0)

    def present(self, round: int) -> Roster:
        """Return the clients that ``inner`` has."""
        return self.inner.present(round)

    def exchange(
        self, round: int, requests: Sequence[Request], deadline_s: float | None, closing: Closing | None
    ) -> Sequence[Reply]:
        """Return the replies; of those over the bound only the reason is left."""
        replies = self.inner.exchange(round, requests, deadline_s, closing)
        asked = {r.client: r for r in requests}
        sound = [r for r in replies if r.client in asked and refusal(asked[r.client], r, self.size) is None]
        norms = {r.client: self._norms(asked[r.client], r) for r in sound}
        over = self.bound.refusals({client: mine for client, mine in norms.items() if mine})
        return [replace(r, results=(), refused=over[r.client]) if r.client in over else r for r in replies]

    def _norms(self, request: Request, reply: Reply) -> list[float]:
        return [
            float(torch.linalg.vector_norm((result.row - task.start)[: self.width], dtype=torch.float64))
            for task, result in zip(request.tasks, reply.results, strict=True)
            if isinstance(task, Train) and isinstance(result, Trained) and not task.private
        ]
