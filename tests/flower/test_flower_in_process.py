"""The port on Flower's records and apps, in one process: the local engine's numbers; wrong replies are refused."""

import json
import sys
import types
from collections.abc import Iterable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import deployed
import numpy as np
import pytest
import torch
import user_loops
from deployed import PAYMENTS, kinds
from inprocess import InProcessGrid, apps_of, play
from rotation import rotating
from watching import Killed, Watch

import hanse
import hanse.runs.setup
from hanse.data import Samples, as_dataset, build
from hanse.federation.codec import WireError
from hanse.federation.node import Assignment, Node
from hanse.flower import ClientData
from hanse.flower.members import Hello, Members
from hanse.learning.models import build_problem
from hanse.runs.recompute import recompute
from hanse.runs.run_record import load_run
from tests.runs.test_objects import Two, two_inputs

N = 5
MECHANISMS: dict[str, dict[str, Any]] = {
    "fedavg": {"clients_per_round": 3}, "greedyfed": {"clients_per_round": 2}, "gtfedavg": {"clients_per_round": 3},
    "pifl": {"by_contribution": 2, "at_random": 1}, "ipfl": {"keep_best": False, "eagerness": 5e4},
    "power_of_choice": {"clients_per_round": 2}, "fedgen": {"clients_per_round": 3},
    "scaffold": {"clients_per_round": 3}, "fedfomo": {},
}  # fmt: skip


def experiment(name: str, rounds: int = 3, **more: Any) -> hanse.Experiment:
    return deployed.experiment(name, N, rounds, mechanism=MECHANISMS.get(name, {}), **{"eval": {}, **more})


def grid_of(exp: hanse.Experiment, folder: Path, **more: Any) -> InProcessGrid:
    return InProcessGrid(apps_of(exp, folder), **more)


def over_flower(exp: hanse.Experiment, folder: Path, grid: InProcessGrid | None = None) -> hanse.Run:
    return play(grid or grid_of(exp, folder), exp, folder / "run")


@pytest.mark.parametrize("name", rotating([*MECHANISMS], 3))
def test_local_and_flower_engines_agree(name: str, tmp_path: Path) -> None:
    exp = experiment(name)
    local, flower = hanse.run(exp, out=tmp_path / "local"), over_flower(exp, tmp_path)
    assert torch.equal(local.table.rows, flower.table.rows)
    assert local.clients == flower.clients  # seats, weights, losses, values
    # postings; closes have hashes of records, in which tests' means are summed in another order
    assert replace(local.book, peaks=()) == replace(flower.book, peaks=())
    assert kinds(tmp_path / "run") == (PAYMENTS[name] | {"grant", "close"} if name in PAYMENTS else set())
    for a, b in zip(local.metrics, flower.metrics, strict=True):
        assert (a["seats"], a["answered"], a["refused"]) == (b["seats"], b["answered"], b["refused"])


def test_models_that_a_node_holds_are_not_sent_again(tmp_path: Path) -> None:
    run = over_flower(experiment("fedavg", eval={"every": 1}), tmp_path)
    model = run.table.rows.shape[1] * 4
    # round 0 sends the first model; later ones find the model of the test after the round before
    assert run.metrics[0]["bytes/down"] > 3 * model
    assert run.metrics[1]["bytes/down"] < model


@pytest.mark.parametrize("name", rotating(["local", "ditto"], 2))
def test_a_private_row_stays_with_its_owner_who_tests_it(name: str, tmp_path: Path) -> None:
    exp = experiment(name)
    run, alone = over_flower(exp, tmp_path, grid_of(exp, tmp_path)), hanse.run(exp)
    for c in {line["client"] for line in alone.clients}:
        [file] = (tmp_path / f"node{c}").glob(f"*/client-{c}/row-{c}.npz")
        with np.load(file) as kept:
            assert torch.equal(torch.from_numpy(kept["row"]), alone.table.rows[c])
    assert torch.equal(run.table.rows[N:], alone.table.rows[N:])  # Ditto's shared model
    assert torch.equal(run.table.rows[0], run.table.rows[1])  # the server has the first one of the others
    models = sum(line["start"] == N for line in run.clients if line["round"] == 2)
    assert run.metrics[-1]["bytes/up"] < 5 * 1500 + models * run.table.rows.shape[1] * 4  # headers, no private models
    assert run.clients == alone.clients
    for figure in ("client/test_loss", "client/test_accuracy", "client/test_accuracy_min", "client/test_fit_q50"):
        assert run.metrics[-1][figure] == pytest.approx(alone.metrics[-1][figure], rel=1e-6)
    assert run.tested["test_samples"].tolist() == alone.tested["test_samples"].tolist()


