"""Liars: clients that report something else than what is true."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

from pydantic import Field

from hanse.core.port import Answered, Reply, Request, Result, Trained
from hanse.core.telling import Conduct
from hanse.federation.behaviour.basic import Me, OfSome

__all__ = ["Liar"]

Ratio = Annotated[float, Field(ge=0, allow_inf_nan=False)]


@dataclass(frozen=True)
class Liar(OfSome):
    """The ``clients`` multiply what they report: the ``size`` of their data beside each update, and their ``cost`` and
    ``eagerness`` where a market asks for them (iPFL Table 4).
    """

    size: Ratio = 1.0
    cost: Ratio = 1.0
    eagerness: Ratio = 1.0

    def on_reply(self, me: Me, round: int, request: Request, reply: Reply) -> Reply:
        """Change what the client reports."""
        if me.id not in self.clients:
            return reply
        return replace(reply, results=tuple(self._told(r) for r in reply.results))

    def tells(self, num_clients: int, seed: int) -> Conduct:
        """Return who lies."""
        ratios = {"size of their data": self.size, "cost": self.cost, "eagerness": self.eagerness}
        lies = ", ".join(f"{name} times {ratio:g}" for name, ratio in ratios.items() if ratio != 1)
        told = f"Liars report something else than what is true: {lies}." if lies else "These liars report what is true."
        return Conduct("liars", told, self.those(num_clients), cheats=True, rank=30)

    def _told(self, result: Result) -> Result:
        if isinstance(result, Trained):
            return replace(result, num_samples=result.num_samples * self.size)
        if isinstance(result, Answered) and result.name == "declare":
            return replace(result, values=self._declared(result.values))
        return result

    def _declared(self, values: Mapping[str, Any]) -> Mapping[str, Any]:
        ratios = {"cost": self.cost, "eagerness": self.eagerness}
        return {
            key: value * ratios[key] if key in ratios and value not in (0, float("inf")) else value
            for key, value in values.items()
        }
