"""Draws a chart for print: matplotlib, without pyplot, so that no window system or global state is involved."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np
from matplotlib import rc_context, style
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import FancyArrowPatch
from matplotlib.ticker import MaxNLocator

from hanse.base.files import write_whole
from hanse.reports.chart import COLOURS, DASHES, HATCHES, MARKERS, Bars, Chart, Graph, Heat, Line, Lines, looks, ticks

WIDTH = 7.2  # inches
DPI = 150
_LONGEST = 34
_TITLE = 76  # letters of a title that a figure's width has room for


def to_matplotlib(chart: Chart) -> Figure:
    """Return the chart as a matplotlib figure, 7.2 inches wide; its title is on it, its caption is not."""
    figure = Figure(figsize=(WIDTH, _height(chart)), dpi=DPI, layout="constrained")
    figure.get_layout_engine().set(w_pad=0.08, h_pad=0.08)  # type: ignore[union-attr, call-arg]
    axes = figure.add_subplot()
    marks = chart.marks
    if isinstance(marks, Lines):
        _lines(axes, marks)
    elif isinstance(marks, Bars):
        _bars(axes, marks)
    elif isinstance(marks, Graph):
        _graph(axes, marks)
    else:
        _heat(figure, axes, marks)
    axes.set_xlabel(_plain(chart.x))
    axes.set_ylabel(_plain(chart.y))
    title = fill(chart.title, _TITLE, break_long_words=False, break_on_hyphens=False)
    figure.suptitle(_plain(title), x=0.012, ha="left", fontsize=11, fontweight="bold")
    return figure


def save(chart: Chart, folder: Path) -> None:
    """Write ``folder/KEY.png`` and ``folder/KEY.svg``; the same chart gives the same bytes. Raises OSError."""
    png, svg = BytesIO(), BytesIO()
    # matplotlib's own settings: a matplotlibrc in the current folder, which may be a stranger's, could have TeX run
    with style.context("default", after_reset=True):
        figure = to_matplotlib(chart)
        figure.savefig(png, format="png")
        figure.set_layout_engine("none")  # it is laid out now, and need not be again
        with rc_context({"svg.fonttype": "none", "svg.hashsalt": "hanse"}):
            figure.savefig(svg, format="svg", metadata={"Date": None})
    write_whole(folder / f"{chart.key}.png", png.getvalue())
    write_whole(folder / f"{chart.key}.svg", svg.getvalue())


def _height(chart: Chart) -> float:
    marks = chart.marks
    if isinstance(marks, Graph):
        return WIDTH
    if isinstance(marks, Heat):
        return 1.5 + float(np.clip(0.17 * len(marks.rows), 0.6, 3.8))
    if isinstance(marks, Bars) and not marks.upright:
        rows = len(marks.labels) * (1 if marks.stacked else len(marks.series))
        return 1.3 + float(np.clip(0.2 * rows + 0.08 * len(marks.labels), 0.4, 7.0)) + 0.3 * (len(marks.series) > 1)
    return 4.0


def _lines(axes: Axes, marks: Lines) -> None:
    for i, line in zip(looks(marks.lines), marks.lines, strict=True):
        colour = COLOURS[i % len(COLOURS)]
        _band(axes, line, colour)
        axes.plot(
            line.x,
            line.y,
            label="_" if line.hollow and marks.hollow else _plain(line.name),  # "_": not in the legend
            color=colour,
            markerfacecolor="white" if line.hollow else colour,
            linestyle="none" if line.dots else DASHES[i % len(DASHES)][1],
            linewidth=1.6,
            marker="" if line.bare else MARKERS[i % len(MARKERS)][1],
            markersize=4 if line.dots else 5,
            # markers of different curves start at different places, so that they do not hide each other
            markevery=None if line.dots else (i % max(1, len(line.x) // 12), max(1, len(line.x) // 12)),
            drawstyle="steps-post" if marks.steps else "default",
        )
    if marks.zero:
        axes.axhline(0, color="0.5", linewidth=0.8, zorder=0)
    axes.grid(color="0.9", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=marks.whole))
    if marks.places:
        axes.set_xticks(range(len(marks.places)), [_short(name) for name in marks.places], fontsize=8)
    if marks.hollow:
        axes.plot([], [], "o", color="0.4", markerfacecolor="white", markersize=5, label=_plain(marks.hollow))
    _legend(axes, sum(not line.hollow for line in marks.lines) + bool(marks.hollow))
    _bare(axes)


def _band(axes: Axes, line: Line, colour: str) -> None:
    """Draw a line's bands along both axes: shades, or whiskers of single dots."""
    up = None if line.low is None or line.high is None else (line.low, line.high)
    along = None if line.left is None or line.right is None else (line.left, line.right)
    if line.dots and (up or along):
        whiskers: dict[str, Any] = {
            name: np.abs(np.stack(ends) - middle)
            for name, ends, middle in (("yerr", up, line.y), ("xerr", along, line.x))
            if ends is not None
        }
        axes.errorbar(line.x, line.y, fmt="none", ecolor=colour, elinewidth=1.0, capsize=2.0, alpha=0.6, **whiskers)
        return
    if up:
        axes.fill_between(line.x, *up, color=colour, alpha=0.16, linewidth=0)
    if along:
        axes.fill_betweenx(line.y, *along, color=colour, alpha=0.16, linewidth=0)


