"""Values as JSON, with their arrays elsewhere, and back: what rounds' records and checkpoints are written by.

A :class:`Writer` takes dataclasses, mappings, lists and tuples apart, and writes what occurs again only once; a
:class:`Reader` puts them together. Those of rounds' records write and read some arrays otherwise.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from dataclasses import is_dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hanse.base.errors import UserError
from hanse.base.pytorch import Tensor, torch


class Writer:
    """Writes values as JSON, and puts their arrays and tensors into ``arrays``, by name."""

    def __init__(self) -> None:
        self.arrays = dict[str, NDArray[Any]]()
        self._memo = dict[int, tuple[int, Any]]()  # what was written, so that it is not twice

    def write(self, value: Any) -> Any:
        """Return a value as JSON has it: what is not plain is a table with a tag."""
        if value is None or isinstance(value, bool | int | float | str):
            return value
        if isinstance(value, np.generic):
            return value.item()
        if isinstance(value, np.ndarray):
            return self.array(value)
        if isinstance(value, Tensor):
            return self.tensor(value)
        if id(value) in self._memo:
            return {"$again": self._memo[id(value)][0]}
        if is_dataclass(value) and not isinstance(value, type):
            fields = {f.name: self.write(getattr(value, f.name)) for f in dataclasses.fields(value) if f.init}
            said: Any = {"$kind": type(value).__name__, "fields": fields}
        elif isinstance(value, Mapping):
            said = {"$map": [[self.write(k), self.write(v)] for k, v in value.items()]}
        elif isinstance(value, tuple | list):
            said = {"$list": [self.write(one) for one in value]}
        else:
            return self.other(value)
        self._memo[id(value)] = len(self._memo), value
        return said

    def array(self, array: NDArray[Any]) -> Any:
        """Return what stands for an array."""
        name = str(len(self.arrays))
        # in this machine's order of bytes, as they are read back
        self.arrays[name] = np.asarray(array, array.dtype.newbyteorder("="), order="C")
        return {"$array": name}

    def tensor(self, tensor: Tensor) -> Any:
        """Return what stands for a tensor."""
        return self.bits(tensor) or {"$tensor": self.array(tensor.detach().cpu().numpy())["$array"]}

    def bits(self, tensor: Tensor) -> Any:
        """Return what stands for a tensor of a type that NumPy lacks, such as bfloat16: its bits as whole numbers; None
        for all others.
        """
        kind = str(tensor.dtype).removeprefix("torch.")
        if hasattr(np, kind):
            return None
        return {"$bits": [kind, self.tensor(tensor.detach().view({1: torch.uint8, 2: torch.int16}[tensor.itemsize]))]}

    def other(self, value: Any) -> Any:
        """Return what stands for a value of any other type. Raises UserError: nothing is lost in silence."""
        said = "must be a tensor, an array, a number or a text"  # states of parts were looked at before
        raise UserError(f"memory of a behaviour: {value!r:.80}: a {type(value).__name__}: {said}")


INSIDE: Mapping[str, Callable[[Any], Iterable[Any]]] = {  # what a written value is made of, by its tag
    "$kind": dict.values,
    "$map": lambda pairs: (one for pair in pairs for one in pair),
    "$list": iter,
}


class Reader:
    """Reads what a :class:`Writer` wrote.

    Args:
        whole: all that was written, in which something may stand for what was written before.
        arrays: the arrays by name.
        kinds: the classes that there may be, by name.
        device: where tensors are put.
    """

    def __init__(
        self,
        whole: Any,
        arrays: Mapping[str, NDArray[Any]],
        kinds: Mapping[str, type[Any]] = MappingProxyType({}),
        device: torch.device | str = "cpu",
    ) -> None:
        self.arrays, self._kinds, self._device = arrays, kinds, device
        self._written = list[Any]()
        self._memo = dict[tuple[int, type[Any] | None], Any]()  # a few names could unfold into any number of values
        self._number(whole)

    def _number(self, value: Any) -> None:
        """List what was written once in the order of writing, so that "$again" can name it."""
        if isinstance(value, dict) and (inside := INSIDE.get(tag := next(iter(value)))):
            for one in inside(value["fields"] if tag == "$kind" else value[tag]):
                self._number(one)
            self._written.append(value)

    def read(self, value: Any, kind: type[Any] | None = None) -> Any:
        """Return the value that was written; ``kind`` is the type that is asked for, if it is known."""
        if not isinstance(value, dict):
            return value
        ((tag, said), *_) = value.items()
        match tag:
            case "$kind":
                return self.made(said, {name: self.read(one, kind) for name, one in value["fields"].items()}, kind)
            case "$map":
                return {self.read(key, kind): self.read(one, kind) for key, one in said}
            case "$list":
                return tuple(self.read(one, kind) for one in said)
            case "$again":
                if (said, kind) not in self._memo:
                    self._memo[said, kind] = self.read(self._written[said], kind)
                return self._memo[said, kind]
        return self.leaf(tag, said)

    def made(self, name: str, fields: dict[str, Any], kind: type[Any] | None) -> Any:
        """Return an object of the class of this name, with these fields."""
        return self._kinds[name](**fields)

    def leaf(self, tag: str, said: Any) -> Any:
        """Return what an array, a tensor or anything else was written as."""
        if tag == "$bits":
            return self.read(said[1]).view(getattr(torch, said[0]))
        return self.arrays[said] if tag == "$array" else torch.from_numpy(self.arrays[said]).to(self._device)
