"""Attacks on what the server sees: an image from an update, and who trained on what; with single updates and sums."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

import hanse
from hanse.runs.round import first_state, play_round
from hanse.runs.setup import build

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def first_round(secure: dict[str, Any]) -> tuple[Any, Any]:
    """Play a round of three clients with one image each, and return the view and the images."""
    exp = hanse.Experiment(
        data={"clients": 3, "partition": {"name": "iid", "samples_per_client": 1, "min_samples": 1}},
        model={"name": "logistic"}, mechanism={"name": "fedavg", "select": "everyone"},
        train={"lr": 0.1, "epochs": 1, "batch_size": 1}, federation=secure,
        engine={"train": "sequential", "threads": 1, "workers": 1, "device": "cpu"},
    )  # fmt: skip
    setup = build(exp)
    pool, index = setup.data.pool([0, 1, 2])
    return play_round(setup, first_state(setup)).view, [pool.x[at][0].reshape(-1) for at in index]


def errors(view: Any, images: list[Any]) -> np.ndarray:
    """Return how far each client's image is from what each output's weights and bias give, ``[3, 10]``.

    A step on one image changes output k's weights by a factor times the image and its bias by that factor.
    """
    change = view.judge.problem.layout.unflatten(view.trained.rows[0] - view.table.rows[0])
    weights, bias = (next(t for t in change.values() if t.ndim == n) for n in (2, 1))
    found = weights / bias[:, None]
    return np.array([[float((row - x).norm() / x.norm()) for row in found] for x in images])


def test_an_image_is_read_from_a_single_update_and_not_from_a_sum() -> None:
    view, images = first_round({})
    assert errors(view, images)[0].max() < 1e-2
    view, images = first_round({"secure": {"group": 3}})
    assert errors(view, images).min() > 0.1


@pytest.fixture
def leaks(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    spec = importlib.util.spec_from_file_location("leaks", BENCHMARKS / "leaks.py")
    made = importlib.util.module_from_spec(spec)
    sys.modules.pop("path_study", None)
    spec.loader.exec_module(made)
    return made


def test_who_trained_on_a_sample_shows_less_in_sums(leaks: ModuleType) -> None:
    """Members' losses have fallen more: AUC about .66 from single updates, .58 from sums of three, .50 guessed."""
    found = {}
    for cast in ("nothing", "sums of 3", "sum of 12"):
        [(_, one, data)] = leaks.played(cast, 0, 1, epochs=5, batch_size=10, lr=0.1)
        problem, scores = one.view.judge.problem, []
        for client, row in zip(one.view.trained.seats.client.tolist(), one.view.trained.rows, strict=True):
            inside, outside = (-leaks.losses(problem, row, *part) for part in leaks.held(data, client))
            scores.append(leaks.auc(inside, outside))
        found[cast] = np.mean(scores)
    assert found["nothing"] > 0.62 > found["sums of 3"] > 0.54 > found["sum of 12"] > 0.46
    assert leaks.auc(torch.tensor([2.0, 1.0]), torch.tensor([1.0, 0.0])) == 0.875
