"""A training loop of one's own at participants on a network: the rows, metrics and refusals that a simulation has."""

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import deployed
import pytest
import torch
import user_loops
from inprocess import InProcessGrid, apps_of, play
from rotation import rotating
from test_flower_in_process import N

import hanse
from hanse.data import build
from hanse.federation.codec import WireError
from hanse.federation.node import Assignment, Node
from hanse.flower import ClientData
from hanse.learning.models import build_problem


def experiment(loop: Any, **more: Any) -> hanse.Experiment:
    return deployed.experiment(rounds=2, mechanism={"clients_per_round": N}, train={"lr": 0.05, "loop": loop}, **more)


def over_flower(exp: hanse.Experiment, folder: Path, own: Any = None, of: tuple[int, ...] = ()) -> hanse.Run:
    """Participants ``of`` train by a loop of their own."""
    apps = apps_of(exp, folder, lambda i: {"train": own} if i in of else {})
    return play(InProcessGrid(apps), exp, folder / "run")


LOOPS = {"fit": None, "drawing": None, "private": "opacus", "lightning": "lightning"}


@pytest.mark.parametrize("name", rotating([*LOOPS], len(LOOPS)))
def test_the_same_rows_as_in_simulation(name: str, tmp_path: Path) -> None:
    if LOOPS[name] and find_spec(LOOPS[name]) is None:
        pytest.skip(f"needs {LOOPS[name]}")
    exp = experiment(f"user_loops:{name}")
    local, flower = hanse.run(exp), over_flower(exp, tmp_path)
    assert torch.equal(local.table.rows, flower.table.rows)
    assert local.clients == flower.clients  # steps, losses, metrics
    assert all(m["answered"] == N for m in flower.metrics)
    initial = hanse.run(exp.model_copy(update={"run": exp.run.model_copy(update={"rounds": 0})})).table.rows
    assert bool((flower.table.rows != initial).any())


def test_a_participant_may_train_by_its_own_loop(tmp_path: Path) -> None:
    everybody = hanse.run(experiment("user_loops:fit"))
    flower = over_flower(experiment(None), tmp_path, user_loops.fit, tuple(range(N)))
    assert torch.equal(everybody.table.rows, flower.table.rows)
    one = over_flower(experiment(None), tmp_path / "one", "user_loops:fit", (2,))
    said = [line["client"] for line in one.clients if "fit/right" in line]
    assert said == [2, 2]
    assert all(m["answered"] == N for m in one.metrics)


def test_only_what_trains_is_sent(tmp_path: Path) -> None:
    exp = experiment("user_loops:fit", model={"name": "user_loops:tuned_plainly", "send": "trainable"})
    local, flower = hanse.run(exp), over_flower(exp, tmp_path)
    assert torch.equal(local.table.rows, flower.table.rows)
    assert local.clients == flower.clients
    assert flower.table.rows.shape[1] == 170


def test_a_node_with_other_frozen_parameters_does_not_train(tmp_path: Path) -> None:
    data = build(experiment(None).data)
    model = {"name": "user_loops:tuned_plainly", "send": "trainable"}
    problem, _ = build_problem("user_loops:tuned_plainly", (64,), 10, 0, send="trainable")
    assert problem.unsent != build_problem("user_loops:tuned_plainly", (64,), 10, 1, send="trainable")[0].unsent
    assert build_problem("user_loops:tuned_plainly", (64,), 10, 0)[0].unsent == ""
    job = Assignment("run", 0, N, 0, model, {"lr": 0.05}, unsent=problem.unsent)
    mine = {"user_loops:tuned_plainly": user_loops.tuned_plainly}
    Node(ClientData.of(data, 0), job, tmp_path, own=mine)
    with pytest.raises(WireError, match="parameters here"):
        Node(ClientData.of(data, 0), replace(job, seed=1), tmp_path, own=mine)
