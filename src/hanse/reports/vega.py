"""Draws a chart, as a Vega-Lite specification.

From this are made the pictures of pages, and their PNG and SVG files: the same drawing, small enough for a phone.

A specification is data, which :func:`to_vegalite` makes; :func:`to_svg` and :func:`save` draw it without a browser.
Names that a stranger chose (of clients, experiments, metrics) are only in data sets and parameters, never in a field's
name or an expression. They can therefore never be more than text.
"""

from __future__ import annotations

import base64
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

Spec = dict[str, Any]

VEGA_LITE = "6.4"  # the version that vl_convert compiles with
WIDTH = 400  # pixels of a drawing, without what stands beside it
HEIGHT = 240  # of curves and columns; rows have one each
SCALE = 2  # of a PNG, in pixels of the file a pixel of the drawing
INK, SOFT, RULE = "#222222", "#666666", "#e4e4e4"
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
BAND = 0.16  # the opacity of a band
_TITLE = 58  # letters of a title that a drawing's width has room for
_SEEN = 0.005  # of the longest bar; a shorter one is a tick
_MARKED = 12  # markers on a curve of many points

# One look for all charts.
CONFIG: Spec = {
    "font": FONT,
    "background": "#ffffff",
    "aria": False,  # whoever shows the picture says what it shows
    "view": {"stroke": None},
    "title": {"anchor": "start", "fontSize": 14, "color": INK, "offset": 10, "subtitleColor": SOFT},
    "axis": {
        "labelFontSize": 13, "titleFontSize": 13, "titleFontWeight": "normal", "labelColor": INK, "titleColor": INK,
        "gridColor": RULE, "domainColor": "#888888", "tickColor": "#888888", "labelLimit": 230, "titleLimit": 400,
        "labelOverlap": "parity", "labelFlush": False, "labelSeparation": 10, "titlePadding": 10,
    },
    "legend": {
        "orient": "top", "direction": "horizontal", "labelFontSize": 13, "labelColor": INK, "labelLimit": 420,
        "symbolStrokeWidth": 0, "symbolSize": 90, "symbolOpacity": 1,
        "columnPadding": 30,  # letters may be wider where the picture is looked at
        "titleFontSize": 13, "titleFontWeight": "normal", "titleLimit": 300,
    },
}  # fmt: skip


# ---- what the drawing is written to


def to_vegalite(chart: Chart) -> Spec:
    """Return a chart as a Vega-Lite specification: plain data, ready for ``json.dumps``."""
    marks = chart.marks
    spec = _lines(chart, marks) if isinstance(marks, Lines) else _bars(chart, marks)
    title = {"text": textwrap.wrap(chart.title, _TITLE, break_on_hyphens=False), **spec.get("title", {})}
    whole: Spec = {
        "$schema": "https://vega.github.io/schema/vega-lite/v6.json",
        "width": WIDTH,
        "autosize": {"type": "pad"},
        "padding": {"left": 16, "top": 4, "right": 8, "bottom": 4},  # letters may be wider where it is looked at
        "config": CONFIG,
        **spec,
        "title": title if chart.title or "subtitle" in title else None,
    }
    return drawable(whole)  # type: ignore[no-any-return]


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


# ---- lines and bars. A series is its number in the data; its name stands in a parameter, which only labels read


# The library has ticks at halves all the same, which the format would round to a number that stands elsewhere.
_WHOLE_TICKS: Spec = {"tickMinStep": 1, "format": ",d", "labelExpr": "datum.value % 1 === 0 ? datum.label : ''"}


