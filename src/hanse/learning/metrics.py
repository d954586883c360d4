"""Metrics of models, by name or import path. They are the figures of ``[eval] metrics``; scikit-learn computes them.

:func:`build_metrics` makes a :class:`Metric` of each name in an experiment's list. A metric takes the true targets and
a model's predictions (:class:`Predictions`): probabilities of classes, or numbers. If it is undefined (samples of a
single class have no AUC), it is NaN with a reason, a *gap*.

A figure's name and direction are its :class:`MetricStyle`. Reports get it from an experiment's file by
:func:`readings_of`, without importing anything.
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
from numpy.typing import NDArray

from hanse.base.errors import RAISED, UserError, collected, first_line
from hanse.base.imports import named
from hanse.base.pytorch import torch
from hanse.games.jackknife import jackknife_errors, t_factor, t_quantile
from hanse.learning.intervals import UNITS, Interval, auc_interval, sample_blocks, wilson

Floats = NDArray[np.float64]
Given = str | Mapping[str, Any]
"""A metric as an experiment has it: a name, an import path, or a table with either and options."""


@dataclass(frozen=True)
class MetricStyle:
    """How to name and show a metric's figures.

    Attributes:
        key: the name of the metric's figures in records.
        title: the metric's name in a sentence.
        less_is_better: whether lower figures are better.
        percent: whether figures are shown in percent.
        within: the smallest and largest possible figure; infinite if not known.
    """

    key: str
    title: str
    less_is_better: bool = False
    percent: bool = False
    within: tuple[float, float] = (-math.inf, math.inf)

    @property
    def factor(self) -> float:
        """The factor for showing figures: 100 for percent, else 1."""
        return 100.0 if self.percent else 1.0

    @property
    def axis(self) -> str:
        """The label of an axis for these figures."""
        return f"{self.title} (%)" if self.percent else self.title

    def show(self, value: float) -> str:
        """Return a figure in words, such as "84.3 %" or "0.843"."""
        return f"{100 * value:.1f} %" if self.percent else f"{value:.3f}" if abs(value) < 10 else f"{value:.4g}"

    def show_difference(self, value: float) -> str:
        """Return a difference of two figures in words, such as "+2.1 points" or "+0.052"."""
        return f"{100 * value:+.1f} points" if self.percent else f"{value:+.3f}" if abs(value) < 10 else f"{value:+.4g}"


_SHARE = (0.0, 1.0)
ACCURACY = MetricStyle("accuracy", "accuracy", percent=True, within=_SHARE)
LOSS = MetricStyle("loss", "loss", less_is_better=True)
WORSE = "value/worse_than_guessing"
"""The metric that counts evaluated models whose loss is above that of equal chances for all classes, ln C."""
_READINGS = {
    reading.key: reading
    for reading in (
        ACCURACY,
        MetricStyle("balanced_accuracy", "balanced accuracy", percent=True, within=_SHARE),
        MetricStyle("auc", "AUC", within=_SHARE),
        MetricStyle("average_precision", "average precision", within=_SHARE),
        MetricStyle("f1", "F1", within=_SHARE),
        MetricStyle("log_loss", "log loss", less_is_better=True),
        MetricStyle("r2", "R2"),
        MetricStyle("mae", "MAE", less_is_better=True),
        MetricStyle("rmse", "RMSE", less_is_better=True),
        MetricStyle("mse", "MSE", less_is_better=True),
        LOSS,
    )
}


def reading_of(given: object) -> MetricStyle | None:
    """Return how to name and show a metric that an experiment's file gives, or None if it is not a metric.

    Nothing is imported.

    ``given`` is a name, an import path, or a table with one of these under "name"; see :data:`Given`.
    """
    table = {"name": given} if isinstance(given, str) else given
    if not isinstance(table, Mapping) or not isinstance(table.get("name"), str):
        return None
    name = str(table["name"])
    key = name.rpartition(":")[2]
    if ":" not in name and name in _READINGS:
        return _READINGS[name]
    better, bounds = table.get("less_is_better") is True, _bounds(table.get("within"))
    return MetricStyle(key, key.replace("_", " "), less_is_better=better, within=bounds or (-math.inf, math.inf))


def _bounds(given: object) -> tuple[float, float] | None:
    """Return a list of two finite numbers, the smaller first, as a pair; None if this is none."""
    if not isinstance(given, list | tuple) or len(given) != 2:
        return None
    least, most = given
    fit = all(type(number) in (int, float) and math.isfinite(number) for number in given) and least < most
    return (float(least), float(most)) if fit else None


def readings_of(given: object) -> tuple[MetricStyle, ...]:
    """Return how to show each metric of an ``[eval] metrics`` list, the main one first; empty if it is not a list."""
    readings = [reading_of(one) for one in given] if isinstance(given, list | tuple) else []
    return tuple(reading for reading in readings if reading is not None)


def main_of(given: object) -> MetricStyle:
    """Return the reading of the main metric of an ``[eval] metrics`` list: the first, else the accuracy."""
    return next(iter(readings_of(given)), ACCURACY)


# ---- what the names stand for: y [n] are classes and p [n, k] probabilities, or both are numbers [n, d]


def _scored(name: str, y: NDArray[Any], p: Floats, **options: Any) -> float:
    """Return what the function ``name`` of ``sklearn.metrics`` says of targets ``y`` and predictions ``p``."""
    from sklearn import metrics  # late: few runs need it, and it takes long to import

    return float(getattr(metrics, name)(y, p, **options))


def _of_best(name: str, y: NDArray[Any], p: Floats, **options: Any) -> float:
    """Return a score of the most probable classes."""
    return _scored(name, y, p.argmax(axis=1), **options)


def _balanced_accuracy(y: NDArray[Any], p: Floats) -> float:
    # what balanced_accuracy_score computes, which would warn of classes that are predicted but do not occur
    return _of_best("recall_score", y, p, labels=np.unique(y), average="macro", zero_division=0.0)


def _f1(y: NDArray[Any], p: Floats) -> float:
    return _of_best("f1_score", y, p, average="binary" if p.shape[1] == 2 else "macro", zero_division=0.0)


def _by_class(name: str, y: NDArray[Any], p: Floats) -> float:
    """Return a score of class 1 of two classes, or its mean over the classes that occur, each against the rest."""
    classes = [1] if p.shape[1] == 2 else np.unique(y).tolist()
    return float(np.mean([_scored(name, y == c, p[:, c]) for c in classes]))


_accuracy, _auc = partial(_of_best, "accuracy_score"), partial(_by_class, "roc_auc_score")
_OF_CLASSES: Mapping[str, Callable[..., float]] = {
    "accuracy": _accuracy,
    "balanced_accuracy": _balanced_accuracy,
    "auc": _auc,
    "average_precision": partial(_by_class, "average_precision_score"),
    "f1": _f1,
    "log_loss": lambda y, p: _scored("log_loss", y, p, labels=range(p.shape[1])),
}
_OF_NUMBERS: Mapping[str, Callable[..., float]] = {
    "r2": partial(_scored, "r2_score"),
    "mae": partial(_scored, "mean_absolute_error"),
    "rmse": partial(_scored, "root_mean_squared_error"),
    "mse": partial(_scored, "mean_squared_error"),
}
TWO_CLASSES = ("balanced_accuracy", "auc", "average_precision", "f1")
"""The metrics that have no value where all samples are of one class."""
METRICS = ("loss", *_OF_CLASSES, *_OF_NUMBERS)
"""The names of all metrics."""
OF_TEXTS = ("loss", "accuracy")
"""The metrics that texts can have: a text has no single output, which the others judge."""


@dataclass(frozen=True)
class Predictions:
    """One model's predictions for n samples.

    Attributes:
        y: the true targets, ``[n]`` classes or ``[n, d]`` numbers.
        predicted: ``[n, k]`` probabilities, or ``[n, d]`` numbers.
        loss: ``[n]``, each sample's loss.
        units: ``[n]``, the unit of each sample (:class:`hanse.data.samples.Samples`). None: each is one of its own.

    Examples:
        >>> y, probabilities = np.array([0, 1, 1]), np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]])
        >>> judged = Predictions(y, probabilities, loss=-np.log(probabilities[np.arange(3), y]))
        >>> [accuracy] = build_metrics(["accuracy"], 2)
        >>> round(accuracy.of(judged)[0], 2)
        0.67
    """

    y: NDArray[Any]
    predicted: Floats
    loss: Floats
    units: NDArray[np.int64] | None = None

    def without(self, block: NDArray[np.int64]) -> Predictions:
        """Return the predictions without the samples at the positions ``block``."""
        rows = np.delete(np.arange(len(self.y)), block)
        units = None if self.units is None else self.units[rows]
        return Predictions(self.y[rows], self.predicted[rows], self.loss[rows], units)


@dataclass(frozen=True)
class Metric:
    """A metric of a model on samples.

    Attributes:
        reading: how the metric's figures are named and shown.
        function: a function from targets and predictions to the figure. None: the figure is the mean loss.
        two_classes: whether the metric needs samples of at least two classes.
        spread: whether the metric needs targets that are not all equal.
        built_in: whether the metric is hanse's, not the user's own function.

    Examples:
        :func:`build_metrics` makes them by name:

        >>> [metric] = build_metrics(["balanced_accuracy"], 3)
        >>> metric.key, metric.reading.less_is_better
        ('balanced_accuracy', False)
    """

    reading: MetricStyle
    function: Callable[[NDArray[Any], Floats], float] | None
    two_classes: bool = False
    spread: bool = False
    built_in: bool = True

    @property
    def key(self) -> str:
        """The name of the metric's figures in records."""
        return self.reading.key

    def gap(self, y: NDArray[Any]) -> str:
        """Return why the metric is undefined for targets ``y [n]``, whatever the predictions; "" if it is defined."""
        if not len(y):
            return "there are no test samples"
        if self.two_classes and (y == y[0]).all():
            return f"all {len(y)} test samples are of class {int(y[0])}, and {self.reading.title} needs two classes"
        if self.spread and (len(y) < 2 or (y == y[0]).all()):
            return f"all {len(y)} targets are equal, and {self.reading.title} compares with their spread"
        return ""

    def of(self, judged: Predictions) -> tuple[float, str]:
        """Return the metric's value and "", or NaN and the reason."""
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
            except RAISED as wrong:  # a user's function may raise anything on samples that it cannot judge
                return math.nan, first_line(wrong)[:200]
        return (value, "") if math.isfinite(value) else (math.nan, f"{self.reading.title} is not finite")

    def without_blocks(self, judged: Predictions) -> Floats:
        """Return the values ``[B]`` on the samples without each of B blocks; NaN where undefined."""
        return np.asarray(self.of_models_without_blocks([judged])[0])

    def interval(self, judged: Predictions, without: Floats) -> Interval:
        """Return the value's 95 % interval over draws of the samples; NaN if not known, or if the jackknife's is used.

        Accuracies get Wilson's interval, AUCs Newcombe's (for several classes by the rarest). Other bounded figures get
        Student's t with the jackknife's error, clipped to the bounds. If no sample makes a difference, they get
        Wilson's interval with the number of samples of the rarest class. Unbounded figures get NaN here; the
        jackknife's standard error is used instead.

        Where samples have units, these are drawn anew: an accuracy gets Wilson's interval for as many independent
        samples as have the jackknife's error (Korn, Graubard 1998), and an AUC is one of the other bounded figures.

        Args:
            judged: the model's predictions for the samples.
            without: what :meth:`without_blocks` returns for these predictions.
        """
        value, n = self.of(judged)[0], len(judged.y)
        if math.isnan(value):
            return math.nan, math.nan
        least, most = self.reading.within
        error = float(jackknife_errors(without))
        if self.function is _accuracy:
            return wilson(value, n if judged.units is None else _independent(value, error, len(without), judged.units))
        units = np.arange(n) if judged.units is None else judged.units
        of_class = [units[judged.y == c] for c in np.unique(judged.y)] if self.two_classes else [units]
        rarest = min(len(np.unique(of)) for of in of_class)
        if self.function is _auc and judged.units is None:
            return auc_interval(value, rarest, n - rarest)
        if math.isfinite(most - least):
            if error < 1e-12 * (most - least):
                low, high = wilson(min(1.0, max(0.0, (value - least) / (most - least))), rarest)
                return least + low * (most - least), least + high * (most - least)
            half = error * t_quantile(max(1, len(without) - 1))
            return (math.nan, math.nan) if math.isnan(half) else (max(least, value - half), min(most, value + half))
        return math.nan, math.nan

    def of_models(self, judged: Sequence[Predictions]) -> Floats:
        """Return the values of C models on the same samples, ``[C]``; NaN where undefined."""
        if self.function is _auc and judged and judged[0].predicted.shape[1] == 2 and not self.gap(judged[0].y):
            return _auc_of_models(judged[0].y, np.stack([one.predicted[:, 1] for one in judged]))
        return np.array([self.of(one)[0] for one in judged], np.float64)

    def of_models_without_blocks(self, judged: Sequence[Predictions]) -> Floats:
        """Return the values of C models with each of B blocks of samples left out, ``[C, B]``."""
        units = None if not judged or judged[0].units is None else torch.from_numpy(judged[0].units)
        blocks = sample_blocks(len(judged[0].y), units) if judged else []
        each = [self.of_models([one.without(block.numpy()) for one in judged]) for block in blocks]
        return np.stack(each, axis=1) if each else np.zeros((len(judged), 0))


