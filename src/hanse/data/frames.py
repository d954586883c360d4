"""Reads a pandas DataFrame as clients' samples, or refuses it with messages that name columns and rows.

:func:`of_frame` is the entry point, called by :mod:`hanse.data.own`. The helpers that name clients and describe rows
are also used for the other forms of own data. pandas is not imported: whoever has a frame has installed it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hanse.base.errors import UserError, nearest
from hanse.data.preparing import Prepare, are_numbers, is_dates, words_among_numbers

Features = Sequence[str] | Mapping[str, Sequence[str]]
"""Columns of features; with names, each a list of columns, the inputs of a model that takes several."""

# clients that a message names
LISTED = 3
FILL = "fill them (data.source.prepare = 'auto' does)"
# characters of a client's name
NAME = 80


@dataclass(frozen=True)
class Rows:
    """Samples as given, before they are numbered and checked.

    Attributes:
        x: the inputs ``[n, ...]``; a dictionary by name if there are several.
        y: targets ``[n, ...]``, numbers or labels of any kind.
        owner: ``[n]``, the name of each row's client; None if no clients are given.
        num_classes: the number of classes, if it is known beforehand.
        prepare: how ``x``, which is a pandas DataFrame in this case, becomes numbers. None: ``x`` already is numbers.
    """

    x: Any
    y: Any
    owner: NDArray[Any] | None = None
    num_classes: int | None = None
    prepare: Prepare | None = None

    def __len__(self) -> int:
        return len(self.y)


def is_frame(given: Any) -> bool:
    """Return whether this is a pandas DataFrame."""
    return type(given).__module__.startswith("pandas") and hasattr(given, "columns")


def of_frame(
    frame: Any,
    target: str,
    client: str | None,
    features: Features | None,
    name: str,
    prepare: Prepare | None = None,
) -> Rows:
    """Return the rows of a frame, before they are numbered and checked.

    Args:
        frame: a pandas DataFrame, one sample per row.
        target: the column to be predicted.
        client: the column with the client of each row. None: there is no such column.
        features: the columns of features, or a list of columns for each input by name. None: all other columns.
        name: what the data are called in messages.
        prepare: how columns become numbers, once it is known which rows are for training. None: the columns already are
            numbers.

    Raises:
        UserError: one line for each mistake.
    """
    where = f"data: {name}"
    if not is_frame(frame):
        raise UserError(f"{where}: is a {type(frame).__name__}; a pandas DataFrame is needed")
    wanted = _columns(list(frame.columns), target, client, features, name)
    owner = None if client is None else owners_in(frame[client], client, where)
    if prepare is not None and isinstance(features, Mapping):
        raise UserError("data.source.prepare: is for one input: with several, give columns of numbers")
    asked = [] if prepare is not None else [c for group in wanted.values() for c in group]
    lines = [line for c in asked if (line := _no_numbers(frame[c], owner, where))]
    y, wrong = target_column(frame[target], owner, where)
    if lines or wrong:
        raise UserError(*lines, *wrong)
    if prepare is not None:
        return Rows(frame[wanted[""]], y, owner, prepare=prepare)
    # codes for an embedding stay whole numbers, as they do in a dictionary of arrays
    whole = {part for part, group in wanted.items() if part and all(frame[c].dtype.kind in "iu" for c in group)}
    kinds = {part: np.int64 if part in whole else np.float32 for part in wanted}
    numbers = {part: np.array(frame[group], dtype=kinds[part]) for part, group in wanted.items()}
    return Rows(numbers if isinstance(features, Mapping) else numbers[""], y, owner)


def _columns(
    columns: list[Any], target: str, client: str | None, features: Features | None, name: str
) -> dict[str, list[Any]]:
    """Return the columns of features, by the name of an input ("" if there is one).

    Raises:
        UserError: a column does not exist, two have the same name, the target is the client, or a feature is one of
            these.
    """
    twice = sorted({str(c) for c in columns if columns.count(c) > 1})
    if twice:
        raise UserError(f"data: {name}: two columns are called {twice[0]!r}: rename one, or leave it out")
    others = {"target": target} | ({} if client is None else {"client_column": client})
    rest = [c for c in columns if c not in others.values()]
    groups: Mapping[str, Any] = (
        features if isinstance(features, Mapping) else {"": rest if features is None else features}
    )
    wanted = {part: list(group) for part, group in groups.items()}
    flat = [c for group in wanted.values() for c in group]
    asked = [*others.items(), *(("features", c) for c in flat)]
    lines = [
        f"data.source.{key}: {c!r}: {name} has no such column{nearest(str(c), map(str, columns))}"
        for key, c in asked
        if c not in columns
    ]
    lines += [f"data.source.features: {c!r}: is the {key}, not a feature" for key, c in others.items() if c in flat]
    lines += [f"data.source.client_column: {client!r}: is the target, which cannot name the clients too"] * (
        client == target
    )
    if not lines and not all(wanted.values()):
        lines = [f"data: {name}: no column is left for features: it has {', '.join(map(str, columns))}"]
    if lines:
        raise UserError(*lines)
    return wanted


def possible_clients(frame: Any, target: str | None) -> list[Any]:
    """Return the columns of a frame that could say each row's client: words or whole numbers that repeat often.

    Args:
        frame: a pandas DataFrame.
        target: the column to be predicted, which is never among the result.
    """
    others = [c for c in frame.columns if c != target and not is_dates(frame[c])]
    kinds = [c for c in others if getattr(frame[c].dtype, "kind", "O") in "OiuUT"]
    return [c for c in kinds if 2 <= frame[c].astype(str).nunique() <= len(frame) // 10 and not frame[c].isna().any()]


def owners_in(column: Any, client: str, where: str) -> NDArray[Any]:
    """Return the name of each row's client, ``[n]``. A number is prefixed with its column, such as "hospital 3".

    Args:
        column: a pandas column, ``[n]``, one entry per row.
        client: the column's name.
        where: the name of the data in messages.

    Raises:
        UserError: a row has no client, or the names of two clients would look the same.
    """
    rows = np.flatnonzero(column.isna().to_numpy())
    if len(rows):
        raise UserError(
            f"{where}: column '{client}': no client in {rows_of(rows, None)}; fill them, or drop these rows"
        )
    return names_of(column.to_list(), f"{where}: column '{client}'", client)


def names_of(values: Sequence[Any], where: str, kind: str = "client") -> NDArray[Any]:
    """Return the client's name for each value, ``[n]``. A number is prefixed with its ``kind``.

    Args:
        values: numbers or texts, ``[n]``. Equal values are the same client.
        where: the name of the data in messages.
        kind: the prefix for clients that are numbers, such as the column's name.

    Raises:
        UserError: a client has no name, or the names of two clients would look the same.
    """
    # named once each: values repeat in thousands of rows
    names: dict[Any, str] = {}
    for value in values:
        if value not in names:
            names[value] = client_name(value, where, kind)
    if len(set(names.values())) < len(names):
        shown = list(names.values())
        alike = next(name for name in shown if shown.count(name) > 1)
        first, second = [value for value, name in names.items() if name == alike][:2]
        raise UserError(
            f"{where}: {str(first)[:200]!r} and {str(second)[:200]!r} are two clients whose names are shown alike, "
            f"{alike!r} (one line, {NAME} characters): give them other names, or the same one"
        )
    return np.array([names[value] for value in values], dtype=object)


def client_name(value: Any, where: str, kind: str = "client", who: str = "a client") -> str:
    """Return a client's name, a number behind its ``kind``. Raises UserError if nothing of it can be shown."""
    name = name_of(f"{kind} {value}" if isinstance(value, int | float) else value)
    if name == "?" != value or value is None or (isinstance(value, float) and np.isnan(value)):
        raise UserError(f"{where}: {who} is called {value!r:.80}: give it a name that can be read")
    return name


