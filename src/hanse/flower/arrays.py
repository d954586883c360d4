"""The arrays and metrics that a Flower app sends, as rows of the model table and back.

There are two ways of wrapping an app that was written without hanse. :func:`hanse.valued` watches the app's strategy,
and :func:`hanse.flower.strategy` replaces it. Both go through this module. A :class:`ArrayLayout` describes the app's
arrays and converts between an ``ArrayRecord`` and a row ``[P]`` of the model table. The functions below it read one
array and average records.

Replies are untrusted input. Arrays that do not fit raise :class:`hanse.federation.codec.WireError` with a reason, which
the callers record as a refusal.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from tokenize import TokenError
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray

from hanse.base.errors import UserError
from hanse.base.files import array_in
from hanse.base.plain_text import quantity
from hanse.base.pytorch import Tensor, nn, torch
from hanse.core.table import Floats, Layout
from hanse.federation.codec import WireError


@dataclass(frozen=True)
class ArrayLayout:
    """The names, types and shapes of an app's arrays, and where each of them lies in a row.

    Only arrays of real numbers become columns. The others are kept unchanged. They are counters, a serialised forest,
    and numbers of types that NumPy lacks, such as bfloat16.

    Attributes:
        names: names of the arrays that become columns, in the order of the columns.
        types: NumPy dtype of each of these arrays, such as ``"float32"``.
        layout: shape and place of each of these arrays in a row ``[P]``.
        fixed: the other arrays by name. :meth:`arrays` adds them unchanged to every model.

    Examples:
        >>> from flwr.app import Array
        >>> w, b = np.array([[1.0, 2.0]], np.float32), np.array([3.0], np.float32)
        >>> arrays = ArrayRecord({"w": Array(w), "b": Array(b)})
        >>> form = ArrayLayout.of(arrays)
        >>> form.row(arrays)
        tensor([1., 2., 3.])
        >>> form.arrays(form.row(arrays) * 2)["w"].numpy()
        array([[2., 4.]], dtype=float32)
    """

    names: tuple[str, ...]
    types: tuple[str, ...]
    layout: Layout
    fixed: Mapping[str, NDArray[np.generic]] = field(default_factory=dict)

    @staticmethod
    def of(arrays: ArrayRecord) -> ArrayLayout:
        """Return the form of ``arrays``, with columns in the order of the record.

        The form has no columns (``layout.size`` is 0) if none of the arrays has real numbers.
        """
        found = {name: opened(array) for name, array in arrays.items()}
        shapes = {name: tuple(a.shape) for name, a in found.items() if _is_real(a)}
        types, sizes = [str(found[name].dtype) for name in shapes], [torch.Size(shape) for shape in shapes.values()]
        ends = np.cumsum([0, *(size.numel() for size in sizes)]).tolist()
        layout = Layout(tuple(shapes), tuple(sizes), tuple(ends), ends[-1], ends[-1])
        return ArrayLayout(tuple(shapes), tuple(types), layout, _others(found, shapes))

    @staticmethod
    def of_module(module: nn.Module, arrays: ArrayRecord) -> ArrayLayout:
        """Return the form of arrays that are the state of a torch module, with columns in the module's order.

        Args:
            module: the module that the rows are loaded into later.
            arrays: the app's arrays. Either they have the names of ``module.state_dict()``, or there are as many of
                them in the same order, as in Flower's list of NumPy arrays.

        Raises:
            UserError: the arrays belong to another architecture: their number or a shape differs.
        """
        state, layout = module.state_dict(), Layout.of(module)
        if set(state) == set(arrays):
            called = {name: name for name in state}
        elif len(state) == len(arrays):
            called = dict(zip(state, arrays, strict=True))
        else:
            ours, theirs = quantity(len(state), "tensor"), quantity(len(arrays), "array")
            raise UserError(f"model: has {ours}, but the app sends {theirs}")
        found, names = {name: opened(array) for name, array in arrays.items()}, [called[name] for name in layout.names]
        types = tuple(str(found[name].dtype) for name in names)
        form = ArrayLayout(tuple(names), types, layout, _others(found, names))
        try:
            form.row(arrays)
        except WireError as wrong:
            raise UserError(f"model: the app's arrays: {wrong}") from None
        return form

    def row(self, arrays: ArrayRecord) -> Tensor:
        """Return arrays as a row ``[P]``, float32. Arrays that are not columns are ignored.

        Raises:
            WireError: an array is missing, has another shape, or does not hold real numbers.
        """
        parts = [torch.zeros(0, dtype=torch.float32)]
        for name, shape in zip(self.names, self.layout.shapes, strict=True):
            if name not in arrays:
                raise WireError(f"there is no array {name[:60]!r}")
            array = opened(arrays[name], f"array {name[:60]!r}")
            if tuple(array.shape) != tuple(shape):
                raise WireError(f"array {name[:60]!r}: has shape {list(array.shape)}: must be {list(shape)}")
            if not _is_real(array):
                raise WireError(f"array {name[:60]!r}: is of {array.dtype}: must be of real numbers")
            parts.append(torch.from_numpy(np.array(array, np.float32).reshape(-1)))
        return torch.cat(parts)

    def arrays(self, row: Tensor) -> ArrayRecord:
        """Return a row ``[P]`` as arrays with the app's own names, shapes and types, together with the fixed arrays."""
        views = self.layout.unflatten(row).values()
        made = {n: x.detach().cpu().numpy().astype(t) for n, t, x in zip(self.names, self.types, views, strict=True)}
        return ArrayRecord({name: Array(np.ascontiguousarray(a)) for name, a in {**made, **self.fixed}.items()})


