"""Looks at what a part has decided before anything uses it: its class, shapes, ranges and numbers.

A part may come from a module that somebody wrote this morning. One guard, here, says which part was wrong, in which
round, about what, and what is allowed; without it a wrong length ends in an IndexError three modules further on, and a
weight that is NaN in a run that stands still.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from typing import Any

import numpy as np
from torch import Tensor

from hanse.core.entry import Transaction
from hanse.core.part import (
    GROUPS,
    Add,
    Aggregate,
    Choice,
    Deployment,
    Group,
    Replace,
    Settlement,
    Values,
    View,
    Weighed,
)
from hanse.core.table import Floats, Ints, Seats

__all__ = ["wrong_aggregate", "wrong_decision", "wrong_figures", "wrong_home", "wrong_state"]

RECORDED = frozenset({"round", "client", "start", "refused", "samples", "steps", "loss", "weight", "value"})
PLAIN = (Tensor, np.ndarray, bool, int, float, str)


class _WrongError(Exception):
    """What is wrong, in words that follow "its select returned a choice: "."""


def wrong_state(state: Any) -> str:
    """Return what is wrong with a part's state; "" if it can be checkpointed."""
    if not isinstance(state, Mapping):
        return f"its state is {type(state).__name__}: must be a mapping of names to values"
    for name, value in state.items():
        if not isinstance(name, str) or not (value is None or isinstance(value, PLAIN)):
            return f"its state {name!r} is {type(value).__name__}: must be a tensor, an array, a number or a text"
        if isinstance(value, np.ndarray) and value.dtype.kind not in "biuf":
            return f"its state {name!r} is an array of {value.dtype}: must be of numbers or truth values"
    return ""


def wrong_figures(figures: Any, num_clients: int) -> str:
    """Return what is wrong with a part's figures of each client; "" if they are sound."""
    if not isinstance(figures, Mapping):
        return f"{type(figures).__name__}: must be a mapping of names to arrays"
    try:
        for name, array in figures.items():
            if name in RECORDED:
                raise _WrongError(f"{name}: is recorded already under this name")
            _shaped(str(name), array, (num_clients,), "fiub")
    except _WrongError as wrong:
        return str(wrong)
    return ""


def wrong_home(home: Any, num_clients: int, size: int) -> str:
    """Return what is wrong with the rows that clients start from; "" if they are sound."""
    try:
        _rows("rows", home, (num_clients,), size)
    except _WrongError as wrong:
        return str(wrong)
    return ""


def wrong_aggregate(said: Any, group: Group) -> str:
    """Return what is wrong with what a part said of a group; "" if it is sound."""
    if not isinstance(said, Aggregate):
        return f"returned {type(said).__name__}: must be an Aggregate"
    try:
        _floats("weights", said.weights, (len(group),))
        _floats("old", said.old, ())
        _metrics(said.metrics)
    except _WrongError as wrong:
        return f"returned an Aggregate: {wrong}"
    return ""


def wrong_decision(method: str, decision: Any, view: View, fills: frozenset[str] = frozenset()) -> str:
    """Return what is wrong with what a part's ``method`` has decided; "" if it is sound. ``fills`` are the blocks that
    a part may write that weighs.
    """
    kind, look = LOOKS[method]
    if not isinstance(decision, kind):
        return f"{type(decision).__name__}: must be {kind.__name__} and the next state"
    try:
        _metrics(getattr(decision, "metrics", {}))
        if not isinstance(getattr(decision, "found", ()), tuple):
            raise _WrongError("found: must be a tuple")
        look(decision, view, fills)
    except _WrongError as wrong:
        return f"{type(decision).__name__}: {wrong}"
    return ""


def _choice(choice: Choice, view: View, fills: frozenset[str]) -> None:
    clients = _ints("clients", choice.clients, None)
    absent = np.setdiff1d(clients, view.present)
    if len(absent):
        raise _WrongError(f"clients: {absent[0]} is not present: must be of {_some(view.present)}")
    start = view.home[clients] if choice.start is None else choice.start
    for name, rows in (("start", start), ("target", start if choice.target is None else choice.target)):
        _rows(name, rows, (len(clients),), view.table.size)
    pairs = list(zip(clients.tolist(), np.asarray(start).tolist(), strict=True))
    if len(set(pairs)) < len(pairs):
        client, row = next(pair for pair in pairs if pairs.count(pair) > 1)
        raise _WrongError(f"clients: client {client} is seated twice at row {row}: must be once a start row")


def _seats(seats: Seats, view: View, fills: frozenset[str]) -> None:
    S, K = len(seats), view.table.size
    clients = _ints("client", seats.client, (S,))
    if len(absent := np.setdiff1d(clients, view.present)):
        raise _WrongError(f"client: {absent[0]} is not present: must be of {_some(view.present)}")
    _rows("start", seats.start, (S,), K)
    _rows("target", seats.target, (S,), K)
    if (seats.R is None) != (seats.mu is None):
        raise _WrongError("R and mu: must be given together")
    for name, array, shape in (("R", seats.R, (S, K)), ("mu", seats.mu, (S,)), ("L", seats.L, (S, K))):
        if array is not None:
            _floats(name, array, shape)


