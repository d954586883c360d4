"""What a function of somebody else's says of a model: numbers by name, which of them counts, which way it is better.

This is the one place where a name decides that less is better.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import numpy as np

from hanse.base.errors import UserError, nearest

Figures = Mapping[str, float]
"""What a function says of a model: "loss", "accuracy" (0 to 1), "count" (samples), others by their names."""
WORTH = "worth"
"""The figure of a function that returns one number: the more the better."""
LESS = ("loss", "error", "perplexity", "deviance", "mse", "rmsle", "mae", "mape", "nll")
"""Words in the name of a figure that is the better the less it is."""
NOT = "neg_"
"""What stands before such a name where the figure is minus it, as in scikit-learn's scores."""


def less_is_better(name: str) -> bool:
    """Say whether a figure of this name is the better the less it is: "eval_loss", "RMSE"; not "neg_log_loss"."""
    name = name.lower()
    return NOT not in name and any(word in name for word in LESS)


def as_figures(said: object, where: str) -> dict[str, float]:
    """Return what a function said of a model, numbers by name or one number (the more the better), as figures.

    What is no number is left out. Raises UserError, beginning with ``where``, if there is none.
    """
    if isinstance(said, Mapping):
        found = {str(name): x for name, value in said.items() if (x := _number(value)) is not None}
        if found:
            return found
    elif (one := _number(said)) is not None:
        return {WORTH: one}
    raise UserError(f"{where}: returned {str(said)[:60]!r}: must be a number, or numbers by name such as 'loss'")


def _number(value: object) -> float | None:
    """Return a number of Python's, NumPy's or a framework's (an array of one) as a float; None if it is no number."""
    if isinstance(value, str | bytes | bool | np.bool_) or not hasattr(type(value), "__float__"):
        return None
    try:
        return float(value)  # type: ignore[arg-type]  # it has __float__
    except (TypeError, ValueError, RuntimeError):  # an array of several
        return None


def loss_name(names: Iterable[str]) -> str | None:
    """Return which of these names is the loss: just "loss", or the first that has it ("eval_loss"); None: none."""
    return _named(names, "loss")


def loss_of(figures: Figures) -> float:
    """Return the loss among figures (:func:`loss_name`); NaN if there is none."""
    name = loss_name(figures)
    return math.nan if name is None else figures[name]


def accuracy_of(figures: Figures) -> float:
    """Return the accuracy among figures: the one of this name, or the first with "acc" in its name; else NaN, as where
    it is no share (of 0 to 1).
    """
    name = _named(figures, "accuracy")
    return figures[name] if name is not None and 0 <= figures[name] <= 1 else math.nan


def _named(names: Iterable[str], figure: str) -> str | None:
    """Return by which of these names a figure goes: its own, or of "loss" and "accuracy" the first that has it."""
    names = list(names)
    if figure in names:
        return figure
    word = {"loss": "loss", "accuracy": "acc"}.get(figure)
    return None if word is None else next((name for name in names if word in name.lower()), None)


def counted(names: Iterable[str], utility: str | None = None) -> str | None:
    """Return which of the figures counts: the ``utility``, or without it the loss, else the accuracy, else the only
    one. "loss" and "accuracy" are found in longer names too, where nothing has just that name. None: none counts.
    """
    names = list(names)
    if utility is not None:
        return _named(names, utility)
    exact = next((name for name in ("loss", "accuracy") if name in names), None)
    found = exact or _named(names, "loss") or _named(names, "accuracy")
    return found or (names[0] if len(names) == 1 else None)


def signed(figures: Figures, name: str) -> float:
    """Return the figure of this name, the more the better."""
    return -figures[name] if less_is_better(name) else figures[name]


def worth_of(figures: Figures, utility: str | None, where: str) -> float:
    """Return what a model is worth by its figures, the more the better; of one number alone that is it.

    Raises UserError, beginning with ``where``, for a utility that is not among the figures, or if none is named and
    none counts by itself.
    """
    if list(figures) == [WORTH]:
        return figures[WORTH]
    name = counted(figures, utility)
    if name is not None:
        return signed(figures, name)
    if utility is None:
        raise UserError(f"{where}: must be one of what is said of a model: {', '.join(figures)}")
    raise UserError(f"{where}: {utility!r}: nothing of that name is said of a model{nearest(utility, figures)}")