def _bars(axes: Axes, marks: Bars) -> None:
    places = np.arange(len(marks.labels), dtype=np.float64)
    many = 1 if marks.stacked else len(marks.series)
    thick = 0.75 / many if len(places) <= 60 else 1.0 / many
    base = np.zeros(len(places))
    for place, (i, series) in enumerate(zip(looks(marks.series), marks.series, strict=True)):
        look: dict[str, Any] = {
            "color": COLOURS[i % len(COLOURS)],
            "hatch": HATCHES[i % len(HATCHES)][1],
            "edgecolor": "white",
            "linewidth": 0.4 if len(places) <= 60 else 0.0,
            "label": _plain(series.name),
        }
        at = places if marks.stacked else places + (place - (many - 1) / 2) * thick
        if marks.upright:
            axes.bar(at, series.values, thick, bottom=base if marks.stacked else 0, **look)
        else:
            axes.barh(at, series.values, thick, left=base if marks.stacked else 0, **look)
        if series.errors is not None:
            error = series.errors  # NaN draws no whisker
            style: dict[str, Any] = {"fmt": "none", "ecolor": "0.15", "elinewidth": 1.0, "capsize": 2.0}
            if marks.upright:
                axes.errorbar(at, series.values, yerr=error, **style)
            else:
                axes.errorbar(series.values, at, xerr=error, **style)
        if marks.stacked:
            base = base + series.values
    _bar_axes(axes, marks)
    _legend(axes, len(marks.series))
    _bare(axes)


def _bar_axes(axes: Axes, marks: Bars) -> None:
    written = ticks(marks.labels, 20 if marks.upright else 60)
    labels = [_short(marks.labels[i]) for i in written]
    if marks.upright:
        axes.set_xticks(written, labels, fontsize=8)
        axes.margins(x=0.01)
        axes.grid(axis="y", color="0.9", linewidth=0.6)
    else:
        axes.set_yticks(written, labels, fontsize=8)
        axes.margins(y=0.02)
        axes.invert_yaxis()
        axes.axvline(0, color="0.5", linewidth=0.8)
        axes.grid(axis="x", color="0.9", linewidth=0.6)
        axes.xaxis.set_major_locator(MaxNLocator(nbins=7, integer=marks.counts))
    axes.set_axisbelow(True)


