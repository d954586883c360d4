"""What a client decides for itself, replaceable by import path.

A policy is a frozen dataclass with a method for each question that it answers; a question that it has no method for is
refused. It sees what the server tells it and itself, nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

from hanse.federation.behaviour import Me

__all__ = ["POLICIES", "Loyal", "QuitsWhenWorthless", "answer"]


@dataclass(frozen=True)
class Loyal:
    """Stays whatever it is told."""

    def stay(self, me: Me, round: int, told: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return ``{"stay": True}``."""
        return {"stay": True}


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


POLICIES: Mapping[str, Callable[..., Any]] = {"loyal": Loyal, "quits": QuitsWhenWorthless}


def answer(policy: Any, question: str, me: Me, round: int, told: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the policy's answer to a question, or None if it has no method for it."""
    method = getattr(policy, question, None)
    if method is None:
        return None
    found: Mapping[str, Any] = method(me, round, told)
    return found
