"""Money under absurd declarations: every delivered model is paid for, nothing overflows, and no answer ends a round."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from commands import invoke
from experiments import market
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_ipfl import records
from watching import After

import hanse
from hanse.core.entry import TOKEN, units_of
from hanse.core.entry import client as account
from hanse.core.port import Answered, Call, Reply, Scored, Trained
from hanse.federation.behaviour import Me
from hanse.federation.policy import fit
from hanse.federation.wrapped import Wrapped
from hanse.games.market import prices
from hanse.mechanisms import ipfl as settling
from hanse.reports.audit import audit_run
from hanse.runs.round import finish, first_state, play_round
from hanse.runs.setup import Session, build

N = 4


def experiment(mechanism: Mapping[str, Any], rounds: int = 3, policy: Any = "loyal") -> hanse.Experiment:
    data, train = {"client_test": 0.2, "client_validation": 0.2}, {"steps": 2, "batch_size": 8}
    clients = {"profiles": {"name": "uniform", "cost": 0.2, "eagerness": 1e5}, "policy": policy, "grant": 50.0}
    return market(dict(mechanism), N, rounds, data=data, train=train, clients=clients)


@dataclass(frozen=True)
class Declares:
    """Client 2 declares what it is given; the others are loyal."""

    eagerness: float = 1e60

    def declare(self, me: Me, round: int, told: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"cost": 1.0, "eagerness": self.eagerness} if me.id == 2 else dict(told["profile"])


@pytest.mark.parametrize("eagerness", [1.1e15, 1e308])
def test_no_eagerness_makes_models_free(tmp_path: Path, eagerness: float) -> None:
    policy = {"name": "test_money:Declares", "eagerness": eagerness}
    run = hanse.run(experiment({"name": "ipfl"}, 3, policy), out=tmp_path / "run")
    for r in records(tmp_path / "run")[:-1]:
        assert not r["market_graph"][2].any()  # it imports nothing ...
        assert not r["market_graph"][:, 2].any()
        assert (r["market_units"] >= 0).all()
        reasons = dict(zip(r["refused"].tolist(), r["reason"].tolist(), strict=True))
        assert "eagerness" in reasons[2]  # ... and this is why
    assert run.book.balance(account(2)) == 50 * TOKEN
    assert run.metrics[0]["refused"] == 1


def test_the_largest_eagerness_that_is_allowed_is_a_bill_that_cannot_be_paid(tmp_path: Path) -> None:
    policy = {"name": "test_money:Declares", "eagerness": 1e15}
    run = hanse.run(experiment({"name": "ipfl"}, 3, policy), out=tmp_path / "run")
    for r in records(tmp_path / "run")[:-1]:
        assert r["market_graph"][2].sum() == N - 1
        assert r["market_units"][2].sum() > 10**11
        assert not r["market_paid"][2]
        assert r["withheld"].tolist() == [N + 2]
    assert run.book.balance(account(2)) >= 50 * TOKEN
    assert audit_run(tmp_path / "run").holds


def test_a_price_above_nothing_is_at_least_a_unit_and_what_no_account_can_hold_is_unpayable() -> None:
    due = np.array([[0.0, 1e-30, 0.0], [3e-7, 0.0, 2.5e-6], [0.25, 0.0, 0.0]])
    units, payable = settling._billed(due, due > 0)
    assert units.tolist() == [[0, 1, 0], [1, 0, 2], [TOKEN // 4, 0, 0]]
    assert payable.all()
    most = (2**63 - 1) // 3  # three sum to no more than an account can hold
    due = np.array([[0.0, 1e300, 1.0], [math.inf, 0.0, math.nan], [0.25, 0.0, 0.0]])
    units, payable = settling._billed(due, due != 0)
    assert units.tolist() == [[0, most, TOKEN], [most, 0, most], [TOKEN // 4, 0, 0]]
    assert payable.tolist() == [False, False, True]


def test_units_are_the_floor_of_tokens_at_any_size() -> None:
    draw = np.random.default_rng(0)
    small = draw.random(20_000) * 10.0 ** draw.integers(-8, 9, 20_000)
    assert [units_of(x) for x in small.tolist()] == np.floor(small * TOKEN).astype(np.int64).tolist()
    assert units_of(1e60) == int(1e60 * TOKEN)
    assert units_of(1.5e308) == int(1.5e308) * TOKEN
    assert type(units_of(0.0)) is int


def verified(folder: Path) -> tuple[int, dict[str, Any]]:
    told = invoke("ledger", "verify", folder, "--json")
    return told.exit_code, json.loads(told.stdout)


def test_verify_replays_what_models_cost_and_finds_a_free_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hanse.run(experiment({"name": "ipfl"}), out=tmp_path / "sound")
    code, said = verified(tmp_path / "sound")
    assert (code, said["ok"], said["settled_again"]) == (0, True, 3)
    real = settling._billed

    def free(due: np.ndarray, graph: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        units, payable = real(due, graph)
        units[2] = 0  # client 2 is never billed
        return units, payable

    monkeypatch.setattr(settling, "_billed", free)
    assert hanse.run(experiment({"name": "ipfl"}), out=tmp_path / "free").book.balance(account(2)) > 50 * TOKEN
    code, said = verified(tmp_path / "free")
    assert (code, said["ok"]) == (1, False)
    assert said["wrong"].startswith("round 0: client 2 owed client ")
    assert said["wrong"].endswith("and was billed 0.000000")


def test_verify_of_a_run_that_was_killed_before_its_ledger_was_written(tmp_path: Path) -> None:
    given = experiment({"name": "ipfl"}).sections()
    sparse = hanse.Experiment(**{**given, "run": {**given["run"], "rounds": 4, "checkpoint_every": 2}})
    seen = []
    look = After(None, lambda: seen.append(verified(tmp_path / "run")))
    hanse.run(sparse, out=tmp_path / "run", observers=[look])
    *before, last = [said["wrong"] for _, said in seen]
    assert before == [None] * 3  # rounds that no checkpoint holds are not missed
    assert "hanse resume" in last  # but a run with all its rounds needs its last settlement
    assert seen[2][1]["settled_again"] == 2  # as many as the books have


# ---- weights and accuracies


@dataclass(frozen=True)
class Hostile(Wrapped):
    """Clients whose replies are changed before the server sees them."""

    change: Any

    def heard(self, call: Call, replies: Sequence[Reply]) -> Sequence[Reply]:
        return [self.change(reply) for reply in replies]


@cache
def world(name: str, **options: Any) -> Session:
    mechanism = {"name": name, **options} | ({} if name == "ipfl" else {"by_contribution": 2, "at_random": 1})
    return build(experiment(mechanism))


@pytest.mark.parametrize(("accuracy", "found"), [(-1.0, 0.0), (5.0, 1.0), (1e300, 1.0), (0.25, 0.25), (math.nan, 0.5)])
def test_a_fit_is_a_share_whatever_accuracy_is_reported(accuracy: float, found: float) -> None:
    assert fit(1.0, accuracy) == found


@pytest.mark.parametrize(
    ("options", "entry"), [({}, -3e38), ({"distance": "squared_l2"}, 1e12), ({"of": "models", "bounded": False}, 1e12)]
)
def test_a_model_too_long_to_measure_is_out_of_the_market_and_the_round_goes_on(
    options: dict[str, Any], entry: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    def long(reply: Reply) -> Reply:
        if reply.client != 1:
            return reply
        results = [
            replace(r, row=torch.full_like(r.row, entry)) if isinstance(r, Trained) else r for r in reply.results
        ]
        return replace(reply, results=tuple(results))

    monkeypatch.setattr("hanse.federation.check.LONGEST", math.inf)  # the market alone, without the guard before it
    setup = world("ipfl", **options)
    played = play_round(replace(setup, federation=Hostile(setup.federation, long)), first_state(setup))
    arrays = played.view.settlement.arrays  # type: ignore[union-attr]
    assert "its model is" in dict(played.view.refusals)[1]
    assert not arrays["market_graph"][1].any()
    assert not arrays["market_graph"][:, 1].any()
    assert arrays["market_graph"].sum() > 0  # the others trade on
    assert bool(played.state.table.rows.isfinite().all())


# ---- every paying mechanism, under anything

REALS = [0, 1, -1, 0.5, 1e-300, 5.0, 1e9, 1e15, 1.1e15, 2.0**53, 1e18, 1e30, 1e60, 1e308, math.inf, -math.inf, math.nan]
NUMBERS = st.sampled_from([*REALS, 10**18, 10**400, -(10**400), True, None, "much", (), {}])
AMOUNTS = st.sampled_from([None, 0, 1, 10**6, 10**9, 2**63, 10**400, -1, -(10**400)])
FINITE = st.sampled_from([0.0, 1.0, 50.0, 2.0**53, 1e30, 1e308])
ACCURACIES = st.sampled_from([None, -1.0, 0.0, 5.0, 1e300, math.nan, math.inf])
ENTRIES = st.sampled_from([None, 0.0, 1e-30, 1e10, -3e38, 3e38])
TIERS = st.sampled_from([None, (), (0,), (1, 0), (0, 0, 1), (7, -1), (10**400,), ({}, 0), "no", 5, (True, 1.0)])


@st.composite
def answers(draw: Any) -> dict[str, Any]:
    names = {"cost": NUMBERS, "eagerness": NUMBERS, "authorise": AMOUNTS, "samples": FINITE, "accuracy": ACCURACIES,
             "entry": ENTRIES, "tiers": TIERS}  # fmt: skip
    return {name: draw(strategy) for name, strategy in names.items()}


def told_by(said: Mapping[int, Mapping[str, Any]], reply: Reply) -> Reply:
    """Return the reply as a client that says these things would have sent it."""
    if reply.client not in said:
        return reply
    mine, results = said[reply.client], []
    for r in reply.results:
        if isinstance(r, Trained):
            row = r.row if mine["entry"] is None else torch.full_like(r.row, mine["entry"])
            r = replace(r, num_samples=mine["samples"], row=row)
        elif isinstance(r, Scored) and mine["accuracy"] is not None:
            r = replace(r, accuracy=torch.full_like(r.accuracy, mine["accuracy"]).double())
        elif isinstance(r, Answered) and r.name == "declare":
            r = replace(r, values={"cost": mine["cost"], "eagerness": mine["eagerness"]})
        elif isinstance(r, Answered) and r.name == "bid" and mine["tiers"] is not None:
            r = replace(r, values={"tiers": mine["tiers"]})
        results.append(r)
    return replace(reply, results=tuple(results), authorise=mine["authorise"])


def check_delivery(played: Any, before: torch.Tensor) -> None:
    """Every model that a market delivered is paid for at its price, or is free by rule: its price is below a unit."""
    trade = played.view.get(settling.Trade)  # none if nobody answered soundly
    arrays, posted = played.view.settlement.arrays, played.view.posted
    if trade is None:
        return
    moved = {t.step: dict(t.postings) for t in posted}
    due = prices(trade.market, trade.graph)
    for i, c in enumerate(trade.clients.tolist()):
        bill = {account(int(trade.clients[j])): math.floor(max(0.0, due[i, j]) * TOKEN) for j in range(len(due))}
        owed = sum(bill.values())
        if not arrays["market_paid"][i]:
            assert N + c in played.view.settlement.withheld
            assert torch.equal(played.state.table.rows[N + c], before[N + c])
            assert f"market/{c}" not in moved
        elif owed:
            assert moved[f"market/{c}"] == {account(c): -owed} | {name: units for name, units in bill.items() if units}


@pytest.mark.parametrize(
    ("name", "options"), [("ipfl", {}), ("ipfl", {"distance": "squared_l2"}), ("pifl", {}), ("tiff", {})]
)
@settings(max_examples=12, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(said=st.dictionaries(st.integers(0, N - 1), answers(), min_size=1))
def test_whatever_clients_declare_money_is_conserved_and_paid(
    name: str, options: dict[str, Any], said: Mapping[int, Mapping[str, Any]]
) -> None:
    setup = world(name, **options)
    setup = replace(setup, federation=Hostile(setup.federation, lambda reply: told_by(said, reply)))
    state = first_state(setup)
    for number in range(4):
        before = state.table.rows.clone()
        played = play_round(setup, state) if number < 3 else finish(setup, state)
        state = played.state
        for transaction in played.view.posted:
            assert all(type(units) is int for _, units in transaction.postings)
            assert sum(units for _, units in transaction.postings) == 0
        assert sum(state.book.balances.values()) == 0
        assert all(units >= 0 for name_, units in state.book.balances.items() if name_ != "mint")
        assert bool(state.table.rows.isfinite().all())
        if name == "ipfl" and number < 3:
            check_delivery(played, before)
        elif number < 3:
            answered, W = len(played.view.trained), played.view.mixed.W
            for row in np.unique(played.view.trained.seats.target).tolist():
                assert W[row, :answered].sum() == pytest.approx(1.0)  # no size makes the model zero
            assert (state.states["settle"]["best"] <= 1).all()
    escrow = [units for name_, units in state.book.balances.items() if name_.startswith("escrow")]
    assert not any(escrow)  # every bid is settled at the end
