"""PI-FL (Khan et al. 2023): clients bid tokens for the tiers that suit their data, good contributions are paid, and
each client mixes the tiers' models for itself. And TIFF (Han et al. 2022), which it extends: tokens on one model.

A round: bids on importance weights (Alg. 1, eq. 3), the round before is settled (eqs 6-14), each tier trains the
bidders that were worth most to it and a few at random (Alg. 3), and is averaged by samples; contributions are
first-order Shapley values on the clients' own data (Alg. 2). How the paper was read: docs/papers.md, P1-P23.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from hanse.mechanisms.deploy import OneShot, ServerModel
from hanse.mechanisms.part import Mechanism
from hanse.mechanisms.select.tiers import PretrainedTiers, Tiers
from hanse.mechanisms.settle import ServerTokens, Tokens
from hanse.mechanisms.tiers import TierModels
from hanse.mechanisms.train import SharedModel
from hanse.mechanisms.value import FirstOrder
from hanse.mechanisms.value_held import FirstOrderAtClients
from hanse.mechanisms.weigh import BySamples

__all__ = ["pifl", "tiff"]

Count = Annotated[int, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]
Price = Annotated[float, Field(ge=1e-6, le=1e9)]


def pifl(
    tiers: Annotated[int, Field(ge=1)] = 2,
    by_contribution: Count = 8,
    at_random: Count = 2,
    price: Price = 1.0,
    eta: Share = 0.5,
    gamma: Share = 0.1,
    score_samples: Annotated[int, Field(ge=1)] | None = 64,
    personal_from: Literal["validation", "train"] = "validation",
    pretraining: Count = 0,
) -> Mechanism:
    """PI-FL with K = ``tiers``, N_p = ``by_contribution`` and N_r = ``at_random`` clients for each of them, a bid of
    ``price`` tokens, ``eta`` and ``gamma`` of eq. (9), and ``pretraining`` rounds before the first tiers.
    """
    chosen = PretrainedTiers(pretraining, None, by_contribution, at_random) if pretraining else None
    return Mechanism(
        name="pifl",
        select=chosen or Tiers(by_contribution, at_random),
        train=TierModels(tiers),
        weigh=BySamples(),
        value=FirstOrderAtClients(samples=score_samples),
        settle=Tokens(price, eta, gamma, score_samples, pretraining + 1),
        deploy=OneShot(personal_from),
    )


def tiff(
    by_contribution: Count = 8,
    at_random: Count = 2,
    price: Price = 1.0,
    eta: Share = 0.5,
    gamma: Share = 0.1,
    score_samples: Annotated[int, Field(ge=1)] | None = 64,
) -> Mechanism:
    """TIFF: PI-FL's tokens on one global model, with accuracies and contributions from the server's validation set."""
    return Mechanism(
        name="tiff",
        select=Tiers(by_contribution, at_random),
        train=SharedModel(),
        weigh=BySamples(),
        value=FirstOrder(),
        settle=ServerTokens(price, eta, gamma, score_samples),
        deploy=ServerModel(),
    )
