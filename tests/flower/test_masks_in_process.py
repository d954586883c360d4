"""Masked sums between nodes in one process: the simulation's numbers, drop-outs, and what the server received."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from experiments import digits
from flwr.app import Message
from inprocess import InProcessGrid, apps_of, play
from rotation import rotating

import hanse
import hanse.runs.setup
from hanse.ledger.witness import Witness
from hanse.wings.private.masker import Trusted


def experiment(clients: int, rounds: int = 2) -> hanse.Experiment:
    model, engine = {"name": "mlp", "hidden": [8]}, {"train": "sequential", "workers": 1, "device": "cpu"}
    sections = {"data": {"client_test": 0.2}, "model": model, "engine": engine, "federation": {"secure": {"group": 3}}}
    return digits({"name": "fedavg", "value": "group_path"}, clients, rounds, train={"lr": 0.05}, **sections)


def grid_of(exp: hanse.Experiment, folder: Path, **more: Any) -> InProcessGrid:
    trusted = Trusted(frozenset(Witness(folder / f"node{i}").public for i in range(exp.data.clients)))
    return InProcessGrid(apps_of(exp, folder, lambda i: {"trusted": trusted}), **more)


def over_flower(exp: hanse.Experiment, folder: Path, grid: InProcessGrid | None = None) -> hanse.Run:
    return play(grid or grid_of(exp, folder), exp, folder / "run")


@pytest.mark.parametrize("clients", rotating([3, 7], 2))
def test_local_and_flower_engines_have_the_same_sums(clients: int, tmp_path: Path) -> None:
    exp = experiment(clients)
    local, flower = hanse.run(exp), over_flower(exp, tmp_path)
    assert torch.equal(local.table.rows, flower.table.rows)
    assert local.clients == flower.clients  # weights, losses, values
    assert [m["answered"] for m in flower.metrics] == [clients, clients]


def test_the_server_receives_no_update_of_one(tmp_path: Path) -> None:
    """Every array of every message to the server is held against each client's update of that round."""
    exp = experiment(4, rounds=1)
    received: list[Message] = []

    def note(node: int, message: Message, reply: Message) -> Message:
        received.append(reply)
        return reply

    run = over_flower(exp, tmp_path, grid_of(exp, tmp_path, meddle=note))
    assert run.metrics[0]["answered"] == 4
    start = hanse.runs.setup.build(exp).context.initial(0).numpy()
    updates = {}
    for i in range(4):
        [file] = (tmp_path / f"node{i}").glob("*/masked.npz")
        with np.load(file) as kept:
            updates[i] = kept["words"]
    arrays = [a.numpy().reshape(-1) for r in received for a in r.content.array_records["arrays"].values()]
    wide = [a for a in arrays if len(a) >= len(start)]
    assert len(wide) == 4  # one a client: words under masks
    for words in updates.values():
        change = words[: len(start)] / (2.0**28 * words[len(start)])
        for array in wide:
            assert array.dtype == np.int64
            assert not (array[: len(words)] == words).any()
            assert abs(np.corrcoef(array[: len(start)].astype(float), change)[0, 1]) < 0.2
    # what a mechanism is given is the same for all
    assert len({tuple(row.tolist()) for row in run.table.rows}) == 1


def test_a_participant_that_names_members_sends_no_update_in_the_clear(tmp_path: Path) -> None:
    exp = experiment(3)
    plain = hanse.Experiment.model_validate(
        exp.model_dump() | {"mechanism": {"name": "fedavg"}, "federation": {"min_replies": 1}}
    )
    assert [m["answered"] for m in over_flower(plain, tmp_path, grid_of(exp, tmp_path)).metrics] == [0, 0]


def test_a_participant_that_names_nobody_masks_with_nobody(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    exp = experiment(4, rounds=1)
    grid = grid_of(exp, tmp_path)
    grid.apps[103] = apps_of(exp, tmp_path)[103]
    assert over_flower(exp, tmp_path, grid).metrics[0]["answered"] == 3
    assert "trusts" in caplog.text


def test_members_are_read_from_the_participants_folder(tmp_path: Path) -> None:
    exp = experiment(3, rounds=1)
    lines = "".join(f"m{i} {Witness(tmp_path / f'node{i}').public.hex()}\n" for i in range(3))
    for i in range(3):
        (tmp_path / f"node{i}" / "members.txt").write_text(lines)
    assert over_flower(exp, tmp_path, InProcessGrid(apps_of(exp, tmp_path))).metrics[0]["answered"] == 3


def test_a_server_that_is_set_back_a_round_gets_the_same_sums_again(tmp_path: Path) -> None:
    exp = experiment(4)
    grid = grid_of(exp, tmp_path)
    run = over_flower(exp, tmp_path, grid)
    max((tmp_path / "run" / "checkpoints").glob("*.safetensors")).unlink()
    again = over_flower(exp, tmp_path, grid)
    assert [m["answered"] for m in again.metrics] == [4, 4]
    assert torch.equal(run.table.rows, again.table.rows)
