"""Hanse's messages in Flower's records: a JSON header in a ConfigRecord, arrays by content hash in an ArrayRecord."""

from __future__ import annotations

from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from hanse.federation.codec import Message, WireError

__all__ = ["LARGEST", "from_records", "to_records"]

LARGEST = 2 << 30  # bytes of one message, both ways; larger ones are refused unread


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
    try:
        return Message(header, {name: a.numpy() for name, a in arrays.items()}), values
    except (TypeError, ValueError, OSError) as wrong:
        raise WireError(f"an array cannot be read: {wrong}") from None
