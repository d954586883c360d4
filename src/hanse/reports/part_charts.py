"""Charts that parts of a mechanism ask for.

In its ``tells()``, a part says which of its metrics it wants drawn, and how (:class:`hanse.core.telling.Plot`). The
report can therefore show figures of a part that it knows nothing about. :func:`part_charts` draws all of them,
:func:`plotted` a single one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hanse.core.telling import Plot, matched
from hanse.reports.chart import Bars, Chart, Lines, Series, natural, slug
from hanse.reports.groups import SeedCurve, SeedGroup

SECTION = "What the parts recorded"
MOST_LINES = 256  # of a chart
MOST_POINTS = 1000  # of a line


def part_charts(groups: Sequence[SeedGroup]) -> list[Chart]:
    """Return the charts that the parts of the experiments ask for, as far as their metrics were recorded.

    Args:
        groups: the experiments.
    """
    charts = []
    for group in groups:
        for said in group.runs[0].about.parts:
            for plot in said.telling.charts:
                chart = plotted(group, plot, said.telling.section or SECTION, f"told-{slug(plot.title)}")
                charts += [] if chart is None else [chart]
    return charts


def plotted(group: SeedGroup, plot: Plot, section: str, key: str) -> Chart | None:
    """Return the chart that a plot describes, or None if none of its metrics was recorded.

    A line is the mean over the seeds, with a band of one standard deviation up and down.

    Args:
        group: the seeds of one experiment.
        plot: the title, the pattern of metrics, the unit, and how to draw them.
        section: the section of the report.
        key: what the chart's key begins with.
    """
    names = {name: stars for name in _names(group) if (stars := matched(plot.metric, name)) is not None}
    ordered = sorted(names, key=natural)
    curves = [
        (_called(plot, names[name], name), curve)
        for name in ordered[:MOST_LINES]
        if (curve := group.curve(name)) is not None and np.isfinite(curve.mean * plot.factor).all()
    ]
    if not curves:
        return None
    caption = plot.caption
    if len(names) > MOST_LINES:
        caption += f" The first {MOST_LINES} of {len(names)}."
    title = f"{plot.title}: {group.label}"
    bars = plot.how == "bars"
    marks = _bars(curves, plot.factor) if bars else _lines(curves, plot)
    x = "" if bars else "rounds played"
    return Chart(f"{key}-{slug(group.label)}", section, title, caption.strip(), marks, x=x, y=plot.unit)


def _names(group: SeedGroup) -> set[str]:
    """Return the names of all metrics that the first run recorded in any round."""
    return {name for line in group.runs[0].metrics for name in line}


def _called(plot: Plot, stars: Sequence[str], name: str) -> str:
    """Return a line's name: the plot's pattern for it, with what the stars of the metric's pattern stand for.

    Names come from a run directory, which may be a stranger's, so each piece is cut off at 80 characters.
    """
    if not plot.line:
        return ", ".join(stars)[:80] or name[:80]
    told, *rest = plot.line.split("*")
    for i, text in enumerate(rest):
        told += (stars[i][:80] if i < len(stars) else "*") + text
    return told


def _lines(curves: Sequence[tuple[str, SeedCurve]], plot: Plot) -> Lines:
    """Return the curves as lines over the rounds."""
    lines = tuple(curve.line(name, MOST_POINTS, plot.factor) for name, curve in curves)
    return Lines(lines, steps=plot.how == "steps")


def _bars(curves: Sequence[tuple[str, SeedCurve]], factor: float) -> Bars:
    """Return the curves' last values as bars, with whiskers of one standard deviation over the seeds."""
    last = np.array([curve.mean[-1] for _, curve in curves]) * factor
    spread = [np.nan if curve.sd is None else curve.sd[-1] * abs(factor) for _, curve in curves]
    series = Series("after the last round", last, np.array(spread) if np.isfinite(spread).any() else None)
    return Bars(tuple(name for name, _ in curves), (series,), upright=True, whiskers="standard deviation")
