"""The same experiment on Flower's Ray simulation. By hand, where Ray is installed (extra 'ray')."""

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("flwr", reason="needs the extra 'flower'")

from deployed import MECHANISMS, PAYMENTS, experiment, kinds
from flwr.app import Context, RecordDict
from inprocess import InProcessGrid

import hanse
from hanse.base.errors import UserError
from hanse.flower import simulation


@pytest.mark.soak
@pytest.mark.parametrize("name", MECHANISMS)
def test_engines_agree_local_and_ray(name: str, tmp_path: Path) -> None:
    local = hanse.run(experiment(name))
    ray = hanse.run(experiment(name, federation={"engine": "ray"}), out=tmp_path / "run")
    assert torch.equal(local.table.rows, ray.table.rows)
    assert local.clients == ray.clients
    assert replace(local.book, peaks=()) == replace(ray.book, peaks=())  # closes have hashes of the engine's records
    assert kinds(tmp_path / "run") == (PAYMENTS[name] | {"grant", "close"} if name in PAYMENTS else set())


def test_the_ray_engine_says_what_it_cannot_do(tmp_path: Path) -> None:
    noisy = experiment(federation={"engine": "ray"}, behaviour={"noisy": {"sigma": 0.1}})
    said = "the ray engine has no simulated behaviours" if find_spec("ray") else "needs Ray; pip install"
    with pytest.raises(UserError, match=said):
        hanse.run(noisy, out=tmp_path / "run")


def test_virtual_nodes_agree_and_keep_folders_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray's nodes in this process, without Ray."""

    def played(clients: int, event: Any, app: Any, serves: Any, **_: Any) -> None:
        grid = InProcessGrid({100 + i: app for i in range(clients)})
        serves(grid, Context(1, 1, {}, RecordDict(), {}))

    monkeypatch.setattr(simulation, "_run_simulation", played)
    monkeypatch.setattr(simulation, "find_spec", lambda name: True)
    settings: dict[str, Any] = {"data": {"clients": 3, "client_test": 0.2}, "federation": {"engine": "ray"}}
    mechanism = {"name": "fedavg", "clients_per_round": 3}
    exp = hanse.Experiment(**settings, model="logistic", mechanism=mechanism, run={"rounds": 2})
    run = simulation.run_simulated(exp, out=tmp_path / "run")
    assert [(m["answered"], m["refused"]) for m in run.metrics] == [(3, 0), (3, 0)]
    homes = [tmp_path / "run" / "participants" / f"node{i}" for i in range(3)]
    assert [len(list(home.glob(f"*/client-{i}"))) for i, home in enumerate(homes)] == [1, 1, 1]