def _independent(share: float, error: float, blocks: int, units: NDArray[np.int64]) -> float:
    """Return how many independent samples tell as much of a share as these, whose error is a jackknife's over units.

    Few units make the error itself unsure, for which Student's t allows. If no unit makes a difference, each counts as
    one sample.
    """
    if not 0 < share < 1 or not error > 0:
        return len(np.unique(units))
    return min(float(len(units)), share * (1 - share) / (error * t_factor(blocks - 1)) ** 2)


def _auc_of_models(y: NDArray[np.int64], p: Floats) -> Floats:
    """Return the AUC of many models at once, ``[C]``; NaN for a model with probabilities that are not finite.

    It follows from the ranks (Mann, Whitney 1947) of their probabilities of class 1, ``p [C, n]``. A game of coalitions
    asks for thousands of models, and scikit-learn would take them one by one.
    """
    from scipy.stats import rankdata

    finite = np.asarray(np.isfinite(p).all(axis=1))
    ranks: Floats = np.asarray(rankdata(np.where(finite[:, None], p, 0.0), axis=1), np.float64)
    ones = int(y.sum())
    auc = (ranks[:, y == 1].sum(axis=1) - ones * (ones + 1) / 2) / (ones * (len(y) - ones))
    return np.where(finite, auc, np.nan)


