"""Draws a chart, as a Vega-Lite specification.

From this are made the report's page, its PNG and SVG files, and a statement's pictures.

A specification is data, which :func:`to_vegalite` makes. The Vega library in :func:`script` draws it in a browser;
:func:`to_svg` and :func:`save` draw it without one. Names that a stranger chose (of clients, experiments, metrics) are
only in data sets and parameters, never in a field's name or an expression. They can therefore never be more than text.
"""

from __future__ import annotations

import base64
import html
import math
import os
import re
import textwrap
from collections.abc import Iterable, Sequence
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hanse.base.errors import MachineError, first_line
from hanse.base.files import write_whole
from hanse.reports.chart import (
    DASHES,
    MARKERS,
    Bars,
    Chart,
    Curve,
    Floats,
    Graph,
    Heat,
    Lines,
    Series,
    colour,
    looks,
    ticks,
)

Spec = dict[str, Any]

VEGA_LITE = "6.4"  # the version that vl_convert compiles with; its script in the page is of the same
WIDTH = 660  # pixels of a drawing in a file; a page's drawing is as wide as its place
SCALE = 1.5  # of a PNG, in pixels of the file a pixel of the drawing
INK, SOFT, RULE = "#222222", "#666666", "#e4e4e4"
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
MOST_NAMED = 1600  # cells of a heat map that tell in words what they are of
BAND = 0.16  # the opacity of a band
_TITLE = 84  # letters of a title that a file's width has room for
_LONGEST = 34  # letters of a label
_MARKED = 12  # markers on a curve of many points

# One look for all charts. Sizes are those of a page; a file is drawn from the same.
CONFIG: Spec = {
    "font": FONT,
    "background": "#ffffff",
    "view": {"stroke": None},
    "title": {"anchor": "start", "fontSize": 14, "color": INK, "offset": 10},
    "axis": {
        "labelFontSize": 12, "titleFontSize": 12, "titleFontWeight": "normal", "labelColor": INK, "titleColor": INK,
        "gridColor": RULE, "domainColor": "#888888", "tickColor": "#888888", "labelLimit": 230, "titleLimit": 400,
        "labelOverlap": "parity", "labelFlush": False, "labelSeparation": 4,
    },
    "legend": {
        "orient": "top", "direction": "horizontal", "labelFontSize": 12, "labelColor": INK, "labelLimit": 420,
        "symbolStrokeWidth": 0, "symbolSize": 90, "symbolOpacity": 1,
        "columnPadding": 30,  # letters may be wider where the picture is looked at
        "titleFontSize": 12, "titleFontWeight": "normal", "titleLimit": 300,
    },
}  # fmt: skip


# ---- what the drawing is written to


