"""Masked sums between nodes in one process: the simulation's numbers, drop-outs, and what the server received."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("flwr", reason="needs the extra 'flower'")

from flwr.supercore.task_identity import TaskIdentity
from inprocess import InProcessGrid, client_app, play

import hanse
from hanse.data import build
from hanse.federation.masker import Trusted
from hanse.flower import ClientData
from hanse.ledger.witness import Witness


@pytest.fixture(autouse=True)
def _identity() -> None:
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1  # Flower sets these inside an app


def experiment(clients: int, rounds: int = 2, **more: Any) -> hanse.Experiment:
    return hanse.Experiment(
        data={"clients": clients, "client_test": 0.2},
        model={"name": "mlp", "hidden": [8]},
        mechanism={"name": "fedavg", "value": "group_path"},
        train={"lr": 0.05},
        engine={"train": "sequential", "threads": 1, "workers": 1, "device": "cpu"},
        run={"rounds": rounds},
        federation={"secure": {"group": 3}},
        **more,
    )


def trusted_by_all(folder: Path, clients: int) -> Trusted:
    return Trusted(frozenset(Witness(folder / f"node{i}").public for i in range(clients)))


def grid_of(exp: hanse.Experiment, folder: Path, **more: Any) -> InProcessGrid:
    data, clients = build(exp.data), exp.data.clients
    trusted = trusted_by_all(folder, clients)
    return InProcessGrid(
        {
            100 + i: client_app(partial(_own, data, i), folder=folder / f"node{i}", trusted=trusted)
            for i in range(clients)
        },
        **more,
    )


def _own(data: Any, client: int, context: Any) -> ClientData:
    return ClientData.of(data, client)


def over_flower(exp: hanse.Experiment, folder: Path, grid: InProcessGrid | None = None) -> hanse.Run:
    data = build(exp.data)
    sets = (data.server_validation, data.server_test)
    here = grid or grid_of(exp, folder)
    return play(here, exp, folder / "run", exp.data.clients, lambda: sets, [], patience_s=5.0)


@pytest.mark.parametrize("clients", [3, 7])
def test_local_and_flower_engines_have_the_same_sums(clients: int, tmp_path: Path) -> None:
    exp = experiment(clients)
    local, flower = hanse.run(exp), over_flower(exp, tmp_path)
    assert torch.equal(local.table.rows, flower.table.rows)
    assert local.clients == flower.clients  # weights, losses, values
    assert [m["answered"] for m in flower.metrics] == [clients, clients]
