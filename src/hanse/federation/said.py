"""What policies answer to the questions that hanse asks them, as types; other questions may be answered by any plain
values.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field
from typing_extensions import TypedDict

from hanse.core.declared import Declared, Int64

__all__ = ["ANSWERS", "Bid", "Offer", "Stay"]


class Stay(TypedDict, total=False):
    """To "stay": whether it does (it does, if it does not say)."""

    stay: bool


class Bid(TypedDict, total=False):
    """To "bid": the tiers that it bids for, its favourite first; a number that no tier has is a bad bid."""

    tiers: Annotated[list[Int64] | tuple[Int64, ...], Field(max_length=10_000)]


class Offer(TypedDict, total=False):
    """To "declare": its cost (infinity: it does not sell) and its eagerness."""

    cost: float
    eagerness: float


ANSWERS: Mapping[str, Declared[Any]] = {
    "stay": Declared(Stay),
    "bid": Declared(Bid),
    "declare": Declared(Offer),
}
