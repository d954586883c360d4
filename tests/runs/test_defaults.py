"""An experiment that names a source and a mechanism, and nothing else, learns."""

from typing import Any

import pytest
from rotation import rotating

import hanse
from hanse.base.errors import UserError
from hanse.data import build
from hanse.data.partitions import Dirichlet
from hanse.runs.chance import Guess
from hanse.runs.config import TrainSection


def default(source: str, mechanism: str = "fedavg", **more: Any) -> hanse.Experiment:
    return hanse.Experiment(data={"source": source, "download": False}, mechanism=mechanism, **more)


def reached(experiment: hanse.Experiment) -> tuple[float, Guess]:
    """Return the accuracy on the server's test set after the last round, and what a guess has there."""
    guess = Guess.of(build(experiment.data).server_test)
    assert guess is not None
    return hanse.run(experiment).metrics[-1]["test/accuracy"], guess


@pytest.mark.parametrize("seed", rotating([0, 1, 2], 3))
def test_digits_by_fedavg(seed: int) -> None:
    experiment = hanse.Experiment(mechanism="fedavg", data={"seed": seed}, run={"seed": seed})
    assert (experiment.data.clients, experiment.data.partition) == (20, Dirichlet(alpha=0.5))
    assert reached(experiment)[0] >= 0.85


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "least"),
    [("mnist", 0.9), ("fashion_mnist", 0.8), ("cifar10", 0.3), ("shakespeare", 0.3), ("loans", 0),
     pytest.param("flights", 0, marks=pytest.mark.nightly)],
)  # fmt: skip
def test_a_source_by_fedavg(source: str, least: float) -> None:
    try:
        accuracy, guess = reached(default(source))
    except UserError as wrong:
        if "not found" in str(wrong) or "hanse[tables]" in str(wrong):
            pytest.skip(str(wrong))
        raise
    assert accuracy > max(least, guess.bar)


@pytest.mark.parametrize(
    ("source", "partition", "clients", "model"),
    [
        ("digits", "dirichlet", 20, "mlp"),
        ("synthetic", "natural", 20, "mlp"),
        ("loans", "natural", 20, "mlp"),
        ("flights", "natural", 15, "mlp"),
        ("pacs", "natural", 4, "mlp"),
        ("fedsoft_linear", "mixture", 20, "mlp"),
        ("shakespeare", "natural", 20, "lstm"),
        ("shakespeare_next", "natural", 20, "lstm"),
    ],
)
def test_a_source_brings_its_split_and_its_model(source: str, partition: str, clients: int, model: str) -> None:
    found = default(source)
    assert (found.data.partition.name, found.data.clients, found.model.name) == (partition, clients, model)
    assert (found.model.options.get("last") is True) == (source == "shakespeare_next")
    assert hanse.Experiment(**found.sections()).sections() == found.sections()


def test_what_a_file_names_stays() -> None:
    table = hanse.Experiment(
        data={"source": "flights", "partition": {"name": "dirichlet", "alpha": 0.3}}, mechanism="fedavg"
    ).data
    assert (table.partition.name, table.clients) == ("dirichlet", 20)
    assert hanse.Experiment(data={"source": "pacs", "clients": 2}, mechanism="fedavg").data.clients == 2
    assert (
        hanse.Experiment(data={"source": "pacs", "partition": {"per_owner": 2}}, mechanism="fedavg").data.clients == 8
    )
    assert default("shakespeare", model="lstm").model.options == {}  # LEAF's own sizes
    assert default("shakespeare", train={"lr": 0.8}).train.lr == 0.8


def test_the_rate_goes_by_what_steps() -> None:
    assert (TrainSection().lr, TrainSection().epochs, TrainSection().batch_size) == (0.1, 1, 10)
    assert TrainSection(optimizer="adamw").lr == TrainSection(loop="a:b").lr == 0.01
    assert default("digits", model="lstm").train.lr == default("shakespeare").train.lr == 2.0
    assert default("shakespeare", train={"optimizer": "adamw"}).train.lr == 0.01
