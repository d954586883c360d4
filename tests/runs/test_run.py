"""Whole runs from Python: other models, other data, other targets than the defaults."""

import weakref
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import hanse
from hanse.core.part import Choice, Mechanism, SelectPart
from hanse.core.table import as_one
from hanse.data import Dataset, Samples
from hanse.mechanisms.baselines import fedavg
from hanse.runs.rehearsal import small_experiment

LINE = {"source": f"{__name__}:linear_data", "partition": "iid", "clients": 5}


def linear_data(**_: Any) -> Dataset:
    """y = 2 x0 - x1 + 1, without noise: a linear model can reach zero loss."""
    x = torch.randn(400, 2, generator=torch.Generator().manual_seed(0))
    y = 2 * x[:, 0] - x[:, 1] + 1
    return Dataset("linear", Samples(x[:300], y[:300]), Samples(x[300:], y[300:]), None, (2,))


def test_regression_learns_a_line_and_reports_no_accuracy() -> None:
    train, run = {"lr": 0.1, "epochs": 3}, {"rounds": 12}
    run = hanse.run(small_experiment({"name": "greedyfed", "clients_per_round": 3}, data=LINE, train=train, run=run))
    assert run.metrics[-1]["test/loss"] < 1e-4 < run.metrics[0]["test/loss"]
    assert all("test/accuracy" not in m for m in run.metrics)
    np.testing.assert_allclose(next(run.model().parameters()).detach().numpy(), [[2, -1]], atol=0.02)


OLD: list[Any] = []  # weak references to the updates of earlier rounds


class Unsorted(SelectPart):
    """Three clients in no order; what earlier rounds' clients sent must be gone by then."""

    def select(self, view: Any, state: Any) -> tuple[Choice, Any]:
        assert [old() for old in OLD] == [None] * view.round
        return Choice(np.array([3, 0, 2])), state


def unsorted() -> Mechanism:
    return replace(fedavg(), select=Unsorted())


class Watching:
    def on_round(self, metrics: Any, played: Any) -> None:
        OLD.append(weakref.ref(played.view.trained.rows))


def test_a_rounds_updates_are_held_once_and_no_longer_than_the_round(monkeypatch: pytest.MonkeyPatch) -> None:
    copied = list[bool]()

    def noting(rows: Sequence[torch.Tensor]) -> torch.Tensor:
        copied.append((found := as_one(rows)).data_ptr() != rows[0].data_ptr())
        return found

    monkeypatch.setattr("hanse.runs.arrivals.as_one", noting)
    OLD.clear()
    hanse.run(small_experiment(f"{__name__}:unsorted", data=LINE), observers=[Watching()])
    assert (len(OLD), copied) == (3, [False] * 3)  # the engine's rows themselves
