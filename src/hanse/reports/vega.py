"""Draws a chart, as a Vega-Lite specification.

From this are made the pictures of pages, and their PNG and SVG files: the same drawing, small enough for a phone.

A specification is data, which :func:`to_vegalite` makes; :func:`to_svg` and :func:`save` draw it without a browser.
Names that a stranger chose (of clients, experiments, metrics) are only in data sets and parameters, never in a field's
name or an expression. They can therefore never be more than text.
"""

from __future__ import annotations

import base64
import json
import math
import re
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from hanse.base.errors import MachineError, first_line
from hanse.base.files import write_whole
from hanse.reports.chart import DASHES, MARKERS, Bars, Chart, Curve, Lines, Series, colour, looks, ticks
from hanse.reports.words import environment

Spec = dict[str, Any]

VEGA_LITE = "6.4"  # the version that vl_convert compiles with
WIDTH = 400  # pixels of a drawing, without what stands beside it
HEIGHT = 240  # of curves and columns; rows have one each
SCALE = 2  # of a PNG, in pixels of the file a pixel of the drawing
_TITLE = 58  # letters of a title that a drawing's width has room for
_SEEN = 0.005  # of the longest bar; a shorter one is a tick
_MARKED = 12  # markers on a curve of many points


# ---- what the drawing is written to


def to_vegalite(chart: Chart) -> Spec:
    """Return a chart as a Vega-Lite specification: plain data, ready for ``json.dumps``."""
    marks = chart.marks
    given = {"bars": True, **_bars(marks)} if isinstance(marks, Bars) else {"bars": False, **_lines(marks)}
    given["title"] = textwrap.wrap(chart.title, _TITLE, break_on_hyphens=False)
    given["titles"] = {"x": chart.x or None, "y": chart.y or None}
    spec = json.loads(environment().get_template("chart.json.j2").render(given, width=WIDTH))
    spec["layer"] = [layer for layer in spec["layer"] if layer.pop("when")]
    return drawable(spec)  # type: ignore[no-any-return]


class DrawingError(MachineError):
    """A chart that the drawing library could not draw. The message says why."""


def _draw(convert: str, *given: Any, **options: Any) -> Any:
    """Return the result of a function of the drawing library. Raises DrawingError for any exception."""
    import vl_convert  # late: most commands draw nothing

    try:
        return getattr(vl_convert, convert)(*given, **options)
    except Exception as wrong:
        raise DrawingError(f"the chart could not be drawn: {first_line(wrong)}") from wrong


def to_svg(spec: Spec) -> str:
    """Return a specification as an SVG document.

    The same specification gives the same document. Texts in it stay texts.

    Raises DrawingError: the library cannot draw it.
    """
    svg = str(_draw("vegalite_to_svg", spec, vl_version=VEGA_LITE))
    # the library counts its clips and gradients on from drawing to drawing: here they begin at 0
    numbers: dict[str, str] = {}

    def counted(tag: re.Match[str]) -> str:
        """Return a tag with its numbers counted from 0."""
        return _COUNTED.sub(lambda found: found[1] + numbers.setdefault(found[2], str(len(numbers))), tag[0])

    # only in tags: a name that looks like such a reference stays what it is
    return _TAG.sub(counted, svg)


_TAG = re.compile("<[^>]*>")
_COUNTED = re.compile(r'((?:id="|url\(#)(?:clip|gradient_))(\d+)')


def to_png(svg: str) -> bytes:
    """Return an SVG document as a PNG."""
    return bytes(_draw("svg_to_png", svg, scale=SCALE))


def image(chart: Chart, svg: str | None = None) -> Markup:
    """Return a chart as an element of a page without scripts, described by its caption.

    Args:
        chart: the chart; without a title it has none in the picture either.
        svg: its drawing, where there is one already.

    Raises DrawingError as :func:`to_svg` does.
    """
    data = base64.b64encode((to_svg(to_vegalite(chart)) if svg is None else svg).encode()).decode()
    return Markup('<img alt="{}" src="data:image/svg+xml;base64,{}">').format(drawable(chart.caption), data)


def save(chart: Chart, folder: Path) -> str:
    """Write ``folder/KEY.png`` and ``folder/KEY.svg``, and return the latter. The same chart gives the same bytes.

    Raises OSError, and DrawingError as :func:`to_svg` does. Neither file is written then.
    """
    svg = to_svg(to_vegalite(chart))
    write_whole(folder / f"{chart.key}.png", to_png(svg))
    write_whole(folder / f"{chart.key}.svg", svg.encode())
    return svg


# ---- lines and bars: what their template (chart.json.j2) takes


def _lines(marks: Lines) -> Spec:
    """Return what is drawn of lines: each with its band and markers; what is apart (dots), markers and whiskers."""
    lines, look = marks.lines, looks(marks.lines)
    names = [line.name for line in lines]
    shown = [i for i, line in enumerate(lines) if not (line.hollow and marks.hollow)]
    apart, joined = ([line for line in lines if line.dots is dots] for dots in (True, False))
    drawn = {
        "bands": any(line.low is not None for line in joined),
        "whiskers": any(line.low is not None for line in apart),
        "side_bands": any(line.left is not None for line in joined),
        "side_whiskers": any(line.left is not None for line in apart),
        "curves": bool(joined),
        "filled": any(not line.hollow for line in lines),
        "hollow": any(line.hollow for line in lines),
    }
    return {
        "height": HEIGHT,
        "rows": [row for s, line in enumerate(lines) for row in _line_rows(s, line)],
        "labels": marks.places,
        **_turned(marks.places),
        **_legend(names, None if len(shown) < 2 and not marks.named else shown),
        "colours": [colour(i) for i in look],
        "dashes": [DASHES[i % len(DASHES)] for i in look],
        "markers": [MARKERS[i % len(MARKERS)] for i in look],
        "drawn": drawn,
        **{name: getattr(marks, name) for name in ("steps", "zero", "whole", "hollow")},
    }


