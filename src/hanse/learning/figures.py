"""What a function of the user's own says of a model: numbers by name, and which of them is its worth."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from hanse.base.errors import UserError
from hanse.learning.coalitions import WORST
from hanse.learning.metrics import reading_of

Figures = Mapping[str, float]
"""What a function says of a model: "loss", "accuracy" (0 to 1), "count" (samples), others by their names."""


def figures_of(said: object, where: str) -> dict[str, float]:
    """Return what a function said of a model, a mapping or one number (the more the better: "worth"), as numbers.

    Raises UserError for what is neither.
    """
    if isinstance(said, Mapping):
        found = {str(name): float(x) for name, x in said.items() if isinstance(x, int | float | np.number)}
        if found:
            return found
    elif isinstance(said, int | float | np.number) and not isinstance(said, bool):
        return {"worth": float(said)}
    raise UserError(f"{where}: returned {str(said)[:60]!r}: must be a number, or numbers by name such as 'loss'")


def loss_of(figures: Figures) -> float:
    """Return the loss among figures: the one of this name, or the first whose name has it ("eval_loss"); else NaN."""
    return _found(figures, "loss")


def accuracy_of(figures: Figures) -> float:
    """Return the accuracy among figures: the one of this name, or the first with "acc" in its name; else NaN."""
    return _found(figures, "acc") if "accuracy" not in figures else figures["accuracy"]


def _found(figures: Figures, word: str) -> float:
    if word in figures:
        return figures[word]
    return next((x for name, x in figures.items() if word in name.lower()), math.nan)


def worth_of(figures: Figures, utility: str) -> float:
    """Return a model's worth in a utility, the more the better: minus the loss, or of metrics that are the better the
    less. Where a function gives one number, that is its worth. WORST if it is not finite.

    Raises UserError for a utility that is not among the figures.
    """
    if "worth" in figures:
        found = figures["worth"]
    elif utility == "loss":
        found = -loss_of(figures)
    elif utility == "accuracy":
        found = accuracy_of(figures)
    elif utility in figures:
        reading = reading_of(utility)
        found = -figures[utility] if reading is not None and reading.less_is_better else figures[utility]
    else:
        raise UserError(
            f"mechanism.value.utility: {utility!r}: is not among what evaluate says ({', '.join(sorted(figures))})"
        )
    return found if math.isfinite(found) else WORST
