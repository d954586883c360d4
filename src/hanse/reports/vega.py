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
from hanse.reports.chart import DASHES, MARKERS, Bars, Chart, Curve, Heat, Lines, Series, colour, looks, ticks

Spec = dict[str, Any]

VEGA_LITE = "6.4"  # the version that vl_convert compiles with
WIDTH = 400  # pixels of a drawing, without what stands beside it
HEIGHT = 240  # of curves and columns; rows have one each
SCALE = 2  # of a PNG, in pixels of the file a pixel of the drawing
INK, SOFT, RULE = "#222222", "#666666", "#e4e4e4"
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
BAND = 0.16  # the opacity of a band
_TITLE = 58  # letters of a title that a drawing's width has room for
_LONGEST = 34  # letters of a label
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
        "labelOverlap": "parity", "labelFlush": False, "labelSeparation": 4, "titlePadding": 10,
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
    if isinstance(marks, Lines):
        spec = _lines(chart, marks)
    else:
        spec = _bars(chart, marks) if isinstance(marks, Bars) else _heat(chart, marks)
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


# ---- lines

# The library has ticks at halves all the same, which the format would round to a number that stands elsewhere.
_WHOLE_TICKS: Spec = {"tickMinStep": 1, "format": ",d", "labelExpr": "datum.value % 1 === 0 ? datum.label : ''"}


def _lines(chart: Chart, marks: Lines) -> Spec:
    names = distinct([line.name for line in marks.lines])
    rows = [row for name, line in zip(names, marks.lines, strict=True) for row in _line_rows(name, line, names)]
    shown = [i for i, line in enumerate(marks.lines) if not (line.hollow and marks.hollow)]
    look = looks(marks.lines)
    legend = _legend([names[i] for i in shown], hidden=len(shown) < 2 and not marks.named)
    axis: Spec = dict(_WHOLE_TICKS) if marks.whole else {}
    if marks.places:
        axis = {"values": list(range(len(marks.places))), "labelExpr": "places[datum.value]", "grid": False}
        axis |= _turned(marks.places)
    apart = bool(marks.places) or all(line.dots for line in marks.lines)  # no point on the frame
    spec: Spec = {
        "height": HEIGHT,
        "datasets": {"rows": rows},
        "data": {"name": "rows"},
        "params": [{"name": "places", "value": [_short(place) for place in marks.places]}],
        "encoding": {
            "x": {
                "field": "x", "type": "quantitative", "title": chart.x or None,
                "scale": {"zero": False, "nice": False, "padding": 12 if apart else 4}, "axis": axis,
            },
            "color": _by_look("s", names, [colour(i) for i in look], legend),
        },
        "layer": _line_layers(chart, marks, names, look, legend),
    }  # fmt: skip
    if marks.hollow:
        spec["title"] = {"subtitle": marks.hollow[:1].upper() + marks.hollow[1:]}
    return spec