def _weighed(said: Weighed, view: View, fills: frozenset[str]) -> None:
    S, K, N = len(view.trained), view.table.size, view.context.num_clients
    allowed = {group.row for group in view.groups()} if GROUPS in fills else set[int]()
    for name in fills - {GROUPS}:
        allowed |= set(view.at(name).tolist()) if name in view.table else set()
    for one in _all("replaced", said.replaced, Replace):
        rows = _rows("replaced: rows", one.rows, None, K)
        if len(wrong := sorted(set(rows.tolist()) - allowed)):
            block = view.table.blocks[view.table.block[wrong[0]]].name
            raise _WrongError(f"replaced: row {wrong[0]} is one of '{block}', which the part does not fill here")
        _floats("replaced: updates", one.updates, (len(rows), S))
        if one.models is not None:
            _floats("replaced: models", one.models, (len(rows), K))
    added = _all("added", said.added, Add)
    for more in added:
        if more.block not in view.table:
            raise _WrongError(f"added: there is no block {more.block!r}")
        _floats("added: updates", more.updates, (S,))
        _floats("added: models", more.models, (K,))
    if said.home is not None:
        _rows("home", said.home, (N,), K + len(added))


def _values(values: Values, view: View, fills: frozenset[str]) -> None:
    S = len(view.trained)
    for name in ("per_seat", "standard_errors", "exact"):
        array = getattr(values, name)
        if array is not None:
            _shaped(name, array, (S,), "f")
    if values.without_block is not None and (values.without_block.ndim != 2 or len(values.without_block) != S):
        raise _WrongError(f"without_block: has shape {values.without_block.shape}: must be [{S}, blocks]")


def _settlement(settled: Settlement, view: View, fills: frozenset[str]) -> None:
    for row in settled.withheld:
        if not (isinstance(row, int | np.integer) and 0 <= row < view.table.size):
            raise _WrongError(f"withheld: {row!r} is no row of the table: must be 0 to {view.table.size - 1}")
    _all("transactions", settled.transactions, Transaction)
    for name, array in settled.arrays.items():
        if not isinstance(array, np.ndarray) or array.dtype == object:
            raise _WrongError(f"arrays: '{name}' is {type(array).__name__}: must be an array of numbers or texts")


def _deployment(said: Deployment, view: View, fills: frozenset[str]) -> None:
    N, K = view.context.num_clients, view.mixed.W.shape[0]
    _rows("rows", said.rows, (N,), K)
    if said.weights is not None:
        _floats("weights", said.weights, (N, K))
    if said.own_mix is not None:
        _rows("own_mix: rows", said.own_mix.rows, None, K)


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
        raise _WrongError(f"metrics: is {type(metrics).__name__}: must be a mapping of names to numbers")
    for name, value in metrics.items():
        if not isinstance(name, str) or not isinstance(value, Real | np.number):
            raise _WrongError(f"metrics: {name!r} is {type(value).__name__}: must be a number")


def _all(name: str, items: Any, kind: type) -> Sequence[Any]:
    if not isinstance(items, tuple | list):
        raise _WrongError(f"{name}: is {type(items).__name__}: must be a tuple of {kind.__name__}")
    if wrong := [item for item in items if not isinstance(item, kind)]:
        raise _WrongError(f"{name}: has {type(wrong[0]).__name__} in it: must be a tuple of {kind.__name__}")
    return items


def _rows(name: str, array: Any, shape: tuple[int, ...] | None, size: int) -> Ints:
    rows = _ints(name, array, shape)
    if len(rows) and not (int(rows.min()) >= 0 and int(rows.max()) < size):
        out = rows[(rows < 0) | (rows >= size)][0]
        raise _WrongError(f"{name}: there is no row {out}: must be 0 to {size - 1}")
    return rows


def _ints(name: str, array: Any, shape: tuple[int, ...] | None) -> Ints:
    _shaped(name, array, shape, "iu")
    found: Ints = array
    return found


def _floats(name: str, array: Any, shape: tuple[int, ...]) -> Floats:
    _shaped(name, np.asarray(array) if shape == () else array, shape, "fiub")
    found: Floats = np.asarray(array, np.float64)
    if not np.isfinite(found).all():
        raise _WrongError(f"{name}: has {found[~np.isfinite(found)][0]} in it: must be finite")
    return found


def _shaped(name: str, array: Any, shape: tuple[int, ...] | None, kinds: str) -> None:
    """Raise unless it is an array of this shape (None: any number of one dimension) and kind ("iu": whole numbers)."""
    wanted = "whole numbers" if kinds == "iu" else "numbers"
    form = "[n]" if shape is None else str(list(shape))
    if not isinstance(array, np.ndarray):
        raise _WrongError(f"{name}: is {type(array).__name__}: must be an array {form} of {wanted}")
    fits = array.ndim == 1 if shape is None else array.shape == shape
    if not fits or array.dtype.kind not in kinds:
        raise _WrongError(f"{name}: is {array.dtype} of shape {list(array.shape)}: must be {form}, {wanted}")


def _some(ids: Ints) -> str:
    shown = ", ".join(map(str, ids[:8].tolist()))
    return shown + (", ..." if len(ids) > 8 else "")
