"""What a Flower app sends: its arrays as rows of the model table and back, their averages, and the numbers of a reply.

Both :func:`hanse.valued` and :func:`hanse.flower.strategy` read apps by this module.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from numpy.typing import NDArray
from torch import Tensor, nn

from hanse.base.errors import UserError
from hanse.core.declared import LARGEST_COUNT
from hanse.core.table import Floats, Layout
from hanse.federation.codec import WireError

_KEY = "hanse.form"  # of the records that say what a row's arrays are


@dataclass(frozen=True)
class Form:
    """What the arrays of an app are: the ``names``, in the order of a row's columns, and ``types`` of those with real
    numbers, and where they lie in a row.

    The ``fixed`` ones (counters, a serialised forest; numbers that NumPy has not, such as bfloat16) are no columns.
    """

    names: tuple[str, ...]
    types: tuple[str, ...]
    layout: Layout
    fixed: Mapping[str, NDArray[np.generic]] = field(default_factory=dict)

    @staticmethod
    def of(arrays: ArrayRecord) -> Form:
        """Return the form of arrays, in their own order; it has no columns if none are real numbers."""
        found = {name: array.numpy() for name, array in arrays.items()}
        shapes = {name: tuple(a.shape) for name, a in found.items() if _is_real(a)}
        types = {name: str(found[name].dtype) for name in shapes}
        return Form(tuple(shapes), tuple(types.values()), _layout(shapes), _others(found, shapes))

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
        found, names = {name: array.numpy() for name, array in arrays.items()}, [called[name] for name in layout.names]
        types = tuple(str(found[name].dtype) for name in names)
        form = Form(tuple(names), types, layout, _others(found, names))
        try:
            form.row(arrays)
        except WireError as wrong:
            raise UserError(f"model: the app's arrays: {wrong}") from None
        return form

    def row(self, arrays: ArrayRecord) -> Tensor:
        """Return arrays as a row ``[P]`` float32; what is no column of it is not looked at.

        Raises WireError if one is missing, of another shape, or not of real numbers.
        """
        parts = [torch.zeros(0, dtype=torch.float32)]
        for name, shape in zip(self.names, self.layout.shapes, strict=True):
            if name not in arrays:
                raise WireError(f"there is no array {name[:60]!r}")
            array = arrays[name].numpy()
            if tuple(array.shape) != tuple(shape):
                raise WireError(f"array {name[:60]!r}: has shape {list(array.shape)}: must be {list(shape)}")
            if not _is_real(array):
                raise WireError(f"array {name[:60]!r}: is of {array.dtype}: must be of real numbers")
            parts.append(torch.from_numpy(np.array(array, np.float32).reshape(-1)))
        return torch.cat(parts)

    def arrays(self, row: Tensor) -> ArrayRecord:
        """Return a row ``[P]`` as arrays of the app's own names, shapes and types, with the fixed ones as they were."""
        views = self.layout.unflatten(row).values()
        made = {n: x.detach().cpu().numpy().astype(t) for n, t, x in zip(self.names, self.types, views, strict=True)}
        return ArrayRecord({name: Array(np.ascontiguousarray(a)) for name, a in {**made, **self.fixed}.items()})

    def rounding(self, records: Sequence[ArrayRecord]) -> Tensor:
        """Return the relative rounding error of each column, ``[P]``: that of the coarsest of the records' types."""
        parts = [torch.zeros(0, dtype=torch.float64)]
        for name, shape in zip(self.names, self.layout.shapes, strict=True):
            parts.append(torch.full((shape.numel(),), max(_epsilon(one[name]) for one in records), dtype=torch.float64))
        return torch.cat(parts)

    # ---- beside a question, for who has to make arrays of its rows

    def into(self, records: RecordDict) -> RecordDict:
        """Return the records with this form beside them."""
        said = [[n, list(s), t] for n, s, t in zip(self.names, self.layout.shapes, self.types, strict=True)]
        records[_KEY] = ConfigRecord({"form": json.dumps({"shapes": said})})
        records[f"{_KEY}.fixed"] = ArrayRecord({n: Array(np.asarray(a)) for n, a in self.fixed.items()})
        return records

    @staticmethod
    def beside(records: RecordDict) -> Form:
        """Return the form that stands beside a question. Raises WireError if there is none."""
        config, fixed = records.get(_KEY), records.get(f"{_KEY}.fixed")
        if not isinstance(config, ConfigRecord) or not isinstance(fixed, ArrayRecord):
            raise WireError("the question does not say what its models' arrays are")
        said = json.loads(str(config["form"]))["shapes"]
        shapes = {str(name): tuple(shape) for name, shape, _ in said}
        others = {name: array.numpy() for name, array in fixed.items()}
        return Form(tuple(shapes), tuple(kind for _, _, kind in said), _layout(shapes), others)


