"""Interprets what a user's function returns for a model: figures by name, one of which counts.

A function may return a number or a dictionary of losses and accuracies. :func:`as_figures` turns it into figures,
:func:`counted` finds the one that counts, and :func:`worth_of` turns it into a worth (higher is better). Whether less
is better is decided by a figure's name, and only here (:func:`less_is_better`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping

import numpy as np

from hanse.base.errors import UserError, nearest

Figures = Mapping[str, float]
"""What a function says of a model: "loss", "accuracy" (0 to 1), "count" (samples), others by their names."""
WORTH = "worth"
"""The figure of a function that returns one number: the more the better."""
_LOSS, _ACCURACY = ("loss", "losses"), ("acc", "accuracy")
LESS = (*_LOSS, "error", "errors", "perplexity", "deviance", "mse", "rmsle", "mae", "mape", "nll")
"""How words in a figure's name end by which less of it is better."""
NOT = ("neg",)
"""The word before a figure that is minus such a one, as in scikit-learn's scores."""
_WORD = re.compile("[A-Z]+(?![a-z])|[A-Z]?[a-z]+")


def less_is_better(name: str) -> bool:
    """Return whether lower is better for a figure of this name, such as "eval_loss" or "RMSE", but not "neg_log_loss".

    Examples:
        >>> [less_is_better(name) for name in ("eval_loss", "RMSE", "logLoss", "neg_log_loss", "himself_score")]
        [True, True, True, False, False]
    """
    return not _has(name, NOT) and _has(name, LESS)


def _has(name: str, endings: tuple[str, ...]) -> bool:
    """Return whether a word of a name ends so: a "logloss" is a loss, and "vaccinated" says nothing of accuracy."""
    return any(word.lower().endswith(endings) for word in _WORD.findall(name))


def as_figures(said: object, where: str) -> dict[str, float]:
    """Return a function's result for a model as figures.

    Args:
        said: numbers by name, or one number (higher is better), which becomes the figure :data:`WORTH`. Anything else
            is dropped.
        where: the text with which an error message begins.

    Raises:
        UserError: the result contains no number.
    """
    if isinstance(said, Mapping):
        figures = {str(name): x for name, value in said.items() if (x := _number(value)) is not None}
        if figures:
            return figures
    elif (one := _number(said)) is not None:
        return {WORTH: one}
    raise UserError(f"{where}: returned {str(said)[:60]!r}: must be a number, or numbers by name such as 'loss'")


def _number(value: object) -> float | None:
    """Return a number of Python's, NumPy's or a framework's as a float, also an array with one entry; else None."""
    if isinstance(value, str | bytes | bool | np.bool_) or not hasattr(type(value), "__float__"):
        return None
    try:
        return float(value)  # type: ignore[arg-type]  # it has __float__
    except (TypeError, ValueError, RuntimeError, OverflowError):  # an array of several numbers; 10**400
        return None


def loss_name(names: Iterable[str]) -> str | None:
    """Return which name is the loss: "loss", else the first name with that word ("eval_loss"), else None."""
    return _named(names, "loss")


def loss_of(figures: Figures) -> float:
    """Return the loss among figures, found as by :func:`loss_name`; NaN if there is none."""
    name = loss_name(figures)
    return math.nan if name is None else figures[name]


def accuracy_of(figures: Figures) -> float:
    """Return the accuracy among figures: the figure "accuracy", else the first with that word or "acc" in its name.

    The result is NaN if there is none, or if it is not a share from 0 to 1.
    """
    name = _named(figures, "accuracy")
    return figures[name] if name is not None and 0 <= figures[name] <= 1 else math.nan


def _named(names: Iterable[str], figure: str) -> str | None:
    """Return the name under which a figure goes: its own, or for "loss" and "accuracy" the first with that word."""
    names = list(names)
    if figure in names:
        return figure
    endings = {"loss": _LOSS, "accuracy": _ACCURACY}.get(figure, ())
    return next((name for name in names if _has(name, endings)), None)


def counted(names: Iterable[str], utility: str | None = None) -> str | None:
    """Return the name of the figure that counts; None if there is none. If no figure is called exactly "loss" or
    "accuracy", longer names with that word match.

    Args:
        names: the names of the figures.
        utility: the requested figure. None: the loss if there is one, else the accuracy, else the only figure.

    Examples:
        >>> counted(["eval_loss", "accuracy"])
        'accuracy'
        >>> counted(["eval_loss", "accuracy"], "loss")
        'eval_loss'
    """
    names = list(names)
    if utility is not None:
        return _named(names, utility)
    exact = next((name for name in ("loss", "accuracy") if name in names), None)
    chosen = exact or _named(names, "loss") or _named(names, "accuracy")
    return chosen or (names[0] if len(names) == 1 else None)


def signed(figures: Figures, name: str) -> float:
    """Return the figure of this name, negated if less is better."""
    return -figures[name] if less_is_better(name) else figures[name]


def worth_of(figures: Figures, utility: str | None, where: str, known: dict[str | None, str]) -> float:
    """Return a model's worth from its figures; higher is better.

    The figure :data:`WORTH`, if given, is the worth itself.

    Args:
        figures: the model's figures.
        utility: the figure that counts. None: it is chosen as in :func:`counted`.
        where: the text with which an error message begins.
        known: the figure by which the function's models are judged, by ``utility``. The first call fills it in.

    Raises:
        UserError: the utility is not among the figures, none is named and none can be chosen, or earlier models were
            judged by another figure: a loss and an accuracy cannot be compared.
    """
    name = WORTH if list(figures) == [WORTH] else counted(figures, utility)
    if name is None:
        said = "must name a figure" if utility is None else f"{utility!r}: the model has no figure of that name"
        raise UserError(f"{where}: {said}{nearest(utility or '', figures)}")
    if known.setdefault(utility, name) != name:
        raise UserError(f"{where}: {name!r}, where earlier models have {known[utility]!r}: must be the same figure")
    return signed(figures, name)
