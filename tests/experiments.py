"""Small experiments of tests: a few clients with handwritten digits, a logistic model, one thread."""

from collections.abc import Mapping
from typing import Any

import hanse

MARKET: dict[str, Any] = {
    "data": {"partition": {"alpha": 1.0}, "seed": 2}, "train": {"steps": 5, "batch_size": 16, "lr": 0.1},
    "clients": {"grant": 100.0}, "engine": {"train": "stacked"}, "run": {"seed": 3},
}  # fmt: skip


def over(laid: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return sections with the keys of those that are given laid over them."""
    tables = {name: {**laid.get(name, {}), **one} for name, one in given.items() if isinstance(one, Mapping)}
    return {**laid, **given, **tables}


def digits(mechanism: Any = "fedavg", clients: int = 4, rounds: int = 3, /, **sections: Any) -> hanse.Experiment:
    """Return an experiment; the keys of a section that is given are laid over those that are here."""
    laid = {"data": {"clients": clients}, "model": {"name": "logistic"}, "engine": {"threads": 1}}
    return hanse.Experiment(mechanism=mechanism, **over({**laid, "run": {"rounds": rounds}}, sections))


def market(mechanism: Any = "ipfl", clients: int = 5, rounds: int = 4, /, **sections: Any) -> hanse.Experiment:
    """Return the same of clients with uneven data and 100 tokens each, who trade."""
    return digits(mechanism, clients, rounds, **over(MARKET, sections))
