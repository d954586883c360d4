"""A chart's numbers as CSV, a row a mark: for other tools, and for readers who do not see the picture."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from typing import Any

import numpy as np

from hanse.reports.chart import Bars, Chart, Graph, Lines

__all__ = ["to_csv"]


def to_csv(chart: Chart) -> str:
    """Return the numbers of a chart, with a header; what is not known is empty."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    for row in _rows(chart):
        writer.writerow([_cell(value) for value in row])
    return out.getvalue()


def _rows(chart: Chart) -> Iterator[list[Any]]:
    marks = chart.marks
    if isinstance(marks, Lines):
        yield ["series", chart.x or "x", chart.y or "y", "low", "high"]
        for line in marks.lines:
            none = np.full(len(line.x), np.nan)
            low, high = (none if band is None else band for band in (line.low, line.high))
            yield from ([line.name, *row] for row in zip(line.x, line.y, low, high, strict=True))
    elif isinstance(marks, Bars):
        label, value = (chart.x, chart.y) if marks.upright else (chart.y, chart.x)
        yield ["series", label or "label", value or "value", "error"]
        for series in marks.series:
            errors = np.full(len(series.values), np.nan) if series.errors is None else series.errors
            yield from ([series.name, *row] for row in zip(marks.labels, series.values, errors, strict=True))
    elif isinstance(marks, Graph):
        yield ["from", "to", marks.unit]
        for i, j in np.argwhere(marks.weight > 0):
            yield [marks.names[i], marks.names[j], marks.weight[i, j]]
    else:
        yield [chart.y or "row", chart.x or "column", marks.scale]
        for name, numbers in zip(marks.rows, marks.numbers, strict=True):
            yield from ([name, column, number] for column, number in zip(marks.columns, numbers, strict=True))


def _cell(value: Any) -> Any:
    if isinstance(value, float | np.floating):
        return f"{value:.6g}" if np.isfinite(value) else ""
    # a spreadsheet would run what begins like a formula
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r") else value
