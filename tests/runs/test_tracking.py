"""Trackers get every number under the name that it has in metrics.jsonl; MLflow and W&B are stood in for here."""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path
from typing import Any, ClassVar

import pytest

import hanse
from hanse.base.errors import UserError
from hanse.runs.experiment import resume
from hanse.runs.observers import make_trackers, scalars

EXPERIMENT = {
    "data": {"clients": 3},
    "model": {"name": "logistic"},
    "mechanism": {"name": "fedavg", "clients_per_round": 2},
    "engine": {"train": "sequential", "threads": 1},
    "run": {"rounds": 2},
}


class FakeWandB(types.ModuleType):
    def __init__(self) -> None:
        super().__init__("wandb")
        self.Error = type("Error", (Exception,), {})
        self.inits: list[dict[str, Any]] = []
        self.logged: list[tuple[dict[str, float], int]] = []
        self.codes: list[int] = []
        self.fail = ""

    def init(self, **given: Any) -> FakeWandB:
        if self.fail:
            raise self.Error(self.fail)
        self.inits.append(given)
        return self

    def log(self, numbers: dict[str, float], step: int) -> None:
        self.logged.append((numbers, step))

    def finish(self, exit_code: int) -> None:
        self.codes.append(exit_code)


class FakeClient:
    made: ClassVar[list[FakeClient]] = []

    def __init__(self, tracking_uri: str) -> None:
        self.uri, self.batches, self.ended = tracking_uri, [], []
        FakeClient.made.append(self)

    def get_experiment_by_name(self, name: str) -> None:
        return None

    def create_experiment(self, name: str, files: str | None) -> str:
        return "7"

    def create_run(self, number: str, run_name: str) -> Any:
        assert (number, run_name) == ("7", "run")
        return types.SimpleNamespace(info=types.SimpleNamespace(run_id="the-run"))

    def update_run(self, run: str, status: str) -> None:
        self.ended.append((run, status))

    def log_batch(self, run: str, **given: Any) -> None:
        self.batches.append((run, given))

    def set_terminated(self, run: str, status: str) -> None:
        self.ended.append((run, status))


def lines(out: Path) -> list[dict[str, Any]]:
    return [json.loads(text) for text in (out / "metrics.jsonl").read_text().splitlines()]


def test_numbers_only() -> None:
    given = {"round": 3, "test/accuracy": 0.5, "seats": 2, "test/loss": None, "ledger/head": "abc"}
    assert scalars(given) == {"test/accuracy": 0.5, "seats": 2}


def test_wandb_gets_the_same_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeWandB()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    out = tmp_path / "run"
    hanse.run(hanse.Experiment(**EXPERIMENT), out=out, observers=make_trackers(["wandb"], out))
    assert fake.logged == [(scalars(line), line["round"]) for line in lines(out)]
    assert fake.inits[0]["name"] == "run"
    assert fake.inits[0]["config"]["mechanism"]["clients_per_round"] == 2
    assert fake.codes == [0]
    resume(out, observers=make_trackers(["wandb"], out))  # nothing is left, but it is the same W&B run
    assert fake.inits[1]["id"] == fake.inits[0]["id"]
    fake.fail = "api_key not configured (no-tty)\nmore"
    other = tmp_path / "other"
    with pytest.raises(UserError) as wrong:
        hanse.run(hanse.Experiment(**EXPERIMENT), out=other, observers=make_trackers(["wandb"], other))
    assert wrong.value.lines == ("--track wandb: api_key not configured (no-tty)",)


def test_mlflow_gets_the_same_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake, entities = types.ModuleType("mlflow"), types.ModuleType("mlflow.entities")
    fake.MlflowClient, fake.MlflowException = FakeClient, RuntimeError  # type: ignore[attr-defined]
    entities.Metric = lambda key, value, timestamp, step: (key, value, step)  # type: ignore[attr-defined]
    entities.Param = lambda key, value: (key, value)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "mlflow", fake)
    monkeypatch.setitem(sys.modules, "mlflow.entities", entities)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    FakeClient.made.clear()
    out = tmp_path / "run"
    hanse.run(hanse.Experiment(**EXPERIMENT), out=out, observers=make_trackers(["mlflow"], out))
    (client,) = FakeClient.made
    assert client.uri == f"sqlite:///{out / 'mlflow.db'}"
    assert {run for run, _ in client.batches} == {"the-run"}
    params = dict(p for _, given in client.batches for p in given.get("params", ()))
    assert params["mechanism.clients_per_round"] == "2"
    assert all(len(given.get("params", ())) <= 100 for _, given in client.batches)
    logged = [given["metrics"] for _, given in client.batches if "metrics" in given]
    assert logged == [[(k, float(v), line["round"]) for k, v in scalars(line).items()] for line in lines(out)]
    assert client.ended == [("the-run", "FINISHED")]
    resume(out, observers=make_trackers(["mlflow"], out))
    assert FakeClient.made[1].ended[0] == ("the-run", "RUNNING")  # goes on in the same run, with no new parameters
    assert FakeClient.made[1].batches == []
