"""Which model of a client is tested: what it holds after the round, or what it trained in it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rotation import rotating
from watching import Watch

import hanse
from hanse.data import build
from hanse.lab.job import folder_of, play, play_kept, seeded
from hanse.runs.rehearsal import small_experiment

DATA = {"clients": 6, "partition": {"name": "pathological", "classes_per_client": 3}, "client_test": 0.25}


def played(mechanism: dict[str, Any], model: str, observers: Sequence[Any] = ()) -> hanse.Run:
    return hanse.run(small_experiment(mechanism, data=DATA, eval={"model": model}), observers=observers)


def by_hand(run: hanse.Run, models: Sequence[torch.Tensor]) -> list[float]:
    """Each client's model on its own test share, by PyTorch alone."""
    pool, index = build(run.experiment.data).pool(range(len(models)), "test")
    found = []
    for row, own in zip(models, index, strict=True):
        with torch.no_grad():
            right = run.model_of(row).eval()(pool.x[own]).argmax(1) == pool.y[own]
        found.append(float(right.double().mean()))
    return found


@pytest.mark.parametrize("name", rotating(["fedavg", "cfl", "ditto", "fedamp", "local"], 2))
def test_the_trained_model_is_the_clients_own_update(name: str) -> None:
    seen = Watch()
    options = {"select": "everyone"} if name == "fedavg" else {}
    run = played({"name": name, **options}, "trained", [seen])
    view = seen.rounds[-1].view
    seats, rows = view.updates.seats, view.updates.rows
    own = [np.flatnonzero(seats.client == c) for c in range(6)]
    if name == "ditto":  # two seats: the shared model's and its own
        own = [at[seats.target[at] == view.deployment.rows[c]] for c, at in enumerate(own)]
    assert np.allclose(run.tested["test_accuracy"], by_hand(run, [rows[int(at[0])] for at in own]))
    held = played({"name": name, **options}, "deployed")
    assert [a["train/loss"] for a in run.metrics] == [b["train/loss"] for b in held.metrics]  # nothing else changes
    assert np.allclose(run.tested["test_accuracy"], held.tested["test_accuracy"]) == (name not in ("fedavg", "cfl"))


CLASSES = {"clients": 5, "partition": {"name": "niid", "alpha": 0.3}, "client_test_from": "classes", "validation": 0.0,
           "client_test": 0.0, "client_validation": 0.0}  # fmt: skip


def test_the_official_tests_are_weighted_by_the_clients_classes() -> None:
    """The sum over classes of the client's train share times the accuracy on all test samples of the class."""
    run = hanse.run(small_experiment("local", data=CLASSES))
    data = build(run.experiment.data)
    counts, tests = data.class_counts(), data.server_test
    assert (len(tests), int(data.sizes.sum())) == (500, 1297)  # all test samples, and nothing cut from clients
    shares = counts / counts.sum(axis=1, keepdims=True)
    accuracy, loss = [], []
    for client in range(5):
        with torch.no_grad():
            logits = run.model(client).eval()(tests.x)
        right = (logits.argmax(1) == tests.y).double()
        each = torch.nn.functional.cross_entropy(logits, tests.y, reduction="none").double()
        accuracy.append(sum(shares[client, c] * float(right[tests.y == c].mean()) for c in range(10)))
        loss.append(sum(shares[client, c] * float(each[tests.y == c].mean()) for c in range(10)))
    assert np.allclose(run.tested["test_accuracy"], accuracy)
    assert np.allclose(run.tested["test_loss"], loss, rtol=1e-5)
    held = [int(np.isin(tests.y.numpy(), np.flatnonzero(own)).sum()) for own in counts]
    assert run.tested["test_samples"].tolist() == held
    assert run.metrics[-1]["client/test_accuracy"] == pytest.approx(np.mean(accuracy))


def test_the_best_round_of_each_client_is_kept(tmp_path: Path) -> None:
    """Of a whole run, and of one whose first rounds another process played."""
    asked = small_experiment({"name": "fedavg", "select": "everyone"}, data={**DATA, "clients": 4}, run={"rounds": 4})
    job = seeded(asked.sections(), 3, "a run")
    curves = play(job, lambda done: None)["curves"]
    each = np.array([curves[f"client/{c}/test_accuracy"] for c in range(4)])
    assert each.shape == (4, 4)
    assert np.allclose(each.mean(axis=0), curves["client/test_accuracy"])
    assert np.allclose(np.maximum.accumulate(each, axis=1).mean(axis=0), curves["client/best_accuracy"])
    assert curves["client/best_accuracy"][-1] > curves["client/test_accuracy"][0]
    with pytest.raises(KeyboardInterrupt):
        hanse.run(job.experiment, out=folder_of(tmp_path, job), observers=[Watch(until=1)])
    assert play_kept(job, lambda done: None, runs=tmp_path)["curves"] == curves
