"""Describes what a figure shows, independently of how it is drawn. The page and the PNG use the same description."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hanse.base.files import write_csv

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# Okabe and Ito's colours without yellow, which a white page swallows, and three more; the dash of a curve and its
# markers carry the same difference for print and for eyes that do not see these colours. Looks are places in this tuple
# (also in answers.py, the live page and the papers' figures.py): add colours at its end. The first one is also that of
# links in report.html.j2 and live.css.
COLOURS = (
    "#0072B2", "#D55E00", "#009E73", "#E69F00", "#CC79A7", "#56B4E9", "#000000", "#6A3D9A", "#8B4513", "#7D7D00",
)  # fmt: skip
DASHES = ((), (6, 4), (8, 3, 2, 3), (2, 3))
MOST_SHOWN = 40  # clients of a chart that shows them all
MARKERS = ("circle", "square", "triangle-up", "diamond", "triangle-down", "cross", "triangle-right", "triangle-left")


@dataclass(frozen=True)
class Curve:
    """A curve ``x [n]``, ``y [n]``, with or without a band ``low [n]`` to ``high [n]``. ``look``: see :func:`looks`.

    ``dots``: every point is drawn by itself, not joined to others, and its band as a whisker. ``left [n]`` to
    ``right [n]``: the same as the band, along x. ``hollow``: empty markers, for numbers that are not ours. ``bare``: no
    markers.
    """

    name: str
    x: Floats
    y: Floats
    low: Floats | None = None
    high: Floats | None = None
    look: int | None = None
    dots: bool = False
    left: Floats | None = None
    right: Floats | None = None
    hollow: bool = False
    bare: bool = False


@dataclass(frozen=True)
class Lines:
    """Curves over one axis.

    ``steps``: whether a value is drawn as constant until the next one. ``zero``: mark the line y = 0. ``whole``: the
    axis counts (rounds), so its ticks are whole numbers. ``hollow`` is the legend entry of hollow markers, one for all
    lines; lines with such markers have no entry of their own. ``places`` are the names of x = 0, 1, 2, ...; there are
    none if x is a number. ``named``: a single curve is named, too.
    """

    lines: tuple[Curve, ...]
    steps: bool = False
    zero: bool = False
    whole: bool = True
    hollow: str = ""
    places: tuple[str, ...] = ()
    named: bool = False


@dataclass(frozen=True)
class Series:
    """The bars of one kind, ``values [n]``. ``errors [n]`` are half the lengths of whiskers (NaN: none), or None."""

    name: str
    values: Floats
    errors: Floats | None = None
    look: int | None = None


@dataclass(frozen=True)
class Bars:
    """One bar per label, the first on top (or left if ``upright``); several series are stacked or side by side.
    ``whiskers`` says what half of a whisker is.
    """

    labels: tuple[str, ...]
    series: tuple[Series, ...]
    stacked: bool = False
    upright: bool = False
    whiskers: str = "half of 95 % interval"

    @property
    def counts(self) -> bool:
        """Whether all bars are whole numbers, so half a unit on the axis would be nonsense."""
        return all(bool((s.values == np.round(s.values)).all()) for s in self.series)


@dataclass(frozen=True)
class Chart:
    """One figure: ``key`` is its file name, ``caption`` says how to read it, ``x`` and ``y`` name the axes.

    Without a ``title`` the picture has none either.

    Examples:
        >>> line = Curve("FedAvg", np.arange(3), np.array([0.5, 0.7, 0.8]))
        >>> Chart("accuracy", "Quality", "Test accuracy", "Higher is better.", Lines((line,)), x="round").key
        'accuracy'
    """

    key: str
    section: str
    title: str
    caption: str
    marks: Lines | Bars
    _: KW_ONLY
    x: str = ""
    y: str = ""


def looks(items: Sequence[Curve | Series]) -> list[int]:
    """Return the number of each one's colour, dash, marker and hatch.

    It is the one's own ``look``, so that an experiment looks the same in every figure, or else its place.
    """
    return [i if item.look is None else item.look for i, item in enumerate(items)]


def colour(look: int) -> str:
    """Return the colour for the number of a look: those of ``COLOURS`` in turn."""
    return COLOURS[look % len(COLOURS)]


def even(count: int, most: int) -> Ints:
    """Return at most ``most`` positions ``[n]`` spread evenly over ``count``, including the first and the last."""
    if count <= most:
        return np.arange(count, dtype=np.int64)
    return np.unique(np.linspace(0, count - 1, most).round().astype(np.int64))


def outermost(count: int, first: int, last: int) -> list[int]:
    """Return the first and the last of ``count`` positions, or all of them if there are no more than that."""
    if count <= first + last:
        return list(range(count))
    return [*range(first), *range(count - last, count)]


def ticks(labels: Sequence[str], most: int) -> list[int]:
    """Return the positions of the labels to write: all if they are few, else evenly spread ones."""
    return [int(i) for i in even(len(labels), len(labels) if len(labels) <= most else min(most, 8))]


def natural(name: str) -> list[tuple[int, str]]:
    """Return a key that sorts "tier 10" after "tier 2"."""
    return [(int(x[:18]), x) if x.isdecimal() else (-1, x) for x in re.split(r"(\d+)", name)]


def slug(text: str) -> str:
    """Return the text as a part of a file name: at most 60 lower-case letters, digits, dots and dashes."""
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-.")[:60] or "x"


# ---- a chart's numbers


def to_csv(chart: Chart) -> str:
    """Return the numbers of a chart with ten digits, under a header. A number that is not known is left empty."""
    out = io.StringIO()
    write_csv(out, ([_cell(value) for value in row] for row in _rows_of(chart)))
    return out.getvalue()


def _rows_of(chart: Chart) -> Iterator[list[Any]]:
    """Yield the numbers of a chart as a table: first the headings, then the rows. NaN: not known."""
    marks = chart.marks
    if isinstance(marks, Lines):
        yield from _line_rows(chart, marks)
        return
    label, value = (chart.x, chart.y) if marks.upright else (chart.y, chart.x)
    yield ["series", label or "label", value or "value", marks.whiskers]
    for series in marks.series:
        errors = np.full(len(series.values), np.nan) if series.errors is None else series.errors
        rows = zip(marks.labels, series.values, errors, strict=True)
        # of stacked series a place without a number belongs to another one
        yield from ([series.name, *row] for row in rows if not (marks.stacked and np.isnan(row[1])))


def _line_rows(chart: Chart, marks: Lines) -> Iterator[list[Any]]:
    sideways = any(line.left is not None for line in marks.lines)
    along = ["left", "right"] if sideways else []
    yield ["series", chart.x or "x", chart.y or "y", "low", "high", *along]
    for line in marks.lines:
        none = np.full(len(line.x), np.nan)
        bands = [line.low, line.high, *([line.left, line.right] if sideways else [])]
        x = [marks.places[round(place)] for place in line.x] if marks.places else line.x
        known = [none if band is None else band for band in bands]
        yield from ([line.name, *row] for row in zip(x, line.y, *known, strict=True))


def _cell(value: Any) -> Any:
    """Return a number with ten digits; digits before the point are kept, up to 15."""
    if not isinstance(value, float | np.floating):
        return value
    if not np.isfinite(value):
        return ""
    return f"{value:.0f}" if 1e10 <= abs(float(value)) < 1e15 else f"{value:.10g}"
