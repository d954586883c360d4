"""Requests and replies as text and arrays, for engines that send them over a network.

:func:`pack` turns one of the port's dataclasses into a :class:`Message`. :func:`unpack` turns a message back, and
:func:`unpack_reply` does so for messages from clients. A message is a JSON header with arrays by content hash. A model
that the other side already has is named, not sent. Nothing is ever unpickled. Anything but a known dataclass whose
fields have their declared types is refused. The request limits the size of its reply (:class:`Room`), because a few
bytes can name one array a thousand times.

:class:`Traffic` counts the bytes that messages would have. It is for federations that send none.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, get_args
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from typing_extensions import TypedDict

from hanse.base.pytorch import Tensor, torch
from hanse.core import port
from hanse.core.declared import Count, Declared, Name

Arrays = Mapping[str, NDArray[Any]]

_PARTS = port.Request, port.Reply, port.Mixture, port.ClientInfo, port.Payload  # what is neither task nor result
_KINDS: Mapping[str, type[Any]] = {
    kind.__name__: kind for kind in (*_PARTS, *get_args(port.Task), *get_args(port.Result))
}
# no honest message is nested deeper
_DEPTH = 12
# characters of a mapping's key
_KEY = 200
_Tensor = TypedDict(
    "_Tensor",
    {
        "$tensor": list[Name],
        "dtype": Literal["float32", "float64", "int64"],
        "shape": Annotated[list[Count], Field(max_length=8)],
    },
)
_TENSOR = Declared[_Tensor](_Tensor)
_SOUND = {kind: Declared[Any](kind) for kind in _KINDS.values()}


class WireError(ValueError):
    """A message is not a sound value of the port."""


class MissingError(WireError):
    """A message names arrays that are neither in it nor kept here.

    Attributes:
        hashes: the content hashes of these arrays, so they can be asked for.
    """

    def __init__(self, hashes: list[str]) -> None:
        super().__init__(f"{len(hashes)} arrays are missing")
        self.hashes = hashes


@dataclass(frozen=True)
class Message:
    """A packed value.

    Attributes:
        header: the value as JSON, with arrays named by hash.
        arrays: the arrays by content hash.

    Examples:
        >>> from hanse.core.port import Ask, Request
        >>> message = pack(Request(0, (Ask("bid", {"price": 3}),)))
        >>> unpack(message).tasks[0].values
        {'price': 3}
    """

    header: str
    arrays: Arrays = field(default_factory=dict)

    @property
    def num_bytes(self) -> int:
        """The bytes of the header and the arrays."""
        return len(self.header) + sum(a.nbytes for a in self.arrays.values())

    def without(self, held: set[str]) -> Message:
        """Return the message without the arrays whose hashes the receiver holds."""
        return Message(self.header, {h: a for h, a in self.arrays.items() if h not in held})


def hash_of(array: NDArray[Any]) -> str:
    """Return the content hash of an array: of its type, shape and bytes (32 hexadecimal digits)."""
    contiguous = np.ascontiguousarray(array)
    hasher = hashlib.blake2b(f"{contiguous.dtype}|{contiguous.shape}|".encode(), digest_size=16)
    hasher.update(contiguous.data if contiguous.size else b"")
    return hasher.hexdigest()


def pack(value: Any, *, half: bool = False) -> Message:
    """Return a port dataclass as a message.

    Args:
        value: the dataclass; its tensors are float32, float64 or int64.
        half: whether 32-bit floats are sent as 16-bit floats. Numbers too large for these arrive as infinity, and are
            refused.

    Raises:
        WireError: the value holds something that may not cross the port.
    """
    arrays: dict[str, NDArray[Any]] = {}
    return Message(json.dumps(_pack(value, arrays, half), separators=(",", ":")), arrays)


def _pack(value: Any, arrays: dict[str, NDArray[Any]], half: bool) -> Any:
    """Return a value as JSON knows it; its tensors go into ``arrays``."""
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
    """Put a tensor into ``arrays`` and return the hashes of its parts.

    A matrix goes row by row: its rows are models, which are sent again in other messages.
    """
    if str(tensor.dtype).removeprefix("torch.") not in port.CROSSING:
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


@dataclass(frozen=True)
class Room:
    """What a reply may expand to.

    Attributes:
        tensors: the bytes of all the reply's tensors.
        header: the characters of the reply's header.
    """

    tensors: int
    header: int


def unpack(message: Message, held: Arrays | None = None, *, tensors: int | None = None, sound: bool = True) -> Any:
    """Return the value of a message.

    Args:
        message: as :func:`pack` makes it.
        held: arrays by content hash that this side has kept.
        tensors: the most bytes that its tensors may expand to. None: any number.
        sound: whether the value is checked against the types of its dataclass. An unsound answer that was kept is read
            back unchanged, and refused again by the check.

    Raises:
        MissingError: arrays are neither in the message nor held.
        WireError: it is not a message of the port.
    """
    found = _HeaderReader(message.arrays, held or {}, tensors)
    try:
        header = json.loads(message.header, parse_int=_whole)
    except (json.JSONDecodeError, RecursionError):
        raise WireError("the header is not JSON") from None
    value = found.read(header, 0)
    if found.missing:
        raise MissingError(sorted(found.missing))
    return _SOUND[type(value)].check(value, WireError) if sound and type(value) in _SOUND else value


def unpack_reply(message: Message, room: Room) -> port.Reply:
    """Return the reply in a message that comes from a client.

    A hostile message may also raise other exceptions; :func:`hanse.federation.check.reading` turns them into reasons.

    Args:
        message: as :func:`pack` makes it of a reply; nothing in it is trusted.
        room: what a sound reply may expand to.

    Raises:
        WireError: the message is not a reply, or is larger than ``room``.
    """
    if len(message.header) > room.header:
        raise WireError(f"a header of {len(message.header)} characters; {room.header} are allowed")
    reply = unpack(message, tensors=room.tensors)
    if not isinstance(reply, port.Reply):
        raise WireError("not a reply")
    return reply


def _whole(digits: str) -> int:
    """Return an integer of the header; more than 64 bits are refused before they cost time or memory."""
    if len(digits) > 20 or not -(2**63) <= int(digits) < 2**63:
        raise WireError(f"an integer of {len(digits)} digits: must be one of 64 bits")
    return int(digits)


class _HeaderReader:
    """Reads a header, looks up arrays, and records missing ones; tensors may expand to ``room`` bytes."""

    def __init__(self, sent: Arrays, held: Arrays, room: int | None = None) -> None:
        self.sent, self.held, self.room, self.missing = sent, held, room, set[str]()
        self.used = 0

    def read(self, value: Any, depth: int) -> Any:
        """Return the value of a part of the header, which is nested ``depth`` deep."""
        if depth > _DEPTH:
            raise WireError("the header is nested too deep")
        if value is None or isinstance(value, bool | int | float | str):
            return value
        if isinstance(value, list):
            return tuple(self.read(item, depth + 1) for item in value)
        if "$tensor" in value:
            return self._tensor(value)
        if "$map" in value and isinstance(value["$map"], list):
            return {k: self.read(v, depth + 1) for k, v in _pairs(value["$map"])}
        return self._kind(value, depth)

    def _kind(self, value: Mapping[str, Any], depth: int) -> Any:
        """Return a dataclass of the port from its name and fields."""
        kind, fields = _KINDS.get(str(value.get("$kind"))[:_KEY]), value.get("fields")
        if kind is None or not isinstance(fields, dict):
            raise WireError(f"'{str(value.get('$kind'))[:_KEY]}' is nothing that crosses the port")
        known = {f.name for f in dataclasses.fields(kind) if f.init}
        if unknown := sorted(set(fields) - known):
            raise WireError(f"{kind.__name__}: no such field '{unknown[0]}'")
        read = {name: self.read(item, depth + 1) for name, item in fields.items()}
        try:
            return kind(**read)
        except (TypeError, ValueError) as wrong:
            raise WireError(f"{kind.__name__}: {wrong}") from None

    def _tensor(self, value: Any) -> Tensor:
        """Return a tensor, put together from the arrays that the header names."""
        said = _TENSOR.check(value, WireError, "a tensor without hashes, shape or type: {}")
        hashes, shape, dtype = said["$tensor"], said["shape"], getattr(torch, said["dtype"])
        count, blocks = math.prod(shape), shape[0] if len(shape) == 2 else 1
        # counted before anything is allocated
        self.used += count * dtype.itemsize
        if self.room is not None and self.used > self.room:
            raise WireError(f"tensors of {self.used} bytes; {self.room} were asked for")
        if len(hashes) != blocks:
            raise WireError(f"a tensor that is not of shape {shape}: it has {len(hashes)} blocks")
        found = [block for name in hashes if (block := self._block(name, said["dtype"])) is not None]
        if len(found) < blocks:
            return torch.zeros(0)  # never used: the message is refused as a whole
        if other := [block.size for block in found if block.size * blocks != count]:
            raise WireError(f"a tensor that is not of shape {shape}: a block of {other[0]} numbers")
        made = torch.empty(shape, dtype=dtype)
        target = made.numpy().reshape(blocks, -1) if count else made.numpy()
        for i, block in enumerate(found if count else ()):
            target[i] = block.reshape(-1)
        return made

    def _block(self, name: str, dtype: str) -> NDArray[Any] | None:
        """Return an array from the message or the held ones, or None; refuse one of another type than the header
        says."""
        # what the message brings, else what this side holds
        found = self.sent.get(name)
        if found is None:
            found = self.held.get(name)
        if found is None:
            self.missing.add(name)
            return None
        # 16-bit floats are the one other type: they are what `half` sends instead of 32-bit ones
        if str(found.dtype) != dtype and (dtype, str(found.dtype)) != ("float32", "float16"):
            raise WireError(f"an array of type {found.dtype} in a tensor of {dtype}")
        return found


def _pairs(items: list[Any]) -> list[Any]:
    """Return the pairs of a mapping as the header has them; refuse any other form."""
    if not all(isinstance(item, list) and len(item) == 2 and isinstance(item[0], str) for item in items):
        raise WireError("a mapping that is not made of pairs")
    if any(len(key) > _KEY for key, _ in items):
        raise WireError(f"a mapping with a key of more than {_KEY} characters")
    return items


@dataclass
class Traffic:
    """Counts the bytes that messages of a round would take on a network.

    A model that a client was sent is not counted again, however many tasks name it. It is known by its
    place in memory, for as long as it is there: nothing keeps it from being freed.
    """

    _sent: dict[int, WeakKeyDictionary[Any, set[tuple[int, int]]]] = field(default_factory=dict)

    def anew(self) -> None:
        """Begin a round: nobody was sent anything in it."""
        self._sent.clear()

    def down(self, request: port.Request) -> int:
        """Return the bytes of those tensors of a request that the client does not have yet."""
        held = self._sent.setdefault(request.client, WeakKeyDictionary())
        count = 0
        for task in request.tasks:
            own = task.start if isinstance(task, port.Train) and task.private else None  # the client has it already
            for tensor in (one for one in _tensors(vars(task).values()) if one is not own):
                for model in tensor if tensor.ndim == 2 else (tensor,):
                    places, place = held.setdefault(model.untyped_storage(), set()), (model.data_ptr(), model.numel())
                    if place not in places:
                        places.add(place)
                        count += model.numel() * model.element_size()
        return count

    @staticmethod
    def up(request: port.Request, results: Sequence[port.Result]) -> int:
        """Return the bytes of the results' tensors, without updates of private rows, which stay with the client."""
        private = {t.seat for t in request.tasks if isinstance(t, port.Train) and t.private}
        sent = [r for r in results if not (isinstance(r, port.Trained) and r.seat in private)]
        return sum(t.numel() * t.element_size() for r in sent for t in _tensors(vars(r).values()))


_PLAIN = (int, float, str, type(None))


def _tensors(values: Iterable[object]) -> Iterable[Tensor]:
    """Yield all tensors among values, in payloads and mappings too."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, _PLAIN):
            continue  # most values are: they are not held against what takes longer to say
        elif isinstance(value, port.Payload):
            yield from _tensors(vars(value).values())
        elif isinstance(value, Mapping):  # the extras of an update
            yield from _tensors(value.values())