def _is_real(array: NDArray[np.generic]) -> bool:
    """Say whether an array has real numbers."""
    return array.dtype.kind == "f"


def _others(found: Mapping[str, NDArray[np.generic]], columns: Collection[str]) -> dict[str, NDArray[np.generic]]:
    """Return the arrays that are not columns."""
    return {name: a for name, a in found.items() if name not in columns}


def opened(array: Array, what: str = "an array") -> NDArray[Any]:
    """Return an array of a record without copying it. It cannot be written to.

    An array travels as the bytes of a .npy file, whose header states its size. The size is compared with the bytes that
    came before any memory is allocated, so a short message cannot claim a huge array.

    Args:
        array: the array, which may have come from anybody.
        what: the name of the array in the message.

    Raises:
        WireError: the array is not a NumPy array, is damaged, or its size does not match its bytes.
    """
    if array.stype != "numpy.ndarray":
        raise WireError(f"{what} is of Flower's type {array.stype[:40]!r}")
    try:
        return array_in(array.data)
    except (ValueError, TypeError, SyntaxError, TokenError) as wrong:
        raise WireError(f"{what} cannot be read: {str(wrong)[:100]}") from None


def own_copy(arrays: ArrayRecord) -> ArrayRecord:
    """Return a record with its own array objects, so changes of the original do not affect it.

    The arrays' bytes are immutable and therefore shared.
    """
    return ArrayRecord({name: copy.copy(array) for name, array in arrays.items()})


def shares(weights: Floats) -> Floats:
    """Return ``weights [n]`` divided by their sum, or equal shares if all weights are 0."""
    total = weights.sum()
    return weights / total if total > 0 else np.full(len(weights), 1 / len(weights))


def average(records: Sequence[ArrayRecord], weights: Floats) -> ArrayRecord:
    """Return the weighted average of records, computed in float64.

    Args:
        records: at least one record. All have the same names and shapes.
        weights: ``[n]``, at least 0, such as numbers of samples. They need not sum to 1. If all are zero, the records
            have equal weights.

    Returns:
        A record with the names of the first one. Real arrays keep the type that they have in the first record, other
        numbers become float64.

    Examples:
        >>> import numpy as np
        >>> from flwr.app import Array, ArrayRecord
        >>> small, large = (ArrayRecord({"w": Array(np.array(w, np.float32))}) for w in ([0.0, 2.0], [4.0, 6.0]))
        >>> average([small, large], np.array([30, 10]))["w"].numpy().tolist()
        [1.0, 3.0]
    """
    found, parts = {}, shares(weights)
    for name, first in records[0].items():
        mean: NDArray[np.float64] = sum(
            share * opened(record[name]).astype(np.float64) for share, record in zip(parts, records, strict=True)
        )
        kind = opened(first).dtype
        found[name] = Array(np.asarray(mean, kind if kind.kind == "f" else np.float64))
    return ArrayRecord(found)


def size_of(arrays: ArrayRecord) -> int:
    """Return the number of bytes of all arrays together, as they are serialised."""
    return sum(len(array.data) for array in arrays.values())
