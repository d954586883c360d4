"""Whole runs of personalised systems on digits: what they gain under skew, and the clusters that they find."""

import sys
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

import hanse
from hanse.data import Dataset, Samples

ENGINE = {"train": "stacked", "threads": 1}
SKEWED = {
    "clients": 8,
    "partition": {"name": "pathological", "classes_per_client": 2},
    "client_test": 0.25,
    "client_validation": 0.15,
}
PERSONAL = ("ditto", "fedamp", "heur_fedamp", "pfedgraph", "fedfomo", "fedsoft")


def experiment(name: str, rounds: int = 8, **sections: Any) -> hanse.Experiment:
    given: dict[str, Any] = {
        "data": SKEWED,
        "model": {"name": "mlp", "hidden": [16]},
        "mechanism": {"name": name},
        "train": {"batch_size": 16, "lr": 0.1, "epochs": 2},
        "engine": ENGINE,
        "run": {"rounds": rounds},
    }
    return hanse.Experiment(**(given | sections))


@cache
def last(name: str) -> dict:
    options = {"name": name, "clients_per_round": 8} if name == "fedavg" else {"name": name}
    return hanse.run(experiment(name, mechanism=options)).metrics[-1]


@pytest.mark.parametrize("name", PERSONAL)
def test_personal_models_beat_the_global_one_on_the_clients_own_data(name: str) -> None:
    assert last(name)["client/test_accuracy"] > 0.85
    assert last(name)["client/test_accuracy"] > last("fedavg")["client/test_accuracy"] + 0.1


@pytest.mark.parametrize("name", ["scaffold", "cfl"])
def test_the_shared_models_learn(name: str) -> None:
    assert last(name)["test/accuracy"] > 0.45


def two_worlds(**_: Any) -> Dataset:
    """Are these digits 5 or more? 8 clients in turn; odd ones have every answer the other way round."""
    digits = load_digits()
    x = torch.tensor(digits.images / 8 - 1, dtype=torch.float32)
    y = torch.tensor(digits.target >= 5).long()
    odd = torch.arange(len(y)) % 2
    train, test = slice(0, 1600), slice(1600, None)
    parts = Samples(x[train], (y ^ odd)[train]), Samples(x[test], y[test])
    return Dataset("two worlds", *parts, 2, (8, 8), client_of=np.arange(1600) % 8)


@pytest.fixture
def worlds(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setitem(sys.modules, "of_two_worlds", sys.modules[__name__])
    return {
        "source": "of_two_worlds:two_worlds",
        "partition": "natural",
        "clients": 8,
        "client_test": 0.3,
        "client_validation": 0.2,
    }


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("cfl", {"eps1": 0.3, "eps2": 0.6}),
        ("ifca", {"clusters": 2}),
        ("fedsoft", {"clusters": 2}),
        ("fedfomo", {}),
        ("pfedgraph", {}),
        ("heur_fedamp", {}),
    ],
)
def test_two_groups_with_opposite_labels_are_told_apart(
    name: str, options: dict[str, Any], worlds: dict[str, Any]
) -> None:
    run = hanse.run(experiment(name, 10, data=worlds, mechanism={"name": name, **options}))
    assert run.metrics[-1]["client/test_accuracy"] > 0.8
    if name == "cfl":
        assert run.table.size == 2
        assert len(set(run.home[::2])) == len(set(run.home[1::2])) == 1
        assert run.home[0] != run.home[1]
    if name == "ifca":
        assert run.metrics[-1]["deploy/largest_cluster"] == 4
    if name == "fedsoft":
        assert run.metrics[-1]["weigh/best_importance"] > 0.7


def test_bytes_are_those_of_the_models_that_travel() -> None:
    """In models of P numbers a client and round, down and up; answers to questions come on top."""
    size = 64 * 16 + 16 + 16 * 10 + 10
    want = {
        "fedavg": (1, 1),
        "ditto": (1, 1),  # the private model stays
        "scaffold": (2, 1),  # x and c - c_i
        "fedamp": (2, 1),  # the model and its centre
        "pfedgraph": (1, 1),
        "cfl": (1, 1),
        "ifca": (2, 1),  # both clusters' models, one of which is trained
        "fedsoft": (4, 1),  # two centres to estimate on, its own model, the mean of the centres
        "fedfomo": (9, 1),  # its own to train; to score: old, own, six others
    }
    for name, (down, up) in want.items():
        metrics = last(name)
        assert metrics["bytes/down"] == down * 8 * 4 * size
        assert metrics["bytes/up"] // (8 * 4 * size) == up
        assert metrics["bytes/up"] - up * 8 * 4 * size <= 8 * 8 * 2 * 8
