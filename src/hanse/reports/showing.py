"""Displays answers in notebooks and terminals. :class:`Displayed` is the base of answers.

A notebook gets HTML with the sentences, the picture and the table. A terminal gets the sentences and the table. Names
that come from data are escaped everywhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from hanse.base.errors import library
from hanse.reports.words import environment

if TYPE_CHECKING:
    import pandas as pd

    from hanse.reports.chart import Chart

_MOST_ROWS = 40  # of a table in a notebook or a terminal; pandas has the rest


class Displayed:
    """An answer that displays itself. Subclasses implement the three methods below that raise NotImplementedError."""

    def sentences(self) -> Sequence[str]:
        """Return the answer in sentences. The first must make sense on its own."""
        raise NotImplementedError

    def shown_table(self) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        """Return the headings and the rows of the answer's table, as texts. The first column is a name."""
        raise NotImplementedError

    def plot(self) -> Chart:
        """Return the answer's picture, which a notebook displays and ``.save("chart.svg")`` writes."""
        raise NotImplementedError

    def __str__(self) -> str:
        first, *rest = self.sentences()
        return "\n".join([first, *_in_columns(*self.shown_table()), *rest])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        from hanse.reports.vega import image

        first, *rest = self.sentences()
        headings, rows = self.shown_table()
        table = {"headings": headings, "rows": rows[:_MOST_ROWS]}
        return shown([(first, "")], picture=image(self.plot()), **table, rest=[*_more(rows), *rest])


def shown(top: Iterable[tuple[str, str]], **more: Any) -> str:
    """Return what a notebook shows (HTML), in which all but the picture is text.

    Args:
        top: bold words, and what they are of.
        more: what ``shown.html.j2`` shows besides: a ``picture``, ``headings`` and ``rows`` of a table, the ``rest`` of
            the lines.
    """
    return environment().get_template("shown.html.j2").render(top=top, **more)


def _more(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a line on the rows that are not shown; nothing if all are."""
    return [f"and {len(rows) - _MOST_ROWS} more: .to_pandas() has all"] if len(rows) > _MOST_ROWS else []


def frame(rows: Sequence[dict[str, Any]], index: str | None = None) -> pd.DataFrame:
    """Return rows as a DataFrame, with a column as its index if one is named.

    Raises UserError if pandas is not installed.
    """
    pandas = library("pandas", "to_pandas: pandas is not installed: pip install pandas")
    made: pd.DataFrame = pandas.DataFrame(list(rows))
    return made if index is None else made.set_index(index)


def _in_columns(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a table as lines of text; none for a table without columns."""
    if not headings:
        return []
    whole = [headings, *rows[:_MOST_ROWS]]
    widths = [max(len(row[i]) for row in whole) for i in range(len(headings))]
    lines = [
        "  ".join(
            cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        )
        for row in whole
    ]
    return [*(f"  {line}".rstrip() for line in lines), *_more(rows)]
