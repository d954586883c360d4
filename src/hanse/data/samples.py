"""Samples: inputs and targets as two tensors, the one form in which data is handed around inside a client."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hanse.base.errors import UserError


@dataclass(frozen=True)
class Samples:
    """``x [n, ...]`` (float32, or int64 tokens) and ``y [n]`` (int64 classes), ``[n, positions]`` (int64, one at each
    position of a text) or ``[n]``/``[n, d]`` (float32 targets).
    """

    x: Tensor
    y: Tensor

    def __len__(self) -> int:
        return int(self.x.shape[0])

    def take(self, index: Tensor) -> Samples:
        """Return the samples at ``index [m]`` as new tensors."""
        return Samples(self.x.index_select(0, index), self.y.index_select(0, index))


def as_tensors(samples: Samples, where: str, *, classes: bool) -> Samples:
    """Return what a user gave as samples, tensors or numpy arrays, in the form that :class:`Samples` has.

    Inputs of any floating type become float32, labels of any whole type int64 and targets float32. Raises UserError,
    its line beginning with ``where``, for anything else: strings, objects, and inputs that may be features or tokens.
    """
    x, y = _tensor(samples.x, f"{where} inputs"), _tensor(samples.y, f"{where} {'labels' if classes else 'targets'}")
    if x.is_floating_point():
        x = x.to(torch.float32)
    elif x.dtype != torch.int64:
        kind = str(x.dtype).removeprefix("torch.")
        raise UserError(f"{where} inputs are {kind}; float32 for features, or int64 for tokens, is needed")
    if y.is_floating_point():
        y = y.to(torch.float32)
    elif classes:
        y = y.to(torch.int64)
    return samples if x is samples.x and y is samples.y else Samples(x, y)


def _tensor(given: Any, what: str) -> Tensor:
    if isinstance(given, Tensor) and not given.is_complex():
        return given.detach() if given.requires_grad else given
    if isinstance(given, np.ndarray) and given.dtype.kind in "biuf":
        # longer floats than PyTorch knows, and the other byte order, are read as the numbers that they are
        kind = "float32" if given.dtype.kind == "f" else given.dtype.newbyteorder("=")
        if given.dtype.kind == "u" and given.dtype.itemsize > 1:
            kind = "int64"
        with np.errstate(over="ignore"):  # what is too large for float32 is found as infinite
            return torch.from_numpy(np.ascontiguousarray(given.astype(kind, copy=False)))
    if isinstance(given, np.ndarray):
        example = f", such as {given.flat[0]!r}" if given.size else ""
        hint = "; numpy.unique(..., return_inverse=True) numbers them" if what.endswith("labels") else ""
        raise UserError(f"{what} are an array of {given.dtype}{example}; numbers are needed{hint}")
    raise UserError(f"{what} are a {type(given).__name__}; one tensor or numpy array of numbers is needed")


def first_gap(values: Tensor) -> tuple[tuple[int, ...], str] | None:
    """Return the place of the first number of ``values [n, ...]`` that is not finite, and what it is, or None."""
    if not values.is_floating_point() or bool(torch.isfinite(values.sum())):
        return None  # NaN and infinity remain in a sum: ten times cheaper than asking each number
    places = torch.nonzero(~torch.isfinite(values))
    at = tuple(places[0].tolist()) if len(places) else None  # a sum may be too large, and all its terms finite
    return None if at is None else (at, str(float(values[at])))