def _lines(chart: Chart, marks: Lines) -> Spec:
    """Draw each line with its band and markers. What is apart (dots) has markers and whiskers instead."""
    axis: Spec = dict(_WHOLE_TICKS) if marks.whole else {}
    if marks.places:
        axis = {"values": list(range(len(marks.places))), "labelExpr": "labels[datum.value]", "grid": False}
        axis |= _turned(marks.places)
    apart = bool(marks.places) or all(line.dots for line in marks.lines)  # no point on the frame
    shown = [i for i, line in enumerate(marks.lines) if not (line.hollow and marks.hollow)]
    names = [line.name for line in marks.lines]
    legend = None if len(shown) < 2 and not marks.named else _legend(names, shown)
    x = {
        "field": "x", "type": "quantitative", "title": chart.x or None, "axis": axis,
        "scale": {"zero": False, "nice": False, "padding": 12 if apart else 4},
    }  # fmt: skip
    spec: Spec = {
        "height": HEIGHT,
        **_data([row for s, line in enumerate(marks.lines) for row in _line_rows(s, line)], names, marks.places),
        "encoding": {"x": x, "color": _by_series([colour(i) for i in looks(marks.lines)], legend)},
        "layer": _line_layers(chart, marks, legend),
    }
    if marks.hollow:
        spec["title"] = {"subtitle": marks.hollow[:1].upper() + marks.hollow[1:]}
    return spec


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


def _line_layers(chart: Chart, marks: Lines, legend: Spec | None) -> list[Spec]:
    """Return what is drawn one above the other; what no line has is left out."""
    lines, look = marks.lines, looks(marks.lines)
    bent = "step-after" if marks.steps else "linear"
    y: Spec = {"field": "y", "type": "quantitative", "title": chart.y or None, "scale": {"zero": False},
               "axis": {"format": ",.6~g"}}  # fmt: skip
    between = {"y": {"field": "low", "type": "quantitative"}, "y2": {"field": "high"}}
    along = {"x": {"field": "left", "type": "quantitative"}, "x2": {"field": "right"}, "y": y}
    dashed = {"y": y, "strokeDash": _by_series([list(DASHES[i % len(DASHES)]) for i in look], legend)}
    shaped = {"y": y, "shape": _by_series([MARKERS[i % len(MARKERS)] for i in look], legend)}
    area: Spec = {"type": "area", "opacity": BAND, "interpolate": bent}
    whisker: Spec = {"type": "rule", "opacity": 0.6}
    curve: Spec = {"type": "line", "strokeWidth": 2, "interpolate": bent}
    point: Spec = {"type": "point", "size": 42, "opacity": 0.7 if all(line.dots for line in lines) else 1}
    bands = [line.dots for line in lines if line.low is not None]
    sideways = [line.dots for line in lines if line.left is not None]
    zero: Spec = {"data": {"values": [{}]}, "mark": {"type": "rule", "color": "#888888"},
                  "encoding": {"color": None, "x": None, "y": {"datum": 0}}}  # fmt: skip
    layers = (
        (not all(bands), "!datum.d && isValid(datum.low)", area, between),
        (any(bands), "datum.d && isValid(datum.low)", whisker, between),
        (any(sideways), "datum.d && isValid(datum.left)", whisker, along),
        (not all(sideways), "!datum.d && isValid(datum.left)", {**area, "orient": "horizontal"}, along),
        (not all(line.dots for line in lines), "!datum.d", curve, dashed),
        (not all(line.hollow for line in lines), "datum.m === 1", {**point, "filled": True}, shaped),
        (any(line.hollow for line in lines), "datum.m === 2", {**point, "fill": "#ffffff"}, shaped),
    )
    drawn = [_layer(which, mark, encoding) for is_wanted, which, mark, encoding in layers if is_wanted]
    return [zero, *drawn] if marks.zero else drawn


def _layer(which: str, mark: Spec, encoding: Spec) -> Spec:
    return {"transform": [{"filter": which}], "mark": mark, "encoding": encoding}


