"""Whole runs of personalised systems on digits: what they gain under skew, and the bytes that travel."""

from functools import cache
from typing import Any

import pytest

import hanse

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
