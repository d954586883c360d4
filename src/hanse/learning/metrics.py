"""How good a model is, by name or import path: the figures of ``[eval] metrics``, computed by scikit-learn.

A metric takes the true targets and what a model says of each sample: for classes the probability of each class, for
numbers the predictions. Where it has no value (one class alone has no AUC) it is None, with the reason in words, a
*gap*.

What a figure is called, and which way it is better, is a :class:`Reading`, which reports make of an experiment's file
without importing anything that it names.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hanse.base.errors import UserError, first_line, named
from hanse.learning.blocks import sample_blocks
from hanse.learning.losses import Objective

Floats = NDArray[np.float64]
Given = str | Mapping[str, Any]
"""A metric as an experiment has it: a name, an import path, or a table with either and options."""


@dataclass(frozen=True)
class Reading:
    """How a metric is read: the ``key`` that its figures have, its ``title`` in a sentence, whether less is better, and
    whether it is a share that is shown in percent; ``within`` which bounds it lies.
    """

    key: str
    title: str
    less_is_better: bool = False
    percent: bool = False
    within: tuple[float, float] = (-math.inf, math.inf)

    @property
    def factor(self) -> float:
        """What its numbers are multiplied by where they are shown."""
        return 100.0 if self.percent else 1.0

    @property
    def axis(self) -> str:
        """What stands at an axis."""
        return f"{self.title} (%)" if self.percent else self.title

    def show(self, value: float) -> str:
        """Return a value in words: "84.3 %", "0.843"."""
        return f"{100 * value:.1f} %" if self.percent else f"{value:.3f}" if abs(value) < 10 else f"{value:.4g}"

    def show_difference(self, value: float) -> str:
        """Return a difference of two values in words: "+2.1 points", "+0.052"."""
        return f"{100 * value:+.1f} points" if self.percent else f"{value:+.3f}" if abs(value) < 10 else f"{value:+.4g}"


_SHARE = (0.0, 1.0)
ACCURACY = Reading("accuracy", "accuracy", percent=True, within=_SHARE)
LOSS = Reading("loss", "loss", less_is_better=True)
_READINGS = {
    reading.key: reading
    for reading in (
        ACCURACY,
        Reading("balanced_accuracy", "balanced accuracy", percent=True, within=_SHARE),
        Reading("auc", "AUC", within=_SHARE),
        Reading("average_precision", "average precision", within=_SHARE),
        Reading("f1", "F1", within=_SHARE),
        Reading("log_loss", "log loss", less_is_better=True),
        Reading("r2", "R2"),
        Reading("mae", "MAE", less_is_better=True),
        Reading("rmse", "RMSE", less_is_better=True),
        Reading("mse", "MSE", less_is_better=True),
        LOSS,
    )
}


def reading_of(given: object) -> Reading | None:
    """Return how a metric that an experiment's file names is read; None for what names none. Nothing is imported."""
    table = {"name": given} if isinstance(given, str) else given
    if not isinstance(table, Mapping) or not isinstance(table.get("name"), str):
        return None
    name = str(table["name"])
    key = name.rpartition(":")[2]
    if ":" not in name and name in _READINGS:
        return _READINGS[name]
    return Reading(key, key.replace("_", " "), less_is_better=table.get("less_is_better") is True)


def readings_of(given: object) -> tuple[Reading, ...]:
    """Return how the metrics of an ``[eval] metrics`` list are read, the main one first; none if there is no list."""
    found = [reading_of(one) for one in given] if isinstance(given, list | tuple) else []
    return tuple(reading for reading in found if reading is not None)


# ---- what the names stand for: y [n] are classes and p [n, k] probabilities, or both are numbers [n, d]


def _accuracy(y: NDArray[Any], p: Floats) -> float:
    from sklearn.metrics import accuracy_score  # late, here and below: few runs need it, and it is long to import

    return float(accuracy_score(y, p.argmax(axis=1)))


def _balanced_accuracy(y: NDArray[Any], p: Floats) -> float:
    from sklearn.metrics import recall_score

    # the mean recall of the classes that there are, as scikit-learn's own: that warns of a class only predicted
    return float(recall_score(y, p.argmax(axis=1), labels=np.unique(y), average="macro", zero_division=0.0))


def _auc(y: NDArray[Any], p: Floats) -> float:
    from sklearn.metrics import roc_auc_score

    return _by_class(roc_auc_score, y, p)


def _average_precision(y: NDArray[Any], p: Floats) -> float:
    from sklearn.metrics import average_precision_score

    return _by_class(average_precision_score, y, p)


