"""A run read from its directory: what it was, its models as plain modules, and nothing imported unless trusted."""

import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import hanse
from hanse.runs.rehearsal import small_experiment
from tests.runs.test_objects import Two, two_inputs

OWN = """
from torch import nn

def net(input_shape, num_classes, width=8):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.Tanh(), nn.Linear(width, num_classes))
"""


def experiment(**more: Any) -> hanse.Experiment:
    more = {"model": {"name": "mlp", "hidden": [5], "batch_norm": True}, **more}
    return small_experiment({"name": "ditto", "clients_per_round": 2}, **more)


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> hanse.Run:
    return hanse.run(experiment(), out=tmp_path_factory.mktemp("played") / "run")


def same(one: nn.Module, other: nn.Module) -> bool:
    ours, theirs = one.state_dict(), other.state_dict()
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_it_is_what_the_run_was(played: hanse.Run) -> None:
    before = sorted((p, p.stat().st_mtime_ns) for p in played.path.rglob("*"))
    run = hanse.load(played.path)
    assert (run.metrics, run.clients) == (played.metrics, played.clients)
    assert run.table.rows.equal(played.table.rows)
    assert run.home.tolist() == played.home.tolist()
    own = run.table.rows[torch.as_tensor(run.table.owner >= 0)]  # what they hold, and do not start from
    assert all(torch.equal(run.problem.layout.flatten(run.model(c)), own[c]) for c in range(4))
    assert all(same(run.model(c), played.model(c)) for c in range(4))
    assert {n: a.tolist() for n, a in run.tested.items()} == {n: a.tolist() for n, a in played.tested.items()}
    assert (run.interrupted, run.over, run.path) == (False, None, played.path)
    assert sorted((p, p.stat().st_mtime_ns) for p in played.path.rglob("*")) == before  # nothing was written


def test_models_of_one_s_own_are_imported_only_if_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine_to_read.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    played = hanse.run(experiment(model={"name": "mine_to_read:net", "width": 6}), out=tmp_path / "run")
    del sys.modules["mine_to_read"]
    run = hanse.load(tmp_path / "run")
    assert "mine_to_read" not in sys.modules
    assert run.metrics == played.metrics
    with pytest.raises(hanse.UserError, match=r"'mine_to_read:net'.*hanse.load"):
        run.model()
    assert same(hanse.load(tmp_path / "run", trust=True).model(1), played.model(1))
    assert same(hanse.load(tmp_path / "run", model=played.model(0)).model(1), played.model(1))
    with pytest.raises(hanse.UserError, match="architecture"):
        hanse.load(tmp_path / "run", model=nn.Linear(2, 2))


def test_a_mechanism_of_one_s_own_is_imported_only_if_trusted(played: hanse.Run, tmp_path: Path) -> None:
    folder = shutil.copytree(played.path, tmp_path / "run")
    config = folder / "config.toml"
    config.write_text(config.read_text().replace('name = "ditto"', 'name = "nowhere_at_all:mechanism"'))
    run = hanse.load(folder)
    assert (run.metrics, run.clients, run.interrupted) == (played.metrics, played.clients, False)
    for asks in (run.model, lambda: run.experiment, run.alone):
        with pytest.raises(hanse.UserError, match=r"is an import path.*hanse.load"):
            asks()
    with pytest.raises(hanse.UserError, match="'nowhere_at_all'"):
        hanse.load(folder, trust=True)


def test_a_damaged_shape(played: hanse.Run, tmp_path: Path) -> None:
    """It is refused, and no memory is taken on its word."""
    folder = shutil.copytree(played.path, tmp_path / "run")
    for said, line in (
        ('{"input_shape": [-1], "num_classes": 3}', r"shape\.json: Shape"),
        ('{"input_shape": [8], "num_classes": 0}', r"shape\.json: Shape"),
        (f'{{"input_shape": [{10**24}], "num_classes": 3}}', r"shape\.json: Shape"),
        ("[]", r"shape\.json: Shape"),
        (f'{{"input_shape": [{10**14}], "num_classes": 10}}', r"405 numbers.*'mlp'"),
    ):
        (folder / "shape.json").write_text(said)
        with pytest.raises(hanse.UserError, match=line):
            hanse.load(folder).model()
    (folder / "shape.json").unlink()
    with pytest.raises(hanse.UserError, match=r"shape\.json"):
        hanse.load(folder).model()


def towers(input_shape: Any, num_classes: int) -> nn.Module:
    assert (input_shape, num_classes) == ({"vitals": (2,), "codes": (4,)}, 2)
    return Two()


def test_clients_have_the_names_of_their_data_and_a_model_of_several_inputs_is_made_anew(tmp_path: Path) -> None:
    given, (x, y, _) = hanse.Experiment(mechanism={"name": "local"}, run={"rounds": 1}), two_inputs()
    played = hanse.run(given, data=(x, y, ["Hope", "St Mary", "Hope"] * 40), model=towers, out=tmp_path / "run")
    run = hanse.load(tmp_path / "run", model=towers)
    assert run.names == played.names == ("Hope", "St Mary")
    assert run.clients_to_pandas()["name"].tolist() == ["Hope", "St Mary"]
    assert same(run.model("St Mary"), played.model(1))
    assert same(hanse.load(tmp_path / "run", model=played.model(0)).model("St Mary"), played.model(1))
    assert not same(run.model("Hope"), played.model(1))
    with pytest.raises(hanse.UserError, match=r"hanse.load"):
        hanse.load(tmp_path / "run").model("Hope")
