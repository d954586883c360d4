"""The arrays of any Flower app as rows of the model table, and back; and the plain numbers of its replies."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from numpy.typing import NDArray
from torch import Tensor

from hanse.base.errors import UserError
from hanse.core.table import Layout
from hanse.federation.codec import WireError

_KEY = "hanse.form"  # of the records that say what a row's arrays are


@dataclass(frozen=True)
class Form:
    """What the arrays of an app are: their ``shapes`` and ``types`` by name, in the app's order.

    Arrays of real numbers are what is mixed; the ``fixed`` ones (counters, say) are sent as they were at the start.
    """

    shapes: Mapping[str, tuple[int, ...]]
    types: Mapping[str, str]
    fixed: Mapping[str, NDArray[np.generic]] = field(default_factory=dict)

    @staticmethod
    def of(arrays: ArrayRecord) -> Form:
        """Return the form of the arrays that training starts from. Raises UserError if there is nothing to mix."""
        found = {name: array.numpy() for name, array in arrays.items()}
        real = {name: a for name, a in found.items() if a.dtype.kind == "f"}
        if not sum(a.size for a in real.values()):
            kinds = ", ".join(sorted({str(a.dtype) for a in found.values()})) or "none"
            raise UserError(
                f"initial_arrays: arrays of {kinds}: hanse mixes real numbers; a model whose aggregate is no mean "
                "(trees) keeps its own strategy, and hanse.valued values it by aggregating again"
            )
        if not all(np.isfinite(a).all() for a in real.values()):
            raise UserError("initial_arrays: have numbers that are not finite")
        shapes = {name: tuple(a.shape) for name, a in real.items()}
        types = {name: str(a.dtype) for name, a in real.items()}
        return Form(shapes, types, {name: a for name, a in found.items() if name not in real})

    @property
    def layout(self) -> Layout:
        """Where each array lies in a row."""
        sizes = [int(np.prod(shape, dtype=np.int64)) for shape in self.shapes.values()]
        offsets = tuple(int(x) for x in np.cumsum([0, *sizes]))
        shapes = tuple(torch.Size(shape) for shape in self.shapes.values())
        return Layout(tuple(self.shapes), shapes, offsets, offsets[-1], offsets[-1])

    def row(self, arrays: ArrayRecord) -> Tensor:
        """Return arrays as a row ``[P]`` float32. Raises WireError if they are not of this form."""
        names = {*self.shapes, *self.fixed}
        if set(arrays) != names:
            odd = sorted(set(arrays) ^ names)[:3]
            raise WireError(f"other arrays than those that were sent ({', '.join(odd)})"[:200])
        parts = []
        for name, shape in self.shapes.items():
            array = arrays[name].numpy()
            if tuple(array.shape) != shape or array.dtype.kind != "f":
                raise WireError(f"array {name[:60]!r} of shape {tuple(array.shape)}, {array.dtype}: must be {shape}")
            parts.append(torch.from_numpy(np.array(array, np.float32).reshape(-1)))
        return torch.cat(parts)

    def arrays(self, row: Tensor) -> ArrayRecord:
        """Return a row ``[P]`` as arrays of the app's own names, shapes and types."""
        made = {n: x.detach().cpu().numpy().astype(self.types[n]) for n, x in self.layout.unflatten(row).items()}
        return ArrayRecord({name: Array(np.ascontiguousarray(a)) for name, a in {**made, **self.fixed}.items()})

    # ---- beside a question, for who has to make arrays of its rows

    def into(self, records: RecordDict) -> RecordDict:
        """Return the records with this form beside them."""
        said = {"shapes": [[n, list(s), self.types[n]] for n, s in self.shapes.items()]}
        records[_KEY] = ConfigRecord({"form": json.dumps(said)})
        records[f"{_KEY}.fixed"] = ArrayRecord({n: Array(np.asarray(a)) for n, a in self.fixed.items()})
        return records

    @staticmethod
    def beside(records: RecordDict) -> Form:
        """Return the form that stands beside a question. Raises WireError if there is none."""
        config, fixed = records.get(_KEY), records.get(f"{_KEY}.fixed")
        if not isinstance(config, ConfigRecord) or not isinstance(fixed, ArrayRecord):
            raise WireError("the question does not say what its models' arrays are")
        said = json.loads(str(config["form"]))["shapes"]
        return Form(
            {name: tuple(shape) for name, shape, _ in said},
            {name: kind for name, _, kind in said},
            {name: array.numpy() for name, array in fixed.items()},
        )


def numbers_of(content: RecordDict) -> dict[str, float]:
    """Return the numbers in the one MetricRecord of a reply; lists are left out. Raises WireError if it has not one."""
    found = list(content.metric_records.values())
    if len(found) != 1:
        raise WireError(f"{len(found)} records of metrics: must be one")
    return {str(name): float(x) for name, x in found[0].items() if isinstance(x, int | float)}


def arrays_of(content: RecordDict) -> ArrayRecord:
    """Return the one ArrayRecord of a reply. Raises WireError if it has not one."""
    found = list(content.array_records.values())
    if len(found) != 1:
        raise WireError(f"{len(found)} records of arrays: must be one")
    return found[0]
