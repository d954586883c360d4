"""iPFL's market at posted prices in whole runs: bills by the tariff, offers, hostile answers, what the audit finds."""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from experiments import market
from forging import rerecorded
from test_ipfl import records as rounds_in

import hanse
from hanse.core.entry import TOKEN
from hanse.federation.behaviour import Me
from hanse.games.market_posted import APART
from hanse.reports.audit import audit_run
from hanse.runs.chance import unsold
from hanse.runs.round_record import round_file


def experiment(rounds: int = 4, policy: Any = "loyal", **more: Any) -> hanse.Experiment:
    roles = ["trader", "buyer", "seller", "trader", "trader"]
    profiles = {"name": "roles", "roles": roles, "eagerness": [5e4, 5e4], "cost": [0.2, 0.4]}
    mechanism = {"name": "ipfl_posted", **more.pop("mechanism", {})}
    return market(mechanism, 5, rounds, clients={"profiles": profiles, "policy": policy}, **more)


def records(folder: Path) -> list[dict[str, np.ndarray]]:
    return [r for r in rounds_in(folder) if "market_units" in r]


def markets(made: hanse.Experiment, folder: Path) -> list[dict[str, np.ndarray]]:
    """Play, and return the records of the rounds with a market: whatever anybody answers, the audit holds."""
    hanse.run(made, out=folder / "run")
    assert audit_run(folder / "run").holds
    return records(folder / "run")


def test_everybody_pays_the_tariff_and_the_audit_replays_it(tmp_path: Path) -> None:
    rounds = markets(experiment(), tmp_path)
    assert len(rounds) == 3
    assert sum(np.count_nonzero(r["market_graph"]) for r in rounds) > 6
    for r in rounds:
        price = np.floor((0.5 + 0.1 * r["market_graph"] * r["market_size"] / 1000) * TOKEN).astype(int)
        assert np.abs(r["market_units"] - (r["market_graph"] > 0) * price).max() <= 1
        assert not r["market_graph"][:, 1].any()  # a pure buyer's cost is infinite: it sells at no price
        assert not r["market_eagerness"].any()  # nobody is asked for it
    checks = {check.name for check in audit_run(tmp_path / "run").checks}
    assert {"offers", "payments", "true rationality", "conservation"} <= checks


@pytest.mark.parametrize(("start", "moves"), [("centre", True), ("own", False)])
def test_who_has_bought_goes_on_from_its_centre(start: str, moves: bool, tmp_path: Path) -> None:
    for before, now in pairwise(markets(experiment(mechanism={"start": start}), tmp_path)):
        pulled = before["market_graph"].any(axis=1) & before["market_paid"]
        assert pulled.any()
        centre = np.arange(5) + 5  # rows of models, then of centres
        assert now["start"].tolist() == np.where(pulled & moves, centre, np.arange(5)).tolist()


@dataclass(frozen=True)
class SellsFor:
    """Client 0 buys half of every offer. Of the sellers, the one with this number says what it sells for at least."""

    seller: int
    least: str

    def offer(self, me: Me, round: int, told: Mapping[str, Any]) -> Mapping[str, Any]:
        assert told["flat"] == 1.0
        return {"sell": True, "least": float(self.least)} if me.id == self.seller else {"sell": True}

    def buy(self, me: Me, round: int, told: Mapping[str, Any]) -> Mapping[str, Any]:
        assert (set(told["prices"]), told["per_sample"]) == ({1.0}, 0.002)
        assert self.least == "1.0" or self.seller not in told["sellers"]  # what no weight pays for is not shown
        sellers = told["sellers"] if me.id == 0 else []
        return {"sellers": sellers, "weights": [n / 2 for n in told["sizes"][: len(sellers)]]}


