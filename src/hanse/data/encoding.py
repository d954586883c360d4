"""Converts a table's columns to numbers: fills gaps, scales numbers, encodes words and dates.

:class:`TableColumn` says what a column is: it is drafted from what the column holds (:mod:`hanse.data.kinds` decides
that), stands in a schema (:mod:`hanse.data.schema`), or is known (:mod:`hanse.data.tables`). It reads the text of a
file, and :func:`encoded` makes features by it. Any object with ``fit`` and ``transform``, such as a scikit-learn
``ColumnTransformer``, can be used instead (:class:`Prepare`). No preparation ever sees labels.

**Whose statistics.** With ``statistics = "own"``, means, deviations and fill values are those of each client's own
rows, so nothing is disclosed. With "pooled", they are computed from all clients' rows. This assumes that members may
add up their sums before round 0. Members must agree on columns, words and gaps in any case.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from hanse.base.errors import UserError, gated
from hanse.base.factories import Rate
from hanse.base.imports import import_path
from hanse.core.declared import Figure
from hanse.data.kinds import Form, Held, Kind, lost, number, seconds
from hanse.data.remedies import IN_PYTHON, Remedies
from hanse.data.units import numbered, rows_of_each

AUTO = "auto"
FARTHEST = 5.0
"""Numbers are clipped at this many deviations from their mean, so a single huge one does not dominate a step."""
MOST_KINDS = 50
"""Different words in a column that becomes one column for each."""
DATE = "a date such as 2024-03-31"
"""What a text of a column of dates may be, in words."""
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
    if len(real) and real.min() < real.max():
        return float(real.mean()), float(real.std()) or 1.0
    return (float(real[0]) if len(real) else 0.0), 1.0  # the mean of equal numbers may lie beside them, by rounding


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

    kind: Form
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

    def agreed(self, mean: float, deviation: float) -> TableColumn:
        """Return the column with a mean and a deviation as all members see them: the deviation to three digits, and the
        mean to the same place, so that numbers far from 0 are not moved by deviations.
        """
        shown = float(f"{deviation:.3g}")
        return replace(self, mean=round(mean, 2 - math.floor(math.log10(shown))), deviation=shown)

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

    @property
    def allowed(self) -> str:
        """What a text of the column may be, in words."""
        if self.kind == "words":
            return f"one of {', '.join(self.words)}"
        unit = f" in {self.unit}" if self.unit else ""
        return DATE if self.kind == "dates" else f"a number{unit}"

    def value(self, text: str) -> Any:
        """Return the value that a text is: a word, a number, or seconds since 1970. Raises ValueError if it is none."""
        if self.kind != "words":
            return seconds(text) if self.kind == "dates" else number(text, self.unit)
        if text not in self.words:
            raise ValueError
        return text

    @staticmethod
    def drafted(
        kind: Kind, values: NDArray[Any], gaps: bool, where: str, say: Remedies = IN_PYTHON, unit: str = ""
    ) -> TableColumn:
        """Return what a column is. Raises UserError if it becomes no features.

        Args:
            kind: what it holds.
            values: what it holds but for gaps, ``[n]``, as :meth:`features` takes it.
            gaps: whether there are gaps.
            where: what the message begins with.
            say: what to do about it.
            unit: the unit of numbers.
        """
        if not len(values):
            raise UserError(f"{where}: has no value in any row: {say.leave_out}")
        if kind == "dates":
            return TableColumn("dates", gaps=gaps, clock=bool((values % DAY != 0).any()))
        if kind != "words":
            return TableColumn("numbers", unit, gaps=gaps)
        if len(words := sorted({*values.tolist()})) > MOST_KINDS:
            such = f"{len(words)} different words, such as {words[0]!r}; at most {MOST_KINDS} become columns"
            raise UserError(f"{where}: {such}: {say.many}")
        return TableColumn("words", words=words, gaps=gaps)


def drafted(table: Mapping[Any, Held], where: str) -> dict[Any, TableColumn]:
    """Return what the columns of a table are. Raises UserError for one that becomes no features."""
    return {
        name: TableColumn.drafted(one.kind, one.values[~one.gaps], bool(one.gaps.any()), f"{where}: column '{name}'")
        for name, one in table.items()
    }


def encoded(columns: Mapping[Any, TableColumn], values: Mapping[Any, NDArray[Any]], train: NDArray[Any]) -> Matrix:
    """Return a table's features ``[n, columns]``, scaled as agreed or by the rows ``train``.

    Args:
        columns: what each column is.
        values: what each holds ``[n]``, as :meth:`TableColumn.features` takes it.
        train: the rows whose statistics count, as numbers or ``[n]`` true and false.
    """
    made = [x for name, one in columns.items() for x in one.features(values[name], one.of(values[name][train]))]
    return np.stack(made, axis=1)


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

    def features(self, table: Any, owner: NDArray[Any] | None, train: NDArray[np.bool_], where: str) -> NDArray[Any]:
        """Return a table as features ``[n, columns]``.

        Args:
            table: the columns of features: for "auto" what each holds (:class:`hanse.data.kinds.Held`), by name; for a
                transformer a pandas DataFrame.
            owner: ``[n]``, each row's client. None: the clients are not known.
            train: ``[n]``, which rows are for fitting.
            where: the text with which messages begin.

        Raises:
            UserError: the transformer cannot be made or used, or clients' columns differ.
        """
        groups = [(where, np.arange(len(train)))]
        if self.statistics == "own":
            if owner is None:
                raise UserError(
                    f"{where}: data.source.statistics: 'own': the rows belong to no client yet: name data.source."
                    "client_column, or say statistics = 'pooled'"
                )
            each = sorted(rows_of_each(numbered(owner)), key=lambda rows: int(rows[0]))
            groups = [(f"{where}: client '{owner[rows[0]]}'", rows) for rows in each]
        columns = drafted(table, where) if self.how == AUTO else {}
        transformer = None if self.how == AUTO else self._transformer()
        parts: list[NDArray[Any]] = []
        for at, rows in groups:
            if not train[rows].any():
                raise UserError(f"{at}: has no row to train on, of which its statistics could be: say 'pooled'")
            if transformer is None:
                parts.append(encoded(columns, {name: table[name].values[rows] for name in columns}, train[rows]))
            else:
                parts.append(_transformed(transformer, table.iloc[rows], train[rows], at))
            if (width := parts[-1].shape[1]) != parts[0].shape[1]:
                raise UserError(
                    f"{at}: {width} columns after preparing, and others have {parts[0].shape[1]}: name the values, as "
                    "in OneHotEncoder(categories=[...]), or statistics = 'pooled'"
                )
        return np.concatenate(parts)[np.argsort(np.concatenate([rows for _, rows in groups]))]

    def _transformer(self) -> Any:
        made = self.how
        if isinstance(made, str):
            made = import_path(made, "data.source.prepare", [AUTO])()
        if not all(callable(getattr(made, name, None)) for name in ("fit", "transform")):
            raise UserError(
                f"data.source.prepare: {made!r:.80}: must be 'auto', or a transformer with fit and transform, such as "
                "a ColumnTransformer, or the import path of a function that returns one"
            )
        return made


def _transformed(transformer: Any, table: Any, train: NDArray[np.bool_], where: str) -> NDArray[np.float64]:
    """Return what a copy of a transformer, fitted on rows, makes of a table, ``[n, columns]``, NaN for masked entries.

    Args:
        transformer: has ``fit`` and ``transform``.
        table: a pandas DataFrame.
        train: ``[n]``, the rows for fitting.
        where: the text with which messages begin.
    """
    what = f"{where}: data.source.prepare"
    with gated(f"{what}: cannot be fitted on {train.sum()} rows, or used on {len(table)}"):
        given = copy.deepcopy(transformer).fit(table[train]).transform(table)
        given = np.ma.asarray(given.toarray() if hasattr(given, "toarray") else given)
    if given.dtype.kind not in "biuf" or given.ndim != 2 or len(given) != len(table) or not given.shape[1]:
        raise UserError(f"{what}: made {given.dtype} {given.shape} of {len(table)} rows: must be numbers, a row each")
    made: NDArray[np.float64] = np.ma.filled(given.astype(np.float64), np.nan)
    for k, column in enumerate(made.T if given.dtype.kind in "iu" else ()):
        if line := lost(column, whole=True):
            raise UserError(f"{what}: column {k}: {line}")
    return made