def test_simulated_behaviour_does_not_belong_on_a_network(tmp_path: Path) -> None:
    exp = experiment("fedavg", behaviour={"noisy": {"sigma": 0.1}})
    with pytest.raises(hanse.UserError, match="behave"):
        play(grid_of(experiment("fedavg"), tmp_path), exp, tmp_path / "run", data=None, patience_s=0.2)


def test_a_member_is_its_key_whatever_name_it_gives_itself(tmp_path: Path) -> None:
    said = Hello(name="A", num_samples=5, input_shape=(3,), num_classes=2)
    register = Members.read(tmp_path / "members.json")
    register.register([("key a", said), ("key b", replace(said, name=""))])
    Members.read(tmp_path / "members.json").register([("key a", replace(said, name="somebody else"))])
    again = Members.read(tmp_path / "members.json").by_key
    assert [(m.id, m.name) for m in again.values()] == [(0, "somebody else"), (1, "client 1")]
    same = [replace(said, name=name) for name in ("Client 1 ", "x" * 80, "X" * 80, "b", "b (7)", "b")]
    register.register([(f"key {k}", one) for k, one in enumerate(same)])
    assert len({m.name.strip().lower() for m in Members.read(tmp_path / "members.json").by_key.values()}) == 8
    register.expel({1: "sent rubbish", 7: "nobody"})
    assert Members.read(tmp_path / "members.json").by_key["key b"].expelled == "sent rubbish"


def test_a_name_that_looks_like_a_key_is_refused() -> None:
    for name in ("ab" * 32, "AB" * 32):
        with pytest.raises(ValueError, match=r"Hello.name: .* must not look like a key"):
            Hello.of(json.dumps({"name": name, "num_samples": 5, "input_shape": [3], "num_classes": 2}))


def test_samples_of_several_inputs_train_on_a_network_as_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y, _ = two_inputs()
    module = types.ModuleType("hanse_test_two")
    who = np.array(["A", "B", "C", "D", "E"])[np.arange(len(y)) % N]
    vars(module).update(TwoInputs=lambda *_: Two(), two_inputs=lambda: as_dataset((x, y, who)))
    monkeypatch.setitem(sys.modules, "hanse_test_two", module)
    data = {"source": "hanse_test_two:two_inputs", "clients": N, "client_test": 0.2}
    exp = experiment("fedavg", 2, data=data, model={"name": "hanse_test_two:TwoInputs"}, train={"lr": 0.1})
    local, flower = hanse.run(exp), over_flower(exp, tmp_path)
    assert torch.equal(local.table.rows, flower.table.rows)
    assert local.metrics[-1]["client/test_accuracy"] == flower.metrics[-1]["client/test_accuracy"]
    assert [load_run(tmp_path / "run").client_label(c) for c in range(N)] == ["A", "B", "C", "D", "E"]
    [member, *_] = Members.read(tmp_path / "run" / "members.json").by_id().values()
    assert [(part.name, part.shape, part.whole) for part in member.inputs] == [
        ("vitals", (2,), False),
        ("codes", (4,), True),
    ]


def test_a_participants_data_with_gaps_are_refused_before_they_are_asked_for() -> None:
    x = torch.zeros(4, 2)
    x[2, 1] = float("nan")
    with pytest.raises(hanse.UserError, match="load_data"):
        ClientData(Samples(x, torch.zeros(4, dtype=torch.int64)), num_classes=2)
    mine = Samples(torch.zeros(4, 2), torch.zeros(4, dtype=torch.int64))
    with pytest.raises(hanse.UserError, match=r"load_data.*profile\.cost"):
        ClientData(mine, num_classes=2, profile={"cost": float("nan")})


@pytest.mark.parametrize("name", rotating(["greedyfed", "pifl", "ditto"], 3))
def test_a_run_over_flower_is_recomputed_by_an_auditor(name: str, tmp_path: Path) -> None:
    """It is played again without clients, of what came over the network; Ditto's own rows stay with their owners."""
    exp = experiment(name)
    exp = exp.model_copy(update={"run": exp.run.model_copy(update={"recomputable": True})})
    found = recompute(over_flower(exp, tmp_path).path)
    assert (found.unlike, found.rounds) == (None, 3)


# ---- training loops of a participant's own


