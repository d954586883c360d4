"""How a client trades models: what it declares, the most that it pays, and when it has had enough."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

from hanse.core.entry import TOKEN
from hanse.federation.behaviour import Me
from hanse.federation.profiles import at_round

__all__ = ["Trader"]

DECLARED = ("cost", "eagerness")


@dataclass(frozen=True)
class Trader:
    """Declares its profile, pays at most ``most`` tokens a round (None: any bill), and stays for ``patience`` rounds in
    which its models were withheld from it (None: for ever).
    """

    most: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    patience: Annotated[int, Field(ge=0)] | None = None

    def declare(self, me: Me, round: int, told: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return ``cost`` (tokens for each sharing of its model) and ``eagerness`` as they are this round."""
        now = at_round(told.get("profile", {}), round)
        return {key: now[key] for key in DECLARED if key in now}

    def authorise(self, me: Me, round: int, told: Mapping[str, Any]) -> int | None:
        """Return the most that it pays this round, in units."""
        now = at_round(told.get("profile", {}), round)
        most = now.get("most", self.most)
        return None if most is None else int(most * TOKEN)

    def stay(self, me: Me, round: int, told: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return whether it stays; ``told["unpaid"]`` counts the rounds in which its models were withheld."""
        return {"stay": self.patience is None or told.get("unpaid", 0) <= self.patience}