def name_of(value: Any) -> str:
    """Return a client's name for display: one line of at most 80 printable characters."""
    return "".join(c for c in " ".join(str(value).split()) if c.isprintable())[:NAME] or "?"


def _no_numbers(column: Any, owner: NDArray[Any] | None, where: str) -> str | None:
    """Return a line if a column of features holds anything but finite numbers, else None."""
    kind = getattr(column.dtype, "kind", "O")
    if kind not in "biuf":
        if kind == "O" and not are_numbers(column) and (odd := words_among_numbers(column)):
            return (
                f"{where}: column '{column.name}': holds {odd}: make these gaps, as pandas.to_numeric(..., "
                "errors='coerce') does, and fill them"
            )
        example = next((v for v in column.dropna().to_list()), None)
        says = f" such as {example!r}" if example is not None else ""
        return (
            f"{where}: column '{column.name}': holds {column.dtype} values{says}; features are numbers: "
            f"{_remedy(column, example)}leave it out of the features"
        )
    return _gaps(column, owner, where)


def _remedy(column: Any, example: Any) -> str:
    """Return how to make numbers of a column, ending in " or "; "" if nothing is known for what it holds."""
    of, auto = f"frame['{column.name}']", "data.source.prepare = 'auto'"
    if is_dates(column):
        return f"{auto} makes some of dates, or "
    if getattr(column.dtype, "kind", "O") == "m":
        return f"{of}.dt.total_seconds() makes some, or "
    if example is not None and are_numbers(column):
        return f"pandas.to_numeric({of}) reads them, or "
    if re.match(r"\d{1,4}([-./])\d{1,2}\1\d{1,4}", str(example)):
        return f"pandas.to_datetime({of}) makes dates, and {auto} numbers of these, or "
    if isinstance(example, str | bool | None):
        return f"pandas.get_dummies(frame, columns=['{column.name}']) makes some ({auto} too), or "
    return ""


