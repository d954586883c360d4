"""Splits by units: a patient's rows stay together, and later rows are never trained on.

A *unit* is what would be drawn anew if the data were collected again: a patient, not one of its rows. Without units and
times, splits are those of :func:`hanse.data.dataset.stratified_split`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from hanse.base.errors import UserError
from hanse.base.streams import stream
from hanse.data.kinds import ALIKE, alike, first_few, held, objects, plain, rows_of, with_clock

Ints = NDArray[np.int64]
Cut = Literal["each_client", "all_clients"]
"""Whether every client's rows are cut at a date of their own, or all at one date."""
SHARES = ("train", "validation", "test")
"""The shares of a client's samples."""
NONE = "none"
"""In the place of a column of units: every row is a unit of its own."""
FEW_UNITS = 10
"""Units of a test set below which an interval is hardly worth its name."""


def units_of(values: Any, where: str) -> NDArray[Any]:
    """Return the unit of each row as text, ``[n]``: 1 and "1" are the same.

    Raises:
        UserError: a row has none, or two differ by upper and lower case only, as nobody's ids do.
    """
    if isinstance(values, str | Mapping) or np.ndim(values) != 1:
        raise UserError(f"{where}: {values!r:.80}: must be a list or an array of one unit for each row")
    given = objects(values)
    if len(gaps := np.flatnonzero([one is None for one in given])):
        raise UserError(f"{where}: no unit in {rows_of(gaps, None)}: give each a value of its own, or drop them")
    units = np.array([plain(one) for one in given], dtype=np.str_)
    if both := alike((one, 0) for one in np.unique(units).tolist()):
        raise UserError(f"{where}: the units {both} cannot be told apart reliably: {ALIKE}")
    return units


def times_of(column: Any, where: str) -> NDArray[np.float64]:
    """Return dates as seconds since 1970, or numbers as they are, ``[n]``. Raises UserError for anything else."""
    found = held(column, where)
    numbers = found.kind in ("numbers", "whole") and not found.text
    if not (numbers or found.kind == "dates"):
        raise UserError(f"{where}: holds {found.kind}: a time is a date, as pandas.to_datetime makes, or a number")
    if (odd := found.gaps | np.isinf(found.values)).any():
        raise UserError(f"{where}: no time in {rows_of(np.flatnonzero(odd), None)}; fill them, or drop these rows")
    if numbers:
        return found.values
    column = with_clock(column)
    if getattr(getattr(column, "dt", None), "tz", None) is not None:
        column = column.dt.tz_convert(None)  # in UTC: a clock that is set back has an hour twice
    return np.asarray(column.astype("datetime64[us]")).astype(np.int64) / 1e6


def numbered(values: NDArray[Any]) -> Ints:
    """Return values ``[n]`` as numbers from 0 on, in the order of the different ones.

    Examples:
        >>> numbered(np.array(["b", "a", "b"])).tolist()
        [1, 0, 1]
    """
    return np.unique(values, return_inverse=True)[1].astype(np.int64)


def rows_of_each(numbers: Ints, count: int = 0) -> list[Ints]:
    """Return the rows with each number from 0 on, sorted; of ``count`` numbers at least.

    Examples:
        >>> [rows.tolist() for rows in rows_of_each(np.array([1, 0, 1]))]
        [[1], [0, 2]]
    """
    ends = np.cumsum(np.bincount(numbers, minlength=count))
    return np.split(np.argsort(numbers, kind="stable"), ends[:-1])


def at_several(units: Ints, owner: Ints) -> int:
    """Return how many units have rows of several owners."""
    one_of = np.zeros(units.max(initial=-1) + 1, np.int64)
    one_of[units] = owner
    return int(np.count_nonzero(np.bincount(units[owner != one_of[units]])))


def shrunk(sets: Mapping[str, tuple[int, int]]) -> list[str]:
    """Return a warning on test sets with less than half of the rows that their shares would be; nothing if none is so.

    Args:
        sets: how many rows each has, by name, and how many its share of all rows would be.
    """
    few = [f"{name}: {rows:,} rows, not {share:,}" for name, (rows, share) in sets.items() if 2 * rows < share]
    return [f"data: test sets that group or time leave less than half of: {first_few(few)}"] if few else []


