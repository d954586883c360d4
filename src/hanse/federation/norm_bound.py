"""A bound on the norm of updates: updates that are far longer than the others of their round are refused.

``[federation] refuse`` turns it on. It is off by default for two reasons: it hides how a mechanism itself handles
attackers, and it refuses honest updates if clients differ much. :class:`Bounded` wraps the federation of any engine, so
it works the same with all engines. :class:`NormBound` is its rule.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import Field

from hanse.base.errors import named
from hanse.base.factories import call
from hanse.core.port import Reply, Request, Train, Trained
from hanse.federation.check import refusal
from hanse.federation.wrapped import Wrapped


@dataclass(frozen=True)
class NormBound:
    """Refuses an update that is longer than a multiple of the median in its exchange.

    Attributes:
        times: the multiple, above 1.
        least: the smallest number of sound updates with which anything is refused, at least 5. A median of fewer
            updates means too little.
    """

    times: Annotated[float, Field(gt=1, allow_inf_nan=False)] = 3.0
    least: Annotated[int, Field(ge=5)] = 5

    def refusals(self, norms: Mapping[int, Sequence[float]]) -> Mapping[int, str]:
        """Return the reason for each client whose update is refused.

        Args:
            norms: the lengths of each client's updates, one for each seat.
        """
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
    """Return the rule that ``[federation] refuse`` names, or None.

    Args:
        given: "norm_bound", an import path, or a table of either as ``name`` with the rule's options
            (:class:`NormBound`). None: nothing is refused.

    Raises:
        UserError: there is no such rule, or an option is not allowed.
    """
    if given is None:
        return None
    return call(*named(given, "federation.refuse", REFUSALS), "federation.refuse")


@dataclass(frozen=True)
class Bounded(Wrapped):
    """A federation without the updates that a rule refuses.

    The server does not see private rows, so they are not bounded.

    Attributes:
        bound: the rule, such as :class:`NormBound`, or any object with such a method ``refusals``.
        size: P, the columns of a model.
        width: how many columns are parameters. Norms are taken over these, relative to the row that was sent.
    """

    bound: Any
    size: int
    width: int

    def heard(
        self, round: int, asked: Mapping[int, Request], replies: Sequence[Reply], deadline_s: float | None
    ) -> Sequence[Reply]:
        """Return the replies. Those over the bound are replaced by the reason."""
        sound = [r for r in replies if r.client in asked and refusal(asked[r.client], r, self.size) is None]
        norms = {r.client: self._norms(asked[r.client], r) for r in sound}
        over = self.bound.refusals({client: mine for client, mine in norms.items() if mine})
        return [replace(r, results=(), refused=over[r.client]) if r.client in over else r for r in replies]

    def _norms(self, request: Request, reply: Reply) -> list[float]:
        """Return the lengths of a reply's updates, one for each seat that is not private."""
        return [
            float(torch.linalg.vector_norm((result.row - task.start)[: self.width], dtype=torch.float64))
            for task, result in zip(request.tasks, reply.results, strict=True)
            if isinstance(task, Train) and isinstance(result, Trained) and not task.private
        ]
