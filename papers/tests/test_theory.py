"""``hanse theory pifl``."""

import json
from pathlib import Path

import pytest

import hanse
from hanse.base.errors import UserError
from hanse.cli import app
from hanse_papers.theory import crossings, gains, pifl_points


def test_simulation_lies_on_the_exact_curve_and_off_the_printed_one() -> None:
    for p in pifl_points(10, 10, 1.0, 1.0, 5, 20_000, 0):
        assert abs(p.tier_simulated - p.tier) < 4 * p.tier_error
        assert abs(p.federated_simulated - p.federated) < 4 * p.federated_error
        if p.tau2 > 0:
            assert p.tier_simulated - p.tier_printed > 20 * p.tier_error
            assert (p.tier < p.local) is (p.tau2 < crossings(10, 10, 1.0)["exact"])


def test_the_command_writes_a_picture_and_the_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    app(["theory", "pifl", "--points", "3", "--repetitions", "500", "--out", str(tmp_path)], standalone_mode=False)
    assert "Joining pays below tau^2 = 0.1" in " ".join(capsys.readouterr().out.split())
    found = json.loads((tmp_path / "pifl.json").read_text())
    assert found["bound"] == {"exact": 0.1, "printed": 0.5}
    assert [p["tau2"] for p in found["points"]] == [0.0, 0.5, 1.0]
    assert (tmp_path / "pifl.png").read_bytes().startswith(b"\x89PNG")


def test_the_gain_of_a_run_over_training_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = {}
    for name in ("fedavg", "local"):
        experiment = hanse.Experiment(
            data={"clients": 4, "partition": "iid", "client_test": 0.2},
            model={"name": "logistic"},
            mechanism={"name": name, **({"clients_per_round": 4} if name == "fedavg" else {})},
            engine={"train": "stacked", "threads": 1},
            run={"rounds": 3},
        )
        runs[name] = hanse.run(experiment, out=tmp_path / name)
    gained = gains(tmp_path / "fedavg", tmp_path / "local")
    expected = runs["fedavg"].metrics[-1]["client/test_accuracy"] - runs["local"].metrics[-1]["client/test_accuracy"]
    assert gained.mean() == pytest.approx(expected)
    arguments = ["theory", "pifl", "--run", str(tmp_path / "fedavg"), "--alone", str(tmp_path / "local"), "--json"]
    app(arguments, standalone_mode=False)
    assert json.loads(capsys.readouterr().out)["mean"] == pytest.approx(expected)
    with pytest.raises(UserError, match=r"--run and.*--alone"):
        app(arguments[:4], standalone_mode=False)
