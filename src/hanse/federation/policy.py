"""What a client decides for itself, replaceable by import path.

A policy is a frozen dataclass with a method for each question that it answers in a way of its own; the others are
answered as :class:`Loyal` does, and a question that no policy knows is refused. It sees what the server tells it and
itself, nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

from hanse.federation.behaviour import Me
from hanse.federation.bids import BestTier, BudgetLimited, FreeRider, RandomTiers, RewardSeeking
from hanse.federation.trade import Trader

__all__ = ["POLICIES", "Loyal", "QuitsWhenWorthless", "answer"]


@dataclass(frozen=True)
class Loyal:
    """Stays whatever it is told, and bids for the tier that fits best."""

    def stay(self, me: Me, round: int, told: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return ``{"stay": True}``."""
        return {"stay": True}

    def declare(self, me: Me, round: int, told: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the cost and eagerness of its profile (see :mod:`hanse.federation.trade`)."""
        return Trader().declare(me, round, told)

    def bid(self, me: Me, round: int, told: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the tiers bid for (see :mod:`hanse.federation.bids`)."""
        return BestTier().bid(me, round, told)


@dataclass(frozen=True)
class QuitsWhenWorthless:
    """Leaves once its mean value over at least ``rounds`` rounds that it sat in is below ``below``.

    It is told ``value`` (the last one), ``mean`` and ``times`` (how often it was valued).
    """

    below: Annotated[float, Field(allow_inf_nan=False)] = 0.0
    rounds: Annotated[int, Field(ge=1)] = 2

    def stay(self, me: Me, round: int, told: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return whether it stays."""
        return {"stay": told["times"] < self.rounds or told["mean"] >= self.below}


POLICIES: Mapping[str, Callable[..., Any]] = {
    "loyal": Loyal,
    "quits": QuitsWhenWorthless,
    "best_tier": BestTier,
    "reward_seeking": RewardSeeking,
    "random_tiers": RandomTiers,
    "free_rider": FreeRider,
    "budget_limited": BudgetLimited,
    "trader": Trader,
}


def answer(policy: Any, question: str, me: Me, round: int, told: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the policy's answer to a question, else :class:`Loyal`'s, or None if neither has a method for it."""
    method = getattr(policy, question, None) or getattr(Loyal(), question, None)
    if method is None:
        return None
    found: Mapping[str, Any] = method(me, round, told)
    return found
