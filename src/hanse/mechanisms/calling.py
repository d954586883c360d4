"""Calls the parts of a mechanism: an error says which part raised it, and none may write into what it is shown."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from torch import Tensor

from hanse.learning.halves import unsound
from hanse.learning.payload import Payload
from hanse.mechanisms.part import Floats, Ints, State, TrainPart, View

__all__ = ["PartError", "call", "sent"]

T = TypeVar("T")


class PartError(RuntimeError):
    """A part of a mechanism did what no part may do."""


def call(slot: str, method: Callable[[View, State], T], view: View, states: Mapping[str, State]) -> T:
    """Return what a part says. Raises PartError if it wrote into the updates or the table that it was shown; anything
    that it raises itself says which part it was.
    """
    part = getattr(method, "__self__", method)
    name = f"the {slot} part {type(part).__name__}, round {view.round}"
    before = _prints(view)
    try:
        said = method(view, states[slot])
    except Exception as wrong:
        wrong.add_note(f"raised by {name}")
        raise
    after = _prints(view)
    if changed := [what for what in before if before[what] != after[what]]:
        raise PartError(f"{name}, wrote into {changed[0]} in place: change a copy")
    return said


def sent(part: TrainPart, view: View, states: Mapping[str, State]) -> Payload | None:
    """Return what the train part sends beside this round's training tasks. Raises PartError if that is not the payload
    that it announces, or not what the client's half declares.
    """
    payload = call("train", part.sends, view, states)
    if payload is None:
        return None
    announced = payload.name == part.payload
    wrong = unsound(payload, view.context.layout) if announced else f"payload {payload.name!r}: not {part.payload!r}"
    if wrong is not None:
        raise PartError(f"the train part {type(part).__name__}, round {view.round}, cannot send its {wrong}")
    return payload


def _prints(view: View) -> dict[str, int | bytes]:
    """Return what shows that something in the view was written into: the bytes of small arrays, and for tensors how
    often PyTorch wrote into them (``_version``, which their views share), so that looking costs nothing.

    Writes through ``.data`` or ``.numpy()`` are not counted by PyTorch, and not found.
    """
    tensors: dict[str, Tensor] = {"view.table.rows": view.table.rows}
    arrays: dict[str, Ints | Floats] = {}
    if view.updates is not None:
        updates, seats = view.updates, view.updates.seats
        tensors["view.trained.rows"] = updates.rows
        tensors |= {f"view.trained.extras['{name}']": extra for name, extra in updates.extras.items()}
        arrays |= {f"view.trained.{name}": getattr(updates, name) for name in ("num_samples", "loss", "steps")}
        arrays |= {f"view.trained.seats.{name}": getattr(seats, name) for name in ("client", "start", "target")}
    counted = {name: 0 if tensor.is_inference() else tensor._version for name, tensor in tensors.items()}
    return counted | {name: array.tobytes() for name, array in arrays.items()}