def _by_class(score: Callable[..., float], y: NDArray[Any], p: Floats) -> float:
    """Return a score of class 1 of two, or the mean over the classes that there are, each against the rest."""
    classes = [1] if p.shape[1] == 2 else np.unique(y).tolist()
    return float(np.mean([score(y == c, p[:, c]) for c in classes]))


def _f1(y: NDArray[Any], p: Floats) -> float:
    from sklearn.metrics import f1_score

    average = "binary" if p.shape[1] == 2 else "macro"
    return float(f1_score(y, p.argmax(axis=1), average=average, zero_division=0.0))


def _log_loss(y: NDArray[Any], p: Floats) -> float:
    from sklearn.metrics import log_loss

    return float(log_loss(y, p, labels=range(p.shape[1])))


def _of_numbers(name: str, y: Floats, p: Floats) -> float:
    """Return what the function ``name`` of ``sklearn.metrics`` says of numbers ``y [n, d]`` and predictions ``p``."""
    from sklearn import metrics

    return float(getattr(metrics, name)(y, p))


_OF_CLASSES: Mapping[str, Callable[..., float]] = {
    "accuracy": _accuracy,
    "balanced_accuracy": _balanced_accuracy,
    "auc": _auc,
    "average_precision": _average_precision,
    "f1": _f1,
    "log_loss": _log_loss,
}
_OF_NUMBERS: Mapping[str, Callable[..., float]] = {
    "r2": partial(_of_numbers, "r2_score"),
    "mae": partial(_of_numbers, "mean_absolute_error"),
    "rmse": partial(_of_numbers, "root_mean_squared_error"),
    "mse": partial(_of_numbers, "mean_squared_error"),
}
TWO_CLASSES = ("balanced_accuracy", "auc", "average_precision", "f1")
"""The metrics that have no value where all samples are of one class."""
METRICS = ("loss", *_OF_CLASSES, *_OF_NUMBERS)
OF_TEXTS = ("loss", "accuracy")  # a text has no output of its own


@dataclass(frozen=True)
class Judged:
    """What one model says of n samples: the true targets ``y``, what is ``predicted`` (probabilities ``[n, k]``, or
    numbers ``[n, d]``), and each sample's ``loss [n]``.
    """

    y: NDArray[Any]
    predicted: Floats
    loss: Floats

    @staticmethod
    def of(y: Tensor, outputs: Tensor, loss: Tensor, objective: Objective | None, *, regression: bool) -> Judged:
        """Return what outputs ``[k, n]`` say: logits, or one logit of class 1, become probabilities."""
        found = outputs.t().double()
        if objective is not None and objective.one_output:
            found = torch.cat([torch.sigmoid(-found), torch.sigmoid(found)], 1)
        elif not regression:
            found = torch.softmax(found, 1)
        targets = y.cpu().reshape(len(y), -1).double() if regression else y.cpu()
        return Judged(targets.numpy(), found.numpy(), loss.double().numpy())

    def without(self, block: NDArray[np.int64]) -> Judged:
        """Return the same without the samples of a block."""
        return Judged(*(np.delete(part, block, axis=0) for part in (self.y, self.predicted, self.loss)))


@dataclass(frozen=True)
class Metric:
    """A metric: how it is ``reading``, and its ``function`` of targets and predictions (None: the mean loss)."""

    reading: Reading
    function: Callable[[NDArray[Any], Floats], float] | None
    two_classes: bool = False
    spread: bool = False  # has no value where all targets are equal
    built_in: bool = True

    @property
    def key(self) -> str:
        """What its figures are called."""
        return self.reading.key

    def gap(self, y: NDArray[Any]) -> str:
        """Return why samples with targets ``y [n]`` cannot have a value, whatever a model says; "" if they can."""
        if not len(y):
            return "there are no test samples"
        if self.two_classes and (y == y[0]).all():
            return f"all {len(y)} test samples are of class {int(y[0])}, and {self.reading.title} needs two classes"
        if self.spread and (len(y) < 2 or (y == y[0]).all()):
            return f"all {len(y)} targets are equal, and {self.reading.title} compares with their spread"
        return ""

    def of(self, judged: Judged) -> tuple[float, str]:
        """Return the metric's value, or NaN and why there is none."""
        gap = self.gap(judged.y)
        if gap:
            return math.nan, gap
        if self.function is None:
            value = float(judged.loss.mean())
        elif not np.isfinite(judged.predicted).all():
            return math.nan, "the model's outputs are not finite"
        else:
            try:
                value = float(self.function(judged.y, judged.predicted))
            except Exception as wrong:  # a function of the user's own, on samples that it cannot judge
                return math.nan, first_line(wrong)[:200]
        return (value, "") if math.isfinite(value) else (math.nan, f"{self.reading.title} is not finite")

    def without_blocks(self, judged: Judged) -> Floats:
        """Return the values with each block of the samples left out, ``[B]``; NaN where there is none."""
        return np.asarray(self.of_models_without_blocks([judged])[0])

    def of_models(self, judged: Sequence[Judged]) -> Floats:
        """Return the value of each of several models on the same samples, ``[C]``; NaN where there is none."""
        if self.function is _auc and judged and judged[0].predicted.shape[1] == 2 and not self.gap(judged[0].y):
            return _auc_of_models(judged[0].y, np.stack([one.predicted[:, 1] for one in judged]))
        return np.array([self.of(one)[0] for one in judged], np.float64)

    def of_models_without_blocks(self, judged: Sequence[Judged]) -> Floats:
        """Return the values of several models with each block of the samples left out, ``[C, B]``."""
        blocks = sample_blocks(len(judged[0].y)) if judged else []
        each = [self.of_models([one.without(block.numpy()) for one in judged]) for block in blocks]
        return np.stack(each, axis=1) if each else np.zeros((len(judged), 0))


