"""iPFL's market in whole runs: payments, withheld centres, who cannot pay, quitters, a living market."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from experiments import market as trading
from watching import rounds_of

import hanse
from hanse.core.entry import TOKEN
from hanse.core.entry import client as account
from hanse.core.part import View
from hanse.core.port import Answered, Reply, Request, Train, Trained
from hanse.core.recipe import Recipe
from hanse.federation.behaviour import Attacker, Liar, Me
from hanse.federation.policy import Trader, build_profiles
from hanse.games import market
from hanse.mechanisms.ipfl import Trade
from hanse.runs.setup import build

TEST5 = ["seller", "buyer", "trader", "trader", "attacker"]


@dataclass(frozen=True)
class Poor:
    """Client 1 authorises a tenth of a token."""

    def authorise(self, me: Me, round: int, told: Mapping[str, Any]) -> int | None:
        assert set(told) == {"profile", "round"}
        return TOKEN // 10 if me.id == 1 else None


@dataclass(frozen=True)
class Impatient:
    def authorise(self, me: Me, round: int, told: Mapping[str, Any]) -> int | None:
        return Poor().authorise(me, round, told)

    def stay(self, me: Me, round: int, told: Mapping[str, Any]) -> Mapping[str, Any]:
        assert set(told) == {"value", "mean", "times", "bill", "authorised", "unpaid", "balance"}
        return {"stay": told["unpaid"] == 0}


class Changing(Trader):
    """Client 2 wants nothing from round 3 on; client 3 sells nothing from round 2 on."""

    def declare(self, me: Me, round: int, told: Mapping[str, Any]) -> Mapping[str, Any]:
        changes = {2: {"eagerness": 0.0} if round >= 3 else {}, 3: {"cost": float("inf")} if round >= 2 else {}}
        return {**super().declare(me, round, told), **changes.get(me.id, {})}


def experiment(rounds: int = 4, clients: int = 5, policy: Any = "loyal", grant: float = 100.0, **more: Any) -> Any:
    profiles = {"name": "roles", "roles": TEST5, "eagerness": [1e4, 2e4], "cost": [0.2, 0.4]}
    mechanism, data = {"name": "ipfl", **more.pop("mechanism", {})}, {"client_test": 0.2, "client_validation": 0.1}
    told = {"profiles": more.pop("profiles", profiles), "policy": policy, "grant": grant}
    return trading(mechanism, clients, rounds, data=data, clients=told, **more)


def records(folder: Path) -> list[dict[str, np.ndarray]]:
    return [dict(np.load(file)) for file in sorted((folder / "rounds").glob("*.npz"))]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> tuple[hanse.Run, list[dict[str, np.ndarray]]]:
    folder = tmp_path_factory.mktemp("ipfl") / "run"
    return hanse.run(experiment(behaviour={"attacker": {"clients": [4]}}), out=folder), records(folder)


def test_a_round_is_the_papers_equations(plain: tuple) -> None:
    _run, rounds = plain
    r = rounds[1]
    args = r["market_distance"], r["market_size"], r["market_cost"], r["market_eagerness"], float(r["market_lam"])
    assert r["market_client"].tolist() == list(range(5))
    assert np.isinf(r["market_cost"][1])
    assert r["market_eagerness"][[0, 4]].tolist() == [0, 0]
    assert np.array_equal(r["market_size"], r["num_samples"])
    graph = market.learn_graph(*args)
    assert graph.sum() > 2
    assert np.array_equal(r["market_graph"], graph)
    assert np.array_equal(r["market_units"], np.floor(market.payments(graph, *args) * TOKEN).astype(int))
    assert r["market_paid"].all()


def cosine_distance(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return 1 - torch.cosine_similarity(a, b, dim=0)


def half_squared(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return (a - b).square().sum() / 2


def second_round(**options: Any) -> tuple[View, Trade, torch.Tensor, torch.Tensor]:
    """Play two rounds: the second one's view, market and trained models, and the rows after it."""
    _, played, last = rounds_of(build(experiment(rounds=3, mechanism=options)), 3)
    view, trade = played.view, played.view.get(Trade)
    assert trade.graph.sum() > 2
    assert torch.equal(last.state.table.rows[15], view.context.initial(0))
    return view, trade, view.trained.rows.double(), played.state.table.rows.double()


