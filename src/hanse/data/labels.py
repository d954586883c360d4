"""Labels: what a target's values are, under which names they go, and which numbers they get.

A target is a number or a class (:func:`target_column`). Labels that clients call otherwise are renamed
(:class:`Renamed`), and classes are numbered (:func:`classes_of`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hanse.base.errors import UserError
from hanse.base.pytorch import Tensor
from hanse.data.kinds import ALIKE, alike, held, lost, objects, plain, rows_of, unfinite_rows
from hanse.data.samples import array_of

Labels = Mapping[str, str | int | Mapping[str, str | int]]
"""What labels are to be called, for all clients, or in a table for each client by name."""

_ONE_HOT = (
    "targets of shape {} have several columns of classes: one class for each sample is needed, as one-hot "
    "rows' .argmax(axis=1); several labels of one sample go as columns of -1.0 and 1.0 (docs/outcomes.md)"
)


class Renamed:
    """Labels that clients call otherwise, such as "krank" for "ill", under one name.

    Args:
        labels: what each label is to be called. A table under a client's name is for that client alone, and comes
            before what is for all.
    """

    def __init__(self, labels: Labels) -> None:
        if not isinstance(labels, Mapping):
            raise UserError(f'data.source.labels: {labels!r:.80}: must be a table, such as {{ krank = "ill" }}')
        self._known: dict[tuple[str, str], str | int] = {}  # by client ("": all) and label
        for name, one in labels.items():
            new, client = (one, name) if isinstance(one, Mapping) else ({name: one}, "")
            self._known |= {(client, plain(text)): label for text, label in new.items()}
        if odd := next((one for one in self._known.values() if not isinstance(one, str | int)), None):
            raise UserError(f"data.source.labels: {odd!r:.80}: must be a text or a whole number")
        self._found: set[tuple[str, str]] = set()

    def of(self, column: Any, owner: NDArray[Any] | None) -> NDArray[Any]:
        """Return targets ``[n]`` with new labels, as objects; ``owner [n]`` has the client of each, or is None."""
        values = objects(column)
        for i, client in enumerate([""] * len(values) if owner is None else owner):
            text = "" if values[i] is None else plain(values[i])  # a gap has no label
            if key := next((key for key in ((client, text), ("", text)) if key in self._known), None):
                values[i] = self._known[key]
                self._found.add(key)
        return values

    def refuse_unused(self) -> None:
        """Raise UserError for labels that no row had."""
        for client, text in self._known.keys() - self._found:
            of = f" of client '{client}'" if client else ""
            raise UserError(f"data.source.labels: {text!r}: no row{of} has this label; leave it out")


def target_column(column: Any, owner: NDArray[Any] | None, where: str) -> NDArray[Any]:
    """Return targets as numbers or labels.

    Args:
        column: the targets ``[n]``: a pandas Series, an array or a list.
        owner: the client of every row, or None.
        where: the words with which messages begin.

    Raises:
        UserError: they are neither, or some are missing.
    """
    found = held(column, where, owner)
    numbers, line = found.like == "numbers", ""
    if numbers:
        line = unfinite_rows(found, owner)
    elif found.gaps.any():
        line = f"no target in {rows_of(np.flatnonzero(found.gaps), owner)}"
    if line:
        raise UserError(f"{where}: {line}; drop these rows")
    if found.kind == "dates":
        raise UserError(f"{where}: holds dates; a target is a number or a class: make numbers, such as days, of them")
    if found.kind == "truth":
        return found.values.astype(bool)
    given = objects(column)
    digits = found.text and np.equal(np.floor(found.values), found.values).all()
    if not numbers or (digits and all(isinstance(one, str) for one in given)):
        return given
    if found.text:
        raise UserError(f"{where}: holds numbers as text: pandas.to_numeric(...) makes targets of them")
    if found.kind == "whole":
        return np.asarray(array_of(given.tolist(), where))
    if line := lost(found.values):
        raise UserError(f"{where}: {line}")
    return found.values.astype(np.float32)


def classes_of(y: Any, x: Any, where: str) -> tuple[NDArray[Any], int | None, Sequence[Any]]:
    """Return targets as numbers, the number of classes (None: regression), and what each class was called.

    Floats are regression targets. Whole numbers from 0 on are classes as they stand. Any other labels are numbered in
    their order.

    Args:
        y: the targets ``[n, ...]``, an array or a tensor.
        x: the inputs, by whose shape and type a column of targets is told from several.
        where: what messages begin with.

    Raises:
        UserError: several classes of one sample, classes that are floats, numbers that are labels, or two labels that
            cannot be told apart.
    """
    y = _shaped(y, x, where)
    if y.dtype.kind == "f":
        # a column of 0.0 and 1.0 is nearly always classes, and trained as a regression it would give no accuracy
        if y.size and np.isin(y, (0, 1)).all():
            if y.ndim > 1 and y.shape[1] > 1:
                raise UserError(f"{where}: {_ONE_HOT.format(list(y.shape))}")
            raise UserError(
                f"{where}: the targets are floats, numbers to be predicted, and only 0 and 1: for classes make them "
                "whole numbers, as with .astype(int)"
            )
        return y, None, ()
    values = y.reshape(-1)
    labels, counts = np.unique(values, return_counts=True)
    if both_alike := alike(zip(labels.tolist(), counts.tolist(), strict=True)):
        raise UserError(f"{where}: the labels {both_alike} cannot be told apart reliably: {ALIKE}")
    # more labels than half of the rows: numbers that were stored as text or as integers, not classes; a few rows of a
    # few classes, each there, are classes
    few = values.dtype.kind in "iu" and len(labels) <= 10 and np.array_equal(labels, np.arange(len(labels)))
    if y.ndim == 1 and not few and len(labels) > max(2, len(values) // 2):
        raise UserError(
            f"{where}: {len(labels)} different labels in {len(values)} rows; numbers to be predicted must be floats"
        )
    # -100 marks positions of a text that do not count; huge numbers are ids rather than classes, and are numbered below
    if values.dtype.kind in "iu" and len(values) and values.min() in (0, -100) and values.max() < 10 * len(values):
        # two at least: rows of a single class are still classes, and a model needs two outputs for them
        classes = max(2, int(values.max()) + 1)
        return y, classes, range(classes)
    return np.searchsorted(labels, y).astype(np.int64), max(2, len(labels)), labels.tolist()


def _shaped(given: Any, x: Any, where: str) -> NDArray[Any]:
    """Return targets as an array, one for each sample. Raises UserError for several classes of one sample."""
    y: NDArray[Any] = given
    if isinstance(given, Tensor):
        y = (given.double() if given.is_floating_point() else given).numpy()
    if y.ndim == 2 and y.shape[1] == 1 and y.dtype.kind != "f" and np.shape(x)[1:] != (1,):
        y = y[:, 0]
    if (y.ndim > 1 and y.dtype.kind not in "iuf") or (y.ndim == 2 and y.dtype.kind != "f" and is_float(x)):
        raise UserError(f"{where}: {_ONE_HOT.format(list(y.shape))}")
    return y


def is_float(x: Any) -> bool:
    """Return whether an array holds floats; a dictionary of arrays does not."""
    return x.is_floating_point() if isinstance(x, Tensor) else getattr(getattr(x, "dtype", None), "kind", "") == "f"
