"""What clients bid for at PI-FL's auctions: policies that answer "bid" with the tiers they want, the best one first.

A client is told ``tiers`` (how many there are), the ``price`` of a seat and its own ``balance`` (units), what each tier
has ``paid`` it so far (net units a seat, 0 where it never sat), and ``scores``: loss and accuracy of each tier's model
on its own samples, which only it sees.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field

from hanse.base.streams import stream
from hanse.core.entry import TOKEN
from hanse.core.telling import Conduct
from hanse.federation.behaviour.basic import Me, first_places, place
from hanse.learning.job import Scores

__all__ = ["BestTier", "BudgetLimited", "FreeRider", "RandomTiers", "RewardSeeking", "fit", "fits"]

Share = Annotated[float, Field(ge=0, le=1)]
Told = Mapping[str, Any]


def fit(loss: float, accuracy: float) -> float:
    """Return how well a model fits, from 0 to 1: its accuracy (PI-FL eq. 3), or ``1 / (1 + loss)`` for regression,
    where nothing is right or wrong; 0 if neither is known. An accuracy that somebody reports as less than 0 or more
    than 1 counts as 0 or 1.
    """
    if math.isfinite(accuracy):
        return min(1.0, max(0.0, accuracy))
    return 1 / (1 + loss) if math.isfinite(loss) and loss >= 0 else 0.0


def fits(scores: Scores) -> list[float]:
    """Return :func:`fit` of each scored model, ``[C]``."""
    return [fit(float(loss), float(right)) for loss, right in zip(scores.loss, scores.accuracy, strict=True)]


def _weights(told: Told) -> list[float]:
    scores = told["scores"]
    return [fit(loss, right) for loss, right in zip(scores["loss"], scores["accuracy"], strict=True)]


def _ranked(worth: Sequence[float], told: Told) -> list[int]:
    """Return the tiers by ``worth``, best first; of equals the one with the lower loss, then the lower tier."""
    loss = told["scores"]["loss"]
    return sorted(range(len(worth)), key=lambda k: (-worth[k], loss[k] if math.isfinite(loss[k]) else math.inf, k))


def _affordable(tiers: Sequence[int], told: Told, reserve: int = 0) -> Mapping[str, Any]:
    """Return the answer: as many of the tiers as the balance above ``reserve`` pays for, in their order."""
    most = max(0, told["balance"] - reserve) // told["price"]
    return {"tiers": list(tiers[:most])}


@dataclass(frozen=True)
class BestTier:
    """Bids for the tier whose model fits the client's own samples best, and for every other one whose importance weight
    is above the ``threshold`` (PI-FL Alg. 1; papers.md P22).

    The threshold is a share of the best weight; with ``rule = "absolute"`` it is a weight. With ``rule = "printed"``
    only tiers above the absolute threshold are bid for, so that untrained models get no bids: in the first
    ``start_rounds`` a random tier is bid for instead.
    """

    threshold: Share = 1.0
    rule: Literal["relative", "absolute", "printed"] = "relative"
    start_rounds: Annotated[int, Field(ge=0)] = 5

    def bid(self, me: Me, round: int, told: Told) -> Mapping[str, Any]:
        """Return the tiers bid for."""
        if self.rule == "printed" and round <= self.start_rounds:
            return RandomTiers().bid(me, round, told)
        v = _weights(told)
        order = _ranked(v, told)
        least = self.threshold * (v[order[0]] if self.rule == "relative" else 1.0)
        wanted = [k for k in order if v[k] > least]
        if self.rule != "printed" and order[0] not in wanted:
            wanted.insert(0, order[0])
        return _affordable(wanted, told)


@dataclass(frozen=True)
class RewardSeeking:
    """Bids for the tier with the largest importance weight plus ``weight`` times what it paid so far, in prices a seat
    (PI-FL sec. 3.1: preferences from importance weights and received rewards).
    """

    weight: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.5

    def bid(self, me: Me, round: int, told: Told) -> Mapping[str, Any]:
        """Return the one tier bid for."""
        worth = [v + self.weight * paid / told["price"] for v, paid in zip(_weights(told), told["paid"], strict=True)]
        return _affordable(_ranked(worth, told)[:1], told)


@dataclass(frozen=True)
class RandomTiers:
    """Bids for a random tier each round: PI-FL's ablation, clients that look at nothing."""

    def bid(self, me: Me, round: int, told: Told) -> Mapping[str, Any]:
        """Return the one tier bid for."""
        draw = stream(me.seed, "bid", round=round, client=me.id)
        return _affordable([int(draw.integers(told["tiers"]))], told)


@dataclass(frozen=True)
class FreeRider:
    """A ``fraction`` of the clients never bids: they pay nothing, take the models, and earn if they are invited; the
    others bid as ``best_tier``. (The behaviour "free_rider" bids, and sends back what it was sent.)
    """

    fraction: Share = 1.0

    def bid(self, me: Me, round: int, told: Told) -> Mapping[str, Any]:
        """Return no tier for a free rider."""
        rides = place(me, "free riders") < self.fraction * me.num_clients
        return {"tiers": []} if rides else BestTier().bid(me, round, told)

    def tells(self, num_clients: int, seed: int) -> Conduct:
        """Return who never bids."""
        found = first_places(seed, "free riders", num_clients, self.fraction * num_clients)
        told = "Some clients never bid: they pay nothing, take the models, and earn if they are invited."
        return Conduct("those who never bid", told, found, cheats=True, rank=20)


@dataclass(frozen=True)
class BudgetLimited:
    """Bids as ``best_tier`` as long as ``reserve`` tokens stay in its account."""

    reserve: Annotated[float, Field(ge=0, le=1e12)] = 90.0
    threshold: Share = 1.0

    def bid(self, me: Me, round: int, told: Told) -> Mapping[str, Any]:
        """Return the tiers that the budget pays for."""
        wanted = BestTier(self.threshold).bid(me, round, told)["tiers"]
        reserve = int(self.reserve * TOKEN)
        return _affordable(wanted, told, reserve)
