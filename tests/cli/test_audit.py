"""The audit of a market: everything holds of a sound run, every kind of tampering is found, lies are weighed."""

import json
import sys
from pathlib import Path

import pytest
from commands import run_hanse
from experiments import market

import hanse
from hanse.cli.audit import audit
from hanse.cli.ledger import verify
from hanse.reports.audit import audit_run
from hanse.reports.groups import group_runs
from hanse.reports.market import gains_charts
from hanse.reports.report import figures
from hanse.runs.run_record import load_runs


def small(rounds: int = 3, **mechanism: object) -> hanse.Experiment:
    roles = {"name": "roles", "roles": ["seller", "buyer", "trader", "trader", "attacker"], "eagerness": [1e4, 2e4]}
    data, behaviour = {"client_test": 0.2, "validation": 0.0}, {"attacker": {"clients": [4]}}
    return market({"name": "ipfl", **mechanism}, 5, rounds, data=data, clients={"profiles": roles}, behaviour=behaviour)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return hanse.run(small(), out=tmp_path_factory.mktemp("audit") / "run").path


def test_a_sound_run_holds(folder: Path) -> None:
    audit = audit_run(folder)
    assert (audit.holds, audit.markets) == (True, 2)
    assert {f.name: f.said for f in audit.facts} == {"no trade": "client 4 bought and sold nothing in any round"}


def test_a_run_directory_called_run_is_audited(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder.parent)
    assert run_hanse("audit", "run")[:2] == run_hanse("audit", "run", "run")[:2]


def test_runs_without_a_market_are_refused(tmp_path: Path) -> None:
    with pytest.raises(hanse.UserError, match="is not a run directory"):
        audit_run(tmp_path)
    hanse.run(hanse.Experiment(data={"clients": 4}, mechanism={"name": "local"}, run={"rounds": 1}), out=tmp_path / "x")
    with pytest.raises(hanse.UserError, match="nobody pays in it"):
        audit_run(tmp_path / "x")


def test_the_chart_of_who_gained_what_says_what_the_run_recorded(folder: Path) -> None:
    [group], last = group_runs(load_runs([folder])), json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])
    [gains] = gains_charts([group])
    sold, bought, utility = (series.values for series in gains.marks.series)
    assert utility.tolist() == pytest.approx([last[f"utility/client/{i}"] for i in range(5)])
    assert (sold + bought).tolist() == pytest.approx([last[f"balance/client/{i}"] for i in range(5)])
    assert (gains.marks.labels[1], gains.marks.labels[4]) == ("client 1 buyer", "client 4 attacker")
    assert gains.key in {c.key for c in figures([group])}


def test_a_rule_beside_the_experiment_is_called_again_by_those_who_trust_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "own_stake.py").write_text("from hanse.mechanisms.by_value import ByValue as Own\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    mechanism = {"name": "fedavg", "value": "path", "settle": "own_stake:Own"}
    hanse.run(hanse.Experiment(data={"clients": 4}, mechanism=mechanism, run={"rounds": 2}), out="run")
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place != str(tmp_path)])
    monkeypatch.delitem(sys.modules, "own_stake")
    verify(Path("run"))
    assert "hanse audit" in capsys.readouterr().out  # verify itself trusts nobody
    audit(Path("run"), trust=True, as_json=True)
    again = next(check for check in json.loads(capsys.readouterr().out)["checks"] if check["name"] == "settled again")
    assert again["holds"]
