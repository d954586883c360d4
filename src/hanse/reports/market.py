"""The chart of who gained what in tokens: what each client received and paid, and its utility in a market."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hanse.core.entry import TOKEN
from hanse.reports.chart import MOST_SHOWN, Bars, Chart, Series, slug
from hanse.reports.digits import labelled
from hanse.reports.facts import facts_of
from hanse.reports.groups import SeedGroup, roles_of
from hanse.reports.money import SECTION
from hanse.reports.words import said


def gains_charts(groups: Sequence[SeedGroup]) -> list[Chart]:
    """Return the chart of each experiment in which somebody pays; none of more clients than can be shown."""
    charts = []
    for group in groups:
        run = group.runs[0]
        rows, roles = facts_of(run).clients, roles_of(run)
        if not any(row.paid or row.received for row in rows) or len(rows) > MOST_SHOWN:
            continue
        columns = {"received": [(row.received or 0) / TOKEN for row in rows]}
        columns["paid"] = [-(row.paid or 0) / TOKEN for row in rows]
        if rows[0].utility is not None:
            columns["utility"] = [row.utility or 0.0 for row in rows]
        names = tuple(f"{labelled(row.name)} {roles[row.client]}".removesuffix(" client") for row in rows)
        marks = Bars(names, tuple(Series(name, np.array(column)) for name, column in columns.items()))
        label = group.label + (f", seed {run.seeds[0]}" if len(group.runs) > 1 else "")
        told, title = said("gains", "utility" in columns), f"Who gained what: {label}"
        charts.append(Chart(f"gains-{slug(label)}", SECTION, title, told, marks, x="tokens"))
    return charts