def split_units(
    owner: Ints, labels: Ints | None, share: float, draw: np.random.Generator, units: Ints
) -> tuple[Ints, Ints]:
    """Split rows into a rest and a cut so that no unit is in both.

    Units are visited in random order. One is cut if that brings every class of every owner closer to its share, and
    after that, if it brings every owner closer: classes stay stratified as far as units allow.

    Args:
        owner: ``[n]``, from 0 on, the client of each row, whose share is to be met.
        labels: ``[n]``, the class of each row. None: there are no classes.
        share: the part of the rows that is cut, 0 to below 1.
        draw: the random generator.
        units: ``[n]``, the unit of each row.

    Returns:
        Two sorted index arrays ``(rest, cut)``. The cut may be empty if there are too few units.

    Examples:
        >>> patients = np.repeat(np.arange(5), 2)
        >>> rest, cut = split_units(np.zeros(10, np.int64), None, 0.4, np.random.default_rng(0), patients)
        >>> len(rest), len(cut), np.intersect1d(patients[rest], patients[cut]).size
        (6, 4, 0)
    """
    if share == 0 or not len(units):
        return np.arange(len(units)), np.arange(0)
    unit_of = numbered(units)
    count = int(unit_of.max()) + 1
    order, chosen = draw.permutation(count).tolist(), np.zeros(count, bool)
    cells = [] if labels is None else [np.unique(np.stack([owner, labels]), axis=1, return_inverse=True)[1].reshape(-1)]
    for cell_of in (*cells, numbered(owner)):
        (of, cell), rows = np.unique(np.stack([unit_of, cell_of]), axis=1, return_counts=True)
        ends = np.searchsorted(of, np.arange(count + 1)).tolist()
        wanted = share * np.bincount(cell_of) - np.bincount(cell_of[chosen[unit_of]], minlength=cell_of.max() + 1)
        for unit in order:
            own = slice(ends[unit], ends[unit + 1])
            left, size = wanted[cell[own]], rows[own]
            # the squared distances to what is wanted become less
            if not chosen[unit] and (size * (2 * left - size)).sum() > 0:
                wanted[cell[own]] -= size
                chosen[unit] = True
    return np.flatnonzero(~chosen[unit_of]), np.flatnonzero(chosen[unit_of])


def split_times(
    owner: Ints, time: NDArray[np.float64], share: float, cut: Cut, draw: np.random.Generator, units: Ints | None = None
) -> tuple[Ints, Ints]:
    """Split rows into those before a date and those from it on; rows of one time stay together, on the later side.

    Args:
        owner: ``[n]``, the client of each row.
        time: ``[n]``, when each row was observed.
        share: the part of the rows that lies after the date, at least.
        cut: whether the date is each client's own, or one for all.
        draw: the random generator.
        units: ``[n]``, the unit of each row. Of the units with rows on both sides, the share that is drawn keeps its
            later rows, and each other one its earlier rows; their other rows are in neither part.

    Returns:
        Two sorted index arrays ``(earlier, later)``.

    Examples:
        >>> times = np.array([3.0, 1.0, 2.0, 2.0, 1.0])
        >>> split_times(np.zeros(5, np.int64), times, 0.4, "each_client", np.random.default_rng(0))
        (array([1, 4]), array([0, 2, 3]))
    """
    later = np.zeros(len(time), bool)
    groups: Sequence[Ints] = [np.arange(len(time))]
    if cut == "each_client":
        groups = rows_of_each(owner)
    for rows in groups:
        if (size := int(len(rows) * share)) > 0:
            later[rows] = time[rows] >= np.sort(time[rows])[-size]
    earlier = ~later
    if units is not None:
        both = np.flatnonzero(np.isin(units, np.intersect1d(units[earlier], units[later])))
        before, after = split_units(owner[both], None, share, draw, units[both])
        earlier[both[after]], later[both[before]] = False, False
    return np.flatnonzero(earlier), np.flatnonzero(later)


@dataclass(frozen=True)
class Divisible:
    """What a split of rows has to keep: whose they are, of which classes, of what, and when they were observed.

    Attributes:
        owner: ``[n]``, from 0 on, the client of each row.
        labels: ``[n]``, the class of each row. None: there are no classes.
        units: ``[n]``, the unit of each row. None: there are none.
        time: ``[n]``, when each row was observed. None: that is not said.
        cut: whether the date is each client's own, or one for all.
    """

    owner: Ints
    labels: Ints | None
    units: Ints | None
    time: NDArray[np.float64] | None
    cut: Cut = "each_client"

    def take(self, rows: Ints) -> Divisible:
        """Return these of the rows."""
        arrays: dict[str, Any] = {name: one[rows] for name, one in vars(self).items() if isinstance(one, np.ndarray)}
        return replace(self, **arrays)

    def split(self, share: float, draw: np.random.Generator) -> tuple[Ints, Ints]:
        """Split rows by time if there is one, else by units, as the two functions above do."""
        if self.time is not None:
            return split_times(self.owner, self.time, share, self.cut, draw, self.units)
        assert self.units is not None  # without either, rows are split one by one
        return split_units(self.owner, self.labels, share, draw, self.units)

    def shares(self, client_test: float, client_validation: float, seed: int) -> NDArray[np.int8]:
        """Return the share of its client that each row is in, ``[n]``: 0, 1 or 2 for train, validation or test, and -1
        for rows of units with rows on the other side of a date.
        """
        left, made = np.arange(len(self.owner)), np.full(len(self.owner), -1, np.int8)
        for kind, name, share in ((2, "test", client_test), (1, "validation", client_validation / (1 - client_test))):
            rest, taken = self.take(left).split(share, stream(seed, f"shares of units: {name}"))
            made[left[taken]], left = kind, left[rest]
        made[left] = 0
        return made