def to_vegalite(chart: Chart, *, page: bool = False) -> Spec:
    """Return a chart as a Vega-Lite specification: plain data, ready for ``json.dumps``.

    Args:
        chart: what is shown.
        page: whether it is for a page, where it fills the available width, has a heading outside and shows tooltips.
            Otherwise it is 660 pixels wide and contains its title, for a file.
    """
    marks = chart.marks
    if isinstance(marks, Lines):
        spec = _lines(chart, marks, page)
    elif isinstance(marks, Bars):
        spec = _bars(chart, marks)
    elif isinstance(marks, Graph):
        spec = _graph(marks)
    else:
        spec = _heat(chart, marks)
    if not page:
        lines = textwrap.wrap(chart.title, _TITLE, break_on_hyphens=False)
        spec["title"] = {"text": lines, **spec.get("title", {})}
    whole: Spec = {
        "$schema": "https://vega.github.io/schema/vega-lite/v6.json",
        "width": "container" if page else WIDTH,
        "autosize": {"type": "fit-x", "contains": "padding"} if page else {"type": "pad"},
        "padding": {"left": 4, "top": 4, "bottom": 4, "right": 12} if page else 12,
        **spec,
    }
    columns = max(1, WIDTH // whole.get("usermeta", {}).get("column", WIDTH))
    whole["config"] = {**CONFIG, "legend": {**CONFIG["legend"], "columns": columns}}
    return drawable(whole)  # type: ignore[no-any-return]


class DrawingError(MachineError):
    """A chart that the drawing library could not draw. The message says why."""


_drawn = False  # whether the drawing library has started its threads in this process
_cut_off = False  # whether this is a fork of a process in which they ran: here they are missing, and waited for


def _after_fork() -> None:
    global _cut_off
    _cut_off = _cut_off or _drawn


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _draw(convert: str, *given: Any, **options: Any) -> Any:
    """Return the result of a function of the drawing library. Raises DrawingError for any exception."""
    import vl_convert  # late: most commands draw nothing

    global _drawn
    if _cut_off:
        raise DrawingError(
            "a process forked from one that has drawn charts cannot draw: the drawing library's threads are not in it. "
            'Start it with multiprocessing.get_context("spawn"), or draw in the parent'
        )
    _drawn = True
    try:
        return getattr(vl_convert, convert)(*given, **options)
    except Exception as wrong:
        raise DrawingError(f"the chart could not be drawn: {first_line(wrong)}") from wrong


_ROOM = 70e9  # bytes of addresses that the library's engine reserves (it uses few of them), else it ends the process


def _check_room() -> None:
    """Raise DrawingError if a limit such as ``ulimit -v`` leaves too little address space for the drawing library."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit != resource.RLIM_INFINITY and limit < _ROOM:
        raise DrawingError(
            f"drawing needs {_ROOM / 1e9:.0f} GB of addresses (little of it as memory), and this process is allowed "
            f"{limit / 1e9:.0f} (ulimit -v): raise that limit"
        )


def to_svg(spec: Spec) -> str:
    """Return a specification as an SVG document.

    The same specification gives the same document. Texts in it stay texts.

    Raises DrawingError: the library cannot draw it, too few addresses are allowed (``ulimit -v``), or this process was
    forked from one that has drawn.
    """
    _check_room()
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


def small_svg(chart: Chart) -> str:
    """Return a chart without its title as an SVG element, for a page without scripts.

    The chart is small enough to be readable on a phone, and its caption is its description for screen readers.
    """
    spec = to_vegalite(chart)
    del spec["title"]
    # the picture as a whole has the description: its parts have none of their own
    layers = [{**layer, "mark": {**layer["mark"], "aria": False}} for layer in spec["layer"]]
    config = {**spec["config"], "aria": False}
    svg = to_svg({**spec, "layer": layers, "width": 400, "height": 130, "padding": 2, "config": config})
    return svg.replace("<svg ", f'<svg role="img" aria-label="{html.escape(drawable(chart.caption))}" ', 1)


def save(chart: Chart, folder: Path) -> None:
    """Write ``folder/KEY.png`` and ``folder/KEY.svg``. The same chart gives the same bytes.

    Raises OSError, and DrawingError as :func:`to_svg` does. Neither file is written then.
    """
    svg = to_svg(to_vegalite(chart))
    write_whole(folder / f"{chart.key}.png", _draw("svg_to_png", svg, scale=SCALE))
    write_whole(folder / f"{chart.key}.svg", svg.encode())


@cache
def script() -> str:
    """Return the Vega library for a browser (about 0.9 MB). It sets ``window.vegaEmbed`` and nothing else.

    Assembling it takes a second or two of processor time, once per process.
    """
    bundle = _draw("javascript_bundle", "window.vegaEmbed = vegaEmbed;", vl_version=VEGA_LITE)
    return f"(() => {{{bundle}}})();"


# ---- lines

# The library has ticks at halves all the same, which the format would round to a number that stands elsewhere.
_WHOLE_TICKS: Spec = {"tickMinStep": 1, "format": ",d", "labelExpr": "datum.value % 1 === 0 ? datum.label : ''"}


_WIDE_TICKS = [sign * tick for tick in (0, 1, 3, 10, 30, 100, 300) for sign in (1, -1)]
_ROW = 24  # pixels of a named row


def _lines(chart: Chart, marks: Lines, page: bool) -> Spec:
    names = distinct([line.name for line in marks.lines])
    x, y = _digits(line.x for line in marks.lines), _digits(line.y for line in marks.lines)
    rows = [row for name, line in zip(names, marks.lines, strict=True) for row in _line_rows(name, line, names, x, y)]
    shown = [i for i, line in enumerate(marks.lines) if not (line.hollow and marks.hollow)]
    look = looks(marks.lines)
    legend = _legend([names[i] for i in shown], hidden=len(shown) < 2 and not marks.named)
    axis: Spec = dict(_WHOLE_TICKS) if marks.whole else {}
    if marks.places:
        axis = {"values": list(range(len(marks.places))), "labelExpr": "places[datum.value]", "grid": False}
        axis |= _turned(marks.places)
    scale: Spec = {"zero": False, "nice": False}
    if marks.rows:
        axis, scale = {"values": _WIDE_TICKS}, {"type": "symlog", "constant": 1, "nice": False}
    apart = bool(marks.places) or all(line.dots for line in marks.lines)  # no point on the frame
    spec: Spec = {
        "height": _ROW * len(marks.rows) or 270,
        "usermeta": {"column": _column(names)},
        "datasets": {"rows": rows},
        "data": {"name": "rows"},
        "params": [
            {"name": "places", "value": [_short(place) for place in marks.places]},
            *([{"name": "rows_of", "value": [_short(name) for name in marks.rows]}] if marks.rows else []),
        ],
        "encoding": {
            "x": {
                "field": "x", "type": "quantitative", "title": chart.x or None,
                "scale": {**scale, "padding": 12 if apart else 4}, "axis": axis,
            },
            "color": _by_look("s", names, [colour(i) for i in look], legend),
        },
        "layer": _line_layers(chart, marks, names, look, legend, page),
    }  # fmt: skip
    if marks.hollow:
        spec["title"] = {"subtitle": marks.hollow[:1].upper() + marks.hollow[1:], "subtitleColor": SOFT}
        if page:
            spec["title"] |= {"text": ""}
    return spec


def _line_rows(name: str, line: Curve, names: Sequence[str], x_digits: int, y_digits: int) -> list[Spec]:
    """Return the points of a curve as rows: ``s`` is its name, ``x`` and ``y`` the point, ``low``, ``high``, ``left``
    and ``right`` its bands, ``m`` whether a marker is drawn (2: a hollow one), ``n`` the point's own name.
    """
    some = max(1, len(line.x) // _MARKED)
    # curves that lie on each other begin their markers at different places, so none hides another
    first = names.index(name) % some
    across = {"x": line.x, "left": line.left, "right": line.right}
    upward = {"y": line.y, "low": line.low, "high": line.high}
    found = []
    for i in range(len(line.x)):
        row: Spec = {"s": name}
        for columns, digits in ((across, x_digits), (upward, y_digits)):
            row |= {key: _number(values[i], digits) for key, values in columns.items() if values is not None}
        if line.dots or (not line.bare and i % some == first):
            row["m"] = 2 if line.hollow else 1
        if line.dots:
            row["d"] = 1
        if line.names:
            row["n"] = line.names[i]
        found.append(row)
    return found


def _line_layers(
    chart: Chart, marks: Lines, names: Sequence[str], look: Sequence[int], legend: Spec | None, page: bool
) -> list[Spec]:
    """Return bands, whiskers, curves and markers, from back to front."""
    bent = "step-after" if marks.steps else "linear"
    # a curve that does not change has one tick, which the usual format would round to a whole number
    y: Spec = {"field": "y", "type": "quantitative", "title": chart.y or None, "scale": {"zero": False},
         "axis": {"format": ",.12~r", "labelExpr": _SHORT_TICK}}  # fmt: skip
    if marks.rows:
        y |= {"scale": {"domain": [-0.7, len(marks.rows) - 0.3], "nice": False, "reverse": True}}
        y |= {"axis": {"values": list(range(len(marks.rows))), "labelExpr": "rows_of[datum.value]", "grid": False}}
    between = {"y": {"field": "low", "type": "quantitative"}, "y2": {"field": "high"}}
    along = {"x": {"field": "left", "type": "quantitative"}, "x2": {"field": "right"}, "y": y}
    dash = _by_look("s", names, [DASHES[i % len(DASHES)] for i in look], legend)
    shape = _by_look("s", names, [MARKERS[i % len(MARKERS)] for i in look], legend)
    area = {"type": "area", "opacity": BAND, "interpolate": bent}
    whisker = {"type": "rule", "opacity": 0.6}
    curve = {"type": "line", "strokeWidth": 2, "interpolate": bent}
    # of two points at one place both are seen
    clear = 0.7 if all(line.dots for line in marks.lines) else 1
    full, hollow = ({"type": "point", "filled": filled, "size": 42, "opacity": clear} for filled in (True, False))
    layers = [
        _layer("!datum.d && isValid(datum.low)", area, between),
        _layer("datum.d && isValid(datum.low)", whisker, between),
        _layer("datum.d && isValid(datum.left)", whisker, along),
        _layer("!datum.d && isValid(datum.left)", {**area, "orient": "horizontal"}, along),
        _layer("!datum.d", curve, {"y": y, "strokeDash": dash}),
        _layer("datum.m === 1", full, {"y": y, "shape": shape}),
        _layer("datum.m === 2", {**hollow, "fill": "#ffffff"}, {"y": y, "shape": shape}),
    ]
    lines = marks.lines
    bands = [line for line in lines if line.low is not None]
    sideways = [line for line in lines if line.left is not None]
    wanted = (
        any(not line.dots for line in bands), any(line.dots for line in bands),
        any(line.dots for line in sideways), any(not line.dots for line in sideways),
        any(not line.dots for line in lines),
        any(not line.hollow for line in lines), any(line.hollow for line in lines),
    )  # fmt: skip
    layers = [layer for layer, is_wanted in zip(layers, wanted, strict=True) if is_wanted]
    zero = {"color": None} | ({"x": {"datum": 0}} if marks.rows else {"x": None, "y": {"datum": 0}})
    rule: Spec = {"data": {"values": [{}]}, "mark": {"type": "rule", "color": "#888888"}, "encoding": zero}
    return [*([rule] if marks.zero else []), *layers, *([_under_pointer(chart, lines, y)] if page else [])]


# hundreds of digits, as of a loss that diverges, would be cut off and read as another number
_SHORT_TICK = (
    "datum.value !== 0 && (abs(datum.value) < 1e-6 || abs(datum.value) >= 1e12) ? format(datum.value, '.6~e') "
    ": datum.label"
)


def _layer(which: str, mark: Spec, encoding: Spec) -> Spec:
    return {"transform": [{"filter": which}], "mark": mark, "encoding": encoding}


def _under_pointer(chart: Chart, lines: Sequence[Curve], y: Spec) -> Spec:
    """Return the layer that shows tooltips: an invisible dot around every point of a curve, even without a marker."""
    x, y_title = _told("curve", chart.x or "x", chart.y or "y")[1:]
    x_digits, y_digits = _digits(line.x for line in lines), _digits(line.y for line in lines)
    told: list[Spec] = [
        {"field": "s", "title": "curve"}, {"field": "x", "title": x, "format": f",.{x_digits}~g"},
        {"field": "y", "title": y_title, "format": f",.{y_digits}~g"},
    ]  # fmt: skip
    told += [{"field": "n", "title": "name"}] if any(line.names for line in lines) else []
    return {"mark": {"type": "point", "size": 160, "opacity": 0}, "encoding": {"y": y, "tooltip": told}}


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
            "tooltip": [{"field": "t", "title": "of"}, *([{"field": "s", "title": "bar"}] if len(names) > 1 else []),
                        {"field": "v", "title": _told("of", "bar", title or "value")[2], "format": ",.4~g"}],
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
    height = 270 if marks.upright else float(np.clip(each * len(labels), 60, 900))
    return {
        "height": height,
        "usermeta": {"column": _column(names)},
        "datasets": {"rows": rows},
        "data": {"name": "rows"},
        "params": [{"name": "labels", "value": labels}],
        "encoding": {along: place, **offset},
        "layer": layers,
    }


def _bar_rows(name: str, series: Series, marks: Bars) -> list[Spec]:
    """Return bars as rows: ``s`` the series, ``o`` its place, ``i`` the place of the label, ``t`` the label, ``v`` the
    value, and ``low`` and ``high``, the ends of a whisker.
    """
    order = next(i for i, other in enumerate(marks.series) if other is series)
    found = []
    for i, (label, value) in enumerate(zip(marks.labels, series.values.tolist(), strict=True)):
        if math.isnan(value) and marks.stacked:  # the place of another series
            continue
        row: Spec = {"s": name, "o": order, "i": i, "t": label, "v": _number(value)}
        error = math.nan if series.errors is None else float(series.errors[i])
        if math.isfinite(error):
            row |= {"low": _number(value - error), "high": _number(value + error)}
        found.append(row)
    return found


# ---- heat maps


def _heat(chart: Chart, marks: Heat) -> Spec:
    """Draw the shades as one image, one pixel per cell, so a map of tens of thousands of cells is a small file."""
    rows, columns = marks.z.shape
    low, high = _shades_between(marks)
    x, y = (_cell_axis(labels, name, most) for labels, name, most in
            ((marks.columns, chart.x, 16), (marks.rows, chart.y, 24)))  # fmt: skip
    x["scale"] |= {"domain": [0, columns]}
    y["scale"] |= {"domain": [rows, 0]}
    image = {"url": _image(marks, low, high), "x": 0, "x2": columns, "y": 0, "y2": rows}
    bar: Spec = {"title": marks.scale, "orient": "right", "direction": "vertical", "gradientLength": {"expr": "height"}}
    if marks.marks:
        bar |= {"values": [at for at, _ in marks.marks], "labelExpr": "marks[indexof(at, datum.value)]"}
    layers: list[Spec] = [
        {
            "data": {"name": "image"},
            "mark": {"type": "image", "aspect": False, "smooth": False},
            "encoding": {
                "url": {"field": "url", "type": "nominal"}, "x": {**x, "field": "x"}, "x2": {"field": "x2"},
                "y": {**y, "field": "y"}, "y2": {"field": "y2"},
            },
        },
        {  # two dots that nobody sees give the scale of shades its legend
            "data": {"values": [{"z": low}, {"z": high}]},
            "mark": {"type": "point", "opacity": 0},
            "encoding": {
                "color": {
                    "field": "z", "type": "quantitative", "legend": bar,
                    "scale": {"domain": [low, high], "range": _hexes(marks.around_zero), "interpolate": "rgb"},
                },
            },
        },
    ]  # fmt: skip
    cells: list[Spec] = []
    if marks.z.size <= MOST_NAMED:
        cells = [
            {"x": j, "y": i, "z": _number(number), "of": f"{marks.rows[i]}, {marks.columns[j]}"}
            for i, line in enumerate(marks.numbers.tolist()) for j, number in enumerate(line)
        ]  # fmt: skip
        told = [{"field": "of", "title": "of"}, {"field": "z", "title": _told("of", marks.scale)[1], "format": ",.4~g"}]
        ends = {"x2": {"field": "x2"}, "y2": {"field": "y2"}}
        layers.append({
            "data": {"name": "cells"},
            "transform": [{"calculate": "datum.x + 1", "as": "x2"}, {"calculate": "datum.y + 1", "as": "y2"}],
            "mark": {"type": "rect", "opacity": 0},
            "encoding": {"x": {**x, "field": "x"}, "y": {**y, "field": "y"}, **ends, "tooltip": told},
        })  # fmt: skip
    return {
        "height": float(np.clip(19 * rows, 90, 430)),
        "datasets": {"image": [image], "cells": cells},
        "params": [
            {"name": "marks", "value": [text for _, text in marks.marks]},
            {"name": "at", "value": [at for at, _ in marks.marks]},
            {"name": "labels_x", "value": [_short(label) for label in marks.columns]},
            {"name": "labels_y", "value": [_folded(label) for label in marks.rows]},
        ],
        "layer": layers,
    }


def _cell_axis(labels: Sequence[str], name: str, most: int) -> Spec:
    """Return the axis of a heat map's rows or columns, with labels in the middle of their cells."""
    which = "labels_x" if most == 16 else "labels_y"
    written = ticks(labels, most)
    turned = most == 16 and not _fits([labels[i] for i in written])
    axis = {
        "values": [i + 0.5 for i in written], "labelExpr": f"{which}[floor(datum.value)]", "grid": False,
        "labelAngle": -90 if turned else 0, "domain": False,
    }  # fmt: skip
    return {"type": "quantitative", "title": name or None, "axis": axis, "scale": {"nice": False, "zero": False}}


def _shades_between(marks: Heat) -> tuple[float, float]:
    """Return the numbers at which a heat map's shades begin and end."""
    known = _placed(marks.z[np.isfinite(marks.z)])
    if marks.around_zero:
        most = float(np.abs(known).max(initial=0.0)) or 1.0
        return -most, most
    low = float(_placed(marks.floor)) if marks.floor is not None else float(known.min()) if known.size else 0.0
    most = float(known.max(initial=low))
    return (low, most) if most > low else (low, low + max(1.0, 1e-6 * abs(low)))


_CIVIDIS = (
    "#00224e", "#123570", "#3b496c", "#575d6d", "#707173", "#8a8678", "#a59c74", "#c3b369", "#e1cc55", "#fee838",
)  # fmt: skip
_AROUND = ("#7f3b08", "#b35806", "#e08214", "#fdb863", "#f7f7f7", "#b2abd2", "#8073ac", "#542788", "#2d004b")


def _hexes(around_zero: bool) -> list[str]:
    return list(_AROUND if around_zero else _CIVIDIS)


def _image(marks: Heat, low: float, high: float) -> str:
    """Return the shades as the address of a PNG, one pixel per cell; unknown cells are grey."""
    from PIL import Image

    stops = np.array([[int(h[i : i + 2], 16) for i in (1, 3, 5)] for h in _hexes(marks.around_zero)], dtype=np.float64)
    place = np.linspace(0, 1, len(stops))
    colours = np.stack([np.interp(np.linspace(0, 1, 255), place, stops[:, k]) for k in range(3)], axis=-1)
    unknown = 204 if marks.around_zero else 255
    palette = np.vstack([colours.round(), np.full((1, 3), unknown)]).astype(np.uint8)
    known = np.isfinite(marks.z)
    share = np.clip((_placed(np.where(known, marks.z, low)) - low) / (high - low), 0, 1)
    shades = np.where(known, (254 * share).round(), 255).astype(np.uint8)
    # an SVG viewer that smooths images would blur single pixels: each cell is a block
    block = max(1, 600 // max(marks.z.shape))
    picture = Image.fromarray(np.repeat(np.repeat(shades, block, axis=0), block, axis=1), mode="P")
    picture.putpalette(palette.tobytes())
    out = BytesIO()
    picture.save(out, format="PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(out.getvalue()).decode()


# ---- graphs: nodes on a circle, bent arrows between them

_BENDS = np.linspace(0.0, 1.0, 12)  # along an arrow, whose path is drawn through so many points


def _graph(marks: Graph) -> Spec:
    """Draw arrows as curved lines with heads, the wider the more."""
    kinds = list(dict.fromkeys(marks.kinds))
    legend = _legend(kinds, hidden=len(kinds) < 2)
    tinted = _by_look("kind", kinds, [colour(i) for i in range(len(kinds))], legend)
    shape = _by_look("kind", kinds, [MARKERS[i % len(MARKERS)] for i in range(len(kinds))], legend)
    called = distinct(list(marks.names))
    nodes = [
        {"kind": kind, "x": _number(x), "y": _number(y), "inside": inside, "beside": beside.split("\n"),
         "bx": _number(bx), "by": _number(by), "told": f"{name}: {note}"}
        for name, kind, note, (x, y), (inside, beside, bx, by)
        in zip(called, marks.kinds, marks.notes, marks.places.tolist(), marks.texts, strict=True)
    ]  # fmt: skip
    ways, heads = list[Spec](), list[Spec]()
    for i, j, share in marks.arrows:
        arrow: Spec = {"kind": marks.kinds[i], "share": _number(share)}
        path, angle = _way(marks.places[i], marks.places[j])
        ways += [{**arrow, "id": len(heads), "k": k, "x": _number(x), "y": _number(y)}
                 for k, (x, y) in enumerate(path[:-1].tolist())]  # fmt: skip
        heads.append({**arrow, "x": _number(path[-1, 0]), "y": _number(path[-1, 1]), "angle": _number(angle),
                      "told": f"{called[i]} to {called[j]}: {marks.weight[i, j]:.4g} {marks.unit}"})  # fmt: skip
    return {
        "height": 510,
        "usermeta": {"column": _column(kinds), "square": True},  # a page gives it the height that goes with its width
        "datasets": {"nodes": nodes, "ways": ways, "heads": heads},
        "resolve": {"scale": {"size": "independent", "strokeWidth": "independent", "opacity": "independent"}},
        "layer": [*_arrow_layers(tinted), *_node_layers(len(nodes), tinted, shape)],
    }


def _way(start: Floats, end: Floats) -> tuple[Floats, float]:
    """Return the points ``[13, 2]`` of an arrow between two places ``[2]``, the last one its head, and the head's
    rotation in degrees clockwise from the top.

    The middle of the way is pushed aside, so there and back can be told apart. Where that is outwards it is pushed
    further inwards instead, since outwards lie the nodes between the two. The nodes themselves cover either end.
    """
    (ax, ay), (cx, cy) = start.tolist(), end.tolist()
    bend = -0.36 if ay * cx - ax * cy > 0.01 else 0.12
    middle = (start + end) / 2 + bend * np.array([ay - cy, cx - ax])
    off = min(0.4, 0.1 / (0.001 + math.hypot(cx - ax, cy - ay)))
    t = np.append(off + (1 - 2 * off - 0.03) * _BENDS, [1 - off - 0.06, 1 - off])[:, None]
    path = (1 - t) ** 2 * start + 2 * t * (1 - t) * middle + t**2 * end
    x, y = (path[-1] - path[-2]).tolist()
    return np.delete(path, -2, axis=0), math.degrees(math.atan2(x, y))


def _at(x: str, y: str) -> Spec:
    """Return the places of a graph's marks; the room outside the unit circle is for names."""
    axes = (("x", x, 1.75), ("y", y, 1.35))
    return {
        axis: {"field": name, "type": "quantitative", "axis": None, "scale": {"domain": [-end, end]}}
        for axis, name, end in axes
    }


def _by_share(least: float, most: float) -> Spec:
    return {"field": "share", "type": "quantitative", "legend": None,
            "scale": {"domain": [0, 1], "range": [least, most]}}  # fmt: skip


def _arrow_layers(tinted: Spec) -> list[Spec]:
    way = {"detail": {"field": "id"}, "order": {"field": "k"}, "strokeWidth": _by_share(0.7, 5)}
    turned = {"field": "angle", "type": "quantitative", "scale": None}
    head = {"angle": turned, "size": _by_share(60, 220), "tooltip": {"field": "told"}}
    place = {**_at("x", "y"), "color": tinted}
    return [
        {"data": {"name": "ways"}, "mark": {"type": "line"},
         "encoding": {**place, **way, "opacity": _by_share(0.4, 0.9)}},
        {"data": {"name": "heads"}, "mark": {"type": "point", "shape": "triangle-up", "filled": True},
         "encoding": {**place, **head}},
    ]  # fmt: skip


def _node_layers(many: int, tinted: Spec, shape: Spec) -> list[Spec]:
    """Return the nodes, smaller the more there are, with their short names inside and the long ones outside."""
    size = float(np.clip(30 - 0.5 * (many - 12), 13, 30))
    nodes, at = {"name": "nodes"}, _at("x", "y")
    beside: Spec = {**_at("bx", "by"), "text": {"field": "beside"}}
    dot: Spec = {"type": "point", "filled": True, "size": size * size, "opacity": 1, "stroke": "#ffffff"}
    inside: Spec = {"type": "text", "color": "#ffffff", "fontSize": max(8, 0.42 * size), "baseline": "middle"}
    small = 11 if many <= 24 else 9
    outside: Spec = {"type": "text", "color": INK, "baseline": "middle", "fontSize": small, "limit": 150}
    sides = (("left", "datum.bx > 0.25"), ("right", "datum.bx < -0.25"), ("center", "abs(datum.bx) <= 0.25"))
    return [
        {"data": nodes, "mark": dot, "encoding": {**at, "color": tinted, "shape": shape, "tooltip": {"field": "told"}}},
        {"data": nodes, "mark": inside, "encoding": {**at, "text": {"field": "inside"}}},
        *({"data": nodes, **_layer(which, {**outside, "align": side}, beside)} for side, which in sides),
    ]


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


def _told(*titles: str) -> list[str]:
    """Return distinct titles for tooltips. The library would take a number titled "image" for a picture's address, and
    one titled "title" for a heading.
    """
    return distinct([f"{title}{_BLANK}" if title in ("image", "title") else title for title in titles])


def _by_look(field: str, names: Sequence[str], range_: Sequence[Any], legend: Spec | None) -> Spec:
    scale = {"domain": list(names), "range": [list(r) if isinstance(r, tuple) else r for r in range_]}
    return {"field": field, "type": "nominal", "title": None, "scale": scale, "legend": legend}


def _legend(names: Sequence[str], *, hidden: bool) -> Spec | None:
    """Return the settings of one legend: its names, in order."""
    return None if hidden else {"values": list(names)}


def _column(names: Sequence[str]) -> int:
    """Return the pixels that a column of a legend with these names needs. A page has the number in ``usermeta.column``
    and sets the columns itself, since it knows its width.
    """
    return 7 * min(60, max(map(len, names), default=1)) + 46


# beyond these a difference or a quotient of two numbers is no number any more, and nothing could be placed
_LARGEST, _SMALLEST = 1e306, 1e-300


def _number(value: float, digits: int = 5) -> float | None:
    """Round to ``digits`` significant figures, more than a screen shows; NaN and infinity become None, a gap."""
    return float(f"{_placed(value):.{digits}g}") if math.isfinite(value) else None


def _digits(columns: Iterable[NDArray[np.float64]]) -> int:
    """Return how many digits distinguish numbers between the least and the largest: five, or more if they are close
    together and far from 0, such as 1,000,000 and 1,000,002.
    """
    known = np.concatenate([np.zeros(0), *(_placed(column[np.isfinite(column)]) for column in columns)])
    if not known.size or known.min() == known.max():
        return 7
    span, most = known.max() / 2 - known.min() / 2, np.abs(known).max() / 2
    return 5 + int(np.clip(np.log10(most) - np.log10(span), 0, 10))


def _placed(value: Any) -> Any:
    """Return a number, or an array of them, within what can be drawn: at most 1e306, and 0 below 1e-300."""
    return np.where(np.abs(value) < _SMALLEST, 0.0, np.clip(value, -_LARGEST, _LARGEST))


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
    return sum(len(_short(label)) + 2 for label in labels) <= 100