def _heat(figure: Figure, axes: Axes, marks: Heat) -> None:
    low, high = marks.limits
    colours = "PuOr" if marks.around_zero else "cividis"
    image = axes.imshow(marks.z, aspect="auto", cmap=colours, interpolation="nearest", vmin=low, vmax=high)
    if marks.around_zero:
        axes.set_facecolor("0.8")
    columns, rows = ticks(marks.columns, 16), ticks(marks.rows, 24)
    named = [_short(marks.columns[i]) for i in columns]
    axes.set_xticks(columns, named, fontsize=8)
    if sum(len(name) + 2 for name in named) > 100:  # letters that a figure's width has room for
        axes.tick_params(axis="x", rotation=90)
    axes.set_yticks(rows, [_short(marks.rows[i]) for i in rows], fontsize=8)
    bar = figure.colorbar(image, ax=axes, label=_plain(marks.scale), pad=0.01, fraction=0.04)
    bar.outline.set_visible(False)  # type: ignore[operator, unused-ignore]
    if marks.marks:
        bar.set_ticks([at for at, _ in marks.marks], labels=[text for _, text in marks.marks])


def _graph(axes: Axes, marks: Graph) -> None:
    at, m = marks.places, len(marks.names)
    size = float(np.clip(22 - 0.35 * (m - 12), 10, 22))
    for i, j, share in marks.arrows:
        axes.add_patch(
            FancyArrowPatch(
                tuple(at[i]),
                tuple(at[j]),
                connectionstyle="arc3,rad=0.12",
                arrowstyle="-|>",
                mutation_scale=8 + 10 * share,
                lw=0.5 + 3.5 * share,
                color=COLOURS[marks.look(marks.kinds[i]) % len(COLOURS)],
                alpha=0.35 + 0.5 * share,
                shrinkA=0.7 * size,
                shrinkB=0.7 * size,
            )
        )
    for i in range(m):
        look = marks.look(marks.kinds[i])
        colour, marker = COLOURS[look % len(COLOURS)], MARKERS[look % len(MARKERS)][1]
        axes.plot(*at[i], marker, ms=size * (1.3 if marker in "^v*" else 1.0), color=colour, mec="white", zorder=3)
        name, note, x, y = marks.texts[i]
        own_x, own_y = at[i].tolist()
        axes.text(own_x, own_y, _plain(name), ha="center", va="center", color="white", fontsize=0.41 * size, zorder=4)
        side: dict[str, Any] = {"ha": "center", "va": "bottom" if y > 0 else "top"}
        if abs(x) > 0.25:
            side = {"ha": "left" if x > 0 else "right", "va": "center"}
        axes.text(x, y, _plain(note), fontsize=max(6.0, 0.41 * size), zorder=4, **side)
    looks_of = [(MARKERS[k % len(MARKERS)][1], COLOURS[k % len(COLOURS)]) for k in range(len(set(marks.kinds)))]
    handles = [
        Line2D([], [], ls="", marker=marker, color=colour, ms=9, label=_plain(kind))
        for (marker, colour), kind in zip(looks_of, dict.fromkeys(marks.kinds), strict=True)
    ]
    axes.legend(handles=handles, loc="lower center", bbox_to_anchor=(0.5, -0.04), ncols=len(handles), frameon=False)
    axes.set(xlim=(-1.5, 1.5), ylim=(-1.45, 1.35), aspect="equal")
    axes.axis("off")


def _legend(axes: Axes, entries: int) -> None:
    if entries > 1:
        longest = max(len(text) for text in axes.get_legend_handles_labels()[1])
        columns = max(1, min(4, entries, 110 // (longest + 8)))  # 110 letters are a figure's width
        axes.legend(
            loc="lower left", bbox_to_anchor=(0, 1.0), ncols=columns, frameon=False, fontsize=8, borderaxespad=0.3
        )


def _bare(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8)


def _plain(text: str) -> str:
    """A dollar sign in a name would start a formula."""
    return text.replace("$", r"\$")


def _short(text: str) -> str:
    return _plain(text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…")
