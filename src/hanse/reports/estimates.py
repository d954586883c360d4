"""Chart of estimated against exact values, for runs that computed both (``mechanism.value.check``)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hanse.reports.chart import Chart, Line, Lines, even
from hanse.reports.contributions import slug
from hanse.reports.groups import Group

__all__ = ["estimate_charts"]

MOST_POINTS = 2000


def estimate_charts(groups: Sequence[Group]) -> list[Chart]:
    """Return one chart for each experiment that has exact values beside its estimates."""
    charts = []
    for group in groups:
        exact = np.concatenate([run.seats.exact for run in group.runs])
        value = np.concatenate([run.seats.value for run in group.runs])
        some = np.isfinite(exact) & np.isfinite(value)
        if some.any():
            error = np.concatenate([run.seats.error for run in group.runs])
            charts.append(_chart(group, exact[some], value[some], error[some]))
    return charts


def _chart(group: Group, exact: np.ndarray, value: np.ndarray, error: np.ndarray) -> Chart:
    apart = np.abs(value - exact)
    scale = float(np.abs(exact).mean())
    order = np.argsort(exact, kind="stable")
    kept = order[even(len(order), MOST_POINTS)]
    ends = np.array([exact.min(), exact.max()])
    caption = (
        "Every dot is one client in one round: its exact Shapley value across, the estimate up. On the line both "
        f"agree. Mean distance {apart.mean():.2g}, largest {apart.max():.2g}, where values are {scale:.2g} on average "
        "(by size)."
    )
    known = np.isfinite(error)
    if known.any():
        inside = 100 * float((apart[known] <= 2 * error[known]).mean())
        caption += (
            f" The estimates' own standard errors are {np.median(error[known]):.2g} at the median; {inside:.0f} % of "
            "the estimates are within two of them of the exact value."
        )
    dots = Line("estimate", exact[kept], value[kept], dots=True)
    marks = Lines((dots, Line("exact", ends, ends)), whole=False)
    title = f"Estimated and exact values: {group.label}"
    return Chart(
        f"estimates-{slug(group.label)}", "Who contributed", title, caption, "exact Shapley value", "estimate", marks
    )