def _line_rows(s: int, line: Curve) -> list[Spec]:
    """Return line ``s`` as rows: ``x``, ``y``, the ends of bands and whiskers, ``d`` (a dot), ``m`` (a marker; 2:
    hollow).
    """
    some = max(1, len(line.x) // _MARKED)
    columns = {"x": line.x, "y": line.y, "low": line.low, "high": line.high, "left": line.left, "right": line.right}
    found = []
    for i in range(len(line.x)):
        row: Spec = {"s": s} | {key: _number(values[i]) for key, values in columns.items() if values is not None}
        if line.dots or (not line.bare and i % some == s % some):
            row["m"] = 2 if line.hollow else 1
        found.append(row | {"d": 1} if line.dots else row)
    return found


def _bars(marks: Bars) -> Spec:
    """Return what is drawn of bars: rows with their labels on the left, or columns; several series side by side."""
    names = [series.name for series in marks.series]
    labels = [label if marks.upright else _folded(label) for label in marks.labels]
    written = ticks(marks.labels, 20 if marks.upright else 60)
    rows = [row for s, series in enumerate(marks.series) for row in _bar_rows(s, series, marks.stacked)]
    sizes = [row["v"] or 0.0 for row in rows]
    small = _SEEN * max(map(abs, sizes), default=0.0)
    lines = max((len(label) for label in labels if isinstance(label, list)), default=1)
    each = max(21 * (1 if marks.stacked else len(names)), 15 * lines) + 10  # pixels of a row: its bars, or its label
    turned = _turned([marks.labels[i] for i in written]) if marks.upright else {"angle": 0, "overlap": False}
    return {
        "height": HEIGHT if marks.upright else float(np.clip(each * len(labels), 60, 900)),
        "rows": rows,
        "labels": labels,
        "written": written,
        **turned,
        **_legend(names, None if len(names) < 2 else range(len(names))),
        "colours": [colour(i) for i in looks(marks.series)],
        "whiskers": any(series.errors is not None for series in marks.series),
        "small": small if small >= min(map(abs, sizes), default=1.0) else None,
        "below": min(sizes, default=0.0) < 0,
        "dense": len(labels) > 60,
        "hollow": "",
        **{name: getattr(marks, name) for name in ("stacked", "upright", "counts")},
    }


def _bar_rows(s: int, series: Series, stacked: bool) -> list[Spec]:
    """Return series ``s`` as rows: ``i`` the place of the label, ``v`` the value, ``low`` and ``high`` its whisker."""
    found = []
    for i, value in enumerate(series.values.tolist()):
        if math.isnan(value) and stacked:  # the place of another series
            continue
        row: Spec = {"s": s, "i": i, "v": _number(value)}
        error = math.nan if series.errors is None else float(series.errors[i])
        if math.isfinite(error):
            row |= {"low": _number(value - error), "high": _number(value + error)}
        found.append(row)
    return found


def _legend(names: Sequence[str], shown: Sequence[int] | None) -> Spec:
    """Return the series' names and which of them the legend shows, in as many columns as have room; None: it shows
    none.
    """
    each = 7 * min(60, max((len(names[i]) for i in shown or ()), default=1)) + 46
    return {"names": names, "shown": None if shown is None else list(shown), "columns": max(1, WIDTH // each)}


# ---- names and numbers


# what no XML document may contain, and so no SVG: control characters and halves of surrogate pairs
_NO_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
# the library writes titles into expressions without escaping these, so the expression could not be read
_BREAKS = re.compile("[\n\r\u2028\u2029]")


def drawable(value: Any) -> Any:
    """Return a specification whose texts can be drawn anywhere.

    A character that SVG does not allow becomes a question mark, and a line break becomes a space.
    """
    if isinstance(value, str):
        return _BREAKS.sub(" ", _NO_XML.sub("\ufffd", value))
    if isinstance(value, dict):
        return {key: drawable(one) for key, one in value.items()}
    return [drawable(one) for one in value] if isinstance(value, list) else value


def _number(value: float) -> float | None:
    """Return a number, or None for NaN and infinity, which are a gap."""
    return float(value) if math.isfinite(value) else None


def _folded(text: str) -> list[str]:
    """Return a row's label in up to three short lines, so a narrow screen keeps room for the figure."""
    return textwrap.wrap(text, 20, max_lines=3, placeholder=" …") or [text]


def _turned(labels: Sequence[str]) -> Spec:
    """Return how names under a drawing are written: all of them, rotated if they do not fit side by side. Numbers stay
    as they are; where they do not fit some are left out.
    """
    if all(label.isdecimal() for label in labels):
        return {"angle": 0, "overlap": "parity"}
    return {"overlap": False, "angle": 0 if sum(len(label) + 2 for label in labels) <= 66 else -40}