@pytest.mark.parametrize(("distance", "apart"), [("cosine", cosine_distance), ("squared_l2", half_squared)])
@pytest.mark.parametrize("of", ["travel", "models", "updates"])
def test_centres_are_a_step_down_the_gradient_of_the_distance(of: str, distance: str, apart: Any) -> None:
    view, trade, theta, after = second_round(of=of, distance=distance, eta=0.7, bounded=False)
    n = trade.market.sizes
    first = {
        "travel": view.context.initial(0).double().expand(5, -1),
        "models": 0 * theta,
        "updates": view.table.rows[:5].double(),
    }
    for i in range(5):
        own = theta[i].clone().requires_grad_()
        total = sum(
            float(n[j] / n[i]) * apart(own - first[of][i], theta[j] - first[of][j])
            for j in np.flatnonzero(trade.graph[i])
        )
        step = torch.autograd.grad(total, own)[0] if isinstance(total, torch.Tensor) else 0.0
        assert torch.allclose(after[5 + i], theta[i] - 0.7 * step, atol=1e-5)  # iPFL eq. (6)
        assert torch.equal(after[i].float(), view.trained.rows[i])


@pytest.mark.parametrize("distance", ["cosine", "squared_l2"])
@pytest.mark.parametrize("of", ["travel", "models", "updates"])
def test_bounded_centres_are_no_farther_than_the_farthest_import(of: str, distance: str) -> None:
    view, trade, theta, after = second_round(of=of, distance=distance, eta=50.0)
    where = theta - view.table.rows[:5].double() if of == "updates" else theta
    for i in np.flatnonzero(trade.graph.any(axis=1)):
        reach = max(float((where[i] - where[j]).norm()) for j in np.flatnonzero(trade.graph[i]))
        assert float((after[5 + i] - theta[i]).norm()) == pytest.approx(reach, rel=1e-3)


def test_no_market_after_the_last_training(plain: tuple) -> None:
    run, rounds = plain
    assert ["market_graph" in r for r in rounds] == [True, True, True, False]
    assert run.metrics[-1]["utility/mean"] == run.metrics[-2]["utility/mean"]


def test_money_goes_from_buyers_to_sellers_and_attackers_get_none(plain: tuple) -> None:
    run, rounds = plain
    net = {i: run.book.balance(account(i)) - 100 * TOKEN for i in range(5)}
    assert sum(net.values()) == 0
    assert net[0] > 0 > net[1]
    assert net[4] == 0
    assert not any(r["market_graph"][:, 4].any() for r in rounds[:-1])
    paid = sum(np.where(r["market_paid"][:, None], r["market_units"], 0) for r in rounds[:-1])
    assert [net[i] for i in range(5)] == (paid.sum(axis=0) - paid.sum(axis=1)).tolist()
    assert run.metrics[-1]["balance/client/1"] == net[1] / TOKEN
    utility = sum(r["market_utility"] for r in rounds[:-1])
    assert run.metrics[-1]["utility/client/0"] == pytest.approx(utility[0])
    assert run.metrics[-1]["utility/min"] >= 0


def test_sellers_train_as_if_alone_and_buyers_do_not(plain: tuple) -> None:
    run, _ = plain
    alone = hanse.run(hanse.Experiment(**{**experiment().sections(), "mechanism": {"name": "local"}}))
    assert torch.equal(run.table.rows[0], alone.table.rows[0])  # Table 5: local and federated accuracy are the same
    assert not torch.equal(run.table.rows[1], alone.table.rows[1])


