"""Values by name with their uncertainty (:class:`Worths`).

This is the common base of values outside a run and of a run's contributions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from hanse.core.table import Floats
from hanse.reports.digits import ends, listed, number, rounded
from hanse.reports.showing import Displayed, Picture, frame

if TYPE_CHECKING:
    import pandas as pd

TIE = 1e-9
"""Values closer than this share of the largest one are equal up to rounding."""
_MOST_BARS = 30  # of a picture: of more, the highest and the lowest


@dataclass(frozen=True, eq=False, repr=False)
class Worths(Displayed):
    """Numbers by name with their standard errors.

    Attributes:
        values: ``[n]`` float64.
        standard_errors: ``[n]``. 0: exact. NaN: not known.
        names: ``[n]``, the names of the values.
        half: ``[n]``, half the width of the 95 % intervals. With few units or orders it is more than 1.96 standard
            errors, by Student's t. 0: exact. NaN: not known.
    """

    values: Floats
    standard_errors: Floats
    names: tuple[str, ...]
    half: Floats = field(kw_only=True)

    title = "What each was worth"
    unit = "value"

    @property
    def intervals(self) -> Floats:
        """The 95 % intervals of the values, ``[n, 2]``.

        NaN if the error is not known, and for exact values, which have no error of their own.
        """
        half = np.where(self.half > 0, self.half, np.nan)
        return np.stack([self.values - half, self.values + half], axis=1)

    @property
    def order(self) -> list[int]:
        """The positions ``[n]`` from the highest value to the lowest."""
        return [int(i) for i in np.argsort(-self.values, kind="stable")]

    def notes(self) -> Sequence[str]:
        """Return sentences on how the numbers were computed, to show below the table."""
        return ()

    def sentences(self) -> Sequence[str]:
        """Return who was worth most and least, who may be above or below 0, and how the numbers were computed."""
        order, (low, high) = self.order, self.intervals.T
        best, worst = order[0], order[-1]
        level = TIE * np.abs(self.values[order]).max()
        ahead = [self.names[i] for i in order if self.values[best] - self.values[i] <= level]
        has = "has" if len(ahead) == 1 else "have"
        first = f"{listed(ahead)} {has} the highest value ({self._told(best)})"
        if len(ahead) < len(order):
            first += f", {self.names[worst]} the lowest ({self._told(worst)})"
        open_ = [self.names[i] for i in order if low[i] <= 0 <= high[i] and self.standard_errors[i] > 0]
        lines = [f"Whether above or below zero is not sure: {listed(open_)}."] if open_ else []
        return [f"{first}.", *lines, *self.notes()]

    def shown_table(self) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        """Return the headings and rows of name, value and 95 % interval, the highest value first."""
        known = np.isfinite([self._bears(i) for i in self.order])
        if not known.any():
            return ("", self.unit), [[self.names[i], self._told(i)] for i in self.order]
        rows = []
        for i in self.order:
            low, high = self.intervals[i]
            within = " to ".join(ends(low, high, self._bears(i))) if np.isfinite(self._bears(i)) else "–"
            rows.append([self.names[i], self._told(i), within])
        return ("", self.unit, "95 % interval"), rows

    def _bears(self, i: int) -> float:
        """Return the error by which a value and the ends of its interval are rounded; NaN if it has no interval.

        It is half the interval, or a tenth of that if its first digit is 1: rounded to that digit, 0.4 from -0.8 to 1.6
        would be 0 from -1 to 2.
        """
        half = float(self.half[i])
        if not (np.isfinite(self.values[i]) and np.isfinite(half) and half > 0):
            return np.nan
        return half / 10 if half < 2 * 10.0 ** np.floor(np.log10(half)) else half

    def _told(self, i: int) -> str:
        """Return a value with the digits that its error bears, the same wherever it is told."""
        if not np.isfinite(self._bears(i)):
            return number(self.values[i])
        return rounded(self.values[i], self._bears(i))

    def plot(self) -> Picture:
        """Return the values as bars with their 95 % intervals, the highest on top.

        If there are more than 30, it shows only both ends.
        """
        from hanse.reports.chart import Bars, Chart, Series, outermost  # here: whoever draws nothing need not load it

        kept = [self.order[i] for i in outermost(len(self.order), _MOST_BARS // 2, _MOST_BARS // 2)]
        left_out = len(self.order) - len(kept)
        half = self.half[kept]
        sure = bool((half > 0).any())
        caption = "How much each added." + (" Whiskers: the 95 % intervals." if sure else "")
        caption += f" The {left_out} between the highest and the lowest 15 are left out." if left_out else ""
        series = Series(self.unit, self.values[kept], half if sure else None)
        marks = Bars(tuple(self.names[i] for i in kept), (series,))
        return Picture(Chart("worth", "", self.title, caption, marks, x=self.unit))

    def to_pandas(self) -> pd.DataFrame:
        """Return a DataFrame with a row for each name, in the order given: value, low, high, standard_error.

        Raises:
            UserError: pandas is not installed.
        """
        columns = zip(self.names, self.values, self.intervals, self.standard_errors, strict=True)
        rows = [
            {"name": name, "value": v, "low": low, "high": high, "standard_error": e}
            for name, v, (low, high), e in columns
        ]
        return frame(rows, "name")