def looped(loop: Any, **more: Any) -> hanse.Experiment:
    return deployed.experiment(rounds=2, mechanism={"clients_per_round": N}, train={"lr": 0.05, "loop": loop}, **more)


def training(exp: hanse.Experiment, folder: Path, loop: Any, of: Iterable[int]) -> hanse.Run:
    """Participants ``of`` train by a loop of their own."""
    apps = apps_of(exp, folder, lambda i: {"train": loop} if i in of else {})
    return over_flower(exp, folder, InProcessGrid(apps))


LOOPS = {"fit": None, "drawing": None, "private": "opacus", "lightning": "lightning"}


@pytest.mark.parametrize("name", rotating([*LOOPS], len(LOOPS)))
def test_the_same_rows_as_in_simulation(name: str, tmp_path: Path) -> None:
    if LOOPS[name] and find_spec(LOOPS[name]) is None:
        pytest.skip(f"needs {LOOPS[name]}")
    exp = looped(f"user_loops:{name}")
    local, flower = hanse.run(exp), over_flower(exp, tmp_path)
    assert torch.equal(local.table.rows, flower.table.rows)
    assert local.clients == flower.clients  # steps, losses, metrics
    assert all(m["answered"] == N for m in flower.metrics)
    initial = hanse.run(exp.model_copy(update={"run": exp.run.model_copy(update={"rounds": 0})})).table.rows
    assert bool((flower.table.rows != initial).any())


def test_a_participant_may_train_by_its_own_loop(tmp_path: Path) -> None:
    everybody = hanse.run(looped("user_loops:fit"))
    flower = training(looped(None), tmp_path, user_loops.fit, range(N))
    assert torch.equal(everybody.table.rows, flower.table.rows)
    one = training(looped(None), tmp_path / "one", "user_loops:fit", [2])
    assert [line["client"] for line in one.clients if "fit/right" in line] == [2, 2]
    assert all(m["answered"] == N for m in one.metrics)


def test_only_what_trains_is_sent(tmp_path: Path) -> None:
    exp = looped("user_loops:fit", model={"name": "user_loops:tuned_plainly", "send": "trainable"})
    local, flower = hanse.run(exp), over_flower(exp, tmp_path)
    assert torch.equal(local.table.rows, flower.table.rows)
    assert local.clients == flower.clients
    assert flower.table.rows.shape[1] == 170


def test_a_node_with_other_frozen_parameters_does_not_train(tmp_path: Path) -> None:
    data = build(looped(None).data)
    model = {"name": "user_loops:tuned_plainly", "send": "trainable"}
    problem, _ = build_problem("user_loops:tuned_plainly", (64,), 10, 0, send="trainable")
    assert problem.unsent != build_problem("user_loops:tuned_plainly", (64,), 10, 1, send="trainable")[0].unsent
    assert build_problem("user_loops:tuned_plainly", (64,), 10, 0)[0].unsent == ""
    job = Assignment("run", 0, N, 0, model, {"lr": 0.05}, unsent=problem.unsent)
    mine = {"user_loops:tuned_plainly": user_loops.tuned_plainly}
    Node(ClientData.of(data, 0), job, tmp_path, own=mine)
    with pytest.raises(WireError, match="parameters here"):
        Node(ClientData.of(data, 0), replace(job, seed=1), tmp_path, own=mine)


def test_a_bill_larger_than_its_client_agreed_to_is_not_paid_on_either_engine(tmp_path: Path) -> None:
    exp = experiment("ipfl", clients={"policy": {"name": "trader", "most": 4.0}})
    local, flower = hanse.run(exp), over_flower(exp, tmp_path)
    withheld = [m["market/withheld"] for m in flower.metrics[:-1]]  # the last round has no market
    assert all(0 < n < N for n in withheld)
    assert [m["market/withheld"] for m in local.metrics[:-1]] == withheld
    assert torch.equal(local.table.rows, flower.table.rows)
    assert replace(local.book, peaks=()) == replace(flower.book, peaks=())


def test_the_server_goes_on_where_it_was_and_a_node_that_comes_back_keeps_its_id(tmp_path: Path) -> None:
    exp = experiment("greedyfed", rounds=4)
    whole = over_flower(exp, tmp_path / "whole")
    grid = grid_of(exp, tmp_path / "parts")

    with pytest.raises(Killed):
        play(grid, exp, tmp_path / "parts" / "run", Watch(1, Killed))
    again = over_flower(exp, tmp_path / "parts")
    assert torch.equal(again.table.rows, whole.table.rows)
    assert again.clients == whole.clients