def _auc_of_models(y: NDArray[np.int64], p: Floats) -> Floats:
    """Return the AUC of many models at once, ``[C]``, by the ranks (Mann, Whitney 1947) of their probabilities ``[C,
    n]`` of class 1: a game of coalitions asks for thousands.
    """
    from scipy.stats import rankdata

    finite = np.asarray(np.isfinite(p).all(axis=1))
    ranks: Floats = np.asarray(rankdata(np.where(finite[:, None], p, 0.0), axis=1), np.float64)
    ones = int(y.sum())
    found = (ranks[:, y == 1].sum(axis=1) - ones * (ones + 1) / 2) / (ones * (len(y) - ones))
    return np.where(finite, found, np.nan)


WHERE = "eval.metrics"
_KEY = re.compile(r"[A-Za-z_]\w*")
_TAKEN = {*METRICS, "samples", "loss_error", "perplexity", "fit", "gap", "reason", "refused", "main"}


def build_metrics(given: Sequence[Given] | None, num_classes: int | None, *, text: bool = False) -> tuple[Metric, ...]:
    """Return the metrics that a list names, for targets of ``num_classes`` classes (None: numbers).

    Raises UserError with a line for each name that is not known or does not go with the targets.
    """
    lines, found = list[str](), list[Metric]()
    for one in given or ():
        try:
            found.append(build_metric(one, num_classes, text=text))
        except UserError as wrong:
            lines += wrong.lines
    keys = [metric.key for metric in found]
    lines += [f"{WHERE}: '{key}': is named twice" for key in dict.fromkeys(keys) if keys.count(key) > 1]
    if lines:
        raise UserError(*lines)
    return tuple(found)


def build_metric(given: Given, num_classes: int | None, *, text: bool = False, where: str = WHERE) -> Metric:
    """Return one metric. Raises UserError whose line begins with ``where``."""
    known = {"loss": None} | dict(_OF_NUMBERS if num_classes is None else _OF_CLASSES)
    name = given if isinstance(given, str) else given.get("name")
    if text and name not in OF_TEXTS:
        raise UserError(f"{where}: {name!r}: texts have a label at every position; allowed: {', '.join(OF_TEXTS)}")
    if isinstance(name, str) and name in METRICS and name not in known:
        kind = "numbers" if num_classes is None else "classes"
        raise UserError(f"{where}: '{name}': the targets are {kind}; allowed: {', '.join(known)}, or an import path")
    if isinstance(given, Mapping) and name in known and len(given) > 1:
        raise UserError(f"{where}: '{name}': takes no options; an import path may name a function that does")
    reading = reading_of(given)
    if isinstance(name, str) and name in known and reading is not None:
        return Metric(reading, known[name], name in TWO_CLASSES, name == "r2")
    function, options = named(given, where, dict.fromkeys(known, _accuracy))
    assert reading is not None  # named refuses what is none
    if not _KEY.fullmatch(reading.key) or reading.key in _TAKEN:
        raise UserError(f"{where}: '{reading.key}': is the name of a figure that there is; call the function otherwise")
    if not isinstance(options.pop("less_is_better", False), bool):
        raise UserError(f"{where}: '{name}': less_is_better must be true or false")
    try:
        inspect.signature(function).bind(None, None, **options)
    except TypeError as wrong:
        raise UserError(
            f"{where}: '{name}': cannot be called with (targets, predictions) and options: {wrong}"
        ) from None
    return Metric(reading, partial(function, **options) if options else function, built_in=False)
