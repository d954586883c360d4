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
from hanse.data.frames import Asked, Rows, client_name, names_of, of_frame, target_column, times_of, units_of
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
    known = dataset.features
    target, client, others = asked.target, asked.client, asked.named.values()
    wanted = [c for c in dataset.column_names if c not in others] if asked.features is None else asked.features
    flat = list(wanted) if not isinstance(wanted, Mapping) else [c for group in wanted.values() for c in group]
    plain = all(type(known[c]).__name__ in ("Value", "ClassLabel") for c in flat if c in known)
    # a frame's messages also say which column does not exist
    if plain or client == target or not all(c in known for c in others):
        rows = of_frame(dataset.to_pandas(), asked, name)
    else:
        columns = dataset.with_format("numpy")[:]
        frame = dataset.select_columns([*others]).to_pandas()
        owner = None if client is None else names_of(frame[client], f"data: {name}: column '{client}'", str(client))
        y, wrong = target_column(frame[target], owner, f"data: {name}: column '{target}'")
        if wrong:
            raise UserError(*wrong)
        arrays = {c: _images(columns[c], f"data: {name}: column '{c}'") for c in flat}
        units, time = (
            None if c is None else read(frame[c], f"data: {name}: column '{c}'")
            for read, c in ((units_of, asked.named.get("group")), (times_of, asked.time))
        )
        rows = Rows(arrays if len(arrays) > 1 else next(iter(arrays.values())), y, owner, units=units, time=time)
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
