"""A run is a success only if something was mixed: the one test of that, and what says so at every door."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from commands import invoke
from rotation import rotating

import hanse
from hanse.lab.job import play, seeded
from hanse.mechanisms.registry import MECHANISMS
from hanse.reports.answers import answers_of
from hanse.runs.chance import nothing_mixed
from hanse.runs.rehearsal import rehearse

SILENT: dict[str, Any] = {
    "data": {"source": "digits", "clients": 3},
    "mechanism": {"name": "fedavg"},
    "behaviour": {"dropout": {"rate": 1.0}},
    "run": {"rounds": 2},
}


def own(targets: Any = None) -> tuple[Any, Any, Any]:
    x = np.random.default_rng(0).normal(size=(90, 8)).astype("float32")
    y = (x[:, 0] + x[:, 1] > 0).astype(int)
    return x, y if targets is None else targets(y), np.array(list("abc") * 30)


def test_one_update_with_a_weight_is_enough_and_nothing_else_is() -> None:
    line = [{"round": 0, "seats": 2}]
    assert nothing_mixed(line, [("no reply", None), (None, 0.5)]) is None
    assert nothing_mixed(line, [("no reply", None), (None, None)]) is None  # a weight that is not known
    assert nothing_mixed([], []) is None
    assert "no reply" in (nothing_mixed(line, [("no reply", None), ("no reply", 0.0)]) or "")
    assert nothing_mixed(line, [(None, 0.0)]) is not None
    assert nothing_mixed([{"round": 0, "seats": 0}], []) is not None
    assert nothing_mixed(line, []) is None  # the seats' lines are lost, which others say


@pytest.mark.parametrize("name", rotating(sorted(MECHANISMS.keys() - {"centralised"}), 5))
def test_every_mechanism_passes(name: str) -> None:
    assert hanse.run(rehearse(name, rounds=1).experiment).nothing is None


def test_a_run_in_which_nobody_answers_is_no_success(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="mixed"):
        found = hanse.run(hanse.Experiment(**SILENT), out=tmp_path / "run")
    assert found.nothing
    assert answers_of(tmp_path / "run").doubts[0] == found.nothing
    assert str(found).startswith(found.nothing)
    with pytest.warns(UserWarning, match="mixed"):
        assert hanse.resume(tmp_path / "run", rounds=3).nothing
    job = play(seeded(SILENT, 0, "silent"), lambda rounds: None)
    assert job["status"] == "failed"
    assert "mixed" in job["error"]
    file = tmp_path / "exp.toml"
    file.write_text('mechanism = "fedavg"\ndata.clients = 3\nbehaviour.dropout.rate = 1.0\nrun.rounds = 1\n')
    assert invoke("run", file, "--out", tmp_path / "other").exit_code == 1
    assert (tmp_path / "other" / "config.toml").exists()


def _no_rate(model: Any, data: Any, round: Any) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    for x, y in data.loader():
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()


def _one_moves(model: Any, data: Any, round: Any) -> dict[str, float]:
    with torch.no_grad():
        next(model.parameters()).add_(0.1 * (round.client == 0))
    return {"steps": 1}


@pytest.mark.parametrize(("loop", "result"), [(_no_rate, False), (_one_moves, True)])
def test_a_loop_that_steps_and_leaves_every_model_as_it_was_is_no_success(loop: Any, result: bool) -> None:
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        run = hanse.run(hanse.Experiment(mechanism="fedavg", train={"loop": loop}, run={"rounds": 2}), data=own())
    assert all(seat["steps"] and seat["weight"] for seat in run.clients)
    assert (run.nothing is None) == result
    assert any("train.loop" in str(one.message) for one in warned) != result


def test_batch_norm_is_not_trained_on_single_samples() -> None:
    net = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2))
    with pytest.raises(hanse.UserError, match=r"train\.batch_size: 1"):
        hanse.run(hanse.Experiment(mechanism="fedavg", train={"batch_size": 1}), data=own(), model=net)


def test_a_module_that_fails_on_one_clients_samples_is_told_with_client_and_round() -> None:
    class Picky(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(8, 2)

        def forward(self, x: torch.Tensor) -> Any:
            if self.training and len(x) > 5 and bool((x > 50).any()):  # not on the few that are tried before
                raise LookupError("no such pixel")
            return self.layer(x)

    x, y, clients = own()
    x[clients == "b", 0] = 60.0
    with pytest.raises(hanse.UserError, match=r"round 0: client 1 \(b\).*LookupError: no such pixel") as caught:
        hanse.run(hanse.Experiment(mechanism="fedavg", run={"rounds": 1}), data=(x, y, clients), model=Picky())
    assert isinstance(caught.value.__cause__, LookupError)
