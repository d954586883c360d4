"""Reads a pandas DataFrame as clients' samples, or refuses it with messages that name columns and rows.

:func:`of_frame` is the entry point, called by :mod:`hanse.data.own`. The helpers that name clients and describe rows
are also used for the other forms of own data. pandas is not imported: whoever has a frame has installed it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hanse.base.errors import UserError, collected, nearest
from hanse.data.doubts import MOST_COLUMNS, Coded, of_column, of_columns
from hanse.data.encoding import AUTO, Prepare, drafted
from hanse.data.kinds import ALIKE, Column, Held, alike, held, is_gap, lost, objects, plain, rows_of, unfinite_rows
from hanse.data.labels import Renamed, target_column
from hanse.data.remedies import IN_PYTHON
from hanse.data.units import NONE, times_of, units_of

Features = Sequence[Column]
"""Columns of features."""

# characters of a client's name
NAME = 80


@dataclass(frozen=True)
class Asked:
    """Which columns or keys of the data are what, and how the features become numbers.

    Attributes:
        target: the column to be predicted. None: the data have no columns.
        client: the column with the client of each row. None: there is no such column.
        features: the columns of features. None: all other columns.
        group: the column with the unit of each row, such as its patient. "none": every row is a unit. None: not said.
        time: the column that says when each row was observed. None: there is none.
        prepare: how columns become numbers, once it is known which rows are for training. None: the columns already are
            numbers.
        labels: new labels for the target. None: they are as given.
    """

    target: Column | None = None
    client: Column | None = None
    features: Features | None = None
    group: Column | None = None
    time: Column | None = None
    prepare: Prepare | None = None
    labels: Renamed | None = None

    def __post_init__(self) -> None:
        """Refuse several targets."""
        if isinstance(self.target, list | tuple):
            raise UserError(
                f"data.source.target: {self.target!r:.80}: must be one column; several targets of a sample, such as "
                "time and event, are given as arrays: hanse.run(experiment, data=(features, targets, clients))"
            )

    @property
    def named(self) -> dict[str, Column]:
        """The columns that are no features unless ``features`` names them, by the key of ``data.source``."""
        group = None if self.group == NONE else self.group
        keys = {"target": self.target, "client_column": self.client, "group": group, "time": self.time}
        return {key: column for key, column in keys.items() if column is not None}


@dataclass(frozen=True)
class Rows:
    """Samples as given, before they are numbered and checked.

    Attributes:
        x: the inputs ``[n, ...]``; a dictionary by name if there are several.
        y: targets ``[n, ...]``, numbers or labels of any kind.
        owner: ``[n]``, the name of each row's client; None if no clients are given.
        prepare: how ``x`` becomes numbers, which in this case is as :meth:`Prepare.features` takes it. None: ``x``
            already is numbers.
        notes: what may be meant otherwise than it was read, one line each.
        units: ``[n]``, what each row is of, such as a patient; None if that is not said.
        time: ``[n]``, when each row was observed, float64; None if that is not said.
        doubt: why rows may be several of one person, though nobody says so; "" if they look like none.
    """

    x: Any
    y: Any
    owner: NDArray[Any] | None = None
    prepare: Prepare | None = None
    notes: tuple[str, ...] = ()
    units: NDArray[Any] | None = None
    time: NDArray[np.float64] | None = None
    doubt: str = ""

    def __len__(self) -> int:
        return len(self.y)


def is_frame(given: Any) -> bool:
    """Return whether this is a pandas DataFrame."""
    return type(given).__module__.startswith("pandas") and hasattr(given, "columns")


def of_frame(frame: Any, asked: Asked, name: str, owner: NDArray[Any] | None = None) -> Rows:
    """Return the rows of a frame, before they are numbered and checked.

    Args:
        frame: a pandas DataFrame, one sample per row.
        asked: which column is what; the target is needed.
        name: what the data are called in messages.
        owner: ``[n]``, the client of each row, if no column has it.

    Raises:
        UserError: one line for each mistake.
    """
    where = f"data: {name}"
    wanted = _columns(list(frame.columns), asked, name)
    client, prepare = asked.client, asked.prepare
    if client is not None:
        owner = names_of(frame[client], f"{where}: column '{client}'", str(client))
    auto, lines, read = prepare is not None and prepare.how == AUTO, list[str](), dict[Any, Held]()
    for c in wanted if prepare is None or auto else ():
        with collected(lines):
            read[c] = held(frame[c], f"{where}: column '{c}'", owner)
            if line := _unfit(frame[c], read[c], owner, auto):
                raise UserError(f"{where}: column '{c}': {line}")
            if auto or read[c].kind == "nothing":
                drafted({c: read[c]}, where)  # refuses what becomes no features
    y, units, time = np.zeros(0), None, None
    with collected(lines):
        answers = frame[asked.target] if asked.labels is None else asked.labels.of(frame[asked.target], owner)
        y = target_column(answers, owner, f"{where}: column '{asked.target}'")
    with collected(lines):
        if (group := asked.named.get("group")) is not None:
            units = units_of(frame[group], f"{where}: column '{group}'")
        if asked.time is not None:
            time = times_of(frame[asked.time], f"{where}: column '{asked.time}'")
    if lines:
        raise UserError(*lines)
    notes = [note for c, one in read.items() for note in (*one.notes, *of_column(c, one, owner, where))]
    doubt = ""
    if asked.group is None:
        rest = [c for c in frame.columns if c not in (asked.target, client, asked.time)]
        columns = {c: Coded.of(frame[c]) for c in [asked.target, *rest[:MOST_COLUMNS]]}
        doubt = of_columns(columns, asked.target, owner, where)
    x: Any = read if auto else frame[wanted]
    if prepare is None:
        x = np.stack([read[c].values for c in wanted], axis=1).astype(np.float32)
    return Rows(x, y, owner, prepare, tuple(notes), units, time, doubt)


def _columns(columns: list[Any], asked: Asked, name: str) -> list[Any]:
    """Return the columns of features.

    Raises:
        UserError: a column does not exist, two have the same name, the target is the client, or a feature is one of
            these.
    """
    if twice := [c for c, count in Counter(columns).items() if count > 1]:
        raise UserError(f"data: {name}: two columns are called {str(twice[0])!r}: rename one, or leave it out")
    if several := next((c for c in columns if isinstance(c, tuple)), None):
        remedy = 'one each, as by frame.columns = ["_".join(map(str, c)) for c in frame.columns]'
        raise UserError(f"data: {name}: the column {several!r:.80} has several names: give {remedy}")
    if asked.group == NONE and NONE in columns:
        raise UserError(f"data.source.group: 'none': says every row is a unit, and {name} has such a column: rename it")
    if both := alike([(c, 0) for c in columns], case=lambda _: False):
        raise UserError(f"data: {name}: the columns {both} cannot be told apart reliably: rename one, or leave it out")
    others = asked.named
    wanted = [c for c in columns if c not in others.values()] if asked.features is None else list(asked.features)
    lines = [
        f"data.source.{key}: {c!r}: {name} has no such column"
        + next((f", but {o!r}" for o in columns if plain(o) == plain(c)), nearest(str(c), map(str, columns)))
        for key, c in [*others.items(), *(("features", c) for c in wanted)]
        if c not in columns
    ]
    for key, c in others.items():
        if c in wanted and key != "time":
            lines.append(f"data.source.features: {c!r}: is the {key}, not a feature")
        if c == asked.target and key != "target":
            lines.append(f"data.source.{key}: {c!r}: is the target, which cannot be that too")
    if not lines and not wanted:
        lines = [f"data: {name}: no column is left for features: it has {', '.join(map(str, columns))}"]
    if lines:
        raise UserError(*lines)
    return wanted


def possible_clients(frame: Any, target: Column | None) -> list[Any]:
    """Return the columns of a frame that could say each row's client: words or whole numbers that repeat often.

    Args:
        frame: a pandas DataFrame.
        target: the column to be predicted, which is never among the result.
    """
    kinds = [c for c in frame.columns if c != target and getattr(frame[c].dtype, "kind", "O") in "OiuUT"]
    return [c for c in kinds if 2 <= frame[c].astype(str).nunique() <= len(frame) // 10 and not frame[c].isna().any()]


def names_of(values: Any, where: str, kind: str = "client", plain_numbers: bool = False) -> NDArray[Any]:
    """Return the client's name for each value, ``[n]``. A number is prefixed with its ``kind``.

    Args:
        values: numbers or texts, ``[n]``, in a list, an array, which may be masked, or a pandas column.
        where: the name of the data in messages.
        kind: the prefix for clients that are numbers, such as the column's name.
        plain_numbers: whether clients numbered 0, 1, .. keep plain numbers as names.

    Raises:
        UserError: a row has no client, a value is no name, or two clients cannot be told apart, such as 1 and "1".
    """
    given = objects(values)
    gaps = np.flatnonzero([one is None for one in given])
    if len(gaps):
        raise UserError(f"{where}: no client in {rows_of(gaps, None)}; fill them, or drop these rows")
    for one in given:
        if not isinstance(one, str | int | float) or (isinstance(one, float) and abs(one) >= 2**53):
            raise UserError(f"{where}: {one!r:.80} is {type(one).__name__}: a client's name is text or a whole number")
    keys = [(type(one), one) for one in given]  # by type too: True, 1 and 1.0 are equal in Python
    counts = Counter(keys)
    # what has digits may be a key, in which case tells clients apart
    shown = [(one, rows) for (_, one), rows in counts.items()]
    if both := alike(shown, case=lambda name: len(name) > 1 and not any(letter.isdigit() for letter in name)):
        raise UserError(f"{where}: the clients {both} cannot be told apart reliably: {ALIKE}")
    numbers = [one for of, one in counts if of is int]
    if plain_numbers and set(numbers) == set(range(len(counts))):
        kind = ""  # and in a name without kind no blank is left
    names = {key: client_name(key[1], where, kind) for key in counts}
    if both := alike([(name, 0) for name in names.values()]):
        raise UserError(
            f"{where}: the names of {both} are shown alike (one line, {NAME} characters): give them others, or one"
        )
    return np.array([names[key] for key in keys], dtype=object)


def client_name(value: Any, where: str, kind: str = "client", who: str = "a client") -> str:
    """Return a client's name, a number behind its ``kind``. Raises UserError if nothing of it can be shown."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # the same client where gaps have made floats of a column
    name = name_of(f"{kind} {value}" if isinstance(value, int | float) else value)
    if name == "?" != value or is_gap(value):
        raise UserError(f"{where}: {who} is called {value!r:.80}: give it a name that can be read")
    return name


