"""A Hugging Face data set read as samples of its clients.

A data set of plain columns is read as a frame (:mod:`hanse.data.frames`). One with lists or images is read column by
column, because a frame would hold Python objects. The library ``datasets`` is not imported: if you have such a data
set, you have installed it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hanse.base.errors import UserError
from hanse.data.frames import Asked, Rows, client_name, of_frame
from hanse.data.samples import array_of


def is_hugging_face(given: Any) -> bool:
    """Return whether this is a data set, or a dictionary of splits, of Hugging Face's ``datasets``."""
    return type(given).__module__.split(".")[0] == "datasets"


def of_hugging_face(dataset: Any, asked: Asked, name: str) -> Rows:
    """Return the rows of a ``datasets.Dataset``, before they are numbered and checked.

    Args:
        dataset: the data set, one sample per row.
        asked: which column is what; the target is needed.
        name: what the data are called in messages.

    Raises:
        UserError: a column does not exist or cannot be trained on.
    """
    known, others = dataset.features, asked.named
    rest = [c for c in dataset.column_names if c not in others.values()]
    wanted: Any = rest if asked.features is None else asked.features
    flat = [c for group in wanted.values() for c in group] if isinstance(wanted, Mapping) else list(wanted)
    if all(type(known[c]).__name__ in ("Value", "ClassLabel") for c in flat if c in known):
        rows = of_frame(dataset.to_pandas(), asked, name)
    else:  # a frame of all that are no features, in which one column stands for these
        frame = dataset.select_columns([c for c in others.values() if c in known]).to_pandas().assign(**{"": 0.0})
        columns = dataset.with_format("numpy")[:]
        arrays = {c: _images(columns[c], f"data: {name}: column '{c}'") for c in flat}
        rows = of_frame(frame, replace(asked, features=[""]), name)
        rows = replace(rows, x=arrays if len(arrays) > 1 else next(iter(arrays.values())))
    target, client = asked.target, asked.client
    owner, classes = rows.owner, rows.num_classes
    # a ClassLabel has names for its numbers; as a frame or array the column shows the numbers alone
    if client is not None and hasattr(known[client], "names"):
        labels = dataset.with_format("numpy")[:][client]
        owner = np.array([client_name(known[client].names[int(i)], f"data: {name}") for i in labels], dtype=object)
    if hasattr(known[target], "names"):
        classes = len(known[target].names)
    return replace(rows, owner=owner, num_classes=classes)


def _images(values: Any, where: str) -> NDArray[Any]:
    """Return a column of arrays of one size; images of bytes as float32 ``[n, channels, height, width]`` in 0 to 1."""
    array = np.asarray(values)
    if array.dtype == object:
        raise UserError(f"{where}: its rows are arrays of several sizes: pad or cut them to one size")
    if array.dtype == np.uint8 and array.ndim in (3, 4):
        array = array[:, None] if array.ndim == 3 else array.transpose(0, 3, 1, 2)
        return np.ascontiguousarray(array, dtype=np.float32) / np.float32(255)
    return np.asarray(array_of(array, where))
