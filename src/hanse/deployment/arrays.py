"""Flower's array records as rows of hanse's table, and averages of such records."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray
from torch import Tensor, nn

from hanse.base.errors import UserError
from hanse.core.table import Floats, Layout


@dataclass(frozen=True)
class Form:
    """What an app's arrays are: ``names``, in the order of a row's columns, of those with real numbers, and their
    places in a row. Arrays of whole numbers (counters, a serialised forest) are no columns.
    """

    names: tuple[str, ...]
    layout: Layout

    @staticmethod
    def of(arrays: ArrayRecord) -> Form:
        """Return the form of arrays: all those of real numbers, in their order."""
        names = [name for name, array in arrays.items() if _is_real(array)]
        shapes = tuple(torch.Size(arrays[name].shape) for name in names)
        ends = np.cumsum([0, *(shape.numel() for shape in shapes)]).tolist()
        return Form(tuple(names), Layout(tuple(names), shapes, tuple(ends), ends[-1], ends[-1]))

    @staticmethod
    def of_module(module: nn.Module, arrays: ArrayRecord) -> Form:
        """Return the form of arrays that are a module's state, named as in its state dict or in the same order.

        Raises UserError if they are another architecture's.
        """
        state, layout = module.state_dict(), Layout.of(module)
        if set(state) == set(arrays):
            called = {name: name for name in state}
        elif len(state) == len(arrays):
            called = dict(zip(state, arrays, strict=True))
        else:
            raise UserError(f"model: has {len(state)} tensors, and the app's arrays are {len(arrays)}: must be as many")
        form = Form(tuple(called[name] for name in layout.names), layout)
        form.row(arrays, "model: the app's arrays")
        return form

    def row(self, arrays: ArrayRecord, where: str) -> Tensor:
        """Return arrays as a row ``[P]`` float32. Raises UserError, beginning with ``where``, for other arrays."""
        parts = [torch.zeros(0, dtype=torch.float32)]
        for name, shape in zip(self.names, self.layout.shapes, strict=True):
            if name not in arrays:
                raise UserError(f"{where}: there is no {name!r}")
            if tuple(arrays[name].shape) != tuple(shape):
                raise UserError(f"{where}, {name!r}: has shape {list(arrays[name].shape)}: must be {list(shape)}")
            parts.append(torch.from_numpy(np.array(arrays[name].numpy(), np.float32)).reshape(-1))
        return torch.cat(parts)

    def rounding(self, records: Sequence[ArrayRecord]) -> Tensor:
        """Return the relative rounding error of each column, ``[P]``: that of the coarsest of the records' types."""
        parts = [torch.zeros(0, dtype=torch.float64)]
        for name, shape in zip(self.names, self.layout.shapes, strict=True):
            parts.append(torch.full((shape.numel(),), max(_epsilon(one[name]) for one in records), dtype=torch.float64))
        return torch.cat(parts)


def _epsilon(array: Array) -> float:
    if array.dtype == "bfloat16":
        return 2.0**-7
    kind = np.dtype(array.dtype)
    return float(np.finfo(kind if kind.kind == "f" and kind.itemsize < 4 else np.float32).eps)  # rows are float32


def _is_real(array: Array) -> bool:
    return np.dtype(array.dtype).kind == "f" if array.dtype != "bfloat16" else True


def own_copy(arrays: ArrayRecord) -> ArrayRecord:
    """Return a record with arrays of its own; their bytes, which nobody can change, are not copied."""
    return ArrayRecord({name: copy.copy(array) for name, array in arrays.items()})


def average(records: Sequence[ArrayRecord], weights: Floats) -> ArrayRecord:
    """Return the average of records of the same arrays by ``weights [n]`` (equal ones if all are 0), made in float64;
    real numbers keep their type, whole ones become float64.
    """
    shares = weights / weights.sum() if weights.sum() > 0 else np.full(len(weights), 1 / len(weights))
    found = {}
    for name, first in records[0].items():
        mean: NDArray[np.float64] = sum(
            share * record[name].numpy().astype(np.float64) for share, record in zip(shares, records, strict=True)
        )
        kind = first.numpy().dtype
        found[name] = Array(np.asarray(mean, kind if kind.kind == "f" else np.float64))
    return ArrayRecord(found)
