"""Converts a table's columns to numbers: fills gaps, scales numbers, encodes words and dates.

:class:`Columns` (``prepare = "auto"``) works like :mod:`hanse.data.tables`. Any other object with ``fit`` and
``transform``, such as a scikit-learn ``ColumnTransformer``, can be used instead. No preparation ever sees labels.

**Whose statistics.** With ``statistics = "own"``, means, deviations and fill values are those of each client's own
rows, so nothing is disclosed. With "pooled", they are computed from all clients' rows. This assumes that members may
add up their sums before round 0. Members must agree on columns, words and gaps in any case.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from hanse.base.errors import UserError, gated, import_path
from hanse.data.kinds import held, lost, objects

AUTO = "auto"
FARTHEST = 5.0
"""Numbers are clipped at this many deviations from their mean, so a single huge one does not dominate a step."""
MOST_KINDS = 50
"""Different words in a column that becomes one column for each."""

Statistics = Literal["own", "pooled"]
Matrix = NDArray[np.float32]


def scaled(values: NDArray[np.float64], own: NDArray[np.float64], gaps: bool) -> list[Matrix]:
    """Return a column of numbers scaled to mean 0 and deviation 1, and cut at 5 deviations; a gap becomes the mean.

    Args:
        values: ``[n]``, NaN for a gap.
        own: the numbers that determine mean and deviation. If there are none, these are 0 and 1.
        gaps: whether to add a column that marks the gaps.
    """
    missing = np.isnan(values)
    mean, deviation = (own.mean(), own.std() or 1.0) if len(own) else (0.0, 1.0)
    made = [np.where(missing, 0.0, (values - mean) / deviation).clip(-FARTHEST, FARTHEST).astype(np.float32)]
    return [*made, missing.astype(np.float32)] if gaps else made


@dataclass(frozen=True)
class _Column:
    """How one column becomes numbers.

    Attributes:
        name: its name.
        numbers: returns its numbers ``[n, k]`` float64, NaN for a gap.
        scaled: whether they are scaled.
        gaps: whether a column says where the gaps are.
    """

    name: Any
    numbers: Callable[[Any], NDArray[np.float64]]
    scaled: bool
    gaps: bool


class Columns:
    """Columns of a table as numbers; the type of a column decides how it is converted.

    Numbers are scaled to mean 0 and deviation 1 and cut at 5 deviations, and a gap becomes the mean, with a further
    column that marks gaps. Words and categories become a 0/1 column for each value. Dates become scaled days, and
    points on circles for season, weekday and time of day.

    Args:
        frame: the whole table of features, which determines the columns.
        where: the text with which messages begin.

    Raises:
        UserError: a column of more than 50 different words, or one without any value.
    """

    def __init__(self, frame: Any, where: str = "data") -> None:
        made = [_column(frame[name], where) for name in frame.columns]
        if lines := [one for one in made if isinstance(one, str)]:
            raise UserError(*lines)
        self._columns = [one for one in made if isinstance(one, _Column)]
        self._fitted: list[NDArray[np.float64]] = []

    def fit(self, frame: Any) -> Columns:
        """Compute means and deviations of these rows."""
        self._fitted = [one.numbers(frame[one.name])[:, 0] for one in self._columns]
        self._fitted = [values[np.isfinite(values)] for values in self._fitted]
        return self

    def transform(self, frame: Any) -> Matrix:
        """Return the features ``[rows, columns]`` float32."""
        made: list[Matrix] = []
        for one, own in zip(self._columns, self._fitted, strict=True):
            numbers = one.numbers(frame[one.name])
            if one.scaled:
                made += scaled(numbers[:, 0], own, one.gaps)
                numbers = numbers[:, 1:]
            made += [np.nan_to_num(column).astype(np.float32) for column in numbers.T]
        return np.stack(made, axis=1) if made else np.zeros((len(frame), 0), np.float32)


def _column(column: Any, where: str) -> _Column | str:
    """Return how a column becomes numbers, or a line that says why it cannot."""
    name, found = column.name, held(column, f"{where}: column '{column.name}'")
    if isinstance(found, str):
        return found
    if found.gaps.all():
        return f"{where}: column '{name}': has no value in any row: leave it out of the features"
    gaps = bool(found.gaps.any())
    if found.kind == "dates":
        timed = bool((_seconds(column) % 86_400 != 0).any())
        return _Column(name, lambda one: _as_dates(one, timed), True, gaps)
    if found.kind != "words" and not found.category:
        endless = np.isinf(found.values)
        line = "" if found.exact else "whole numbers above 9,007,199,254,740,992 become others as floats: leave ids out"
        if endless.any():
            line = f"infinite in {int(endless.sum())} of {len(endless)} rows: make them gaps, or drop these rows"
        line = line or lost(found.values, fine=False)
        return f"{where}: column '{name}': {line}" if line else _Column(name, _as_numbers, True, gaps)
    kinds = sorted(set(column.dropna().map(str).to_list()))
    if len(kinds) > MOST_KINDS:
        return (
            f"{where}: column '{name}': {len(kinds)} different words, such as {kinds[0]!r}; at most {MOST_KINDS} "
            "become columns: if it says of whom each row is, name it as data.source.group; else put words together, or "
            "leave the column out"
        )
    return _Column(name, lambda one: _as_kinds(one, kinds), False, False)


def _as_numbers(column: Any) -> NDArray[np.float64]:
    """Return a column of numbers, or of text of numbers, ``[n, 1]``; NaN for a gap."""
    if getattr(column.dtype, "kind", "O") in "biuf":
        return np.asarray(column.to_numpy(dtype=np.float64, na_value=np.nan)).reshape(-1, 1)
    values = objects(column)
    return np.array([np.nan if one is None else float(one) for one in values], np.float64).reshape(-1, 1)


def _as_kinds(column: Any, kinds: Sequence[str]) -> NDArray[np.float64]:
    """Return a column of 0 and 1 for each value, ``[n, kinds]``; a gap is of none."""
    words = column.astype(object).map(str, na_action="ignore").to_numpy(dtype=object)
    return np.asarray(words[:, None] == np.array(kinds, dtype=object), np.float64)


def _seconds(column: Any) -> NDArray[np.int64]:
    """Return seconds since 1970 of the dates that are there, in the clock of their own time zone."""
    days = column.dropna()
    if getattr(days.dt, "tz", None) is not None:
        days = days.dt.tz_localize(None)
    return np.asarray(days.to_numpy(dtype="datetime64[s]").astype(np.int64))


def _as_dates(column: Any, timed: bool) -> NDArray[np.float64]:
    """Return days since 1970, and the season, the weekday and, if ``timed``, the hour as places on circles, ``[n, k]``;
    NaN for a gap.
    """
    made = np.full((len(column), 7 if timed else 5), np.nan)
    seconds = _seconds(column).astype(np.float64)
    days = seconds / 86_400
    turns = [days % 365.2425 / 365.2425, np.floor(days) % 7 / 7, *([days % 1] if timed else [])]
    circles = [wave(2 * np.pi * turn) for turn in turns for wave in (np.sin, np.cos)]
    made[column.notna().to_numpy()] = np.stack([days, *circles], axis=1)
    return made


# ---- any transformer, by whose statistics


@dataclass(frozen=True)
class Prepare:
    """How a table's columns become numbers.

    Attributes:
        how: "auto", the import path of a function that returns a transformer, or a transformer with ``fit`` and
            ``transform``.
        statistics: whether each client's "own" rows are used to fit, or the "pooled" rows of all clients.
    """

    how: Any = AUTO
    statistics: Statistics = "own"

    def __post_init__(self) -> None:
        if self.statistics not in get_args(Statistics):
            raise UserError(f"data.source.statistics: {self.statistics!r}: must be 'own' or 'pooled'")

    @property
    def note(self) -> str:
        """A sentence for the run's record."""
        whose = "all clients' rows together" if self.statistics == "pooled" else "each client's own rows"
        return f"columns were prepared by the statistics of {whose}"

    def features(
        self, table: Any, owner: NDArray[Any] | None, train: NDArray[np.int64], where: str
    ) -> NDArray[np.float32]:
        """Return a table as features ``[n, columns]``.

        Args:
            table: a pandas DataFrame of ``n`` rows, without client and target.
            owner: ``[n]``, each row's client. None: the clients are not known.
            train: the rows for fitting a transformer, ascending.
            where: the text with which messages begin.

        Raises:
            UserError: the transformer cannot be made or used, or clients' columns differ.
        """
        made = self._transformer(table, where)
        if self.statistics == "pooled":
            return _checked(_fitted(made, table.iloc[train], where), table, where)
        if owner is None:
            raise UserError(
                f"{where}: data.source.statistics: 'own': the rows belong to no client yet: name data.source."
                "client_column, or say statistics = 'pooled'"
            )
        parts: dict[str, NDArray[np.float32]] = {}
        for client in dict.fromkeys(owner.tolist()):
            rows = np.flatnonzero(owner == client)
            at = f"{where}: client '{client}'"
            fitted = _fitted(made, table.iloc[np.intersect1d(rows, train)], at)
            parts[client] = _checked(fitted, table.iloc[rows], at)
        widths = {client: part.shape[1] for client, part in parts.items()}
        first = next(iter(widths))
        other = next((c for c, w in widths.items() if w != widths[first]), None)
        if other is not None:
            raise UserError(
                f"{where}: client '{other}': {widths[other]} columns after preparing, and '{first}' has "
                f"{widths[first]}: name the values, as in OneHotEncoder(categories=[...]), or statistics = 'pooled'"
            )
        whole = np.zeros((len(table), widths[first]), np.float32)
        for client, part in parts.items():
            whole[owner == client] = part
        return whole

    def _transformer(self, table: Any, where: str) -> Any:
        made = self.how
        if made == AUTO:
            return Columns(table, where)
        if isinstance(made, str):
            made = import_path(made, "data.source.prepare", [AUTO])()
        if not all(callable(getattr(made, name, None)) for name in ("fit", "transform")):
            raise UserError(
                f"data.source.prepare: {made!r:.80}: must be 'auto', or a transformer with fit and transform, such as "
                "a ColumnTransformer, or the import path of a function that returns one"
            )
        return made


