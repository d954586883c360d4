"""Whole runs of personalised systems on digits: two groups of clients that no one model serves."""

from typing import Any

import numpy as np
import pytest
import torch
from experiments import digits
from sklearn.datasets import load_digits

import hanse
from hanse.data import Dataset, Samples


def two_worlds() -> Dataset:
    """Are these digits 5 or more? 8 clients in turn; odd ones have every answer the other way round."""
    found = load_digits()
    x = torch.tensor(found.images / 8 - 1, dtype=torch.float32)
    y = torch.tensor(found.target >= 5).long()
    odd = torch.arange(len(y)) % 2
    train, test = slice(0, 1600), slice(1600, None)
    parts = Samples(x[train], (y ^ odd)[train]), Samples(x[test], y[test])
    return Dataset("two worlds", *parts, 2, (8, 8), client_of=np.arange(1600) % 8)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("cfl", {"eps1": 0.3, "eps2": 0.6}), ("ifca", {"clusters": 2}), ("fedsoft", {"clusters": 2}),
        ("ditto", {"lam": 0.1}), *((name, {}) for name in ("fedamp", "fedfomo", "pfedgraph", "heur_fedamp")),
    ],
)  # fmt: skip
def test_two_groups_with_opposite_labels_are_told_apart(name: str, options: dict[str, Any]) -> None:
    data = {"partition": "natural", "client_test": 0.3, "client_validation": 0.2}
    model, train = {"name": "mlp", "hidden": [16]}, {"batch_size": 16, "lr": 0.1, "epochs": 2}
    asked = digits({"name": name, **options}, 8, 10, data=data, model=model, train=train, engine={"train": "stacked"})
    run = hanse.run(asked, data=two_worlds())
    assert run.metrics[-1]["client/test_accuracy"] > 0.8
    if name == "cfl":
        assert run.table.size == 2
        assert len(set(run.home[::2])) == len(set(run.home[1::2])) == 1
        assert run.home[0] != run.home[1]
    if name == "ifca":
        assert run.metrics[-1]["deploy/largest_cluster"] == 4
    if name == "fedsoft":
        assert run.metrics[-1]["weigh/best_importance"] > 0.7