def test_a_bill_above_what_was_authorised_withholds_the_centre(tmp_path: Path) -> None:
    hanse.run(experiment(policy={"name": "test_ipfl:Poor"}), out=tmp_path / "run")
    for r in records(tmp_path / "run")[:-1]:
        assert r["market_authorised"].tolist() == [-1, TOKEN // 10, -1, -1, -1]
        assert r["market_paid"].tolist() == [True, False, True, True, True]
        assert r["market_units"][1].sum() > TOKEN // 10
        assert r["withheld"].tolist() == [6]
        # the others' payments are what they would have been
        args = r["market_distance"], r["market_size"], r["market_cost"], r["market_eagerness"], float(r["market_lam"])
        assert np.array_equal(r["market_units"], np.floor(market.payments(r["market_graph"], *args) * TOKEN))


def test_who_quits_keeps_its_best_model_and_is_asked_no_more(tmp_path: Path) -> None:
    run = hanse.run(experiment(rounds=5, policy={"name": "test_ipfl:Impatient"}), out=tmp_path / "run")
    assert [m["market/quit"] for m in run.metrics] == [0, 1, 1, 1, 1]
    assert [m["seats"] for m in run.metrics] == [5, 4, 4, 4, 4]
    assert run.home.tolist() == [0, 11, 2, 3, 4]  # 2N + 1
    assert not torch.equal(run.table.rows[11], run.table.rows[12])
    again = hanse.run(experiment(rounds=5, policy={"name": "test_ipfl:Impatient"}, mechanism={"keep_best": False}))
    assert again.home.tolist() == [0, 1, 2, 3, 4]
    assert again.table.size == 11
    assert torch.equal(again.table.rows[1], run.table.rows[1])


def test_the_best_model_is_chosen_by_the_own_validation_share() -> None:
    seen = [
        (np.array([p.view.answers[c, "own model"].accuracy[0] for c in range(5)]), p.state.table.rows)
        for p in rounds_of(build(experiment(rounds=4)), 4)
    ]
    for c in range(5):
        first = int(np.argmax([best[c] for best, _ in seen]))
        assert torch.equal(seen[-1][1][10 + c], seen[first][1][c])


def test_a_living_market(tmp_path: Path) -> None:
    profiles = {"name": "listed", "cost": [0.3] * 5, "eagerness": [1e5] * 5}
    moving = {"joiner": {"clients": [0], "at": 2}, "leaver": {"clients": [4], "at": 4}, "drift": {"clients": [1]}}
    run = hanse.run(
        experiment(rounds=6, profiles=profiles, policy=f"{__name__}:Changing", behaviour=moving), out=tmp_path / "run"
    )
    assert [m["present"] for m in run.metrics] == [4, 4, 5, 5, 4, 4]
    rounds = records(tmp_path / "run")
    assert [r["market_client"].tolist() for r in rounds[:-1]] == [[1, 2, 3, 4]] * 2 + [[0, 1, 2, 3, 4]] * 2 + [
        [0, 1, 2, 3]
    ]
    assert [r["market_eagerness"][list(r["market_client"]).index(2)] for r in rounds[:-1]] == [1e5] * 3 + [0.0] * 2
    costs = [r["market_cost"][list(r["market_client"]).index(3)] for r in rounds[:-1]]
    assert costs == [0.3, 0.3, np.inf, np.inf, np.inf]
    for r in rounds[2:-1]:
        assert not r["market_graph"][:, list(r["market_client"]).index(3)].any()
    full = rounds[0]["num_samples"][0]
    assert full == rounds[-1]["num_samples"][1]  # drift moves a window of the same width
    assert sum(run.book.balances.values()) == 0


def reply(row: torch.Tensor) -> tuple[Request, Reply]:
    start = torch.linspace(-1, 1, 12)
    request = Request(1, (Train(0, 1, start), Train(1, 7, start, private=True)))
    return request, Reply(1, (Trained(0, row, 20.0, 0.5, 5), Trained(1, row, 20.0, 0.5, 5)))


def test_attacks_do_what_they_say() -> None:
    me = Me(1, 3, 5, Recipe(batch_size=4), 10)  # 10 parameters, 2 buffers
    start = torch.linspace(-1, 1, 12)
    update = torch.arange(12.0) / 10
    sent: dict[str, torch.Tensor] = {}
    for kind in ("random", "shuffle", "flip", "same", "gaussian"):
        request, honest = reply(start + update)
        attacker = Attacker(clients=[1], kind=kind, since=2)
        assert attacker.on_reply(me, 1, request, honest) is honest
        found = attacker.on_reply(me, 2, request, honest)
        sent[kind] = found.results[0].row
        assert torch.equal(found.results[1].row, start + update)  # private: never leaves the client
        assert torch.equal(sent[kind][10:], (start + update)[10:])
        assert not torch.equal(sent[kind][:10], (start + update)[:10])
        assert torch.equal(attacker.on_reply(me, 2, request, honest).results[0].row, sent[kind])
    change = {kind: row[:10] - start[:10] for kind, row in sent.items()}
    assert torch.allclose(change["flip"], -update[:10], atol=1e-6)
    assert torch.allclose(change["shuffle"].sort().values, update[:10].sort().values, atol=1e-6)
    rms = float(update[:10].square().mean().sqrt())
    assert torch.allclose(change["same"], torch.full((10,), rms), atol=1e-6)
    assert 0.2 * rms < float(change["gaussian"].std()) < 3 * rms


def test_liars_change_what_they_report() -> None:
    me = Me(1, 3, 5, Recipe(batch_size=4), 10)
    request, honest = reply(torch.zeros(12))
    honest = Reply(1, (*honest.results, Answered("declare", {"cost": 0.5, "eagerness": 100.0})))
    lied = Liar(clients=[1], size=0.5, cost=2.0, eagerness=0.1).on_reply(me, 0, request, honest)
    assert [r.num_samples for r in lied.results[:2]] == [10.0, 10.0]
    assert lied.results[2].values == {"cost": 1.0, "eagerness": 10.0}
    assert Liar(clients=[0], size=9).on_reply(me, 0, request, honest) is honest
    odd = Reply(1, (Answered("declare", {"cost": "free", "eagerness": np.inf}),))  # no number, and none that grows
    assert Liar(clients=[1], cost=2.0, eagerness=0.0).on_reply(me, 0, request, odd).results == odd.results


def test_profiles_of_table_6() -> None:
    found = build_profiles("roles", 12, seed=1)
    assert [p["role"] for p in found].count("seller") == 4
    for p in found:
        buys = p["role"] in ("trader", "buyer")
        assert (3e5 <= p["eagerness"] <= 6e5) if buys else p["eagerness"] == 0
        assert {"buyer": p["cost"] == np.inf, "trader": 0.5 <= p["cost"] <= 1}.get(p["role"], p["cost"] == 0)
    assert build_profiles("roles", 12, seed=1) == found != build_profiles("roles", 12, seed=2)
    assert build_profiles(None, 3, 0) == [{}, {}, {}]


def told(num_clients: int, rng: np.random.Generator, cost: Any = 1.0, most: Any = None) -> list[dict[str, Any]]:
    return [{"cost": cost, "most": most, "eagerness": 5e4}] * num_clients


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"name": f"{__name__}:told", "cost": "much"}, r"clients.profiles.*'much'"),
        ({"name": "uniform", "cost": -1}, "cost: -1"),
        ({"name": "listed", "cost": [1.0]}, "5 clients"),
    ],
)
def test_profiles_that_are_none(given: Any, message: str) -> None:
    with pytest.raises(hanse.UserError, match=message):
        hanse.run(experiment(profiles=given))


def test_baselines_are_accounted_as_in_the_paper() -> None:
    for name, options in {"fedavg": {"select": "everyone"}, "local": {}, "ditto": {}, "cfl": {}}.items():
        given = experiment(rounds=2, profiles={"name": "uniform", "cost": 1.0, "eagerness": 1e5}).sections()
        run = hanse.run(hanse.Experiment(**{**given, "mechanism": {"name": name, "settle": "utilities", **options}}))
        assert run.metrics[0]["market/edges"] == (0 if name == "local" else 20)
        if name == "local":
            assert run.metrics[0]["utility/mean"] == 0
        else:  # everybody imports from all: gain of all samples, and the model is shared four times
            sizes = np.array([c["samples"] for c in run.clients[:5]])
            wanted = np.mean(np.sqrt(1e5 / sizes) - np.sqrt(1e5 / sizes.sum())) - 4
            assert run.metrics[0]["utility/mean"] == pytest.approx(wanted)