WHERE = "eval.metrics"
_KEY = re.compile(r"[A-Za-z_]\w*")
# what a function of the user's must not be called: figures of these names stand next to it in records
_TAKEN = {*METRICS, UNITS, "samples", "loss_error", "perplexity", "fit", "gap", "reason", "refused", "main"}


def build_metrics(given: Sequence[Given] | None, num_classes: int | None, *, text: bool = False) -> tuple[Metric, ...]:
    """Return the metrics that a list names.

    Args:
        given: names, import paths or tables with options. None: there are no metrics.
        num_classes: the number of classes. None: the targets are numbers.
        text: whether samples are texts, with a label at every position. Loss and accuracy, all that they can have, are
            in every test anyway, so nothing is left to be computed of a single output, which they lack.

    Raises:
        UserError: names are unknown, do not suit the targets, or occur twice. The message has a line for each.

    Examples:
        >>> accuracy, auc = build_metrics(["accuracy", "auc"], num_classes=2)
        >>> says = Predictions(np.array([0, 1, 1]), np.array([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8]]), np.zeros(3))
        >>> accuracy.reading.show(accuracy.of(says)[0]), auc.reading.show(auc.of(says)[0])
        ('66.7 %', '1.000')
    """
    lines, found = list[str](), list[Metric]()
    for one in given or ():
        with collected(lines):
            found.append(build_metric(one, num_classes, text=text))
    keys = [metric.key for metric in found]
    lines += [f"{WHERE}: '{key}': is named twice" for key in dict.fromkeys(keys) if keys.count(key) > 1]
    if lines:
        raise UserError(*lines)
    return () if text else tuple(found)