@pytest.mark.parametrize(("least", "sells"), [("1.0", True), ("9.0", False), ("nan", False), ("-1.0", False)])
def test_by_weight_a_buyer_pays_for_what_it_takes_and_nobody_sells_for_less_than_it_said(
    least: str, sells: bool, tmp_path: Path
) -> None:
    by_weight = {"name": "ipfl_posted", "flat": 1.0, "per_thousand": 2.0, "related": "none"}
    policy = {"name": f"{__name__}:SellsFor", "seller": 3, "least": least}
    for r in markets(experiment(mechanism=by_weight, policy=policy), tmp_path):
        assert np.isinf(r["market_cost"][3]) == (not sells)
        taken = np.array([0, 0.5, 0.5, 0.5 * sells, 0.5])
        assert r["market_graph"][0] == pytest.approx(taken)
        price = np.floor((1.0 + 0.002 * taken * r["market_size"]) * TOKEN)
        assert r["market_units"][0].tolist() == (price * (taken > 0)).tolist()
    copied = shutil.copytree(tmp_path / "run", tmp_path / "copy")
    rerecorded(copied, 0, market_least=np.full(5, 99.0))
    [check] = [check for check in audit_run(copied).checks if check.name == "offers"]
    assert not check.holds


@dataclass(frozen=True)
class TakesAll:
    """Client 0 buys all that is on sale, whatever it is worth; the others buy nothing."""

    def buy(self, me: Me, round: int, told: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"sellers": told["sellers"] if me.id == 0 else []}


class Spends(TakesAll):
    """And these sell below their cost."""

    def offer(self, me: Me, round: int, told: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"sell": True}


def test_who_chooses_to_lose_at_posted_prices_is_named_and_does_not_fail_the_market(tmp_path: Path) -> None:
    dear = {"name": "ipfl_posted", "flat": 12.0, "related": "none"}
    rounds = enumerate(markets(experiment(policy=f"{__name__}:Spends", mechanism=dear), tmp_path))
    [said] = [fact.said for fact in audit_run(tmp_path / "run").facts if fact.name == "own choices"]
    lost = {(r["market_client"][i], k) for k, r in rounds for i in np.flatnonzero(r["market_utility"] < 0)}
    assert {client for client, _ in lost} >= {0, 1}  # 1 only buys, and sells at an infinite cost
    assert said.startswith(f"clients {', '.join(str(c) for c in sorted({c for c, _ in lost}))} ")
    assert f"{len(lost)}" in said


def test_who_loses_by_a_size_that_was_not_there_did_not_choose_to(tmp_path: Path) -> None:
    liar = {"liar": {"clients": [2], "size": 60.0}}
    hanse.run(experiment(behaviour=liar, mechanism={"related": "none"}), out=tmp_path / "run")
    audit = audit_run(tmp_path / "run")
    [check] = [check for check in audit.checks if check.name == "true rationality"]
    assert not check.holds
    assert "own choices" not in {fact.name for fact in audit.facts}


@dataclass(frozen=True)
class Greedy:
    """Client 0 buys what it is told to, whatever is on sale."""

    sellers: Any = ()
    weights: Any = ()

    def buy(self, me: Me, round: int, told: Mapping[str, Any]) -> Mapping[str, Any]:
        assert set(told) == {
            "profile", "eagerness", "samples", "balance", "lam", "sellers", "sizes", "prices", "distances",
            "per_sample", "least",
        }  # fmt: skip
        assert me.id not in told["sellers"]
        return {"sellers": self.sellers, "weights": self.weights} if me.id == 0 else {"sellers": []}


@pytest.mark.parametrize(
    ("sellers", "weights"),
    [*(([2], weights) for weights in ([0.0], [-1.0], [1e300], [1e4], [5.0, 5.0], "all")),
     *((sellers, ()) for sellers in ([0], [1], [77], [-1], [2, 2, 1]))],
)  # fmt: skip
def test_a_purchase_of_what_is_not_on_offer_is_void_and_told_and_the_round_goes_on(
    sellers: Any, weights: Any, tmp_path: Path
) -> None:
    policy = {"name": f"{__name__}:Greedy", "sellers": sellers, "weights": weights}
    unbounded = {"bounded": False, "related": "none"}  # so that everybody's model is on sale to everybody
    run = hanse.run(experiment(rounds=3, policy=policy, mechanism=unbounded), out=tmp_path / "run")
    assert not any(r["market_graph"].any() for r in records(tmp_path / "run"))
    assert [line["refused"] for line in run.metrics] == [1, 1, 0]  # after the last training there is no market
    assert audit_run(tmp_path / "run").holds


