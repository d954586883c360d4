"""Adapters on a network: the shipped experiment on nodes of their own, and participants with files of their own."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("flwr", reason="needs the extra 'flower'")
sys.path.append(str(Path(__file__).parents[2] / "flower"))

from deployed import clients, final, kinds, metrics, network, plan
from flwr.supercore.task_identity import TaskIdentity
from inprocess import InProcessGrid, client_app, play

import hanse
from hanse.data.samples import Samples
from hanse.flower import ClientData
from hanse.learning.sequences import is_text
from hanse.wings.language.participant import instructions
from hanse.wings.language.sources import INSTRUCTION, client_reports


def shipped(**more: Any) -> hanse.Experiment:
    """iPFL's table 1 on the shipped set at its smallest, three of the clients, eager enough to trade."""
    find_table = pytest.importorskip("hanse_papers.catalogue", reason="pip install -e papers").find_table
    cell = next(c for c in find_table("ipfl", "table1", "smoke").cells if c.algorithm == "iPFL")
    sections = {name: dict(section) for name, section in cell.variants[0].sections.items()}
    sections["data"] |= {"clients": 3}
    sections["clients"]["profiles"] = {"name": "listed", "cost": [1.0, 0.5, 2.0], "eagerness": [2e5, 1e5, 3e5]}
    sections["engine"] = {"train": "sequential", "threads": 1, "workers": 1, "device": "cpu"}
    return hanse.Experiment(**{**sections, **more})


@pytest.mark.nightly
def test_engines_agree_on_adapters_local_and_deployment(llm: None, tmp_path: Path) -> None:
    exp = shipped(run={"rounds": 2})
    net = network(tmp_path / "net", 3, ("transformers", "peft", "tiny_base"))
    try:
        net.up()
        net.play({"plan": str(plan(tmp_path, {"run": exp}))})
    finally:
        net.down()
    local, state = hanse.run(exp), final(tmp_path / "run")
    assert torch.allclose(local.table.rows, state.table.rows, rtol=0, atol=1e-4)  # what was asked for
    assert torch.equal(local.table.rows, state.table.rows)  # what is
    assert local.clients == clients(tmp_path / "run")
    assert replace(local.book, peaks=()) == replace(state.book, peaks=())  # closes have hashes of the engine's records
    assert kinds(tmp_path / "run") == {"grant", "market", "close"}
    here, there = local.metrics[-1], metrics(tmp_path / "run")[-1]
    for name in ("client/test_perplexity", "client/test_accuracy", "client/test_fit_q50", "utility/mean"):
        assert there[name] == pytest.approx(here[name], rel=1e-6)


def write(path: Path, client: int, words: int) -> Path:
    """Write one client's shipped reports; the longest of them gets ``words`` more words."""
    own = [*client_reports()[0][client][:20]]
    said = [{"instruction": INSTRUCTION, "input": item.input, "output": item.output} for item in own]
    said[0]["input"] += " indeed" * words
    path.write_text(json.dumps(said))
    return path


def over(exp: hanse.Experiment, folder: Path, data: list[ClientData]) -> hanse.Run:
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1  # Flower sets these inside an app
    apps = {
        100 + i: client_app(lambda c, own=own: own, folder=folder / f"node{i}")  # each its own data
        for i, own in enumerate(data)
    }
    return play(InProcessGrid(apps), exp, folder / "run", members=len(data), data=None)


def test_participants_bring_instructions_of_their_own(llm: None, tmp_path: Path) -> None:
    mine = [instructions(write(tmp_path / f"farm{i}.json", i, 3 * i), length=96, validation=0.1) for i in range(3)]
    assert [len(share) for own in mine for share in (own.train, own.validation, own.test)] == [14, 2, 4] * 3
    assert [own.name for own in mine] == ["farm0", "farm1", "farm2"]
    assert len({own.train.x.shape[1] for own in mine}) > 1  # texts of other lengths
    assert all(is_text(own.train) and own.train.x.shape[1] == own.test.x.shape[1] for own in mine)
    run = over(shipped(clients={"grant": 1e6}), tmp_path, mine)
    assert [line["answered"] for line in run.metrics] == [3, 3, 3]
    last = run.metrics[-1]
    assert run.tested["test_samples"].tolist() == [4, 4, 4]
    assert last["client/test_perplexity"] == pytest.approx(np.exp(run.tested["test_loss"].mean()))
    assert set(run.tested["test_accuracy"] * 4 % 1) == {0.0}
    members = json.loads((tmp_path / "run" / "members.json").read_text())
    assert [(m["name"], m["text"], m["num_classes"]) for m in members] == [
        (f"farm{i}", True, mine[i].num_classes) for i in range(3)
    ]


def test_texts_and_other_samples_do_not_meet(llm: None, tmp_path: Path) -> None:
    text = instructions(write(tmp_path / "a.json", 0, 0), length=96)
    table = ClientData(Samples(torch.zeros(5, 3), torch.zeros(5, dtype=torch.int64)), num_classes=2)
    run = over(shipped(), tmp_path, [text, table])
    assert {metrics["present"] for metrics in run.metrics} == {1}  # the other is kept out, with a line in the log
    [member] = json.loads((tmp_path / "run" / "members.json").read_text())
    assert (member["text"], member["num_classes"]) == (True, 263)


def test_a_file_that_makes_no_shares_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.json", 0, 0)
    with pytest.raises(hanse.UserError, match=r"0\.6.*0\.4"):
        instructions(path, test=0.6, validation=0.4)
    with pytest.raises(hanse.UserError, match="cannot be read"):
        instructions(tmp_path / "none.json")