def _bars(chart: Chart, marks: Bars) -> Spec:
    """Draw bars: rows with their labels on the left, or columns. Several series stand side by side."""
    along, across = ("x", "y") if marks.upright else ("y", "x")
    titles = {"x": chart.x or None, "y": chart.y or None}
    labels = [label if marks.upright else _folded(label) for label in marks.labels]
    written = ticks(marks.labels, 20 if marks.upright else 60)
    turned = _turned([marks.labels[i] for i in written]) if marks.upright else {"labelOverlap": False}
    names = [series.name for series in marks.series]
    length: Spec = {
        "field": "v", "type": "quantitative", "title": titles[across], "stack": "zero" if marks.stacked else None,
        "axis": {"tickCount": 6,  # few enough that each has its label, that of 0 too
                 "gridColor": {"condition": {"test": "datum.value === 0", "value": "#888888"}, "value": RULE}},
    }  # fmt: skip
    if marks.counts:
        length["axis"] |= _WHOLE_TICKS
    rows = [row for s, series in enumerate(marks.series) for row in _bar_rows(s, series, marks.stacked)]
    sizes = [row["v"] or 0.0 for row in rows]
    if min(sizes, default=0.0) < 0:
        length["scale"] = {"padding": 8}  # no bar ends on the frame
    encoding: Spec = {along: {
        "field": "i", "type": "ordinal", "title": titles[along],
        "scale": {"domain": list(range(len(labels))), "paddingInner": 0.25 if len(labels) <= 60 else 0.0},
        "axis": {"values": written, "labelExpr": "labels[datum.value]", "labelAngle": 0} | turned,
    }}  # fmt: skip
    if not marks.stacked:
        encoding[f"{along}Offset"] = {"field": "s", "scale": {"domain": list(range(len(names)))}}
    legend = None if len(names) < 2 else _legend(names, range(len(names))) | {"symbolType": "square"}
    hue = _by_series([colour(i) for i in looks(marks.series)], legend)
    edge = {"type": "bar", "stroke": "#ffffff", "strokeWidth": 0.5 if len(labels) <= 60 else 0}
    layers: list[Spec] = [{"mark": edge, "encoding": {across: length, "order": {"field": "s"}, "color": hue}}]
    if any(series.errors is not None for series in marks.series):
        whiskers = {across: {"field": "low", "type": "quantitative"}, f"{across}2": {"field": "high"}}
        layers.append(_layer("isValid(datum.low)", {"type": "rule", "color": INK, "strokeWidth": 1.2}, whiskers))
    if (small := _SEEN * max(map(abs, sizes), default=0.0)) >= min(map(abs, sizes), default=1.0):
        tick = {"type": "tick", "thickness": 2, "opacity": 1}
        layers.append(_layer(f"abs(datum.v) <= {small!r}", tick, {across: length, "color": hue}))
    many = 1 if marks.stacked else len(names)
    lines = max((len(label) for label in labels if isinstance(label, list)), default=1)
    each = max(21 * many, 15 * lines) + 10  # pixels of a row: its bars, or its label if that is higher
    height = HEIGHT if marks.upright else float(np.clip(each * len(labels), 60, 900))
    return {"height": height, **_data(rows, names, labels), "encoding": encoding, "layer": layers}


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


def _data(rows: list[Spec], names: Sequence[str], labels: Sequence[Any]) -> Spec:
    """Return the rows, and the texts that labels look up by their number."""
    params = [{"name": "names", "value": list(names)}, {"name": "labels", "value": list(labels)}]
    return {"datasets": {"rows": rows}, "data": {"name": "rows"}, "params": params}


def _by_series(looks: Sequence[Any], legend: Spec | None) -> Spec:
    """Return the encoding of the series by colour, dash or shape, one each."""
    scale = {"domain": list(range(len(looks))), "range": list(looks)}
    return {"field": "s", "type": "nominal", "title": None, "scale": scale, "legend": legend}


def _legend(names: Sequence[str], shown: Sequence[int]) -> Spec:
    """Return the settings of one legend: the series that are shown, in as many columns as have room."""
    each = 7 * min(60, max((len(names[i]) for i in shown), default=1)) + 46
    return {"values": list(shown), "columns": max(1, WIDTH // each), "labelExpr": "names[datum.value]"}


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
        return {}
    return {"labelOverlap": False, "labelAngle": 0 if _fits(labels) else -40}


def _fits(labels: Sequence[str]) -> bool:
    """Say whether labels fit side by side under a drawing as wide as a file's."""
    return sum(len(label) + 2 for label in labels) <= 66
