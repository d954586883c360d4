"""Displays answers in notebooks and terminals. :class:`Picture` is a chart, and :class:`Displayed` the base of answers.

A notebook gets HTML with the sentences, the picture and the table. A terminal gets the sentences and the table. Names
that come from data are escaped everywhere.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hanse.base.errors import UserError, library
from hanse.base.files import given_path, write_whole
from hanse.reports.words import environment

if TYPE_CHECKING:
    import pandas as pd

    from hanse.reports.chart import Chart

_MOST_ROWS = 40  # of a table in a notebook or a terminal; pandas has the rest


@dataclass(frozen=True, repr=False)
class Picture:
    """A chart that a notebook displays and that can be saved.

    Attributes:
        chart: the chart's description.

    Examples:
        >>> import hanse, numpy as np
        >>> picture = hanse.value({"Bremen": np.array([1.0]), "Visby": np.array([3.0])}, lambda model: model[0]).plot()
        >>> picture.to_vegalite()["title"]["text"]
        ['What each was worth']
    """

    chart: Chart

    def to_vegalite(self) -> dict[str, Any]:
        """Return the chart as a Vega-Lite specification, ready for ``json.dumps``."""
        from hanse.reports.vega import to_vegalite  # here: the drawing library is loaded by whoever draws

        return to_vegalite(self.chart)

    def to_svg(self) -> str:
        """Return the chart as an SVG document. Raises DrawingError if it cannot be drawn here."""
        from hanse.reports.vega import to_svg

        return to_svg(self.to_vegalite())

    def save(self, path: str | Path) -> Path:
        """Write the chart as SVG, PNG, CSV (its numbers) or JSON (its specification), by the file's name.

        Raises:
            UserError: the name has another ending.
            OSError: the file cannot be written.
        """
        from hanse.reports.chart import to_csv

        file = given_path("path", path)
        writers: dict[str, Callable[[], str | bytes]] = {
            ".svg": self.to_svg,
            ".png": self.to_png,
            ".csv": lambda: to_csv(self.chart),
            ".json": lambda: json.dumps(self.to_vegalite(), indent=1),
        }
        if file.suffix not in writers:
            raise UserError(f"{file}: must end in one of {', '.join(writers)}")
        write_whole(file, writers[file.suffix]())
        return file

    def to_png(self) -> bytes:
        """Return the chart as a PNG, which a notebook that runs no scripts displays through IPython's ``Image``."""
        from hanse.reports.vega import to_png

        return to_png(self.to_svg())

    def __repr__(self) -> str:
        return f"<a chart, '{self.chart.title}': shown in a notebook, or written by .save('chart.svg')>"

    def _repr_svg_(self) -> str:
        return self.to_svg()


class Displayed:
    """An answer that displays itself. Subclasses implement the three methods below that raise NotImplementedError."""

    def sentences(self) -> Sequence[str]:
        """Return the answer in sentences. The first must make sense on its own."""
        raise NotImplementedError

    def shown_table(self) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        """Return the headings and the rows of the answer's table, as texts. The first column is a name."""
        raise NotImplementedError

    def plot(self) -> Picture:
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
        return shown([(first, "")], picture=image(self.plot().chart), **table, rest=[*_more(rows), *rest])


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
