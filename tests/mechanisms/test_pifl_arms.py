"""PI-FL's arms beside the default: several bids a client, accounts that run dry, the authors' code's choices."""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from test_pifl import experiment, watched

from hanse.core.entry import TOKEN
from hanse.core.part import View
from hanse.data import DataSpec, build
from hanse.federation.behaviour import Me
from hanse.federation.policy import BestTier
from hanse.mechanisms.pifl import Bids
from tests.learning.helpers import worth_of


def bids_of(view: View) -> np.ndarray:
    """Return which bids were in escrow before anybody was chosen, ``[N, K]``."""
    held = np.zeros((20, 2), bool)
    for transaction in view.posted:
        kind, _, tier = transaction.step.partition("/")
        for name, units in transaction.postings if kind == "bid" else ():
            if name.startswith("escrow/"):
                assert units == TOKEN
                held[int(name.removeprefix("escrow/")), int(tier)] = True
    return held


def test_with_a_threshold_below_the_best_a_client_bids_twice_and_sits_in_two_tiers_in_one_round() -> None:
    run, views = watched(clients={"policy": {"name": "best_tier", "threshold": 0.9}}, run={"rounds": 2})
    view = views[1]
    bids, seats, models, kept = bids_of(view), view.seats, view.table.rows, view.get(Bids)
    pool, index = build(DataSpec(**experiment().data.model_dump())).pool(list(range(20)))
    for c, own in enumerate(index):  # all of its samples: fewer than score_samples
        v = [worth_of(run.problem, row, pool.take(own), "accuracy") for row in models]
        assert bids[c, int(np.argmax(v))]
        assert (min(v) > 0.9 * max(v)) is bool(bids[c].all())  # Algorithm 1, T_h as a share of the best weight
    both = np.flatnonzero(kept.escrowed.all(1)).tolist()
    assert both
    for c in both:  # both bids won a seat: it trains both models and pays for both
        assert sorted(seats.target[seats.client == c].tolist()) == [0, 1]


def test_bids_and_accuracies_may_come_from_the_validation_share() -> None:
    run, views = watched(mechanism={"settle": {"score_on": "validation", "score_samples": 10_000}}, run={"rounds": 3})
    before, now = views[1], views[2]
    pool, index = build(DataSpec(**experiment().data.model_dump())).pool(list(range(20)), "validation")
    bids = before.get(Bids)
    for c, own in enumerate(index):
        right = [worth_of(run.problem, row, pool.take(own), "accuracy") for row in before.table.rows]
        if right[0] != right[1]:
            assert bids.wanted[c] == [int(np.argmax(right))]
    group = before.trained.seats.client[before.trained.seats.target == 0].tolist()
    held = torch.cat([index[c] for c in group])
    expected = worth_of(run.problem, now.table.rows[0], pool.take(held), "accuracy")
    assert now.settlement.metrics["tokens/tier 0/accuracy"] == pytest.approx(expected, abs=1e-9)


HEARD: dict[tuple[int, int], list[float]] = {}


@dataclass(frozen=True)
class Listening:
    """Bids for the best tier, and keeps what it was told that tiers paid."""

    def bid(self, me: Me, round: int, told: Mapping[str, Any]) -> Mapping[str, Any]:
        HEARD[round, me.id] = told["paid"]
        return BestTier().bid(me, round, told)


@pytest.mark.parametrize(("tell", "kinds"), [("net", ("pay", "reimburse", "reward")), ("rewards", ("reward",))])
def test_bidders_are_told_net_payments_or_rewards_alone(tell: str, kinds: tuple[str, ...]) -> None:
    clients = {"policy": f"{__name__}:Listening"}
    _, views = watched(clients=clients, mechanism={"settle": {"tell": tell}}, run={"rounds": 5})
    total, sat = np.zeros((20, 2)), np.zeros((20, 2))
    for before, now in itertools.pairwise(views[:4]):  # what is settled in round 3 is told in round 4
        np.add.at(sat, (before.trained.seats.client, before.trained.seats.target), 1)
        for transaction in now.posted:
            kind, _, tier = transaction.step.partition("/")
            for name, units in transaction.postings if kind in kinds else ():
                if name.startswith(("client/", "escrow/")):
                    total[int(name.partition("/")[2]), int(tier)] += units
    heard = np.array([HEARD[4, c] for c in range(20)])
    np.testing.assert_allclose(heard, total / np.maximum(1, sat))
    assert (heard < 0).any() == (tell == "net")
