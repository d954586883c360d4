"""Data of a user's own in each form, under the names by which the tests' messages call them."""

from __future__ import annotations

from functools import partial
from typing import Any

from hanse.data import Dataset, as_dataset

from_frame = partial(as_dataset, name="frame")
from_torch = partial(as_dataset, name="torch")


def from_arrays(x: Any, y: Any, clients: Any = None, **more: Any) -> Dataset:
    return as_dataset((x, y, clients), **{"name": "arrays", **more})
