"""Calls the parts of a mechanism, and looks at what they decide before anything uses it: its class, shapes, ranges and
numbers.

A part may come from a module that somebody wrote this morning. An error says which part raised it, and none may write
into what it is shown. One guard, here, says which part was wrong, in which round, about what, and what is allowed;
without it a wrong length ends in an IndexError three modules further on, and a weight that is NaN in a run that stands
still.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from numbers import Real
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from hanse.base.errors import PartError
from hanse.core.entry import Transaction
from hanse.core.part import (
    GROUPS,
    Aggregate,
    Choice,
    Deployment,
    Group,
    Kind,
    Part,
    Settlement,
    State,
    Values,
    View,
    Weighed,
)
from hanse.core.table import Add, Floats, Ints, Replace, Seats

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
    with guarded(f"{who}: its {name} returned"):
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


RECORDED = frozenset({"round", "client", "start", "refused", "samples", "steps", "loss", "weight", "value"})
PLAIN = (Tensor, np.ndarray, bool, int, float, str)


class GuardError(Exception):
    """What is wrong with something that a part said, in words that follow "its select returned "."""


@contextmanager
def guarded(who: str) -> Iterator[None]:
    """Make of what is wrong a PartError that begins with ``who``."""
    try:
        yield
    except GuardError as wrong:
        raise PartError(f"{who} {wrong}") from None


def check_state(state: Any) -> None:
    """Raise GuardError unless a part's state can be checkpointed."""
    if not isinstance(state, Mapping):
        raise GuardError(f"the wrong state: its state is {type(state).__name__}: must be a mapping of names to values")
    for name, value in state.items():
        said = f"the wrong state: its state {name!r} is"
        if not isinstance(name, str) or not (value is None or isinstance(value, PLAIN)):
            raise GuardError(f"{said} {type(value).__name__}: must be a tensor, an array, a number or a text")
        if isinstance(value, np.ndarray) and value.dtype.kind not in "biuf":
            raise GuardError(f"{said} an array of {value.dtype}: must be of numbers or truth values")


def check_figures(figures: Any, num_clients: int) -> None:
    """Raise GuardError unless these are figures of each client by name."""
    if not isinstance(figures, Mapping):
        raise GuardError(f"{type(figures).__name__}: must be a mapping of names to arrays")
    for name, array in figures.items():
        if name in RECORDED:
            raise GuardError(f"{name}: is recorded already under this name")
        _shaped(str(name), array, (num_clients,), "fiub")


def check_rows(name: str, array: Any, shape: tuple[int, ...] | None, size: int) -> Ints:
    """Return an array if it is of this shape (None: any number) and holds rows of a table of ``size``. Raises
    GuardError.
    """
    rows = _ints(name, array, shape)
    if len(rows) and not (int(rows.min()) >= 0 and int(rows.max()) < size):
        out = rows[(rows < 0) | (rows >= size)][0]
        raise GuardError(f"{name}: there is no row {out}: must be 0 to {size - 1}")
    return rows


def check_aggregate(said: Any, group: Group, kind: Kind) -> None:
    """Raise GuardError unless a part of this kind said what becomes of a group."""
    if not isinstance(said, Aggregate):
        raise GuardError(f"{type(said).__name__}: must be an Aggregate")
    with _within("an Aggregate"):
        _metrics(said.metrics)
        _floats("old", said.old, ())
        if said.row is not None:
            _made(said, group, kind)
            return
        _floats("weights", said.weights, (len(group),))


def _made(said: Aggregate, group: Group, kind: Kind) -> None:
    """Raise GuardError unless a part may return a row, and has."""
    size = group.view.context.layout.size
    if kind != "again":
        raise GuardError(f"row: the part says kind = '{kind}': must be 'again' for what is no sum of rows")
    if said.weights is not None or said.old:
        raise GuardError("row: beside weights: must be one of both")
    if not (isinstance(said.row, Tensor) and said.row.shape == (size,) and said.row.dtype == torch.float32):
        form = f"{said.row.dtype} {list(said.row.shape)}" if isinstance(said.row, Tensor) else type(said.row).__name__
        raise GuardError(f"row: is {form}: must be a tensor [{size}] of float32")


