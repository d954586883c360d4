"""Draws a chart for the page: plotly, with every text from outside made harmless."""

from __future__ import annotations

import html
import textwrap
from typing import Any

import numpy as np
import plotly.graph_objects as go

from hanse.reports.chart import (
    COLOURS,
    DASHES,
    HATCHES,
    MARKERS,
    Bars,
    Chart,
    Floats,
    Graph,
    Heat,
    Lines,
    Series,
    looks,
    ticks,
)

_INK, _GRID = "#222222", "#e4e4e4"
_FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
_LONGEST = 42
MOST_NAMED = 1600  # shades that say by name what they are of


def to_plotly(chart: Chart) -> go.Figure:
    """Return the chart as a plotly figure that fills the width it gets."""
    marks = chart.marks
    if isinstance(marks, Lines):
        figure, height = _lines(marks), 400 + 16 * max(0, len(marks.lines) - 5)
    elif isinstance(marks, Bars):
        figure, height = _bars(marks), 360 if marks.upright else _bar_height(marks)
    elif isinstance(marks, Graph):
        figure, height = _graph(marks), 560
    else:
        figure, height = _heat(marks), 110 + int(np.clip(17 * len(marks.rows), 130, 430))
    figure.update_layout(
        template="none",
        height=height,
        autosize=True,
        margin={"l": 8, "r": 8, "t": 12, "b": 8},
        font={"family": _FONT, "size": 13, "color": _INK},
        legend={"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "traceorder": "normal"},
        hoverlabel={"font": {"family": _FONT}},
        dragmode=False,
    )
    axis = {
        "automargin": True,
        "gridcolor": _GRID,
        "linecolor": "#888888",
        "showline": True,
        "zeroline": False,
        "ticks": "outside",
        "tickcolor": "#888888",
    }
    if isinstance(marks, Graph):
        axis |= {"visible": False}
    figure.update_xaxes(title={"text": _safe(chart.x), "standoff": 8}, **axis)
    figure.update_yaxes(title={"text": _safe(chart.y), "standoff": 8}, **axis)
    return figure


def _lines(marks: Lines) -> go.Figure:
    figure = go.Figure()
    for i, line in zip(looks(marks.lines), marks.lines, strict=True):
        colour, dash, marker = COLOURS[i % len(COLOURS)], DASHES[i % len(DASHES)][0], MARKERS[i % len(MARKERS)][0]
        name = _safe(line.name)
        if line.low is not None and line.high is not None and not line.dots:
            figure.add_scatter(
                x=_column(np.concatenate([line.x, line.x[::-1]])),
                y=_column(np.concatenate([line.high, line.low[::-1]])),
                fill="toself",
                fillcolor=_faint(colour),
                line={"width": 0},
                mode="lines",
                hoverinfo="skip",
                showlegend=False,
                legendgroup=name,
            )
        figure.add_scatter(
            x=_column(line.x),
            y=_column(line.y),
            name=name,
            legendgroup=name,
            mode="markers" if line.dots else "lines" if line.bare else "lines+markers",
            hovertext=[_safe(name) for name in line.names] or None,
            line={"color": colour, "dash": dash, "width": 2, "shape": "hv" if marks.steps else "linear"},
            marker={
                "symbol": f"{marker}-open" if line.hollow else marker,
                "size": 7,
                "color": colour,
                "maxdisplayed": 0 if line.dots else 12,
            },
            error_y=_whiskers(line.y, line.low, line.high) if line.dots else None,
            error_x=_whiskers(line.x, line.left, line.right),
        )
    if marks.places:
        figure.update_xaxes(tickvals=list(range(len(marks.places))), ticktext=[_short(x) for x in marks.places])
    if marks.zero:
        figure.add_hline(y=0, line={"color": "#888888", "width": 1})
    figure.update_layout(
        hovermode="x unified" if len(marks.lines) <= 8 and marks.whole else "closest", showlegend=len(marks.lines) > 1
    )
    return figure


def _whiskers(middle: Floats, low: Floats | None, high: Floats | None) -> dict[str, Any] | None:
    if low is None or high is None:
        return None
    return {"type": "data", "symmetric": False, "array": _column(high - middle), "arrayminus": _column(middle - low)}


def _bars(marks: Bars) -> go.Figure:
    figure = go.Figure()
    places = list(range(len(marks.labels)))
    labels = [_short(x) if marks.upright else _folded(x) for x in marks.labels]
    for place, (i, series) in enumerate(zip(looks(marks.series), marks.series, strict=True)):
        name = _safe(series.name)
        # plotly draws a whisker of no length where an error is not known: these bars are a trace without errors
        for part, (shown, error) in enumerate(_by_error(series)):
            values = _column(shown)
            figure.add_bar(
                x=places if marks.upright else values,
                y=values if marks.upright else places,
                error_y=error if marks.upright else None,
                error_x=None if marks.upright else error,
                orientation="v" if marks.upright else "h",
                name=name,
                legendgroup=f"{place} {name}",
                offsetgroup=None if marks.stacked else str(place),
                showlegend=part == 0 and len(marks.series) > 1,
                text=[_safe(label) for label in marks.labels],
                textposition="none",
                hovertemplate="%{text}: %{" + ("y" if marks.upright else "x") + ":.4g}",
                marker={
                    "color": COLOURS[i % len(COLOURS)],
                    "line": {"color": "#ffffff", "width": 0.5 if len(places) <= 60 else 0},
                    "pattern": {
                        "shape": HATCHES[i % len(HATCHES)][0],
                        "bgcolor": COLOURS[i % len(COLOURS)],
                        "fgcolor": "#ffffff",
                        "size": 7,
                        "solidity": 0.25,
                    },
                },
            )
    figure.update_layout(barmode="stack" if marks.stacked else "group", bargap=0.25, showlegend=len(marks.series) > 1)
    written = ticks(marks.labels, 20 if marks.upright else 60)
    named = {"tickvals": written, "ticktext": [labels[i] for i in written], "showgrid": False}
    if marks.upright:
        figure.update_xaxes(**named)
    else:
        figure.update_yaxes(**named, autorange="reversed")
        figure.update_xaxes(nticks=7)
        if marks.counts and max(s.values.max(initial=0) for s in marks.series) <= 7:
            figure.update_xaxes(dtick=1)
    return figure


def _by_error(series: Series) -> list[tuple[Floats, dict[str, Any] | None]]:
    """Return a series' bars with and those without a known error, ``[n]`` each (NaN: a bar of the other kind)."""
    if series.errors is None:
        return [(series.values, None)]
    known = np.isfinite(series.errors)
    style = {"type": "data", "array": _column(series.errors), "color": _INK, "thickness": 1.2, "width": 3}
    parts = ((known, style), (~known, None))
    return [(np.where(which, series.values, np.nan), error) for which, error in parts if which.any()]


def _bar_height(marks: Bars) -> int:
    rows = len(marks.labels) * (1 if marks.stacked else len(marks.series))
    return 110 + int(np.clip(21 * rows + 10 * len(marks.labels), 60, 900)) + (36 if len(marks.series) > 1 else 0)


def _heat(marks: Heat) -> go.Figure:
    bar: dict[str, Any] = {"title": {"text": _safe(marks.scale), "side": "right"}, "thickness": 12, "outlinewidth": 0}
    if marks.marks:
        bar |= {"tickvals": [at for at, _ in marks.marks], "ticktext": [_safe(text) for _, text in marks.marks]}
    low, high = marks.limits
    named = marks.z.size <= MOST_NAMED
    figure = go.Figure(
        go.Heatmap(
            z=marks.z,
            colorscale="PuOr" if marks.around_zero else "Cividis",
            zmin=low,
            zmax=high,
            colorbar=bar,
            text=_cells(marks) if named else None,
            hovertemplate=f"{'%{text}' if named else '%{y}, %{x}'}: %{{z:.4g}}<extra></extra>",
        )
    )
    if marks.around_zero:
        figure.update_layout(plot_bgcolor="#cccccc")
    words = not all(label.isdecimal() for label in marks.columns)
    columns, rows = ticks(marks.columns, 16 if words else 7), ticks(marks.rows, 24)
    figure.update_xaxes(tickvals=columns, ticktext=[_short(marks.columns[i]) for i in columns], showgrid=False)
    # words are turned where the screen is too narrow for them
    figure.update_xaxes(tickangle=None if words else 0, autotickangles=[0, 90])
    figure.update_yaxes(
        tickvals=rows, ticktext=[_folded(marks.rows[i]) for i in rows], showgrid=False, autorange="reversed"
    )
    return figure


def _cells(marks: Heat) -> list[list[str]]:
    """Return what each shade is of, ``[rows][columns]``."""
    return [[_safe(f"{row}, {column}") for column in marks.columns] for row in marks.rows]


def _graph(marks: Graph) -> go.Figure:
    """Draw arrows as bowed lines in a few widths (a trace each), with a head that points along them."""
    figure = go.Figure()
    at = marks.places
    heads: dict[int, list[tuple[float, float, float, str, float]]] = {}
    lines: dict[tuple[int, int], list[Floats]] = {}
    for i, j, share in marks.arrows:
        look = marks.look(marks.kinds[i])
        path = _bow(at[i], at[j])
        lines.setdefault((look, min(4, int(5 * share))), []).append(path)
        before, after = path[-4], path[-3]
        angle = float(np.degrees(np.arctan2(*(after - before))))  # plotly turns clockwise from the top
        told = f"{marks.names[i]} to {marks.names[j]}: {marks.weight[i, j]:.4g} {marks.unit}"
        heads.setdefault(look, []).append((after[0], after[1], angle, _safe(told), 8 + 7 * share))
    kinds = list(dict.fromkeys(marks.kinds))
    for (look, width), paths in sorted(lines.items()):
        gap = np.full((1, 2), np.nan)
        x, y = np.concatenate([np.concatenate([path, gap]) for path in paths]).T
        figure.add_scatter(
            x=_column(x), y=_column(y), mode="lines", hoverinfo="skip", showlegend=False,
            legendgroup=_safe(kinds[look]), opacity=0.4 + 0.12 * width,
            line={"color": COLOURS[look % len(COLOURS)], "width": 0.7 + width},
        )  # fmt: skip
    for look, points in heads.items():
        x_, y_, angles, told_, sizes = zip(*points, strict=True)
        figure.add_scatter(
            x=_column(np.array(x_)), y=_column(np.array(y_)), mode="markers", hovertext=told_, hoverinfo="text",
            showlegend=False, legendgroup=_safe(kinds[look]),
            marker={"symbol": "triangle-up", "angle": [round(a) for a in angles], "size": [round(s, 1) for s in sizes],
                    "color": COLOURS[look % len(COLOURS)]},
        )  # fmt: skip
    size = float(np.clip(30 - 0.5 * (len(at) - 12), 13, 30))
    for look, kind in enumerate(kinds):
        here = np.array([k == kind for k in marks.kinds])
        figure.add_scatter(
            x=_column(at[here, 0]), y=_column(at[here, 1]), name=_safe(kind), legendgroup=_safe(kind),
            mode="markers+text", text=[_safe(t[0]) for t, h in zip(marks.texts, here, strict=True) if h],
            textfont={"color": "#ffffff", "size": max(8, 0.42 * size)}, hoverinfo="text",
            hovertext=[_safe(f"{n}: {t}") for n, t, h in zip(marks.names, marks.notes, here, strict=True) if h],
            marker={"symbol": MARKERS[look % len(MARKERS)][0], "size": size, "color": COLOURS[look % len(COLOURS)]},
        )  # fmt: skip
    figure.add_scatter(
        x=_column(np.array([t[2] for t in marks.texts])), y=_column(np.array([t[3] for t in marks.texts])),
        mode="text", text=[_beside(note, x) for _, note, x, _ in marks.texts],
        textposition=[_outwards(x, y) for _, _, x, y in marks.texts],
        textfont={"size": 11 if len(at) <= 24 else 9}, hoverinfo="skip", showlegend=False,
    )  # fmt: skip
    figure.update_xaxes(range=[-1.75, 1.75])
    figure.update_yaxes(range=[-1.35, 1.35], scaleanchor="x")
    return figure


def _beside(note: str, x: float) -> str:
    """Return a note with a space of its own between it and its node, however small the figure is drawn."""
    lines = [_safe(line) for line in note.split("\n")]
    space = "\u00a0" * 3
    return "<br>".join(space + line if x > 0.25 else line + space if x < -0.25 else line for line in lines)


def _outwards(x: float, y: float) -> str:
    """Return where a note goes from its place, so that on a narrow screen, too, it is off the node."""
    if abs(x) > 0.25:
        return "middle right" if x > 0 else "middle left"
    return "top center" if y > 0 else "bottom center"


def _bow(a: Floats, b: Floats) -> Floats:
    """Return a bent way ``[12, 2]`` between two nodes that leaves the nodes themselves free, so that both directions
    can be told apart.
    """
    middle = (a + b) / 2 + 0.12 * np.array([-(b - a)[1], (b - a)[0]])
    far = float(np.linalg.norm(b - a))
    t = np.linspace(min(0.4, 0.09 / far), 1 - min(0.4, 0.09 / far), 12)[:, None]
    return np.asarray((1 - t) ** 2 * a + 2 * t * (1 - t) * middle + t**2 * b)


def _column(values: Floats) -> list[float | None]:
    """Five digits are more than a screen shows, and a gap (NaN) must not become a number."""
    return [float(f"{v:.5g}") if np.isfinite(v) else None for v in values.tolist()]


def _faint(colour: str) -> str:
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.16)"


def _safe(text: str) -> str:
    """Plotly reads a little HTML in its labels (links too): a name is only ever text. ``%{`` would be a template."""
    return html.escape(text, quote=False).replace("%{", "% {")


def _short(text: str) -> str:
    return _safe(text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…")


def _folded(text: str) -> str:
    """Return a row's label in up to three short lines, so that a narrow screen keeps room for the figure."""
    lines = textwrap.wrap(text, 20, max_lines=3, placeholder=" …") or [text]
    return "<br>".join(_safe(line) for line in lines)