def test_an_unrelated_model_is_on_sale_to_nobody(tmp_path: Path) -> None:
    greedy = {"name": f"{__name__}:Greedy", "sellers": [2]}  # whose changes have nothing in common with client 0's
    rounds = markets(experiment(policy=greedy), tmp_path)
    apart = [r["market_distance"][0, 2] == APART for r in rounds]
    assert any(apart)
    assert [bool(r["market_graph"][0, 2]) for r in rounds] == [not one for one in apart]


def test_the_same_offer_twice_is_bought_once_and_who_reports_no_samples_buys_nothing(tmp_path: Path) -> None:
    twice, all_trade = {"name": f"{__name__}:Greedy", "sellers": [2, 2]}, {"related": "none"}
    for size, bought in ((1.0, [0, 0, 1, 0, 0]), (0.0, [0] * 5)):
        made = experiment(policy=twice, mechanism=all_trade, behaviour={"liar": {"clients": [0], "size": size}})
        hanse.run(made, out=tmp_path / "run", overwrite=True)
        assert [r["market_graph"][0].tolist() for r in records(tmp_path / "run")] == [bought] * 3


def test_a_bought_model_that_was_not_on_sale_fails_the_audit(tmp_path: Path) -> None:
    hanse.run(experiment(), out=tmp_path / "run")
    file = round_file(tmp_path / "run", 0)
    arrays = dict(np.load(file))
    for name, value, check in (("market_tariff", [0.4, 0.1], "payments"), ("market_cost", [np.inf] * 5, "offers")):
        np.savez(file, **{**arrays, name: np.array(value)})
        failed = {c.name for c in audit_run(tmp_path / "run").checks if not c.holds}
        assert {check, "records"} <= failed


def listed(clients: int, policy: Any = "loyal", mechanism: Mapping[str, Any] | None = None, **more: Any) -> Any:
    """Clients with an eagerness and no cost of their own."""
    told = {"profiles": {"name": "listed", "eagerness": [5e4] * clients}, "policy": policy}
    mechanism, data = {"name": "ipfl_posted", **(mechanism or {})}, {"partition": {"alpha": 10.0}}
    return market(mechanism, clients, 2, data=data, train={"steps": 1}, clients=told, **more)


def test_a_round_in_which_nobody_answers_has_no_market(tmp_path: Path) -> None:
    assert not markets(experiment(behaviour={"dropout": {"rate": 1.0}}), tmp_path)


def test_a_bill_that_nobody_can_pay_does_not_fail_the_books(tmp_path: Path) -> None:
    lie = {"liar": {"clients": [3], "size": 8e13}}
    policy = {"name": f"{__name__}:TakesAll"}
    first = markets(listed(14, policy, {"cost": 0.1, "related": "none"}, behaviour=lie), tmp_path)[0]
    assert first["market_units"][0, 3] == (2**63 - 1) // 14
    assert not first["market_paid"][0]


@pytest.mark.parametrize(("cost", "sells"), [(0.1, True), (0.7, False)])
def test_clients_without_a_cost_of_their_own_sell_by_the_mechanisms(cost: float, sells: bool, tmp_path: Path) -> None:
    first = markets(listed(5, mechanism={"cost": cost}), tmp_path)[0]  # the price is about .52
    assert np.isfinite(first["market_cost"]).tolist() == [sells] * 5


def test_models_are_sold_by_default() -> None:
    small = {"data": {"clients": 4}, "model": "logistic", "train": {"steps": 5, "batch_size": 16}, "run": {"rounds": 2}}
    run = hanse.run(hanse.Experiment(mechanism="ipfl_posted", **small))
    assert run.metrics[0]["market/edges"] > 0
    assert unsold(run.metrics) == 0