def check_decision(method: str, decision: Any, view: View, fills: frozenset[str] = frozenset()) -> None:
    """Raise GuardError unless a part's ``method`` has decided something sound. ``fills`` are the blocks that a part may
    write that weighs.
    """
    kind, look = LOOKS[method]
    if not isinstance(decision, kind):
        raise GuardError(f"{type(decision).__name__}: must be {kind.__name__} and the next state")
    with _within(type(decision).__name__):
        _metrics(getattr(decision, "metrics", {}))
        if not isinstance(getattr(decision, "found", ()), tuple):
            raise GuardError("found: must be a tuple")
        look(decision, view, fills)


@contextmanager
def _within(name: str) -> Iterator[None]:
    """Say of what is wrong that it is in something of this name."""
    try:
        yield
    except GuardError as wrong:
        raise GuardError(f"{name}: {wrong}") from None


def _here(name: str, clients: Ints, view: View) -> None:
    """Raise GuardError if one of ``clients [n]`` is not present."""
    absent = clients[~np.isin(clients, view.present)]  # setdiff1d would sort all who are present
    if len(absent):
        raise GuardError(f"{name}: {absent.min()} is not present: must be of {_some(view.present)}")


def _choice(choice: Choice, view: View, fills: frozenset[str]) -> None:
    clients = _ints("clients", choice.clients, None)
    _here("clients", clients, view)
    start = view.home[clients] if choice.start is None else choice.start
    for name, rows in (("start", start), ("target", start if choice.target is None else choice.target)):
        check_rows(name, rows, (len(clients),), view.table.size)
    pairs = list(zip(clients.tolist(), np.asarray(start).tolist(), strict=True))
    if len(set(pairs)) < len(pairs):
        client, row = next(pair for pair in pairs if pairs.count(pair) > 1)
        raise GuardError(f"clients: client {client} is seated twice at row {row}: must be once a start row")


def _seats(seats: Seats, view: View, fills: frozenset[str]) -> None:
    S, K = len(seats), view.table.size
    clients = _ints("client", seats.client, (S,))
    _here("client", clients, view)
    check_rows("start", seats.start, (S,), K)
    check_rows("target", seats.target, (S,), K)
    if (seats.R is None) != (seats.mu is None):
        raise GuardError("R and mu: must be given together")
    for name, array, shape in (("R", seats.R, (S, K)), ("mu", seats.mu, (S,)), ("L", seats.L, (S, K))):
        if array is not None:
            _floats(name, array, shape)


def _weighed(said: Weighed, view: View, fills: frozenset[str]) -> None:
    S, K, N = len(view.trained), view.table.size, view.context.num_clients
    allowed = {group.row for group in view.groups()} if GROUPS in fills else set[int]()
    for name in fills - {GROUPS}:
        allowed |= set(view.at(name).tolist()) if name in view.table else set()
    for one in _all("replaced", said.replaced, Replace):
        rows = check_rows("replaced: rows", one.rows, None, K)
        if len(wrong := sorted(set(rows.tolist()) - allowed)):
            block = view.table.blocks[view.table.block[wrong[0]]].name
            raise GuardError(f"replaced: row {wrong[0]} is one of '{block}', which the part does not fill here")
        _floats("replaced: updates", one.updates, (len(rows), S))
        if one.models is not None:
            _floats("replaced: models", one.models, (len(rows), K))
    added = _all("added", said.added, Add)
    for more in added:
        if more.block not in view.table:
            raise GuardError(f"added: there is no block {more.block!r}")
        _floats("added: updates", more.updates, (S,))
        _floats("added: models", more.models, (K,))
    if said.home is not None:
        check_rows("home", said.home, (N,), K + len(added))


