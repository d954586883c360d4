"""Samples: inputs and targets as two tensors, the one form in which data is handed around inside a client.

Samples of several inputs (a dictionary of tensors) are one tensor too: all inputs of a sample lie in one row, and
:class:`Inputs` says where. Engines, scoring, fingerprints and the network need to know nothing of it; the model takes
the row apart again and hands its inputs to the user's module by name (:class:`hanse.learning.by_name.ByName`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hanse.base.errors import UserError

EXACT = 2**24  # whole numbers up to it are float32 numbers


@dataclass(frozen=True)
class Input:
    """One of several inputs of a sample: its ``name``, the ``shape`` of one sample's, and whether it holds ``whole``
    numbers (int64, such as tokens) instead of float32.
    """

    name: str
    shape: tuple[int, ...]
    whole: bool = False


@dataclass(frozen=True)
class Inputs:
    """How several inputs lie in a sample's row, one after another; without ``parts`` a sample is one input as it is."""

    parts: tuple[Input, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.parts)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of each input, by name."""
        return {part.name: part.shape for part in self.parts}

    def split(self, x: Tensor) -> dict[str, Tensor]:
        """Return rows ``[n, width]`` as the inputs that they hold, ``[n, *shape]`` each, by name."""
        ends = [0]
        for part in self.parts:
            ends.append(ends[-1] + prod(part.shape))
        cut = {
            p.name: x[:, a:b].reshape(len(x), *p.shape) for p, (a, b) in zip(self.parts, pairwise(ends), strict=True)
        }
        return {part.name: cut[part.name].long() if part.whole else cut[part.name] for part in self.parts}

    def place(self, column: int) -> str:
        """Return which input a column of a row belongs to, in words."""
        for part in self.parts:
            if column < prod(part.shape):
                return f"input '{part.name}', column {column}"
            column -= prod(part.shape)
        return f"column {column}"


def join(given: Mapping[str, Any], where: str = "samples") -> tuple[Tensor, Inputs]:
    """Return inputs ``[n, ...]`` (tensors or numpy arrays, by name) as rows ``[n, width]`` float32, and how they lie.

    Raises UserError, its line beginning with ``where``, for inputs of several lengths, of whole numbers that float32
    cannot hold (beyond 16,777,216), or that are no numbers.
    """
    if not given or not all(isinstance(name, str) and name.isidentifier() for name in given):
        raise UserError(f"{where}: inputs named {list(given)}; a name for each that a function's parameter can have")
    tensors = {
        name: _as_input(_tensor(x, f"{where} input '{name}'"), f"{where} input '{name}'") for name, x in given.items()
    }
    lengths = {name: len(x) if x.ndim else 0 for name, x in tensors.items()}
    if len(set(lengths.values())) > 1:
        told = ", ".join(f"{n} of '{name}'" for name, n in lengths.items())
        raise UserError(f"{where}: inputs of other lengths: {told}; a sample has one of each")
    parts = []
    for name, x in tensors.items():
        parts.append(Input(name, tuple(x.shape[1:]), not x.is_floating_point()))
        if parts[-1].whole and x.numel() and int(x.abs().max()) > EXACT:
            raise UserError(f"{where} input '{name}' has whole numbers up to {int(x.abs().max())}; allowed: {EXACT}")
    rows = torch.cat([x.reshape(len(x), prod(x.shape[1:])).to(torch.float32) for x in tensors.values()], dim=1)
    return rows, Inputs(tuple(parts))


@dataclass(frozen=True)
class Samples:
    """``x [n, ...]`` (float32, or int64 tokens) and ``y [n]`` (int64 classes), ``[n, positions]`` (int64, one at each
    position of a text) or ``[n]``/``[n, d]`` (float32 targets).

    ``x`` may be given as a dictionary of several inputs ``[n, ...]`` by name, which the model's ``forward`` gets by
    these names; here they become rows ``[n, width]``, and ``inputs`` says how they lie in them.
    """

    x: Tensor
    y: Tensor
    inputs: Inputs = field(default=Inputs())

    def __post_init__(self) -> None:
        if isinstance(self.x, Mapping):
            rows, inputs = join(self.x)
            object.__setattr__(self, "x", rows)
            object.__setattr__(self, "inputs", inputs)

    def __len__(self) -> int:
        return int(self.x.shape[0])

    def take(self, index: Tensor) -> Samples:
        """Return the samples at ``index [m]`` as new tensors."""
        return Samples(self.x.index_select(0, index), self.y.index_select(0, index), self.inputs)

    @staticmethod
    def joined(parts: Sequence[Samples]) -> Samples:
        """Return the samples of one or more, one after another."""
        return Samples(torch.cat([part.x for part in parts]), torch.cat([part.y for part in parts]), parts[0].inputs)


def as_tensors(samples: Samples, where: str, *, classes: bool) -> Samples:
    """Return what a user gave as samples, tensors or numpy arrays, in the form that :class:`Samples` has.

    Inputs of any floating type become float32, labels of any whole type int64 and targets float32. Raises UserError,
    its line beginning with ``where``, for anything else: strings, objects, and inputs that may be features or tokens.
    """
    x, y = _tensor(samples.x, f"{where} inputs"), _tensor(samples.y, f"{where} {'labels' if classes else 'targets'}")
    x = _as_input(x, f"{where} inputs")
    if y.is_floating_point():
        y = y.to(torch.float32)
    elif classes:
        y = y.to(torch.int64)
    return samples if x is samples.x and y is samples.y else Samples(x, y, samples.inputs)


def _as_input(x: Tensor, what: str) -> Tensor:
    if x.is_floating_point():
        return x.to(torch.float32)
    if x.dtype != torch.int64:
        kind = str(x.dtype).removeprefix("torch.")
        raise UserError(f"{what} are {kind}; float32 for features, or int64 for tokens, is needed")
    return x


def _tensor(given: Any, what: str) -> Tensor:
    if isinstance(given, Tensor) and not given.is_complex():
        return given.detach() if given.requires_grad else given
    if isinstance(given, np.ndarray) and given.dtype.kind in "biuf":
        # longer floats than PyTorch knows, and the other byte order, are read as the numbers that they are
        kind = "float32" if given.dtype.kind == "f" else given.dtype.newbyteorder("=")
        if given.dtype.kind == "u" and given.dtype.itemsize > 1:
            kind = "int64"
        with np.errstate(over="ignore"):  # what is too large for float32 is found as infinite
            found = np.ascontiguousarray(given.astype(kind, copy=False))
            return torch.from_numpy(found if found.flags.writeable else found.copy())
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
