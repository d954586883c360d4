"""Requests and replies as text and arrays, for engines that send them over a network.

Everything that crosses is one of the port's dataclasses. A message is a JSON header and arrays by content hash: a
model that the other side holds already is named and not sent. Nothing is ever unpickled, and what does not have the
form of a known dataclass is refused.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hanse.federation import port
from hanse.learning.generator import Generator
from hanse.learning.guide import Guide

__all__ = ["Arrays", "Message", "MissingError", "WireError", "hash_of", "pack", "unpack"]

Arrays = Mapping[str, NDArray[Any]]

_KINDS: Mapping[str, type[Any]] = {
    kind.__name__: kind
    for kind in (
        port.Request, port.Reply, port.Train, port.Score, port.Nearest, port.Gradient, port.Confusion, port.Ask,
        port.Trained, port.Scored, port.Counted, port.Derived, port.Confused, port.Answered, port.ClientInfo, Guide,
        Generator,
    )
}  # fmt: skip
_DTYPES: Mapping[str, torch.dtype] = {"float32": torch.float32, "float64": torch.float64, "int64": torch.int64}
_ARRAYS = {*_DTYPES, "float16"}  # as they travel
_DEPTH = 12  # no honest message is nested deeper


class WireError(ValueError):
    """A message that is not one of ours."""


class MissingError(WireError):
    """The message names arrays that are neither in it nor held; ``hashes`` lists them."""

    def __init__(self, hashes: list[str]) -> None:
        super().__init__(f"{len(hashes)} arrays are missing")
        self.hashes = hashes


@dataclass(frozen=True)
class Message:
    """A packed value: its JSON ``header`` and its ``arrays`` by content hash."""

    header: str
    arrays: Arrays = field(default_factory=dict)

    @property
    def num_bytes(self) -> int:
        """What the message weighs."""
        return len(self.header) + sum(a.nbytes for a in self.arrays.values())

    def without(self, held: set[str]) -> Message:
        """Return the message without the arrays that the receiver holds."""
        return Message(self.header, {h: a for h, a in self.arrays.items() if h not in held})


def hash_of(array: NDArray[Any]) -> str:
    """Return the content hash of an array: type, shape and bytes (32 hexadecimal digits)."""
    contiguous = np.ascontiguousarray(array)
    hasher = hashlib.blake2b(f"{contiguous.dtype}|{contiguous.shape}|".encode(), digest_size=16)
    hasher.update(contiguous.data if contiguous.size else b"")
    return hasher.hexdigest()


def pack(value: Any, *, half: bool = False) -> Message:
    """Return a port dataclass as a message. Raises WireError for what may not cross.

    With ``half`` 32-bit floats travel as 16-bit ones; what is too large for those arrives as infinity, and is refused
    like any other.
    """
    arrays: dict[str, NDArray[Any]] = {}
    return Message(json.dumps(_pack(value, arrays, half), separators=(",", ":")), arrays)


def _pack(value: Any, arrays: dict[str, NDArray[Any]], half: bool) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Tensor):
        return {"$tensor": _tensor(value, arrays, half), "dtype": str(value.dtype).removeprefix("torch."),
                "shape": list(value.shape)}  # fmt: skip
    if isinstance(value, list | tuple):
        return [_pack(item, arrays, half) for item in value]
    if isinstance(value, Mapping):
        return {"$map": [[str(k), _pack(v, arrays, half)] for k, v in value.items()]}
    name = type(value).__name__
    if _KINDS.get(name) is type(value):
        fields = {f.name: _pack(getattr(value, f.name), arrays, half) for f in dataclasses.fields(value) if f.init}
        return {"$kind": name, "fields": fields}
    raise WireError(f"a {name} may not cross the port")


def _tensor(tensor: Tensor, arrays: dict[str, NDArray[Any]], half: bool) -> list[str]:
    """Put a tensor into ``arrays``, a matrix row by row, since its rows are models that travel again."""
    if str(tensor.dtype).removeprefix("torch.") not in _DTYPES:
        raise WireError(f"a tensor of type {tensor.dtype} may not cross the port")
    array = tensor.detach().cpu().numpy()
    if half and array.dtype == np.float32:
        with np.errstate(over="ignore"):
            array = array.astype(np.float16)
    hashes = []
    for block in array if array.ndim == 2 else [array]:
        hashes.append(hash_of(block))
        arrays.setdefault(hashes[-1], np.ascontiguousarray(block))
    return hashes


def unpack(message: Message, held: Arrays | None = None) -> Any:
    """Return the value of a message, with arrays from it or from those ``held``.

    Raises MissingError if arrays are in neither, and WireError if it is not a message of ours.
    """
    try:
        header = json.loads(message.header)
    except (json.JSONDecodeError, RecursionError):
        raise WireError("the header is not JSON") from None
    found = _Reader(message.arrays, held or {})
    value = found.read(header, 0)
    if found.missing:
        raise MissingError(sorted(found.missing))
    return value


class _Reader:
    """Reads a header, looks arrays up, and notes those that are missing."""

    def __init__(self, sent: Arrays, held: Arrays) -> None:
        self.sent, self.held, self.missing = sent, held, set[str]()

    def read(self, value: Any, depth: int) -> Any:
        if depth > _DEPTH:
            raise WireError("the header is nested too deep")
        if value is None or isinstance(value, bool | int | float | str):
            return value
        if isinstance(value, list):
            return tuple(self.read(item, depth + 1) for item in value)
        if "$tensor" in value:
            return self._tensor(value)
        if "$map" in value and isinstance(value["$map"], list):
            return {str(k): self.read(v, depth + 1) for k, v in _pairs(value["$map"])}
        return self._kind(value, depth)

    def _kind(self, value: Mapping[str, Any], depth: int) -> Any:
        kind, fields = _KINDS.get(str(value.get("$kind"))), value.get("fields")
        if kind is None or not isinstance(fields, dict):
            raise WireError(f"'{value.get('$kind')}' is nothing that crosses the port")
        known = {f.name for f in dataclasses.fields(kind) if f.init}
        if unknown := sorted(set(fields) - known):
            raise WireError(f"{kind.__name__}: no such field '{unknown[0]}'")
        read = {name: self.read(item, depth + 1) for name, item in fields.items()}
        try:
            return kind(**read)
        except (TypeError, ValueError) as wrong:
            raise WireError(f"{kind.__name__}: {wrong}") from None

    def _tensor(self, value: Mapping[str, Any]) -> Tensor:
        hashes, shape, dtype = value["$tensor"], value.get("shape"), _DTYPES.get(str(value.get("dtype")))
        sound = isinstance(hashes, list) and isinstance(shape, list) and dtype is not None
        if not sound or not all(isinstance(n, int) and n >= 0 for n in shape):  # type: ignore[union-attr]
            raise WireError("a tensor without hashes, shape or type")
        found = [self._block(str(h)) for h in hashes]
        blocks = [block.reshape(-1) for block in found if block is not None]
        if len(blocks) < len(found):
            return torch.zeros(0)  # never used: the message is refused as a whole
        try:
            stacked = np.concatenate(blocks) if blocks else np.zeros(0)
            return torch.from_numpy(stacked.reshape(shape).copy()).to(dtype)
        except (ValueError, TypeError) as wrong:
            raise WireError(f"a tensor that is not of shape {shape}: {wrong}") from None

    def _block(self, name: str) -> NDArray[Any] | None:
        found = self.sent.get(name)
        if found is None:
            found = self.held.get(name)
        if found is None:
            self.missing.add(name)
            return None
        if str(found.dtype) not in _ARRAYS:
            raise WireError(f"an array of type {found.dtype}")
        return found


def _pairs(items: list[Any]) -> list[Any]:
    if not all(isinstance(item, list) and len(item) == 2 for item in items):
        raise WireError("a mapping that is not made of pairs")
    return items
