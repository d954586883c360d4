"""Calls the methods of parts, and checks what they decide before anything uses it.

Parts may be new and untested. One check stands between the parts and the loop: it looks at the class, shape, range and
numbers of everything returned. A mistake becomes a PartError that names the part, the round, the field and what is
allowed. Without this check, a wrong length would surface as an IndexError three modules later, and a NaN weight would
silently stop the run from learning. No part may write into what it is shown.

The loop uses :func:`decide` for the decisions, and the watch of :func:`called` for methods that return something else,
such as ``asks``. The ``check_...`` functions raise :class:`UnfitError`, which :func:`naming` turns into a PartError.

A round's mix, the weights that make every new row of the table, is made by :func:`proposed_mix` from the parts'
decisions. Every row of the next table has exactly one writer. The order decides which:

1. every row keeps itself;
2. a row that only its own client trains (a private row, or one of a block with a row per client) becomes that client's
   update;
3. a server row that a group of seats trains becomes the weigh part's ``aggregate`` of that group;
4. each part that ``fills`` blocks gives their new rows in its ``weigh``, as weights or finished, and may add rows.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from functools import cached_property
from types import MappingProxyType
from typing import Any, TypeVar, cast

import numpy as np

from hanse.base.errors import InPlaceError, PartError, PartWarning
from hanse.base.pytorch import Tensor, torch
from hanse.base.streams import drawn_so_far
from hanse.core.entry import Transaction, owner_of
from hanse.core.part import (
    FINISHED,
    GROUPS,
    Aggregate,
    Aggregated,
    Choice,
    Deployment,
    Group,
    Mechanism,
    Part,
    Settlement,
    State,
    Values,
    View,
    Weighed,
    WeighPart,
    in_slots,
)
from hanse.core.table import Add, Floats, Ints, Made, Mix, Replace, Seats

T = TypeVar("T")
HEARS: ContextVar[Callable[[str, str, View, State], None] | None] = ContextVar("HEARS", default=None)
"""What is told of every call of a part: slot, method, view and state. A rehearsal sets it."""
States = Mapping[str, State]  # a part's state by the first slot that it stands in


def method_of(part: object, name: str) -> Callable[..., Any] | None:
    """Return a part's method, or None if the part does not define it.

    The empty methods of the protocols in :mod:`hanse.core.part` only document what a part may define; they count as
    undefined.
    """
    method = getattr(type(part), name, None)
    if method is None or getattr(method, "__module__", "") == Part.__module__:
        return None
    found: Callable[..., Any] = getattr(part, name)
    return found


@contextmanager
def called(slot: str, method: Callable[..., Any], view: View, state: State) -> Iterator[str]:
    """Watch over a block that calls a part's method. It yields who is called, for errors.

    In rounds 0, 1, 2, 4, 8, .. it also warns of a part that draws from a global generator, or changes what its
    attributes hold.

    Args:
        slot: the slot in which the part is called.
        method: the bound method.
        view: the round, to see whether the part wrote into it.
        state: the part's state, likewise: a round that fails is played again from what it was.

    Raises:
        InPlaceError: the part wrote into the updates, the table or the state that it was shown.
        Exception: whatever the method raises, with a note that names the part.
    """
    name, part = name_of(slot, method, view), getattr(method, "__self__", method)
    if (hears := HEARS.get()) is not None:
        hears(slot, getattr(method, "__name__", ""), view, state)
    # two looks instead of a copy: a copy of the table for each call would cost more than most parts do
    # the generators are looked at in ever fewer rounds: a look takes as long as some parts do. What draws within
    # hanse's own parts is a function of the user's that judges models
    looks = view.round & (view.round - 1) == 0 and not type(part).__module__.startswith("hanse.")
    before, own, drawn = _prints(view, state), _own(part), drawn_so_far() if looks else None
    held = {what: _held(value) for what, value in own.items()} if looks else {}
    raised: Exception | None = None
    try:
        yield name
    except Exception as wrong:
        wrong.add_note(f"raised by {name}")
        raised = wrong
    after = _prints(view, state)
    if changed := [what for what in before if before[what] != after[what]]:
        raise InPlaceError(f"{name}, wrote into {changed[0]} in place: change a copy") from raised
    if kept := [what for what, value in _own(part).items() if value is not own.get(what)]:
        raise InPlaceError(f"{name}, changed its own '{kept[0]}': keep what changes in the state") from raised
    if raised is not None:
        raise raised
    whom = name.partition(",")[0]  # each is warned of once, whatever the round
    if inside := [what for what, before_it in held.items() if _held(own[what]) != before_it]:
        said = "a resumed run begins without it; keep what changes in the state"
        warnings.warn(f"{whom} changed what its own '{inside[0]}' holds: {said}", PartWarning, stacklevel=2)
    if drawn is not None and drawn != drawn_so_far():
        said = "the same seed then gives other numbers; draw from view.draw('purpose')"
        warnings.warn(f"{whom} drew from a global random generator: {said}", PartWarning, stacklevel=2)


def _own(part: object) -> dict[str, Any]:
    """Return what a part keeps in itself: its options, and no values of cached properties."""
    kept: Mapping[str, Any] = getattr(part, "__dict__", {})
    return {name: x for name, x in kept.items() if not isinstance(getattr(type(part), name, 0), cached_property)}


def _held(value: object) -> bytes | list[int] | None:
    """Return what changes with what an array, a list, a set or a dictionary holds; None for other values."""
    if isinstance(value, np.ndarray):
        return value.tobytes()
    if isinstance(value, dict):
        return [*map(id, value.values())]
    return [*map(id, value)] if isinstance(value, list | set) else None


def decide(
    kind: type[T],
    mechanism: Mechanism,
    slot: str,
    method: Callable[[View, State], tuple[T, State]],
    view: View,
    states: States,
) -> tuple[T, States]:
    """Ask a part for a decision, and check it.

    Args:
        kind: the class of the decision.
        mechanism: the mechanism, which says where the part's own state is.
        slot: the slot in which the part is asked.
        method: the part's bound method. It gets the view and the part's state, and returns a decision and the next
            state.
        view: the round so far.
        states: the states of all parts.

    Returns:
        The decision, and all states with the part's next one in place.

    Raises:
        PartError: the part did not return a pair, its decision is not sound, or its state cannot be checkpointed.
    """
    key = mechanism.key(slot)
    with called(slot, method, view, states[key]) as who:
        result: Any = method(view, states[key])
    name, look = LOOKS[kind]
    if not (isinstance(result, tuple) and len(result) == 2):
        raise PartError(f"{who}: its {name} returned {type(result).__name__}: must be the decision and the next state")
    decision, after = result
    with naming(f"{who}: its {name} returned"):
        if not isinstance(decision, kind):
            raise UnfitError(f"{type(decision).__name__}: must be {kind.__name__} and the next state")
        with naming(f"{type(decision).__name__}:", UnfitError):
            metrics = getattr(decision, "metrics", {})
            _metrics(metrics)
            for one in (view.choice, view.mix, view.values, view.settlement):
                known = {} if one is None or isinstance(one, kind) else one.metrics
                if twice := known.keys() & metrics.keys():
                    raise UnfitError(f"metrics: '{min(twice)}' is recorded already, by an earlier part")
            if not isinstance(getattr(decision, "found", ()), tuple):
                raise UnfitError("found: must be a tuple")
            look(decision, view)
        for field in vars(decision).values():  # later parts are shown it
            if isinstance(field, np.ndarray):
                field.flags.writeable = False
        return decision, {**states, key: checked_state(after)}


def checked_state(state: Any) -> State:
    """Return a part's state in the form that the loop keeps: a read-only mapping of read-only arrays.

    Raises:
        UnfitError: the state holds something that cannot be checkpointed.
    """
    if not isinstance(state, Mapping):
        raise UnfitError(f"the wrong state: its state is {type(state).__name__}: must be a mapping of names to values")
    for name, value in state.items():
        said = f"the wrong state: its state {name!r} is"
        if not isinstance(name, str) or not (value is None or isinstance(value, PLAIN)):
            raise UnfitError(f"{said} {type(value).__name__}: must be a tensor, an array, a number or a text")
        if isinstance(value, np.ndarray) and (value.dtype.kind not in "biufc" or value.dtype.itemsize > 8):
            raise UnfitError(f"{said} an array of {value.dtype}: must be of numbers of at most 64 bits or truth values")
        if isinstance(value, Tensor) and (value.layout != torch.strided or value.is_quantized or value.itemsize > 8):
            raise UnfitError(f"{said} a tensor of {value.dtype}, {value.layout}: must be dense, of at most 64 bits")
    kept = dict(state)
    for name, value in state.items():
        if isinstance(value, np.ndarray):
            # a checkpoint cannot take an array with negative strides, such as a[::-1], as it is
            kept[name] = np.ascontiguousarray(value) if min(value.strides, default=0) < 0 else value
            kept[name].flags.writeable = False
    return MappingProxyType(kept)


def name_of(slot: str, method: Callable[..., Any], view: View) -> str:
    """Return how errors name a part, such as ``"the select part Uniform, round 3"``.

    Args:
        slot: the slot.
        method: the part's bound method.
        view: the round.
    """
    part = getattr(method, "__self__", method)
    return f"the {slot} part {type(part).__name__}, round {view.round}"


def _prints(view: View, state: State) -> dict[str, int | bytes]:
    """Return a fingerprint of what a part is shown, to see afterwards whether it wrote into it.

    For small arrays it is their bytes. For tensors it is the number of times that PyTorch wrote into them
    (``_version``, which a tensor shares with its views), so looking costs nothing. PyTorch does not count writes
    through ``.data`` or ``.numpy()``, so these are not found.
    """
    tensors: dict[str, Tensor] = {"view.table.rows": view.table.rows}
    arrays: dict[str, Ints | Floats] = {}
    if view.updates is not None:
        updates, seats = view.updates, view.updates.seats
        tensors["view.trained.rows"] = updates.rows
        tensors |= {f"view.trained.extras['{name}']": extra for name, extra in updates.extras.items()}
        arrays |= {f"view.trained.{name}": getattr(updates, name) for name in ("num_samples", "loss", "steps")}
        arrays |= {f"view.trained.seats.{name}": getattr(seats, name) for name in ("client", "start", "target")}
    tensors |= {f"its state '{name}'": value for name, value in state.items() if isinstance(value, Tensor)}
    counted = {name: 0 if tensor.is_inference() else tensor._version for name, tensor in tensors.items()}
    return counted | {name: array.tobytes() for name, array in arrays.items()}


LARGEST_VALUE = 1e100  # the square of a value is still a number
# what a round's line has from the loop itself: a part's metrics may not take these names, or begin with these words
MEASURED = frozenset({"round", "present", "seats", "answered", "refused", "samples", "failed", "clock_s", "test/"})
MEASURED |= {"client/", "train/", "bytes/", "ledger/", "time/", "memory/", "late/", "rounds/"}
# what a round's file of arrays may have from the loop: a settle part's arrays, likewise
FILED = frozenset({"client", "start", "answered", "num_samples", "loss", "steps", "refused", "reason", "present"})
FILED |= {"staleness", "withheld", "home", "tested", "table_hash", "value", "value_", "W_", "made_", "test_"}
FILED |= {"training_", "kept_", "settle_"}
# what every line of clients.jsonl has: a part's figures may not take these names
RECORDED = frozenset({"round", "client", "start", "refused", "samples", "steps", "loss", "weight", "value"})
# what a checkpoint can hold
PLAIN = (Tensor, np.ndarray, bool, int, float, str)


class UnfitError(Exception):
    """A part returned what does not fit. The message continues the words "its select returned "."""


@contextmanager
def naming(who: str, error: type[Exception] = PartError) -> Iterator[None]:
    """Turn an UnfitError in this block into a PartError, or another error, whose message begins with ``who``."""
    try:
        yield
    except UnfitError as wrong:
        raise error(f"{who} {wrong}") from None


def check_figures(figures: Any, num_clients: int, others: Mapping[str, Any]) -> None:
    """Raise UnfitError unless this maps names to numbers per client (``[num_clients]`` each), none of them a name
    already in use, also not by ``others``, the figures of other parts.
    """
    if not isinstance(figures, Mapping):
        raise UnfitError(f"{type(figures).__name__}: must be a mapping of names to arrays")
    for name, array in figures.items():
        if name in RECORDED or name in others:
            raise UnfitError(f"{name}: is recorded already under this name")
        _shaped(str(name), array, (num_clients,), "fiub")


def check_rows(name: str, array: Any, shape: tuple[int, ...] | None, size: int) -> Ints:
    """Return an array after checking that it holds row numbers of a table.

    Args:
        name: what to call it in the error.
        array: the array, of an integer type.
        shape: the shape that it must have. None: one dimension of any length.
        size: how many rows the table has.

    Raises:
        UnfitError: the array is something else, or names a row that does not exist.
    """
    rows: Ints = _shaped(name, array, shape, "iu")
    if len(rows) and not (int(rows.min()) >= 0 and int(rows.max()) < size):
        out = rows[(rows < 0) | (rows >= size)][0]
        raise UnfitError(f"{name}: there is no row {out}: must be 0 to {size - 1}")
    return rows


def check_aggregate(said: Any, group: Group) -> None:
    """Raise UnfitError unless a weigh part returned a sound aggregate of a group.

    Args:
        said: what the part returned.
        group: the group that it was asked about.
    """
    if not isinstance(said, Aggregate):
        raise UnfitError(f"{type(said).__name__}: must be an Aggregate")
    with naming("an Aggregate:", UnfitError):
        _metrics(said.metrics)
        _floats("old", said.old, ())
        if said.row is None:
            _floats("weights", said.weights, (len(group),))
            return
        if said.weights is not None or said.old:
            raise UnfitError("row: given together with weights or old: must be one or the other")
        _row("row", said.row, group.view.context.layout.size)
        if said.along is not None:
            _floats("along.weights", said.along.weights, (len(group),))
            if not (isinstance(scale := said.along.scale, Tensor) and scale.shape == (group.num_parameters,)):
                raise UnfitError(f"along.scale: must be a tensor [{group.num_parameters}]")


def _row(name: str, row: Any, size: int) -> None:
    """Raise UnfitError unless this is a row of the table, ``[size]`` float32."""
    if not (isinstance(row, Tensor) and row.shape == (size,) and row.dtype == torch.float32):
        form = f"{row.dtype} {list(row.shape)}" if isinstance(row, Tensor) else type(row).__name__
        raise UnfitError(f"{name}: is {form}: must be a tensor [{size}] of float32")


def _here(name: str, clients: Ints, view: View) -> None:
    """Raise UnfitError if one of ``clients [n]`` is not present."""
    absent = clients[~np.isin(clients, view.present)]  # setdiff1d would sort all who are present
    if len(absent):
        shown = ", ".join(map(str, view.present[:8].tolist())) + (", ..." if len(view.present) > 8 else "")
        raise UnfitError(f"{name}: {absent.min()} is not present: must be of {shown}")


def _choice(choice: Choice, view: View) -> None:
    """Raise UnfitError unless all who are chosen are present, their rows exist, and nobody starts twice at one row."""
    clients = _shaped("clients", choice.clients, None, "iu")
    _here("clients", clients, view)
    start = view.home[clients] if choice.start is None else choice.start
    for name, rows in (("start", start), ("target", start if choice.target is None else choice.target)):
        check_rows(name, rows, (len(clients),), view.table.size)
    pairs = list(zip(clients.tolist(), np.asarray(start).tolist(), strict=True))
    if len(set(pairs)) < len(pairs):
        client, row = next(pair for pair in pairs if pairs.count(pair) > 1)
        raise UnfitError(f"clients: client {client} is seated twice at row {row}: at most once for each start row")


def _seats(seats: Seats, view: View) -> None:
    """Raise UnfitError unless the arrays of the seats fit each other and the table, and pulls have strengths."""
    S, K = len(seats), view.table.size
    clients = _shaped("client", seats.client, (S,), "iu")
    _here("client", clients, view)
    check_rows("start", seats.start, (S,), K)
    check_rows("target", seats.target, (S,), K)
    if (seats.R is None) != (seats.mu is None):
        raise UnfitError("R and mu: must be given together")
    for name, array, shape in (("R", seats.R, (S, K)), ("mu", seats.mu, (S,)), ("L", seats.L, (S, K))):
        if array is not None:
            _floats(name, array, shape)


def _weighed(said: Weighed, view: View) -> None:
    """Raise UnfitError unless the rows exist, and all weights fit and are finite."""
    S, K, N = len(view.trained), view.table.size, view.context.num_clients
    check_rows("finished", np.array([*said.finished], np.int64), None, K)
    replaced = [check_rows("replaced: rows", one.rows, None, K) for one in _all("replaced", said.replaced, Replace)]
    for made in said.finished.values():
        _row("finished", made.row, view.context.layout.size)
        check_rows("finished: of", made.of, None, S)
    for one, rows in zip(said.replaced, replaced, strict=True):
        _floats("replaced: updates", one.updates, (len(rows), S))
        if one.models is not None:
            _floats("replaced: models", one.models, (len(rows), K))
    added = _all("added", said.added, Add)
    for more in added:
        if more.block not in view.table:
            raise UnfitError(f"added: there is no block {more.block!r}")
        _floats("added: updates", more.updates, (S,))
        _floats("added: models", more.models, (K,))
    if said.home is not None:  # a client may move to a row that is new
        check_rows("home", said.home, (N,), K + len(added))


def _values(values: Values, view: View) -> None:
    """Raise UnfitError unless every array has a row per accepted update. NaN may stand for no value."""
    S = len(view.trained)
    for name in ("per_seat", "standard_errors"):
        if (array := getattr(values, name)) is not None:
            _shaped(name, array, (S,), "f")
            low = 0.0 if name == "standard_errors" else -LARGEST_VALUE
            if len(wrong := array[(array < low) | (array > LARGEST_VALUE)]):
                raise UnfitError(f"{name}: has {wrong[0]} in it: must be {low:g} to {LARGEST_VALUE:g}, or NaN for none")
    if values.without_block is not None and (values.without_block.ndim != 2 or len(values.without_block) != S):
        raise UnfitError(f"without_block: has shape {values.without_block.shape}: must be [{S}, blocks]")


def _settlement(settled: Settlement, view: View) -> None:
    """Raise UnfitError unless withheld rows exist and the arrays can be recorded. The book checks the transactions."""
    for row in settled.withheld:
        if not (isinstance(row, int | np.integer) and 0 <= row < view.table.size):
            raise UnfitError(f"withheld: {row!r} is no row of the table: must be 0 to {view.table.size - 1}")
    for account in [to for one in _all("transactions", settled.transactions, Transaction) for to, _ in one.postings]:
        if (owner_of(str(account)) or 0) >= view.context.num_clients:
            raise UnfitError(f"transactions: {account}: there are only {view.context.num_clients} clients, from 0 on")
    for name, array in settled.arrays.items():
        if not isinstance(array, np.ndarray) or array.dtype == object:
            raise UnfitError(f"arrays: '{name}' is {type(array).__name__}: must be an array of numbers or texts")
        if name in FILED or "".join(name.partition("_")[:2]) in FILED:
            raise UnfitError(f"arrays: '{name}' is what the round's file itself says: take another first word")


def _deployment(said: Deployment, view: View) -> None:
    """Raise UnfitError unless every client holds a row of the new table, and weights are finite."""
    N, K = view.context.num_clients, view.mixed.W.shape[0]  # of the new table, which may have more rows
    check_rows("rows", said.rows, (N,), K)
    if said.weights is not None:
        _floats("weights", said.weights, (N, K))
    if said.own_mix is not None:
        check_rows("own_mix: rows", said.own_mix.rows, None, K)


LOOKS: Mapping[type[Any], tuple[str, Callable[[Any, View], None]]] = {
    Choice: ("select", _choice),
    Seats: ("seats", _seats),
    Weighed: ("weigh", _weighed),
    Values: ("value", _values),
    Settlement: ("settle", _settlement),
    Deployment: ("deploy", _deployment),
}
"""By the class of a decision, the method that returns it, and the check of it."""


def _metrics(metrics: Any) -> None:
    """Raise UnfitError unless metrics are numbers by name."""
    if not isinstance(metrics, Mapping):
        raise UnfitError(f"metrics: is {type(metrics).__name__}: must be a mapping of names to numbers")
    for name, value in metrics.items():
        if not isinstance(name, str) or not isinstance(value, int | float | np.integer | np.floating):
            raise UnfitError(f"metrics: {name!r} is {type(value).__name__}: must be a number")
        if "".join(name.partition("/")[:2]) in MEASURED:
            raise UnfitError(f"metrics: {name!r} is what the round's line itself says: take another first word")


def _all(name: str, items: Any, kind: type) -> Sequence[Any]:
    """Return a tuple or list if everything in it is of this class. Raises UnfitError."""
    if not isinstance(items, tuple | list):
        raise UnfitError(f"{name}: is {type(items).__name__}: must be a tuple of {kind.__name__}")
    if wrong := [item for item in items if not isinstance(item, kind)]:
        raise UnfitError(f"{name}: has {type(wrong[0]).__name__} in it: must be a tuple of {kind.__name__}")
    return items


def _floats(name: str, array: Any, shape: tuple[int, ...]) -> Floats:
    """Return an array of this shape as float64, all of it finite. Raises UnfitError."""
    _shaped(name, np.asarray(array) if shape == () else array, shape, "fiub")
    found: Floats = np.asarray(array, np.float64)
    if not np.isfinite(found).all():
        raise UnfitError(f"{name}: has {found[~np.isfinite(found)][0]} in it: must be finite")
    return found


def _shaped(name: str, array: Any, shape: tuple[int, ...] | None, kinds: str) -> Any:
    """Return an array of this shape and kind. Raises UnfitError if it is something else.

    Args:
        name: what to call it in the error.
        array: what the part returned.
        shape: the shape. None: one dimension of any length.
        kinds: the numpy kinds that are allowed, such as "iu" for whole numbers.
    """
    wanted = {"iu": "whole numbers", "f": "floats"}.get(kinds, "numbers")
    form = "[n]" if shape is None else str(list(shape))
    if not isinstance(array, np.ndarray):
        raise UnfitError(f"{name}: is {type(array).__name__}: must be an array {form} of {wanted}")
    fits = array.ndim == 1 if shape is None else array.shape == shape
    if not fits or array.dtype.kind not in kinds:
        raise UnfitError(f"{name}: is {array.dtype} of shape {list(array.shape)}: must be {form}, {wanted}")
    return array


def proposed_mix(mechanism: Mechanism, view: View, states: States) -> tuple[Mix, Sequence[Any], States]:
    """Return the mix of a round that has updates.

    Args:
        mechanism: the mechanism whose parts are asked.
        view: the round, with accepted updates.
        states: the states of all parts.

    Returns:
        Three results: the mix; the values that the weighing parts pass on to later parts; and the parts' states after
        these decisions.

    Raises:
        PartError: a part returned something invalid, or no part gives the new value of a row that a group trained.
    """
    groups, seats, count = view.groups(), view.trained.seats, len(view.trained)
    # rows that only their own clients train become these clients' updates
    mine = np.flatnonzero(view.table.per_client(seats.target))
    own = [Replace(seats.target[mine], np.eye(count)[mine])] if len(mine) else []
    told = _aggregated(mechanism, view, states, groups)
    decisions, states = _weighed_rows(mechanism, view, states, {group.row for group in groups})
    written = {row for decision in decisions for row in _written(decision)}
    if told is None and (lost := [group for group in groups if group.row not in written]):
        raise PartError(
            f"the weigh part {type(mechanism.weigh).__name__} has no aggregate, and its weigh says nothing of row "
            f"{lost[0].row} that {len(lost[0])} seats trained"
        )
    aggregates = [] if told is None else [(group, told.said[group.row]) for group in groups]
    sums = [_sum_of(group, one) for group, one in aggregates if one.row is None]
    made = {group.row: Made(one.row, group.at) for group, one in aggregates if one.row is not None}
    # of two parts that fill one block the first is its writer, and has the last word
    replaced = [one for decision in reversed(decisions) for one in decision.replaced]
    # in the order of the module's docstring: a later change of a row undoes an earlier one
    mix = Mix.keeping(view.table, count, view.home)
    mix = mix.changed(view.table, [*own, *sums]).with_made(made)
    mix = mix.changed(view.table, replaced, [one for decision in decisions for one in decision.added])
    mix = mix.with_made({row: one for decision in reversed(decisions) for row, one in decision.finished.items()})
    homes = [decision.home for decision in decisions if decision.home is not None]
    metrics = _means([one for _, one in aggregates])
    mix = replace(
        mix,
        home=homes[0] if homes else view.home,
        metrics={**metrics, **{name: x for decision in decisions for name, x in decision.metrics.items()}},
        refused=tuple(one for decision in decisions for one in decision.refused),
    )
    found = [value for decision in decisions for value in decision.found]
    if told is not None:  # without the rows that a later ``weigh`` wrote
        kept = {row: one for row, one in told.said.items() if row not in written}
        found = [Aggregated(kept, {row: rule for row, rule in told.again.items() if row not in written}), *found]
    return mix, found, states


def _weighed_rows(mechanism: Mechanism, view: View, states: States, trained: Set[int]) -> tuple[list[Weighed], States]:
    """Return what each part's ``weigh`` says, and the parts' next states. ``trained`` are the rows that groups train.

    Raises:
        PartError: a part wrote a row that it does not fill, or that is another's.
    """
    decisions: list[Weighed] = []
    for slot, part in writers(mechanism).items():
        standing, who = mechanism.standing(part), name_of(slot, part.weigh, view)
        decision, states = decide(Weighed, mechanism, slot, part.weigh, view, states)
        fills = in_slots(part.fills, standing)
        filled = {row for name in fills if name in view.table for row in view.at(name).tolist()}
        if wrong := sorted(_written(decision) - filled - (trained if GROUPS in fills else set())):
            block = view.table.blocks[view.table.block[wrong[0]]].name
            raise PartError(
                f"{who}: its weigh returned Weighed: replaced: row {wrong[0]} is one of '{block}', which the part does "
                "not fill here"
            )
        if "weigh" not in standing and (both := sorted(trained & _written(decision))):
            raise PartError(
                f"{who}: its weigh replaced row {both[0]}, which {type(mechanism.weigh).__name__} in the weigh slot "
                "makes: a row has one writer"
            )
        if (lone := sorted(trained & set(decision.finished))) and FINISHED not in in_slots(part.gives, standing):
            raise PartError(f"{who}: finished row {lone[0]}, which a group trains: must say gives = {{'{FINISHED}'}}")
        decisions.append(decision)
    return decisions, states


def _written(said: Weighed) -> set[int]:
    """Return the rows that a decision replaces or finishes."""
    return {int(row) for one in said.replaced for row in one.rows} | set(said.finished)


def writers(mechanism: Mechanism) -> dict[str, WeighPart]:
    """Return the parts whose ``weigh`` is called, by the slot in which each fills blocks.

    The part in the weigh slot comes first. Parts in other slots are asked only for blocks that no earlier part fills.
    Another weigh part can therefore replace a mechanism's own weighing.
    """
    by_slot: dict[str, WeighPart] = {}
    filled: frozenset[str] = frozenset()
    for slot in ("weigh", *mechanism.parts()):
        part = mechanism.slots()[slot]
        mine = in_slots(part.fills, mechanism.standing(part))
        if mine - filled and not any(part is other for other in by_slot.values()):
            by_slot[slot], filled = cast(WeighPart, part), filled | mine
    return by_slot


def _aggregated(mechanism: Mechanism, view: View, states: States, groups: Sequence[Group]) -> Aggregated | None:
    """Return what the weigh part's ``aggregate`` says of each group; None if it has no such method, or there is no
    group.
    """
    aggregate = method_of(mechanism.weigh, "aggregate")
    if aggregate is None or not groups:
        return None
    state = states[mechanism.key("weigh")]
    value = mechanism.value
    accepted = in_slots(getattr(value, "accepts", frozenset()), ["value"])
    aggregates: dict[int, Aggregate] = {}
    for group in groups:
        with called("weigh", aggregate, view, state) as who:
            said: Aggregate = aggregate(group, state)
        with naming(f"{who}: its aggregate returned"):
            check_aggregate(said, group)
        if value is not None and (wanted := said.beyond_weights) and accepted.isdisjoint(wanted):
            raise PartError(
                f"{who}: {type(value).__name__} in mechanism.value cannot value "
                f"what its aggregate returned: must accept {' or '.join(sorted(wanted))}"
            )
        if said.weights is not None:
            total, least = float(np.sum(said.weights, dtype=np.float64)) + said.old, float(np.min(said.weights))
            scales = "its weights and old do not sum to 1, which scales the model, not those of coalitions"
            leaves = f"a weight is {least:.3g}, which moves the model away from that update"
            if odd := [why for why, holds in ((scales, abs(total - 1) > 1e-6), (leaves, least < -1e-6)) if holds]:
                part = f"the weigh part {type(mechanism.weigh).__name__}"
                warnings.warn(f"{part}: {'; '.join(odd)}", PartWarning, stacklevel=2)
        aggregates[group.row] = said
    reapplied = [group for group in groups if aggregates[group.row].beyond_weights]
    # what the rule makes of some members of a group, with the state from before the round
    again = {g.row: (lambda members, g=g: aggregate(g.among(members), state)) for g in reapplied}
    return Aggregated(aggregates, again)


def _sum_of(group: Group, said: Aggregate) -> Replace:
    """Return a group's new row, which is a weighted sum, as weights on all updates and all old rows."""
    updates, models = np.zeros((1, len(group.view.trained))), np.zeros((1, group.view.table.size))
    updates[0, group.at], models[0, group.row] = said.weights, said.old
    return Replace(np.array([group.row]), updates, models if said.old else None)


def _means(said: Sequence[Aggregate]) -> dict[str, float]:
    """Return the mean of each metric over the groups that have it."""
    recorded = [one.metrics for one in said if one.metrics]
    if not recorded:
        return {}
    names = list(recorded[0])
    # groups may record different metrics: then each mean is over the groups that have it
    if any(list(one) != names for one in recorded):
        every = dict.fromkeys(name for one in recorded for name in one)
        return {name: float(np.mean([one[name] for one in recorded if name in one])) for name in every}
    means = np.mean([[one[name] for name in names] for one in recorded], axis=0).tolist()
    return dict(zip(names, means, strict=True))
