"""Charts that parts ask for: what they are called, of which metrics they are and how they are drawn, says the part."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from hanse.core.telling import Plot, matched
from hanse.reports.chart import Bars, Chart, Line, Lines, Series, even, slug
from hanse.reports.groups import Curve, Group

__all__ = ["part_charts", "plotted"]

SECTION = "What the parts recorded"
MOST_LINES = 256
MOST_POINTS = 1000
_DIGITS = re.compile(r"(\d+)")


def part_charts(groups: Sequence[Group]) -> list[Chart]:
    """Return the charts that the parts of each experiment want, if the experiment recorded any of their metrics."""
    charts = []
    for group in groups:
        for said in group.runs[0].about.parts:
            for plot in said.telling.charts:
                chart = plotted(group, plot, said.telling.section or SECTION, f"told-{slug(plot.title)}")
                charts += [] if chart is None else [chart]
    return charts


def plotted(group: Group, plot: Plot, section: str, key: str) -> Chart | None:
    """Return the chart that a plot describes, of one experiment; None if none of its metrics was recorded.

    A line is the mean over the seeds, its band one standard deviation up and down.
    """
    names = {name: stars for name in _names(group) if (stars := matched(plot.metric, name)) is not None}
    ordered = sorted(names, key=_natural)
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


def _names(group: Group) -> set[str]:
    return {name for line in group.runs[0].metrics for name in line}


def _natural(name: str) -> list[tuple[int, str]]:
    """Return a key that sorts "tier 10" behind "tier 2"."""
    return [(int(x[:18]), x) if x.isdecimal() else (-1, x) for x in _DIGITS.split(name)]


def _called(plot: Plot, stars: Sequence[str], name: str) -> str:
    if not plot.line:
        return ", ".join(stars)[:80] or name[:80]
    told, *rest = plot.line.split("*")
    for i, text in enumerate(rest):
        told += (stars[i][:80] if i < len(stars) else "*") + text
    return told


def _lines(curves: Sequence[tuple[str, Curve]], plot: Plot) -> Lines:
    found = []
    for name, curve in curves:
        kept = even(len(curve.rounds), MOST_POINTS)
        x, mean = 1.0 + curve.rounds[kept].astype(np.float64), curve.mean[kept] * plot.factor
        sd = None if curve.sd is None else curve.sd[kept] * abs(plot.factor)
        low, high = (None, None) if sd is None else (mean - sd, mean + sd)
        found.append(Line(name, x, mean, low, high))
    return Lines(tuple(found), steps=plot.how == "steps")


def _bars(curves: Sequence[tuple[str, Curve]], factor: float) -> Bars:
    last = np.array([curve.mean[-1] for _, curve in curves]) * factor
    spread = [np.nan if curve.sd is None else curve.sd[-1] * abs(factor) for _, curve in curves]
    errors = np.array(spread) if np.isfinite(spread).any() else None
    return Bars(tuple(name for name, _ in curves), (Series("after the last round", last, errors),), upright=True)
