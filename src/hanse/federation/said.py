"""What policies answer to the questions that hanse asks them, as types; other questions may be answered by any plain
values.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field
from typing_extensions import TypedDict

from hanse.federation.declared import Count, Declared, Int64, Loss, Share

__all__ = ["ANSWERS", "OWN_ROW", "PERSONAL", "Bid", "Offer", "Stay", "Tried"]

PERSONAL = "personal model"  # the question's name; it carries the models
OWN_ROW = "own row"  # how well the client's private row does; it carries the first one, which all had


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


class Tried(TypedDict):
    """To a test of a model: its loss, its accuracy (None: there is none), and on how many samples."""

    loss: Loss
    accuracy: Share | None
    num_samples: Count


_TRIED = Declared[Tried](Tried)
ANSWERS: Mapping[str, Declared[Any]] = {
    "stay": Declared(Stay),
    "bid": Declared(Bid),
    "declare": Declared(Offer),
    PERSONAL: _TRIED,
    OWN_ROW: _TRIED,
}
