"""The audit of a market: everything holds of a sound run, every kind of tampering is found, lies are weighed."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from forging import restamped
from typer.testing import CliRunner

import hanse
from hanse.cli import app
from hanse.cli.demo import market_experiment, scene
from hanse.federation.profiles import TABLE_5
from hanse.reports.audit import audit_run, load_market
from hanse.reports.groups import group_runs
from hanse.reports.lies import Counterfactual, Fared, counterfactuals, verdict
from hanse.reports.market import load_trades, market_charts, sweep_chart
from hanse.reports.report import figures
from hanse.runs.record import load_run, load_runs


def small(rounds: int = 3, **mechanism: object) -> hanse.Experiment:
    roles = {"name": "roles", "roles": ["seller", "buyer", "trader", "trader", "attacker"], "eagerness": [1e4, 2e4]}
    return hanse.Experiment(
        data={"clients": 5, "alpha": 1.0, "client_test": 0.2, "seed": 2, "validation": 0.0},
        model={"name": "logistic"},
        mechanism={"name": "ipfl", **mechanism},
        train={"steps": 5, "batch_size": 16, "lr": 0.1},
        clients={"profiles": roles, "grant": 100.0},
        behaviour={"attacker": {"clients": [4]}},
        engine={"train": "stacked", "threads": 1},
        run={"rounds": rounds, "seed": 3},
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("audit") / "run"
    hanse.run(small(), out=place)
    return place


@pytest.fixture
def copy(folder: Path, tmp_path: Path) -> Path:
    shutil.copytree(folder, tmp_path / "copy")
    return tmp_path / "copy"


def change(folder: Path, **arrays: object) -> None:
    """Replace arrays of round 1 by functions of themselves."""
    file = folder / "rounds" / "00001.npz"
    with np.load(file) as record:
        kept = {name: record[name] for name in record}
    for name, function in arrays.items():
        kept[name] = function(kept[name])  # type: ignore[operator]
    np.savez(file, **kept)
    restamped(folder)


def failed(folder: Path) -> dict[str, str]:
    return {check.name: check.said for check in audit_run(folder).checks if not check.holds}


def test_a_sound_run_holds(folder: Path) -> None:
    audit = audit_run(folder)
    assert audit.holds
    assert audit.markets == 2
    assert failed(folder) == {}
    assert [c.client for c in audit.clients] == [0, 1, 2, 3, 4]
    last = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])
    for i, sums in enumerate(audit.clients):
        assert sums.utility == pytest.approx(last[f"utility/client/{i}"])
        assert sums.sold - sums.bought == pytest.approx(last[f"balance/client/{i}"])
    assert {f.name: f.said for f in audit.facts} == {
        "no trade": "client 4 (of the attackers) bought and sold nothing in any round",
        "known cheats": "client 4 (of the attackers) was paid 0.000 and paid 0.000 tokens; "
        "its utility of 0.000 is number 5 of 5",
    }
    hanse.run(small(pricing="critical"), out=folder.parent / "critical")
    assert audit_run(folder.parent / "critical").holds


def edge(matrix: np.ndarray) -> tuple[int, int]:
    i, j = np.argwhere(matrix != 0)[0]
    return int(i), int(j)


def test_tampering_is_found(copy: Path) -> None:
    original = load_market(copy)[1]
    i, j = edge(original.graph)

    def less(units: np.ndarray) -> np.ndarray:
        units = units.copy()
        units[i, j] -= 1000
        return units

    change(copy, market_units=less)
    found = failed(copy)
    assert f"client {i} owed client {j}" in found["payments"]
    assert "round 1" in found["conservation"]


def test_another_graph_is_found(copy: Path) -> None:
    def other(graph: np.ndarray) -> np.ndarray:
        graph = graph.copy()
        graph[edge(graph)] = 0
        return graph

    change(copy, market_graph=other)
    assert {"graph", "payments", "no import left out", "market/eq9"} <= set(failed(copy))


def test_a_payment_that_was_not_made_is_found(copy: Path) -> None:
    def unpaid(paid: np.ndarray) -> np.ndarray:
        return np.where(np.arange(len(paid)) == 1, False, paid)

    change(copy, market_paid=unpaid)
    assert "the ledger moved client" in failed(copy)["conservation"]


def test_losses_are_found(copy: Path) -> None:
    change(copy, market_utility=lambda u: u - 5.0)
    assert "losses; the largest is client" in failed(copy)["true rationality"]


def test_runs_without_a_market_are_refused(tmp_path: Path) -> None:
    with pytest.raises(hanse.UserError, match="is not a run directory"):
        audit_run(tmp_path)
    hanse.run(hanse.Experiment(data={"clients": 4}, mechanism={"name": "local"}, run={"rounds": 1}), out=tmp_path / "x")
    with pytest.raises(hanse.UserError, match="nobody pays in it"):
        audit_run(tmp_path / "x")


def test_lies_are_played_and_weighed(folder: Path) -> None:
    honest, found = counterfactuals(folder, 2, ["cost x10", "size x0.1", "alone"])
    last = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])
    assert honest.utility == last["utility/client/2"]  # the same run again
    gains = {c.story: c.gain for c in found}
    assert gains["cost x10"] <= 1e-5
    assert gains["size x0.1"] < 0
    assert found[2].utility == 0
    assert gains["alone"] == -honest.utility
    said = verdict(2, honest, found)
    assert "gained by none of this" in said[0]
    assert "Against training alone" in said[1]
    paying = Counterfactual("size x2", 5.0, 0.5, 3.0, 2.5)
    assert (
        "would have gained 3.000 tokens by 'size x2', and 2.500 under critical prices"
        in verdict(2, honest, [paying])[0]
    )


def test_training_alone_may_pay_and_is_played_at_no_prices(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def play(experiment: hanse.Experiment, client: int) -> Fared:
        return Fared(0.0 if experiment.mechanism.name == "local" else -1.0, None)

    monkeypatch.setattr("hanse.reports.lies._play", play)
    _, found = counterfactuals(folder, 2, ["alone"])
    assert found == [Counterfactual("alone", 0.0, None, 1.0, None)]


def test_the_named_clients_real_behaviour_is_no_part_of_the_comparison(folder: Path) -> None:
    honest, _ = counterfactuals(folder, 4, ["alone"])
    assert honest.utility != 0  # the attacker, if it were honest, would sell


@pytest.mark.parametrize(
    ("client", "stories", "message"), [(9, (), "allowed: 0..4"), (1, ("size x3",), "no such story; allowed: size x0.1")]
)
def test_what_cannot_be_tried(folder: Path, client: int, stories: tuple, message: str) -> None:
    with pytest.raises(hanse.UserError, match=message):
        counterfactuals(folder, client, stories)


def test_the_command(folder: Path, copy: Path) -> None:
    told = CliRunner().invoke(app, ["audit", str(folder), "--json", "--client", "3", "--story", "cost x2"])
    assert told.exit_code == 0
    data = json.loads(told.stdout[told.stdout.index("{") :])
    assert data["holds"]
    assert data["counterfactuals"]["stories"][0]["story"] == "cost x2"
    shown = CliRunner().invoke(app, ["audit", str(folder)])
    assert shown.exit_code == 0
    assert "no import too many" in shown.stdout
    assert "isolation" not in shown.stdout
    change(copy, market_utility=lambda u: u - 5.0)
    assert CliRunner().invoke(app, ["audit", str(copy)]).exit_code == 1
    wrong = subprocess.run(
        [sys.executable, "-c", "from hanse.cli import main; main()", "audit", str(folder), "--story", "cost x2"],
        capture_output=True, text=True,
    )  # fmt: skip
    assert wrong.returncode == 2
    assert wrong.stderr.strip() == "hanse: --story: needs --client, the one whose lies are tried"


def test_the_demos_scene(tmp_path: Path) -> None:
    found = scene(tmp_path)
    assert found.audit.holds
    assert found.picture.stat().st_size > 10_000
    by_role = {role: [i for i, r in enumerate(TABLE_5) if r == role] for role in TABLE_5}
    sums = found.audit.clients
    assert all(sums[i].sold > 0 == sums[i].bought for i in by_role["seller"])
    assert all(sums[i].bought > 0 == sums[i].sold for i in by_role["buyer"])
    assert sums[11].rounds_traded == 0
    assert min(c.utility for c in sums) >= 0
    together, alone = (r.tested["test_accuracy"] for r in (found.market, found.alone))
    buying = by_role["buyer"] + by_role["trader"]
    assert np.array_equal(together[by_role["seller"]], alone[by_role["seller"]])  # as in Table 5
    assert together[buying].mean() >= alone[buying].mean()
    assert market_experiment().run.rounds == len(found.market.metrics)


def test_charts_of_the_market(folder: Path) -> None:
    run = load_run(folder)
    trades = load_trades(run)
    assert trades is not None
    audit = audit_run(folder)
    assert trades.money.sum(axis=1) == pytest.approx([c.bought for c in audit.clients])
    assert trades.utility == pytest.approx([c.utility for c in audit.clients])
    assert trades.names[1] == "1 buyer"
    assert trades.roles[4] == "attacker"
    groups = group_runs(load_runs([folder]))
    charts = market_charts(groups)
    assert [c.key for c in charts] == [f"market-{k}-ipfl" for k in ("money", "gains", "imports", "sweep")]
    assert {c.key for c in charts} <= {c.key for c in figures(groups)}
    z = sweep_chart(load_market(folder)[-1], "x").marks.z  # type: ignore[union-attr]
    assert (np.diff(z, axis=0) >= 0).all()  # eager clients import more; figure 8
    assert z[2, 2] == load_market(folder)[-1].graph.sum(axis=1).mean()
