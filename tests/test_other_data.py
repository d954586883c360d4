"""A run goes on with the data that it was played with, or says what differs; a node keeps a fingerprint of its own."""

import json
import logging
from pathlib import Path

import pytest
import torch
from watching import Watch

import hanse
from hanse.data import Dataset, Samples
from hanse.runs.rehearsal import small_experiment

LABELS = {"flipped": 0}


def source(**_: object) -> Dataset:
    """Forty samples; so many labels of the first ones are flipped."""
    x = torch.randn(60, 2, generator=torch.Generator().manual_seed(3))
    y = (x[:, 0] > 0).long()
    y[: LABELS["flipped"]] = 1 - y[: LABELS["flipped"]]
    return Dataset("made", Samples(x[:40], y[:40]), Samples(x[40:], y[40:]), 2, (2,))


def experiment() -> hanse.Experiment:
    data = {"source": "test_other_data:source", "partition": {"name": "iid", "samples_per_client": 10}, "clients": 3}
    data |= {"client_test": 0.0, "client_validation": 0.0}
    return small_experiment({"name": "fedavg", "clients_per_round": 2}, data=data, run={"rounds": 4})


@pytest.fixture
def stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    import test_other_data  # what the import path names, and not what pytest made of this file

    monkeypatch.setattr(test_other_data, "LABELS", LABELS)
    monkeypatch.setitem(LABELS, "flipped", 0)
    with pytest.raises(KeyboardInterrupt):
        hanse.run(experiment(), out=tmp_path / "run", observers=[Watch(until=1)])
    return tmp_path / "run"


def contents(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_labels_flipped_between_stop_and_resume_are_refused(stopped: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = contents(stopped)
    monkeypatch.setitem(LABELS, "flipped", 1)
    said = r"was played with other data; not the same now: the train share of client \d; .*--other-data"
    with pytest.raises(hanse.UserError, match=said):
        hanse.resume(stopped)
    assert contents(stopped) == before


def test_other_data_that_are_allowed_are_recorded(stopped: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(LABELS, "flipped", 40)
    run = hanse.resume(stopped, other_data=True)
    note = "other data from here on, as allowed: the train shares of clients 0, 1, 2"
    assert f"warning: {note}" in run.said
    first, second = json.loads((stopped / "data.json").read_text())
    assert (first["round"], first["note"], second["round"], second["note"]) == (0, "", 2, note)
    assert first["data"]["train"] != second["data"]["train"]
    assert len(hanse.resume(stopped, rounds=5).metrics) == 5  # these are its data now
    monkeypatch.setitem(LABELS, "flipped", 0)
    with pytest.raises(hanse.UserError, match="other data"):
        hanse.resume(stopped, rounds=6)


def test_a_run_of_before_gets_a_fingerprint_and_says_so(stopped: Path) -> None:
    (stopped / "data.json").unlink()
    assert any(line.startswith("warning: data.json: there is no fingerprint") for line in hanse.resume(stopped).said)
    [only] = json.loads((stopped / "data.json").read_text())
    assert only["round"] == 2
    assert not any("fingerprint" in line for line in hanse.resume(stopped, rounds=5).said)


def test_a_participants_data_may_grow_and_its_node_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    from hanse.core.port import Ask, Request
    from hanse.federation.codec import pack
    from hanse.federation.node import Assignment, ClientData, Node

    exp, data = experiment(), source().train
    job = Assignment("run", 0, 3, 0, {"name": "logistic"}, exp.train.model_dump())
    message = pack(Request(0, (Ask("label counts", {}),)))
    caplog.set_level(logging.WARNING, "hanse")
    for round_, size in enumerate((30, 30, 40, 40)):
        Node(ClientData(data.take(torch.arange(size)), num_classes=2), job, tmp_path).answer(round_, message)
    assert [record.getMessage() for record in caplog.records] == [
        "own data: from round 2 on the train samples are others"
    ]
    assert [entry["round"] for entry in json.loads((tmp_path / "run" / "client-0" / "data.json").read_text())] == [0, 2]