def name_of(value: Any) -> str:
    """Return a client's name for display: one line of at most 80 printable characters."""
    return "".join(c for c in " ".join(str(value).split()) if c.isprintable())[:NAME] or "?"


def _unfit(column: Any, found: Held, owner: NDArray[Any] | None, prepared: bool) -> str:
    """Return why a column's values cannot be features, "" if they can: they are no numbers, or none that float32 holds.
    What is ``prepared`` may also hold gaps, words and dates, and is scaled before it is rounded.
    """
    if found.like == "numbers" and (prepared or not found.text):
        if line := unfinite_rows(found, owner, gaps=not prepared):
            endless = prepared or np.isinf(found.values).any()
            fill = "make them gaps" if endless else "fill them (data.source.prepare = 'auto' does)"
            return f"{line}; {fill}, or drop these rows"
        return lost(found.values, whole=found.kind == "whole", fine=not prepared)
    if prepared or found.kind == "nothing":
        return ""
    remedy, such = "data.source.prepare = 'auto' makes some", objects(column)[~found.gaps][0]
    if found.text:
        remedy = f"pandas.to_numeric(frame['{column.name}']) reads them"
    what = f"holds {column.dtype} values such as {such!r:.80}; features are numbers"
    return f"{what}: {remedy}, or {IN_PYTHON.leave_out}"
