"""Metrics by name: scikit-learn's numbers, gaps with a reason, the error from the draw of samples, and utilities."""

from itertools import combinations
from typing import Any

import numpy as np
import pytest
import sklearn.metrics as sk
import torch

from hanse.base.errors import UserError
from hanse.data import Samples
from hanse.games.jackknife import jackknife_errors
from hanse.learning.coalitions import UpdateGame
from hanse.learning.intervals import sample_blocks
from hanse.learning.losses import build_objective
from hanse.learning.metrics import Predictions, build_metric, build_metrics
from hanse.learning.models import build_problem
from hanse.learning.sequential import SequentialEngine

HERE = "tests.learning.test_metrics:"


def gini(y: Any, p: Any, scale: float = 2.0) -> float:
    """Return a metric of one's own."""
    return float(scale * sk.roc_auc_score(y, p[:, 1]) - 1)


def judged(classes: int, n: int = 60, seed: int = 0) -> Predictions:
    draw = torch.Generator().manual_seed(seed)
    outputs = torch.randn((classes, n), generator=draw).round(decimals=1)  # with ties
    return build_problem("logistic", (1,), classes, 0)[0].predictions(torch.arange(n) % classes, outputs, torch.ones(n))


def test_metrics_of_two_classes_are_scikit_learns() -> None:
    one = judged(2)
    y, p = one.y, one.predicted
    guess = p.argmax(1)
    wanted = {
        "accuracy": sk.accuracy_score(y, guess),
        "balanced_accuracy": sk.balanced_accuracy_score(y, guess),
        "auc": sk.roc_auc_score(y, p[:, 1]),
        "average_precision": sk.average_precision_score(y, p[:, 1]),
        "f1": sk.f1_score(y, guess),
        "log_loss": sk.log_loss(y, p),
        "loss": 1.0,
        "gini": 2 * sk.roc_auc_score(y, p[:, 1]) - 1,
    }
    names = [*list(wanted)[:-1], HERE + "gini"]
    assert {m.key: m.of(one) for m in build_metrics(names, 2)} == {k: (pytest.approx(v), "") for k, v in wanted.items()}


def test_metrics_of_many_classes_are_means_over_the_classes_that_there_are() -> None:
    one = judged(4)
    y, p = one.y, one.predicted
    assert build_metric("auc", 4).of(one)[0] == pytest.approx(sk.roc_auc_score(y, p, multi_class="ovr"))
    assert build_metric("f1", 4).of(one)[0] == pytest.approx(sk.f1_score(y, p.argmax(1), average="macro"))
    some = Predictions(y[y < 2], p[y < 2], one.loss[y < 2])
    each = [sk.roc_auc_score(some.y == c, some.predicted[:, c]) for c in (0, 1)]
    assert build_metric("auc", 4).of(some)[0] == pytest.approx(np.mean(each))


def test_metrics_of_numbers_are_scikit_learns() -> None:
    draw = torch.Generator().manual_seed(3)
    y, outputs = torch.randn((40, 2), generator=draw), torch.randn((2, 40), generator=draw)
    one = build_problem("logistic", (1,), None, 0)[0].predictions(y, outputs, torch.zeros(40))
    p = outputs.t().numpy()
    theirs = sk.r2_score, sk.mean_absolute_error, sk.root_mean_squared_error, sk.mean_squared_error
    for name, wanted in zip(("r2", "mae", "rmse", "mse"), theirs, strict=True):
        assert build_metric(name, None).of(one)[0] == pytest.approx(wanted(y, p), rel=1e-5)


@pytest.mark.parametrize("name", ["auc", "average_precision", "f1", "balanced_accuracy"])
def test_one_class_is_a_gap_with_its_reason(name: str) -> None:
    value, gap = build_metric(name, 2).of(Predictions(np.ones(3, np.int64), np.full((3, 2), 0.5), np.zeros(3)))
    assert np.isnan(value)
    assert gap.startswith("all 3 test samples are of class 1, and ")


