"""What somebody else's function says of a model: one rule for which figure counts, and which way it is better."""

import math

import numpy as np
import pytest
import torch

from hanse.base.errors import UserError
from hanse.learning.figures import accuracy_of, as_figures, counted, less_is_better, loss_of, worth_of
from hanse.learning.metrics import _READINGS


def test_hanses_own_metrics_are_better_the_same_way() -> None:
    assert {key: less_is_better(key) for key in _READINGS} == {k: r.less_is_better for k, r in _READINGS.items()}


@pytest.mark.parametrize("name", ["evalLoss", "mlogloss", "val/RMSE", "test-error_1", "MSELoss", "Top5Errors"])
def test_a_word_of_the_name_says_which_way_is_better(name: str) -> None:
    assert less_is_better(name)
    assert not any(map(less_is_better, (f"neg_{name}", "himself_score", "blossom", "maestro")))


@pytest.mark.parametrize(
    ("names", "utility", "found"),
    [
        (["accuracy", "loss"], None, "loss"),
        (["accuracy", "train_loss"], None, "accuracy"),  # just that name first
        (["eval_acc", "eval_loss"], None, "eval_loss"),
        (["eval_acc", "f1"], None, "eval_acc"),
        (["f1"], None, "f1"),
        (["f1", "auc"], None, None),
        (["f1", "eval_loss"], "loss", "eval_loss"),
        (["f1", "eval_loss"], "eval", None),
        (["Accuracy"], "accuracy", "Accuracy"),
        (["vaccinated", "topAcc@1"], None, "topAcc@1"),
        (["vaccinated", "blossoms"], "accuracy", None),
    ],
)
def test_which_figure_counts(names: list[str], utility: str | None, found: str | None) -> None:
    assert counted(names, utility) == found


def test_what_a_function_returns_is_read() -> None:
    said = {"loss": np.float32(0.5), "auc": torch.tensor(0.75), "f1": np.array(0.25), "note": "late", "yes": True}
    assert as_figures(said, "evaluate") == {"loss": 0.5, "auc": 0.75, "f1": 0.25}
    assert as_figures(np.int64(3), "evaluate") == {"worth": 3.0}
    for wrong in (None, "0.5", {}, {"loss": None}, np.zeros(2), True, 10**400):
        with pytest.raises(UserError, match=r"evaluate: returned"):
            as_figures(wrong, "evaluate")


def test_loss_and_accuracy_under_whatever_names() -> None:
    figures = {"eval_loss": 0.5, "acc": 0.75}
    assert (loss_of(figures), accuracy_of(figures)) == (0.5, 0.75)
    assert math.isnan(accuracy_of({"loss": 1.0, "vaccinated": 0.7}))
    assert math.isnan(accuracy_of({"accuracy": 87.5}))  # percent is no share
    assert math.isnan(loss_of({"f1": 1.0}))
    with pytest.raises(UserError, match=r"value: 'los'.*'loss'"):
        worth_of({"loss": 1.0}, "los", "value", {})


def test_all_models_are_judged_by_the_same_figure() -> None:
    known: dict[str | None, str] = {}
    assert worth_of({"loss": 3.0, "accuracy": 0.5}, None, "value", known) == -3.0
    for other in ({"worth": 0.5}, {"train_loss": 1.0}, as_figures({"loss": 10**400, "accuracy": 0.5}, "evaluate")):
        with pytest.raises(UserError, match=r"value: .*'loss'"):
            worth_of(other, None, "value", known)