def _epsilon(array: Array) -> float:
    if array.dtype == "bfloat16":
        return 2.0**-7
    kind = np.dtype(array.dtype)
    return float(np.finfo(kind if kind.kind == "f" and kind.itemsize < 4 else np.float32).eps)  # rows are float32


def _is_real(array: NDArray[np.generic]) -> bool:
    return array.dtype.kind == "f"


def _layout(shapes: Mapping[str, Sequence[int]]) -> Layout:
    """Return where arrays of these shapes lie in a row, one after another."""
    sizes = [torch.Size(shape) for shape in shapes.values()]
    ends = np.cumsum([0, *(size.numel() for size in sizes)]).tolist()
    return Layout(tuple(shapes), tuple(sizes), tuple(ends), ends[-1], ends[-1])


def _others(found: Mapping[str, NDArray[np.generic]], columns: Collection[str]) -> dict[str, NDArray[np.generic]]:
    """Return the arrays that are no columns."""
    return {name: a for name, a in found.items() if name not in columns}


def own_copy(arrays: ArrayRecord) -> ArrayRecord:
    """Return a record with arrays of its own; their bytes, which nobody can change, are not copied."""
    return ArrayRecord({name: copy.copy(array) for name, array in arrays.items()})


def shares(weights: Floats) -> Floats:
    """Return ``weights [n]`` divided by their sum; equal shares if all of them are 0."""
    total = weights.sum()
    return weights / total if total > 0 else np.full(len(weights), 1 / len(weights))


def average(records: Sequence[ArrayRecord], weights: Floats) -> ArrayRecord:
    """Return the average of records of the same arrays by ``weights [n]`` (equal ones if all are 0), made in float64;
    real numbers keep their type, whole ones become float64.
    """
    found, parts = {}, shares(weights)
    for name, first in records[0].items():
        mean: NDArray[np.float64] = sum(
            share * record[name].numpy().astype(np.float64) for share, record in zip(parts, records, strict=True)
        )
        kind = first.numpy().dtype
        found[name] = Array(np.asarray(mean, kind if kind.kind == "f" else np.float64))
    return ArrayRecord(found)


# ---- a reply's records


def arrays_of(content: RecordDict) -> ArrayRecord:
    """Return the one ArrayRecord of a reply. Raises WireError if it has not one."""
    found = list(content.array_records.values())
    if len(found) != 1:
        raise WireError(f"{len(found)} records of arrays: must be one")
    return found[0]


def metrics_of(content: RecordDict) -> MetricRecord:
    """Return the one MetricRecord of a reply. Raises WireError if it has not one."""
    found = list(content.metric_records.values())
    if len(found) != 1:
        raise WireError(f"{len(found)} records of metrics: must be one")
    return found[0]


def samples_of(metrics: MetricRecord, by: str) -> float | None:
    """Return the number of samples by which a reply weighs: its metric ``by``, None if it has none of that name.

    Raises WireError, which begins with the name, for what is no such number.
    """
    if by not in metrics:
        return None
    found = numbers_of(metrics).get(by)
    if found is None or not 0 <= found <= LARGEST_COUNT:
        raise WireError(f"{by!r} is {metrics[by]!r:.60}: must be a number from 0 to {LARGEST_COUNT:.0e}")
    return found


def size_of(arrays: ArrayRecord) -> int:
    """Return the bytes of arrays."""
    return sum(len(array.data) for array in arrays.values())


def numbers_of(metrics: MetricRecord) -> dict[str, float]:
    """Return the numbers among metrics; lists are left out."""
    return {str(name): float(x) for name, x in metrics.items() if isinstance(x, int | float)}