def test_other_gaps_have_reasons_too() -> None:
    flat = Predictions(np.ones((3, 1)), np.zeros((3, 1)), np.zeros(3))
    assert build_metric("r2", None).of(flat)[1].startswith("all 3 targets are equal")
    lost = Predictions(np.array([0, 1]), np.full((2, 2), np.nan), np.zeros(2))
    assert build_metric("auc", 2).of(lost)[1] == "the model's outputs are not finite"
    narrow = Predictions(np.array([0, 1]), np.zeros((2, 1)), np.zeros(2))
    assert build_metric(HERE + "gini", 2).of(narrow)[1].startswith("IndexError: ")
    assert build_metric("auc", 2).gap(np.zeros(0)) == "there are no test samples"


@pytest.mark.parametrize("name", ["auc", "f1", "loss"])
def test_the_error_from_the_draw_is_the_jackknifes(name: str) -> None:
    one, metric = judged(2, n=45), build_metric(name, 2)
    left = []
    for block in sample_blocks(45):
        kept = np.setdiff1d(np.arange(45), block.numpy())
        left.append(metric.of(Predictions(one.y[kept], one.predicted[kept], one.loss[kept]))[0])
    assert metric.without_blocks(one) == pytest.approx(np.array(left))
    assert jackknife_errors(metric.without_blocks(one)) == pytest.approx(
        np.sqrt(19 / 20 * ((left - np.mean(left)) ** 2).sum())
    )


@pytest.mark.parametrize(
    ("given", "classes", "line"),
    [
        (["aucc"], 2, r"eval.metrics: 'aucc'.*'auc'"),
        (["auc"], None, "eval.metrics: 'auc'"),
        (["r2"], 3, "balanced_accuracy"),
        (["auc", "auc"], 2, "'auc'"),
        ([{"name": "auc", "average": "macro"}], 2, "'auc'"),
        ([{"name": HERE + "gini", "scal": 1}], 2, "cannot be called with .targets, predictions. and options"),
        ([{"name": HERE + "gini", "less_is_better": "no"}], 2, "less_is_better"),
        (["sklearn.metrics:accuracy"], 2, r"'sklearn.metrics'.*'accuracy'"),
    ],
)  # fmt: skip
def test_what_does_not_go_is_one_line(given: Any, classes: int | None, line: str) -> None:
    with pytest.raises(UserError, match=line) as wrong:
        build_metrics(given, classes)
    assert len(wrong.value.lines) == 1


@pytest.mark.parametrize(
    ("loss", "utility"), [(None, "auc"), ("bce", "auc"), (None, "log_loss"), ("bce", HERE + "gini")]
)
def test_coalitions_are_worth_the_metric_of_their_mean_model(utility: str, loss: str | None) -> None:
    problem, row = build_problem("mlp", (3,), 2, 0, hidden=[4], objective=build_objective(loss, 2))
    draw = torch.Generator().manual_seed(5)
    x = torch.randn((70, 3), generator=draw)
    pool = Samples(x, (x[:, 0] + 0.5 * torch.randn(70, generator=draw) > 0.8).long())
    updates = row + 0.7 * torch.randn((3, len(row)), generator=draw)
    game = UpdateGame(problem, updates, row, [1.0, 2.0, 3.0], pool, utility=utility)
    clubs = [frozenset(c) for k in range(4) for c in combinations(range(3), k)]
    found = game.many(clubs)
    metric, sign = build_metric(utility, 2), -1 if utility == "log_loss" else 1
    shares = torch.tensor([1.0, 2.0, 3.0])
    for club, worth, without in zip(clubs, found, game.for_errors, strict=True):
        q = shares[list(club)]
        model = (q[:, None] * updates[list(club)]).sum(0) / q.sum() if club else row
        [made] = SequentialEngine(problem).outputs(model[None], pool)
        one = problem.predictions(pool.y, made.outputs, made.loss)
        assert worth == pytest.approx(sign * metric.of(one)[0], abs=1e-5)
        assert without == pytest.approx(sign * metric.without_blocks(one), abs=1e-5)
