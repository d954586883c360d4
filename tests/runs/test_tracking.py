"""Trackers get every number under the name that it has in metrics.jsonl; MLflow and W&B are stood in for here."""

import json
import sys
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock, call

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


def lines(out: Path) -> list[dict[str, Any]]:
    return [json.loads(text) for text in (out / "metrics.jsonl").read_text().splitlines()]


def test_wandb_gets_the_same_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = MagicMock(Error=type("Error", (Exception,), {}))
    monkeypatch.setitem(sys.modules, "wandb", fake)
    out, run = tmp_path / "run", fake.init.return_value
    hanse.run(hanse.Experiment(**EXPERIMENT), out=out, observers=make_trackers(["wandb"], out))
    assert run.log.call_args_list == [call(scalars(line), step=line["round"]) for line in lines(out)]
    resume(out, observers=make_trackers(["wandb"], out))  # nothing is left, but it is the same W&B run
    first, again = (one.kwargs for one in fake.init.call_args_list)
    assert (first["name"], first["config"]["mechanism"]["clients_per_round"]) == ("run", 2)
    assert first["id"] == again["id"]
    assert run.finish.call_args_list == [call(exit_code=0)] * 2
    fake.init.side_effect = fake.Error("api_key not configured (no-tty)\nmore")
    other = tmp_path / "other"
    with pytest.raises(UserError) as wrong:
        hanse.run(hanse.Experiment(**EXPERIMENT), out=other, observers=make_trackers(["wandb"], other))
    assert len(wrong.value.lines) == 1


def test_mlflow_gets_the_same_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake, entities = MagicMock(MlflowException=RuntimeError), MagicMock()
    entities.Metric, entities.Param = (lambda key, value, timestamp, step: (key, value, step)), (lambda *pair: pair)
    monkeypatch.setitem(sys.modules, "mlflow", fake)
    monkeypatch.setitem(sys.modules, "mlflow.entities", entities)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    out, client = tmp_path / "run", fake.MlflowClient.return_value
    client.get_experiment_by_name.return_value = None
    client.create_run.return_value.info.run_id = "the-run"
    hanse.run(hanse.Experiment(**EXPERIMENT), out=out, observers=make_trackers(["mlflow"], out))
    assert fake.MlflowClient.call_args == call(tracking_uri=f"sqlite:///{out / 'mlflow.db'}")
    batches = client.log_batch.call_args_list
    assert {one.args for one in batches} == {("the-run",)}
    params = [one.kwargs["params"] for one in batches if "params" in one.kwargs]
    assert ("mechanism.clients_per_round", "2") in [pair for some in params for pair in some]
    assert max(map(len, params)) <= 100
    logged = [one.kwargs["metrics"] for one in batches if "metrics" in one.kwargs]
    assert logged == [[(k, float(v), line["round"]) for k, v in scalars(line).items()] for line in lines(out)]
    assert client.set_terminated.call_args == call("the-run", "FINISHED")
    client.log_batch.reset_mock()
    resume(out, observers=make_trackers(["mlflow"], out))
    assert client.update_run.call_args == call("the-run", status="RUNNING")  # it goes on in the same run
    assert not client.log_batch.called  # with no new parameters
