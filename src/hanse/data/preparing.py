"""Converts a table's columns to numbers: fills gaps, scales numbers, encodes words and dates.

:class:`Columns` (``prepare = "auto"``) works like :mod:`hanse.data.tables`. Any other object with ``fit`` and
``transform``, such as a scikit-learn ``ColumnTransformer``, can be used instead. No preparation ever sees labels.

**Whose statistics.** With ``statistics = "own"``, means, deviations and fill values are those of each client's own
rows, so nothing is disclosed. With "pooled", they are computed from all clients' rows. This assumes that members may
add up their sums before round 0. Members must agree on columns, words and gaps in any case.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from hanse.base.errors import UserError, collected, gated, import_path
from hanse.base.factories import Rate
from hanse.core.declared import Figure
from hanse.data.kinds import held, lost, objects

AUTO = "auto"
FARTHEST = 5.0
"""Numbers are clipped at this many deviations from their mean, so a single huge one does not dominate a step."""
MOST_KINDS = 50
"""Different words in a column that becomes one column for each."""
DAY = 86_400
"""Seconds of a day."""

Statistics = Literal["own", "pooled"]
Matrix = NDArray[np.float32]


def scaled(values: NDArray[np.float64], of: tuple[float, float], gaps: bool) -> list[Matrix]:
    """Return a column of numbers scaled to mean 0 and deviation 1, and cut at 5 deviations; a gap becomes the mean.

    Args:
        values: ``[n]``, NaN for a gap.
        of: the mean and the deviation, as :func:`spread` returns them.
        gaps: whether to add a column that marks the gaps.
    """
    missing = np.isnan(values)
    made = [np.where(missing, 0.0, (values - of[0]) / of[1]).clip(-FARTHEST, FARTHEST).astype(np.float32)]
    return [*made, missing.astype(np.float32)] if gaps else made


def spread(values: NDArray[np.float64]) -> tuple[float, float]:
    """Return the mean and the deviation of numbers ``[n]``, without gaps: 0 and 1 if there are none, and a deviation of
    1 if all are the same.
    """
    real = values[np.isfinite(values)]
    return (float(real.mean()), float(real.std()) or 1.0) if len(real) else (0.0, 1.0)


@dataclass(frozen=True)
class TableColumn:
    """What a column holds, and how it becomes numbers.

    Attributes:
        kind: "numbers" are scaled; of "words", each gets a 0/1 column; "dates" become scaled days, and points on
            circles for season, weekday and time of day.
        unit: the unit of numbers, such as "mm Hg", for readers.
        words: the words, in the order of their columns.
        gaps: whether there may be gaps, which a further column marks. A gap in words is none of them.
        clock: whether dates have a time of day.
        mean: the agreed mean of numbers, or days since 1970. None: that of a client's own train rows.
        deviation: the agreed deviation, with ``mean``.
    """

    kind: Literal["numbers", "words", "dates"]
    unit: str = ""
    words: list[str] = field(default_factory=list)
    gaps: bool = False
    clock: bool = False
    mean: Figure | None = None
    deviation: Rate | None = None

    def of(self, values: NDArray[Any]) -> tuple[float, float]:
        """Return the mean and the deviation by which values are scaled: as agreed, or those of these values."""
        if self.mean is not None and self.deviation is not None:
            return self.mean, self.deviation
        return (0.0, 1.0) if self.kind == "words" else spread(values / DAY if self.kind == "dates" else values)

    def features(self, values: NDArray[Any], of: tuple[float, float]) -> list[Matrix]:
        """Return the column's features, ``[n]`` each.

        Args:
            values: ``[n]``: numbers, NaN for a gap; words, None for a gap; or dates as seconds since 1970.
            of: the mean and the deviation, as :meth:`of` returns them.
        """
        if self.kind == "words":
            return [np.asarray(values == word, np.float32) for word in self.words]
        if self.kind == "numbers":
            return scaled(values, of, self.gaps)
        there = ~np.isnan(values)
        days = values[there] / DAY
        turns = [days % 365.2425 / 365.2425, np.floor(days) % 7 / 7, *([days % 1] if self.clock else [])]
        made = scaled(values / DAY, of, self.gaps)
        for circle in [wave(2 * np.pi * turn) for turn in turns for wave in (np.sin, np.cos)]:
            made.append(np.zeros(len(values), np.float32))
            made[-1][there] = circle
        return made


class Columns:
    """Columns of a table as numbers; the type of a column decides how it is converted (:class:`TableColumn`).

    Args:
        frame: the whole table of features, which determines the columns.
        where: the text with which messages begin.

    Raises:
        UserError: a column of more than 50 different words, or one without any value.
    """

    def __init__(self, frame: Any, where: str = "data") -> None:
        self._columns: dict[Any, TableColumn] = {}
        self._of: dict[Any, tuple[float, float]] = {}
        lines: list[str] = []
        for name in frame.columns:
            with collected(lines):
                self._columns[name] = _column(frame[name], f"{where}: column '{name}'")
        if lines:
            raise UserError(*lines)

    def fit(self, frame: Any) -> Columns:
        """Compute means and deviations of these rows."""
        self._of = {name: one.of(_values(frame[name], one.kind)) for name, one in self._columns.items()}
        return self

    def transform(self, frame: Any) -> Matrix:
        """Return the features ``[rows, columns]`` float32."""
        made = [
            column
            for name, one in self._columns.items()
            for column in one.features(_values(frame[name], one.kind), self._of[name])
        ]
        return np.stack(made, axis=1) if made else np.zeros((len(frame), 0), np.float32)


def _column(column: Any, where: str) -> TableColumn:
    """Return what a column holds. Raises UserError if it becomes no numbers."""
    found = held(column, where)
    gaps, line = bool(found.gaps.any()), ""
    if found.gaps.all():
        line = "has no value in any row: leave it out of the features"
    elif found.kind == "dates":
        return TableColumn("dates", gaps=gaps, clock=bool((_values(column.dropna(), "dates") % DAY != 0).any()))
    elif found.kind != "words" and not found.category:
        if (endless := np.isinf(found.values)).any():
            line = f"infinite in {int(endless.sum())} of {len(endless)} rows: make them gaps, or drop these rows"
        elif not (line := lost(found.values, whole=found.kind == "whole", fine=False)):
            return TableColumn("numbers", gaps=gaps)
    elif len(words := sorted({*_values(column, "words").tolist()} - {None})) > MOST_KINDS:
        line = (
            f"{len(words)} different words, such as {words[0]!r}; at most {MOST_KINDS} become columns: if it says of "
            "whom each row is, name it as data.source.group; else put words together, or leave the column out"
        )
    else:
        return TableColumn("words", words=words)
    raise UserError(f"{where}: {line}")


def _values(column: Any, kind: str) -> NDArray[Any]:
    """Return a pandas column as :meth:`TableColumn.features` takes it; dates in the clock of their own time zone."""
    if kind == "words":
        return np.array([None if one is None else str(one) for one in objects(column)], object)
    if kind == "dates":
        if getattr(column.dt, "tz", None) is not None:
            column = column.dt.tz_localize(None)
        seconds = column.to_numpy(dtype="datetime64[s]")
        return np.where(np.isnat(seconds), np.nan, seconds.astype(np.int64))
    if getattr(column.dtype, "kind", "O") in "biuf":
        return np.asarray(column.to_numpy(dtype=np.float64, na_value=np.nan))
    return np.array([np.nan if one is None else float(one) for one in objects(column)], np.float64)


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
        whole: NDArray[np.float32] | None = None
        for client in dict.fromkeys(owner.tolist()):
            rows = np.flatnonzero(owner == client)
            at, own = f"{where}: client '{client}'", np.intersect1d(rows, train)
            if not len(own):
                raise UserError(f"{at}: has no row to train on, of which its statistics could be: say 'pooled'")
            fitted = _fitted(made, table.iloc[own], at)
            part = _checked(fitted, table.iloc[rows], at)
            if whole is None:
                whole = np.zeros((len(table), part.shape[1]), np.float32)
            if part.shape[1] != whole.shape[1]:
                raise UserError(
                    f"{at}: {part.shape[1]} columns after preparing, and others have {whole.shape[1]}: name the "
                    "values, as in OneHotEncoder(categories=[...]), or statistics = 'pooled'"
                )
            whole[rows] = part
        assert whole is not None  # a table has rows
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
    if features.dtype.kind not in "biuf" or features.ndim != 2 or len(features) != len(rows) or not features.shape[1]:
        what = f"{features.dtype} {features.shape} of {len(rows)} rows"
        raise UserError(f"{where}: data.source.prepare: made {what}: must be numbers, a row each")
    gaps = ~np.isfinite(features) | np.ma.getmaskarray(features)
    if count := int(np.asarray(gaps).any(axis=1).sum()):
        said = f"{where}: data.source.prepare: left no finite number in {count} rows"
        raise UserError(f"{said}: add an imputer, such as SimpleImputer()")
    for k, column in enumerate(np.asarray(features, dtype=np.float64).T):
        if line := lost(column, whole=features.dtype.kind in "iu"):
            raise UserError(f"{where}: data.source.prepare: column {k}: {line}")
    return np.asarray(features, dtype=np.float32)