def _values(values: Values, view: View, fills: frozenset[str]) -> None:
    S = len(view.trained)
    for name in ("per_seat", "standard_errors", "exact"):
        array = getattr(values, name)
        if array is not None:
            _shaped(name, array, (S,), "f")
    if values.without_block is not None and (values.without_block.ndim != 2 or len(values.without_block) != S):
        raise GuardError(f"without_block: has shape {values.without_block.shape}: must be [{S}, blocks]")
    for name in ("interactions", "interaction_errors"):
        if getattr(values, name) is not None:
            _shaped(name, getattr(values, name), (S, S), "f")
    for budget, less in values.beside.items():
        _shaped(f"beside: {budget}", less, (2, S), "f")


def _settlement(settled: Settlement, view: View, fills: frozenset[str]) -> None:
    for row in settled.withheld:
        if not (isinstance(row, int | np.integer) and 0 <= row < view.table.size):
            raise GuardError(f"withheld: {row!r} is no row of the table: must be 0 to {view.table.size - 1}")
    _all("transactions", settled.transactions, Transaction)
    for name, array in settled.arrays.items():
        if not isinstance(array, np.ndarray) or array.dtype == object:
            raise GuardError(f"arrays: '{name}' is {type(array).__name__}: must be an array of numbers or texts")


def _deployment(said: Deployment, view: View, fills: frozenset[str]) -> None:
    N, K = view.context.num_clients, view.mixed.W.shape[0]
    check_rows("rows", said.rows, (N,), K)
    if said.weights is not None:
        _floats("weights", said.weights, (N, K))
    if said.own_mix is not None:
        check_rows("own_mix: rows", said.own_mix.rows, None, K)


LOOKS: Mapping[str, tuple[type, Callable[[Any, View, frozenset[str]], None]]] = {
    "select": (Choice, _choice),
    "seats": (Seats, _seats),
    "weigh": (Weighed, _weighed),
    "value": (Values, _values),
    "settle": (Settlement, _settlement),
    "deploy": (Deployment, _deployment),
}


def _metrics(metrics: Any) -> None:
    if not isinstance(metrics, Mapping):
        raise GuardError(f"metrics: is {type(metrics).__name__}: must be a mapping of names to numbers")
    for name, value in metrics.items():
        if not isinstance(name, str) or not isinstance(value, Real | np.number):
            raise GuardError(f"metrics: {name!r} is {type(value).__name__}: must be a number")


def _all(name: str, items: Any, kind: type) -> Sequence[Any]:
    if not isinstance(items, tuple | list):
        raise GuardError(f"{name}: is {type(items).__name__}: must be a tuple of {kind.__name__}")
    if wrong := [item for item in items if not isinstance(item, kind)]:
        raise GuardError(f"{name}: has {type(wrong[0]).__name__} in it: must be a tuple of {kind.__name__}")
    return items


def _ints(name: str, array: Any, shape: tuple[int, ...] | None) -> Ints:
    _shaped(name, array, shape, "iu")
    found: Ints = array
    return found


def _floats(name: str, array: Any, shape: tuple[int, ...]) -> Floats:
    _shaped(name, np.asarray(array) if shape == () else array, shape, "fiub")
    found: Floats = np.asarray(array, np.float64)
    if not np.isfinite(found).all():
        raise GuardError(f"{name}: has {found[~np.isfinite(found)][0]} in it: must be finite")
    return found


def _shaped(name: str, array: Any, shape: tuple[int, ...] | None, kinds: str) -> None:
    """Raise unless it is an array of this shape (None: any number of one dimension) and kind ("iu": whole numbers)."""
    wanted = "whole numbers" if kinds == "iu" else "numbers"
    form = "[n]" if shape is None else str(list(shape))
    if not isinstance(array, np.ndarray):
        raise GuardError(f"{name}: is {type(array).__name__}: must be an array {form} of {wanted}")
    fits = array.ndim == 1 if shape is None else array.shape == shape
    if not fits or array.dtype.kind not in kinds:
        raise GuardError(f"{name}: is {array.dtype} of shape {list(array.shape)}: must be {form}, {wanted}")


def _some(ids: Ints) -> str:
    shown = ", ".join(map(str, ids[:8].tolist()))
    return shown + (", ..." if len(ids) > 8 else "")
