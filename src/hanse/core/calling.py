"""Calls the parts of a mechanism: an error says which part raised it, and none may write into what it is shown."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np
from torch import Tensor

from hanse.base.errors import PartError
from hanse.core.part import Part, State, View
from hanse.core.sound import check_decision, check_state, refused
from hanse.core.table import Floats, Ints

__all__ = ["PartError", "States", "call", "checked_state", "decide", "method_of", "name_of"]

T = TypeVar("T")
SLOT_METHOD = {"train": "seats"}  # the others are called as their slots are
States = Mapping[str, State]  # a part's state by the first slot that it stands in


def method_of(part: object, name: str) -> Callable[..., Any] | None:
    """Return a part's method, or None if it has none of its own: the protocols' methods only say what there may be."""
    method = getattr(type(part), name, None)
    if method is None or getattr(method, "__module__", "") == Part.__module__:
        return None
    found: Callable[..., Any] = getattr(part, name)
    return found


def call(slot: str, method: Callable[..., T], view: View, *given: Any) -> T:
    """Return what a part's ``method(*given)`` says. Raises PartError if it wrote into the updates or the table that it
    was shown; anything that it raises itself says which part it was.
    """
    name = name_of(slot, method, view)
    before = _prints(view)
    try:
        said = method(*given)
    except Exception as wrong:
        wrong.add_note(f"raised by {name}")
        raise
    after = _prints(view)
    if changed := [what for what in before if before[what] != after[what]]:
        raise PartError(f"{name}, wrote into {changed[0]} in place: change a copy")
    return said


def decide(
    slot: str,
    method: Callable[[View, State], tuple[T, State]],
    view: View,
    states: States,
    key: str,
    *,
    name: str = "",
    fills: frozenset[str] = frozenset(),
) -> tuple[T, States]:
    """Return what a part decides, and the states with its next one. Raises PartError for what is no sound decision with
    a state.

    ``key`` is where the part's own state lies, ``name`` the method's if it is not the slot's, ``fills`` are the blocks
    that it may write.
    """
    said: Any = call(slot, method, view, view, states[key])
    name, who = name or SLOT_METHOD.get(slot, slot), name_of(slot, method, view)
    if not (isinstance(said, tuple) and len(said) == 2):
        raise PartError(
            f"{who}: its {name} returned {type(said).__name__}: must be a pair, the decision and the next state"
        )
    decision, after = said
    with refused(f"{who}: its {name} returned"):
        check_decision(name, decision, view, fills)
        return decision, {**states, key: checked_state(after)}


def checked_state(state: Any) -> State:
    """Return a part's state, closed for writing. Raises GuardError for what cannot be checkpointed."""
    check_state(state)
    kept = {name: np.ascontiguousarray(x) if _turned(x) else x for name, x in state.items()}
    for value in kept.values():
        if isinstance(value, np.ndarray):
            value.flags.writeable = False
    return MappingProxyType(kept)


def _turned(value: Any) -> bool:
    """Whether it is an array that a checkpoint cannot take as it lies, such as one that was reversed."""
    return isinstance(value, np.ndarray) and any(stride < 0 for stride in value.strides)


def name_of(slot: str, method: Callable[..., Any], view: View) -> str:
    """Return what a part is called in an error."""
    part = getattr(method, "__self__", method)
    return f"the {slot} part {type(part).__name__}, round {view.round}"


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
