"""What clients bid for."""

from typing import Any

import pytest

from hanse.core.entry import TOKEN
from hanse.core.recipe import Recipe
from hanse.federation.behaviour import Me
from hanse.federation.policy import BestTier, NeverBids, RandomTiers, RewardSeeking


def me(client: int = 3) -> Me:
    return Me(client, 10, 0, Recipe(), 5)


def told(accuracy: list[float], loss: list[float] | None = None, **more: Any) -> dict[str, Any]:
    n = len(accuracy)
    scores = {"accuracy": accuracy, "loss": loss or [1.0] * n, "num_samples": 64}
    return {"tiers": n, "price": TOKEN, "balance": 10 * TOKEN, "paid": [0.0] * n, "scores": scores, **more}


@pytest.mark.parametrize(
    ("policy", "accuracy", "tiers"),
    [
        (BestTier(), [0.2, 0.6, 0.5], [1]),
        (BestTier(), [0.0, 0.0], [0]),
        (BestTier(0.8), [0.2, 0.6, 0.5], [1, 2]),
        (BestTier(0.5, "absolute"), [0.7, 0.4, 0.6], [0, 2]),
        (BestTier(0.9, "absolute"), [0.7, 0.4, 0.6], [0]),  # the best one always (papers.md P22)
        (BestTier(0.9, "printed"), [0.7, 0.4, 0.6], []),  # Alg. 1 as printed
        (BestTier(0.5, "printed"), [0.5, 0.51, 0.6], [2, 1]),  # strictly above
    ],
)
def test_thresholds(policy: BestTier, accuracy: list[float], tiers: list[int]) -> None:
    assert policy.bid(me(), 9, told(accuracy)) == {"tiers": tiers}


def test_equal_weights_go_to_the_lower_loss_then_to_the_lower_tier() -> None:
    assert BestTier().bid(me(), 9, told([0.5, 0.5], [0.9, 0.8])) == {"tiers": [1]}
    assert BestTier().bid(me(), 9, told([0.5, 0.5], [0.8, 0.8])) == {"tiers": [0]}
    assert BestTier().bid(me(), 9, told([0.5, 0.5], [float("nan"), 0.8])) == {"tiers": [1]}


def test_the_printed_rule_starts_with_random_bids() -> None:
    policy = BestTier(0.9, "printed", start_rounds=3)
    assert [len(policy.bid(me(), r, told([0.1, 0.1]))["tiers"]) for r in (1, 2, 3, 4)] == [1, 1, 1, 0]


def test_nobody_bids_for_more_than_it_can_pay() -> None:
    assert BestTier(0.0).bid(me(), 9, told([0.2, 0.6, 0.5], balance=2 * TOKEN)) == {"tiers": [1, 2]}
    assert BestTier().bid(me(), 9, told([0.2, 0.6], balance=TOKEN - 1)) == {"tiers": []}


def test_rewards_outweigh_fit_if_they_are_large_enough() -> None:
    earned = {"paid": [0.3 * TOKEN, -0.1 * TOKEN]}
    assert RewardSeeking(0.0).bid(me(), 9, told([0.5, 0.6], **earned)) == {"tiers": [1]}
    assert RewardSeeking(1.0).bid(me(), 9, told([0.5, 0.6], **earned)) == {"tiers": [0]}


def test_random_bids_are_keyed_and_even() -> None:
    bids = [RandomTiers().bid(me(c), r, told([0.9, 0.1]))["tiers"][0] for c in range(10) for r in range(100)]
    assert bids == [RandomTiers().bid(me(c), r, told([0.1, 0.9]))["tiers"][0] for c in range(10) for r in range(100)]
    assert 420 < sum(bids) < 580


def test_a_fraction_rides_free() -> None:
    silent = [c for c in range(10) if not NeverBids(0.3).bid(me(c), 9, told([0.9]))["tiers"]]
    assert len(silent) == 3
    assert all(not NeverBids().bid(me(c), 9, told([0.9]))["tiers"] for c in range(10))
