"""Lies on random markets: each gain by hand or by the market's own functions, counts, and bounds."""

from __future__ import annotations

import json

import numpy as np
import pytest
from typer.testing import CliRunner

import hanse
from hanse.cli import app
from hanse.games.market import Market
from hanse.games.market_posted import Tariff
from hanse.wings.attack.random_markets import (
    LIES,
    Lie,
    Rule,
    lies,
    random_market,
    rule_of,
    search_markets,
    search_these,
)
from hanse.wings.attack.search import small

POSTED = Rule("posted", leaves=60)


def market(far: float = 0.1) -> Market:
    """One seller of 300 samples at a cost of .4, and a buyer of 100 with an eagerness of 1e4."""
    return Market.of([[0, far], [far, 0]], [300, 100], [0.4, np.inf], [0, 1e4], lam=1.0)


def test_a_seller_that_says_more_is_paid_more_until_it_is_audited() -> None:
    price = 0.5 + 0.1 * 300 / 1000
    honest = Rule("posted").worth(market(), market())
    # the buyer gains sqrt(1e4/100) - sqrt(1e4/400) = 5, less the price and 1 x 300/100 x .1
    assert honest == pytest.approx([price - 0.4, 5 - price - 0.3])
    assert Lie("size up", 0, 2.0).gain(Rule("posted"), market(), honest[0]) == pytest.approx(0.03)
    audited = Rule("posted", leaves=1, bond=10.0)  # passes one time in two, or loses 10 tokens in 50 rounds
    assert Lie("size up", 0, 2.0).gain(audited, market(), honest[0]) == pytest.approx(0.015 - 0.5 * 10 / 50)


def test_a_seller_that_says_less_gains_by_its_price_alone() -> None:
    far = market(far=1.6)  # all 300 would take 300/100 x 1.6 = 4.8 of 5; the buyer takes (50 / .016)^(2/3) - 100 = 114
    graph, _ = Rule("posted").trade(far, far, None)
    assert graph[1, 0] == pytest.approx(((50 / 0.016) ** (2 / 3) - 100) / 300)
    honest = Rule("posted").worth(far, far)
    assert honest[0] == pytest.approx(0.53 - 0.4)
    lie = Lie("size down", 0, 0.5)
    assert lie.gain(Rule("posted"), far, 0.13) == pytest.approx(-0.1 * 0.15)  # the same sale at a lower price
    dear = market(far=2.62)  # 54 samples bring 10 - sqrt(1e4 / 154) - .54 x 2.62 = .527: for .515, and not for .53
    assert Rule("posted").worth(dear, dear).tolist() == [0, 0]
    found = search_these(POSTED, "paper", [dear])
    assert (found.pays["size down"], found.touched["size down"], found.losers) == (1, 1, 0)
    worst = found.worst
    assert worst[0].what == "size down"
    assert Rule("posted").worth(worst[0].told(dear), dear, 0)[1] > 0  # the buyer gains by it too


def test_by_weight_nothing_pays_where_a_claim_of_less_did() -> None:
    weight = Rule("posted", Tariff(by="weight"), leaves=60)
    dear = market(far=2.62)  # as above: the claim of less that paid by size
    assert search_these(weight, "paper", [dear]).worst is None
    truth = random_market("wide", np.random.default_rng(3))
    assert {lie.what for who in range(10) for lie in lies(weight, truth, who)} == set(LIES) - {"eagerness"}
    found = search_markets(weight, "wide", 1, seed=5)
    assert (dict.fromkeys(LIES, 0), 0) == (found.pays, found.losers)


def test_what_no_answer_depends_on_is_not_tried() -> None:
    truth = random_market("wide", np.random.default_rng(3))
    tried = [lie for who in range(10) for lie in lies(POSTED, truth, who)]
    assert not any(lie.what == "eagerness" for lie in tried)
    assert {lie.factor for lie in tried if lie.what == "size up"} <= {1.05}
    for lie in tried:
        if lie.what == "cost":
            price = float(Tariff().price(truth.sizes[lie.who]))
            assert (lie.factor * truth.costs[lie.who] <= price) != (truth.costs[lie.who] <= price)
    assert {lie.what for who in range(10) for lie in lies(Rule(), truth, who)} == set(LIES)


def test_the_bound_of_nothing_found() -> None:
    found = search_markets(POSTED, "paper", 2)
    assert found.at_most("size up") == pytest.approx(1 - 0.05 ** (1 / 2))
    assert (found.losers, found.worst) == (0, None)
    assert 0.9 < found.welfare <= 1.01


def test_the_command() -> None:
    words = ["attack", "ipfl_posted", "--set", "sizes.proved=true"]
    shown = CliRunner().invoke(app, [*words, "--markets", "1", "--json"])
    assert shown.exit_code == 0, shown.output
    assert [one["kind"] for one in json.loads(shown.stdout)] == ["paper", "wide"]
    for more, line in (("0", "--markets 0"), ("1 --set train.lr=0.1", "--set train.lr=0.1")):
        assert line in str(CliRunner().invoke(app, [*words, "--markets", *more.split()]).exception)
    with pytest.raises(hanse.UserError, match="'fedavg'"):
        rule_of(hanse.Experiment(**small("fedavg")))
    assert rule_of(hanse.Experiment(**small("ipfl") | {"sizes": {"proved": True}})) == Rule(leaves=30)
