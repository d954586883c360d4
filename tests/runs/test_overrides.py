"""What --set changes: keys, whole tables, keys that are left out, options of another mechanism."""

from typing import Any

import pytest
from mistaken import mistakes

from hanse.runs.overrides import apply

FILE: dict[str, Any] = {
    "mechanism": {"name": "fedprox", "clients_per_round": 4, "mu": 0.3, "weigh": "uniform"},
    "train": {"lr": 0.1, "batch_size": 16},
    "run": {"rounds": 3},
}


@pytest.mark.parametrize(
    ("overrides", "mechanism"),
    [
        (["mechanism=local"], {"name": "local"}),
        (['mechanism={name="fedavg", clients_per_round=2}'], {"name": "fedavg", "clients_per_round": 2}),
        (["mechanism.name=fedavg"], {"name": "fedavg", "clients_per_round": 4, "weigh": "uniform"}),
        (["mechanism.name=local"], {"name": "local", "weigh": "uniform"}),
        (["mechanism.name=local", "mechanism.weigh="], {"name": "local"}),
        (["mechanism.clients_per_round=2", "mechanism=fedavg"], {"name": "fedavg", "clients_per_round": 2}),
        (["mechanism.mu = 0.5"], {**FILE["mechanism"], "mu": 0.5}),
        (["mechanism.weigh.eps=1"], {**FILE["mechanism"], "weigh": {"name": "uniform", "eps": 1}}),
    ],
)
def test_the_mechanism_s_table(overrides: list[str], mechanism: dict[str, Any]) -> None:
    assert apply(FILE, overrides)[0]["mechanism"] == mechanism
    assert FILE["mechanism"]["name"] == "fedprox"  # as it was


def test_a_key_is_left_out() -> None:
    found, notes = apply(FILE, ["train.batch_size=", "run="])
    assert found == {"mechanism": FILE["mechanism"], "train": {"lr": 0.1}}
    assert notes == []


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("train", "--set train: must be section.key=value"),
        ("train=5", "--set train=5: "),
        ("train.batch_sizes=", "--set train.batch_sizes=: no such key to leave out; did you mean 'batch_size'"),
        ("run.rounds.x=1", "--set run.rounds.x=1: 'rounds' is 3"),
    ],
)
def test_mistakes(override: str, line: str) -> None:
    assert mistakes(apply, FILE, [override])[0].startswith(line)


@pytest.mark.parametrize(
    ("file", "override", "data"),
    [
        ({"source": "mnist"}, "data.source.scale=unit", {"source": {"name": "mnist", "scale": "unit"}}),
        ({"partition": "niid"}, "data.partition.alpha=.1", {"partition": {"name": "niid", "alpha": 0.1}}),
        ({}, "data.partition.alpha=-1.e1", {"partition": {"alpha": -10.0}}),
        ({"partition": {"name": "niid", "alpha": 0.1}}, "data.partition=iid", {"partition": "iid"}),
        ({"source": "digits"}, "data.source=1.2.3", {"source": "1.2.3"}),
    ],
)
def test_options_of_a_source_and_a_partition(file: dict[str, Any], override: str, data: dict[str, Any]) -> None:
    assert apply({"data": file}, [override])[0] == {"data": data}