def build_metric(given: Given, num_classes: int | None, *, text: bool = False, where: str = WHERE) -> Metric:
    """Return the metric that a name, an import path or a table names.

    Args:
        given: the metric.
        num_classes: the number of classes. None: the targets are numbers.
        text: whether samples are texts, with a label at every position.
        where: the text with which an error message begins.

    Raises:
        UserError: the name is not known or does not suit the targets, or the function cannot be called.
    """
    known = {"loss": None} | dict(_OF_NUMBERS if num_classes is None else _OF_CLASSES)
    name = given if isinstance(given, str) else given.get("name")
    if text and name not in OF_TEXTS:
        raise UserError(f"{where}: {name!r}: texts have a label at every position; allowed: {', '.join(OF_TEXTS)}")
    if isinstance(name, str) and name in METRICS and name not in known:
        kind = "numbers" if num_classes is None else "classes"
        raise UserError(f"{where}: '{name}': the targets are {kind}; allowed: {', '.join(known)}, or an import path")
    if isinstance(given, Mapping) and isinstance(name, str) and name in known and len(given) > 1:
        raise UserError(f"{where}: '{name}': takes no options; an import path may name a function that does")
    reading = reading_of(given)
    if isinstance(name, str) and name in known and reading is not None:
        return Metric(reading, known[name], name in TWO_CLASSES, name == "r2")
    function, options = named(given, where, dict.fromkeys(known, _accuracy))
    assert reading is not None  # ``named`` refuses what names nothing
    if not _KEY.fullmatch(reading.key) or reading.key in _TAKEN:
        raise UserError(f"{where}: '{reading.key}': another figure has this name; give the function another one")
    if not isinstance(options.pop("less_is_better", False), bool):
        raise UserError(f"{where}: '{name}': less_is_better must be true or false")
    within = options.pop("within", None)
    if within is not None and _bounds(within) is None:
        raise UserError(f"{where}: '{name}': within is {within!r}; must be [least, greatest], two finite numbers")
    try:
        inspect.signature(function).bind(None, None, **options)
    except (TypeError, ValueError) as wrong:  # or none that Python can tell, such as that of ``int``
        raise UserError(
            f"{where}: '{name}': cannot be called with (targets, predictions) and options: {wrong}"
        ) from None
    return Metric(reading, partial(function, **options) if options else function, built_in=False)