def _line_rows(name: str, line: Curve, names: Sequence[str]) -> list[Spec]:
    """Return the points of a curve as rows: ``s`` is its name, ``x`` and ``y`` the point, ``low``, ``high``, ``left``
    and ``right`` its bands, ``m`` whether a marker is drawn (2: a hollow one), ``d`` whether it is a dot.
    """
    some = max(1, len(line.x) // _MARKED)
    # curves that lie on each other begin their markers at different places, so none hides another
    first = names.index(name) % some
    columns = {"x": line.x, "y": line.y, "low": line.low, "high": line.high, "left": line.left, "right": line.right}
    found = []
    for i in range(len(line.x)):
        row: Spec = {"s": name} | {key: _number(values[i]) for key, values in columns.items() if values is not None}
        if line.dots or (not line.bare and i % some == first):
            row["m"] = 2 if line.hollow else 1
        if line.dots:
            row["d"] = 1
        found.append(row)
    return found


def _line_layers(
    chart: Chart, marks: Lines, names: Sequence[str], look: Sequence[int], legend: Spec | None
) -> list[Spec]:
    """Return bands, whiskers, curves and markers, from back to front."""
    bent = "step-after" if marks.steps else "linear"
    # a curve that does not change has one tick, which the usual format would round to a whole number
    y: Spec = {"field": "y", "type": "quantitative", "title": chart.y or None, "scale": {"zero": False},
         "axis": {"format": ",.6~g"}}  # fmt: skip
    between = {"y": {"field": "low", "type": "quantitative"}, "y2": {"field": "high"}}
    along = {"x": {"field": "left", "type": "quantitative"}, "x2": {"field": "right"}, "y": y}
    dash = _by_look("s", names, [DASHES[i % len(DASHES)] for i in look], legend)
    shape = _by_look("s", names, [MARKERS[i % len(MARKERS)] for i in look], legend)
    area = {"type": "area", "opacity": BAND, "interpolate": bent}
    whisker = {"type": "rule", "opacity": 0.6}
    curve = {"type": "line", "strokeWidth": 2, "interpolate": bent}
    lines = marks.lines
    # of two points at one place both are seen
    clear = 0.7 if all(line.dots for line in lines) else 1
    full, hollow = ({"type": "point", "filled": filled, "size": 42, "opacity": clear} for filled in (True, False))
    bands = [line.dots for line in lines if line.low is not None]
    sideways = [line.dots for line in lines if line.left is not None]
    zero = {"color": None, "x": None, "y": {"datum": 0}}
    rule: Spec = {"data": {"values": [{}]}, "mark": {"type": "rule", "color": "#888888"}, "encoding": zero}
    layers = (
        (marks.zero, rule),
        (not all(bands), _layer("!datum.d && isValid(datum.low)", area, between)),
        (any(bands), _layer("datum.d && isValid(datum.low)", whisker, between)),
        (any(sideways), _layer("datum.d && isValid(datum.left)", whisker, along)),
        (not all(sideways), _layer("!datum.d && isValid(datum.left)", {**area, "orient": "horizontal"}, along)),
        (not all(line.dots for line in lines), _layer("!datum.d", curve, {"y": y, "strokeDash": dash})),
        (not all(line.hollow for line in lines), _layer("datum.m === 1", full, {"y": y, "shape": shape})),
        (any(line.hollow for line in lines),
         _layer("datum.m === 2", {**hollow, "fill": "#ffffff"}, {"y": y, "shape": shape})),
    )  # fmt: skip
    return [layer for is_wanted, layer in layers if is_wanted]


def _layer(which: str, mark: Spec, encoding: Spec) -> Spec:
    return {"transform": [{"filter": which}], "mark": mark, "encoding": encoding}


# ---- bars


def _bars(chart: Chart, marks: Bars) -> Spec:
    names = distinct([series.name for series in marks.series])
    many = 1 if marks.stacked else len(marks.series)
    rows = [row for name, series in zip(names, marks.series, strict=True) for row in _bar_rows(name, series, marks)]
    along, across = ("x", "y") if marks.upright else ("y", "x")
    written = ticks(marks.labels, 20 if marks.upright else 60)
    labels = [_short(label) if marks.upright else _folded(label) for label in marks.labels]
    # rows have room for all their labels; columns of numbers may leave some out on a narrow screen
    turned = _turned([marks.labels[i] for i in written]) if marks.upright else {"labelOverlap": False}
    legend = _legend(names, hidden=len(names) < 2)
    place: Spec = {
        "field": "i", "type": "ordinal", "title": (chart.x if marks.upright else chart.y) or None,
        "scale": {"domain": list(range(len(labels))), "paddingInner": 0.25 if len(labels) <= 60 else 0.0},
        "axis": {"values": written, "labelExpr": "labels[datum.value]", "labelAngle": 0} | turned,
    }  # fmt: skip
    title = (chart.y if marks.upright else chart.x) or None
    length: Spec = {"field": "v", "type": "quantitative", "title": title, "stack": "zero" if marks.stacked else None}
    length["axis"] = {"gridColor": {"condition": {"test": "datum.value === 0", "value": "#888888"}, "value": RULE}}
    if marks.counts:
        length["axis"] |= _WHOLE_TICKS
    offset = {} if marks.stacked else {f"{along}Offset": {"field": "s", "scale": {"domain": names}}}
    bar: Spec = {
        "mark": {"type": "bar", "stroke": "#ffffff", "strokeWidth": 0.5 if len(labels) <= 60 else 0},
        "encoding": {
            across: length,
            "order": {"field": "o"},
            "color": _by_look("s", names, [colour(i) for i in looks(marks.series)], legend),
        },
    }  # fmt: skip
    layers = [bar]
    if any(series.errors is not None for series in marks.series):
        ends = {"field": "low", "type": "quantitative"}
        layers.append({"transform": [{"filter": "isValid(datum.low)"}],
                       "mark": {"type": "rule", "color": INK, "strokeWidth": 1.2},
                       "encoding": {across: ends, f"{across}2": {"field": "high"}}})  # fmt: skip
    lines = max((len(label) for label in labels if isinstance(label, list)), default=1)
    each = max(21 * many, 15 * lines) + 10  # pixels of a row: its bars, or its label if that is higher
    height = HEIGHT if marks.upright else float(np.clip(each * len(labels), 60, 900))
    return {
        "height": height,
        "datasets": {"rows": rows},
        "data": {"name": "rows"},
        "params": [{"name": "labels", "value": labels}],
        "encoding": {along: place, **offset},
        "layer": layers,
    }


def _bar_rows(name: str, series: Series, marks: Bars) -> list[Spec]:
    """Return bars as rows: ``s`` the series, ``o`` its place, ``i`` the place of the label, ``v`` the value, and
    ``low`` and ``high``, the ends of a whisker.
    """
    order = next(i for i, other in enumerate(marks.series) if other is series)
    found = []
    for i, value in enumerate(series.values.tolist()):
        if math.isnan(value) and marks.stacked:  # the place of another series
            continue
        row: Spec = {"s": name, "o": order, "i": i, "v": _number(value)}
        error = math.nan if series.errors is None else float(series.errors[i])
        if math.isfinite(error):
            row |= {"low": _number(value - error), "high": _number(value + error)}
        found.append(row)
    return found


# ---- heat maps


def _heat(chart: Chart, marks: Heat) -> Spec:
    """Draw shades as cells, each a rectangle."""
    known = marks.z[np.isfinite(marks.z)]
    low, high = float(known.min(initial=0.0)), float(known.max(initial=0.0))
    columns = ticks(marks.columns, 16)
    turned = not _fits([marks.columns[i] for i in columns])
    axes: dict[str, Spec] = {
        "x": {"title": chart.x or None, "axis": {"values": columns, "labelAngle": -90 if turned else 0}},
        "y": {"title": chart.y or None, "axis": {"values": ticks(marks.rows, 24), "labelOverlap": False}},
    }
    for name, axis in axes.items():
        axis |= {"field": name, "type": "ordinal"}
        axis["axis"] |= {"labelExpr": f"labels_{name}[datum.value]"}
    bar = {"title": marks.scale, "orient": "right", "direction": "vertical", "gradientLength": {"expr": "height"}}
    shades = {"scheme": "cividis", "domain": [low, high if high > low else low + 1.0]}
    rows = [{"x": j, "y": i, "z": _number(z)} for i, line in enumerate(marks.z.tolist()) for j, z in enumerate(line)]
    return {
        "height": float(np.clip(19 * len(marks.rows), 90, 430)),
        "datasets": {"rows": rows},
        "data": {"name": "rows"},
        "params": [
            {"name": "labels_x", "value": [_short(label) for label in marks.columns]},
            {"name": "labels_y", "value": [_folded(label) for label in marks.rows]},
        ],
        "mark": {"type": "rect"},
        "encoding": {**axes, "color": {"field": "z", "type": "quantitative", "scale": shades, "legend": bar}},
    }


# ---- names and numbers


# what no XML document may contain, and so no SVG: control characters and halves of surrogate pairs
_NO_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
# the library writes titles into expressions without escaping these, so the expression could not be read
_BREAKS = re.compile("[\n\r\u2028\u2029]")
# what every object of JavaScript has: the library looks texts up in objects, and fails where it finds one of these
_INHERITED = frozenset({
    "__defineGetter__", "__defineSetter__", "__lookupGetter__", "__lookupSetter__", "__proto__", "constructor",
    "hasOwnProperty", "isPrototypeOf", "propertyIsEnumerable", "toLocaleString", "toString", "valueOf",
})  # fmt: skip
_BLANK = "\u00a0"  # a space behind a word that the library would misunderstand; nobody sees it


def drawable(value: Any) -> Any:
    """Return a specification whose texts can be drawn anywhere.

    A character that SVG does not allow becomes a question mark, and a line break becomes a space. A text that is the
    name of a built-in property of JavaScript objects gets a space after it.
    """
    if isinstance(value, str):
        text = _BREAKS.sub(" ", _NO_XML.sub("\ufffd", value))
        return text + _BLANK if text in _INHERITED else text
    if isinstance(value, dict):
        return {key: drawable(one) for key, one in value.items()}
    return [drawable(one) for one in value] if isinstance(value, list) else value


def distinct(names: Sequence[str]) -> list[str]:
    """Return the names as they can be drawn.

    A repeated name gets a number, because a drawing distinguishes curves by name.

    Examples:
        >>> distinct(["a", "a", "a (2)"])
        ['a', 'a (3)', 'a (2)']
    """
    drawn = [str(drawable(name)) for name in names]
    taken, seen, found = set(drawn), set[str](), []
    counts: dict[str, int] = {}
    for name in drawn:
        called = name
        while called in seen or (called != name and called in taken):
            counts[name] = counts.get(name, 1) + 1
            called = f"{name} ({counts[name]})"
        seen.add(called)
        found.append(called)
    return found


def _by_look(field: str, names: Sequence[str], range_: Sequence[Any], legend: Spec | None) -> Spec:
    scale = {"domain": list(names), "range": [list(r) if isinstance(r, tuple) else r for r in range_]}
    return {"field": field, "type": "nominal", "title": None, "scale": scale, "legend": legend}


def _legend(names: Sequence[str], *, hidden: bool) -> Spec | None:
    """Return the settings of one legend: its names in order, in as many columns as have room."""
    each = 7 * min(60, max(map(len, names), default=1)) + 46
    return None if hidden else {"values": list(names), "columns": max(1, WIDTH // each)}


def _number(value: float) -> float | None:
    """Return a number, or None for NaN and infinity, which are a gap."""
    return float(value) if math.isfinite(value) else None


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


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
    return sum(len(_short(label)) + 2 for label in labels) <= 66