def _fitted(transformer: Any, rows: Any, where: str) -> Any:
    """Return a copy of a transformer that is fitted on these rows. Raises UserError if it cannot be."""
    with gated(f"{where}: data.source.prepare: cannot be fitted on {len(rows)} rows"):
        return copy.deepcopy(transformer).fit(rows)


def _checked(transformer: Any, rows: Any, where: str) -> NDArray[np.float32]:
    """Return what a fitted transformer makes of rows, ``[n, columns]``. Raises UserError unless they are finite."""
    with gated(f"{where}: data.source.prepare: its transform failed"):
        made = transformer.transform(rows)
        made = made.toarray() if hasattr(made, "toarray") else made
        features = made if isinstance(made, np.ma.MaskedArray) else np.asarray(made)
    if features.dtype.kind not in "biuf":
        raise UserError(f"{where}: data.source.prepare: made values of type {features.dtype}: numbers are needed")
    kept = np.isfinite(features) & ~np.ma.getmaskarray(features)
    if features.ndim != 2 or len(features) != len(rows) or not features.shape[1]:
        raise UserError(f"{where}: data.source.prepare: made {features.shape} of {len(rows)} rows: must be a row each")
    gaps = np.flatnonzero(~np.asarray(kept).all(axis=1))
    if len(gaps):
        said = f"{where}: data.source.prepare: left no finite number in {len(gaps)} rows"
        raise UserError(f"{said}: add an imputer, such as SimpleImputer()")
    for k, column in enumerate(np.asarray(features, dtype=np.float64).T):
        if line := lost(column, whole=features.dtype.kind in "iu"):
            raise UserError(f"{where}: data.source.prepare: column {k}: {line}")
    return np.asarray(features, dtype=np.float32)
