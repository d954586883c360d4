"""An experiment that names a source and a mechanism, and nothing else, learns."""

import pytest
from rotation import rotating

import hanse
from hanse.data import build
from hanse.data.partitions import Dirichlet
from hanse.runs.chance import Guess


def reached(experiment: hanse.Experiment) -> tuple[float, Guess]:
    """Return the accuracy on the server's test set after the last round, and what a guess has there."""
    return hanse.run(experiment).metrics[-1]["test/accuracy"], Guess.of(build(experiment.data).server_test)


@pytest.mark.parametrize("seed", rotating([0, 1, 2], 3))
def test_digits_by_fedavg(seed: int) -> None:
    experiment = hanse.Experiment(mechanism="fedavg", data={"seed": seed}, run={"seed": seed})
    assert (experiment.data.clients, experiment.data.partition) == (20, Dirichlet(alpha=0.5))
    assert reached(experiment)[0] >= 0.85


SOURCES = [("mnist", 0.9), ("cifar10", 0.3), ("fashion_mnist", 0.8), ("shakespeare", 0.3), ("loans", 0)]


@pytest.mark.parametrize("case", [*rotating(SOURCES, 5, pytest.mark.slow),
                                  pytest.param(("flights", 0), marks=pytest.mark.nightly)])  # fmt: skip
def test_a_source_by_fedavg(case: tuple[str, float]) -> None:
    source, least = case
    try:
        accuracy, guess = reached(hanse.Experiment(data={"source": source, "download": False}, mechanism="fedavg"))
    except hanse.UserError as wrong:
        if "not found" in str(wrong) or "hanse[tables]" in str(wrong):
            pytest.skip(str(wrong))
        raise
    assert accuracy > max(least, guess.bar)
