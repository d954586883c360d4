"""Hanse's messages in Flower's records: a JSON header in a ConfigRecord, arrays by content hash in an ArrayRecord."""

from __future__ import annotations

import io
from tokenize import TokenError
from typing import Annotated, Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from numpy.typing import NDArray
from pydantic import Field
from typing_extensions import TypedDict

from hanse.base.files import array_header
from hanse.core.declared import Declared, Int64, UnsoundError
from hanse.federation.codec import Message, WireError

LARGEST = 2 << 30  # bytes of one message, both ways; larger ones are refused unread
_TYPES = ("float16", "float32", "float64", "int64")  # of arrays as they travel
_SAID = 1 << 16  # characters of a text beside a message


class Beside(TypedDict, total=False):
    """The plain values that may stand beside a message from a client: the ``round`` that it answers, why it is
    ``refused``, the hashes that are ``missing``, what a newcomer says of itself (JSON).
    """

    round: Int64
    refused: Annotated[str, Field(max_length=_SAID)]
    missing: Annotated[list[str], Field(max_length=_SAID)]
    hello: Annotated[str, Field(max_length=_SAID)]


_BESIDE = Declared[Beside](Beside)


def to_records(message: Message, **values: Any) -> RecordDict:
    """Return a message, with plain values beside it, as Flower's records."""
    arrays = {name: Array(array) for name, array in message.arrays.items()}
    return RecordDict({"hanse": ConfigRecord({"header": message.header, **values}), "arrays": ArrayRecord(arrays)})


def from_records(records: RecordDict, largest: int = LARGEST) -> tuple[Message, dict[str, Any]]:
    """Return the message and the values beside it. Raises WireError for records of another form, or too large ones."""
    config, arrays = records.get("hanse"), records.get("arrays")
    if not isinstance(config, ConfigRecord) or not isinstance(arrays, ArrayRecord):
        raise WireError("the message has no records of ours")
    values = dict(config)
    header = values.pop("header", None)
    if not isinstance(header, str):
        raise WireError("the message has no header")
    size = len(header) + sum(len(a.data) for a in arrays.values())
    if size > largest:
        raise WireError(f"the message has {size} bytes; {largest} are allowed")
    return Message(header, {name: _read(a) for name, a in arrays.items()}), values


def said_beside(values: dict[str, Any]) -> Beside:
    """Return what a client says beside a message. Raises WireError for values of another name or type."""
    if unknown := sorted(set(values) - set(Beside.__annotations__)):
        raise WireError(f"'{unknown[0][:40]}' beside the message")
    try:
        return _BESIDE.check(values)
    except UnsoundError as wrong:
        raise WireError(str(wrong)) from None


def _read(array: Array) -> NDArray[Any]:
    """Return an array that was written as a .npy file, in place. Its header says what it expands to: it is held against
    the bytes that are there before anything is made.
    """
    if array.stype != "numpy.ndarray":
        raise WireError(f"an array of Flower's type {array.stype[:40]!r}")
    start = io.BytesIO(array.data)
    try:
        shape, by_columns, dtype = array_header(start, len(array.data))
    except (ValueError, TypeError, SyntaxError, TokenError) as wrong:
        raise WireError(f"an array cannot be read: {str(wrong)[:100]}") from None
    if dtype.name not in _TYPES or not dtype.isnative or by_columns:
        raise WireError(f"an array cannot be read: its type is {dtype.str}{', by columns' if by_columns else ''}")
    if len(shape) > 8:
        raise WireError(f"an array cannot be read: it has {len(shape)} dimensions")
    return np.frombuffer(array.data, dtype, offset=start.tell()).reshape(shape)