def _gaps(column: Any, owner: NDArray[Any] | None, where: str, target: bool = False) -> str | None:
    """Return a line if a column of numbers has gaps or infinite values: in how many rows, and of which clients."""
    values = column.to_numpy(dtype=np.float64, na_value=np.nan)
    rows = np.flatnonzero(~np.isfinite(values))
    if not len(rows):
        return None
    what = "no number (NaN)" if np.isnan(values[rows]).all() else "no finite number"
    remedy = "drop these rows" if target else f"{FILL}, or drop these rows"
    return f"{where}: column '{column.name}': {what} in {rows_of(rows, owner)}; {remedy}"


def rows_of(rows: NDArray[np.int64], owner: NDArray[Any] | None) -> str:
    """Describe rows in words: how many there are, the first one, and the clients to which they belong.

    Args:
        rows: row numbers, ``[m]``, ascending.
        owner: the client of every row of the table, or None. The clients with most of these rows come first.
    """
    count = f"{len(rows)} row{'s' if len(rows) > 1 else ''} (the first is row {rows[0]})"
    if owner is None:
        return count
    names, counts = np.unique(owner[rows].astype(str), return_counts=True)
    order = np.argsort(-counts, kind="stable")
    listed = [f"{counts[i]} of client '{names[i]}'" for i in order[:LISTED]]
    more = len(names) - LISTED
    return f"{count}: {', '.join(listed)}{f' and of {more} more clients' if more > 0 else ''}"


def target_column(column: Any, owner: NDArray[Any] | None, where: str) -> tuple[NDArray[Any], list[str]]:
    """Return a target column as numbers or labels, and a list of lines that say what is wrong with it.

    Args:
        column: the column, a pandas Series.
        owner: the client of every row, or None.
        where: the words with which each line begins.
    """
    kind = getattr(column.dtype, "kind", "O")
    if kind in "biuf" and (line := _gaps(column, owner, where, target=True)):
        return np.zeros(0), [line]
    rows = np.flatnonzero(column.isna().to_numpy())
    if len(rows):
        return np.zeros(0), [f"{where}: column '{column.name}': no target in {rows_of(rows, owner)}; drop these rows"]
    if kind != "f":
        return np.array(column, dtype={"b": bool, "i": np.int64, "u": np.int64}.get(kind, object)), []
    return np.array(column, dtype=np.float32), []
