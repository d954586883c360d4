"""hanse's messages as Flower's records.

A message of :mod:`hanse.federation.codec` is a JSON header and arrays by content hash. Here the header goes into a
``ConfigRecord``, with a few plain values, and the arrays into an ``ArrayRecord``. :func:`to_records` writes a message,
:func:`from_records` reads one, and :func:`said_beside` checks the plain values of a client's answer.

The reading side trusts nothing: records that are too large or have another form raise
:class:`hanse.federation.codec.WireError` before memory is allocated for them.
"""

from __future__ import annotations

from typing import Annotated, Any

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from numpy.typing import NDArray
from pydantic import Field
from typing_extensions import TypedDict

from hanse.base.plain_text import quantity
from hanse.core.declared import Count, Declared, Int64
from hanse.federation.codec import Message, WireError
from hanse.flower.arrays import opened, size_of
from hanse.flower.leave import LONGEST

QUERY = "query.hanse"  # Flower's message type of hanse's own questions
LARGEST = 2 << 30  # bytes of one message in either direction; larger ones are refused unread
_TYPES = ("float16", "float32", "float64", "int64")  # NumPy types that arrays may have on the wire
_SAID = 1 << 16  # the most characters of a text beside a message


class Beside(TypedDict, total=False):
    """The plain values that may accompany a client's message.

    Attributes:
        round: the round whose request the message answers.
        refused: why the client does not answer.
        missing: content hashes of the models that the node has lost.
        cosigned: the client's cosignature under the head of the books that it was shown.
        saw: the number of transactions in the last head of the books that the client has seen. It needs a proof from
            there.
        hello: a newcomer's description of itself, as JSON (:class:`hanse.flower.members.Hello`).
        leaves: its owner's word that it leaves the run (:mod:`hanse.flower.leave`).
    """

    round: Int64
    refused: Annotated[str, Field(max_length=_SAID)]
    missing: Annotated[list[str], Field(max_length=_SAID)]
    cosigned: Annotated[str, Field(max_length=1024)]
    saw: Count
    hello: Annotated[str, Field(max_length=_SAID)]
    leaves: Annotated[str, Field(max_length=LONGEST)]


_BESIDE = Declared[Beside](Beside)


def to_records(message: Message, **values: Any) -> RecordDict:
    """Return a message as Flower's records, with plain ``values`` (numbers, texts) next to its header."""
    arrays = {name: Array(array) for name, array in message.arrays.items()}
    return RecordDict({"hanse": ConfigRecord({"header": message.header, **values}), "arrays": ArrayRecord(arrays)})


def from_records(records: RecordDict, largest: int = LARGEST) -> tuple[Message, dict[str, Any]]:
    """Return the message in Flower's records, and its plain values.

    Args:
        records: what came from the network.
        largest: the most bytes that header and arrays may have together.

    Raises:
        WireError: the records have another form, are too large, or an array cannot be read.
    """
    config, arrays = records.get("hanse"), records.get("arrays")
    if not isinstance(config, ConfigRecord) or not isinstance(arrays, ArrayRecord):
        raise WireError("the message has no records of hanse")
    values = dict(config)
    header = values.pop("header", None)
    if not isinstance(header, str):
        raise WireError("the message has no header")
    size = len(header) + size_of(arrays)
    if size > largest:
        raise WireError(f"the message has {quantity(size, 'byte')}; {largest} are allowed")
    return Message(header, {name: _read(a) for name, a in arrays.items()}), values


def said_beside(values: dict[str, Any]) -> Beside:
    """Return the plain values in a client's message, checked against their declared types.

    Raises:
        WireError: a value has another name or type.
    """
    if unknown := sorted(set(values) - set(Beside.__annotations__)):
        raise WireError(f"unknown value '{unknown[0][:40]}' beside the message")
    return _BESIDE.check(values, WireError)


def _read(array: Array) -> NDArray[Any]:
    """Return an array of a message: one of few types and at most 8 dimensions, stored by rows."""
    found = opened(array)
    plain = found.dtype.name in _TYPES and found.dtype.isnative and found.flags.c_contiguous
    if not plain or found.ndim > 8:
        how = "rows" if found.flags.c_contiguous else "columns"
        raise WireError(f"an array cannot be read: it is of {found.dtype.str}, {found.ndim}-dimensional, by {how}")
    return found
