"""All charts of a report, in reading order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from hanse.reports.chart import Chart
from hanse.reports.classmap import DataFacts, class_chart
from hanse.reports.contributions import contribution_charts
from hanse.reports.costs import cost_charts
from hanse.reports.curves import curve_charts
from hanse.reports.draw_matplotlib import to_matplotlib
from hanse.reports.draw_plotly import to_plotly
from hanse.reports.estimates import estimate_charts
from hanse.reports.groups import Group
from hanse.reports.honesty import honesty_charts
from hanse.reports.market import market_charts
from hanse.reports.money import Books, books_of
from hanse.reports.own import own_charts
from hanse.reports.participation import participation_charts
from hanse.reports.tokens import token_charts
from hanse.reports.told import told_charts
from hanse.reports.transactions import flow_chart, kinds_chart

__all__ = ["figures", "to_matplotlib", "to_plotly"]


def figures(
    groups: Sequence[Group], data: Sequence[DataFacts] = (), books: Mapping[str, Books] | None = None
) -> list[Chart]:
    """Return the charts of what these experiments recorded (and of their data), each with a key of its own.

    ``books`` are those of :func:`hanse.reports.money.books_of`, read here if they are not given. Draw the charts with
    :func:`to_plotly` and :func:`to_matplotlib`; :func:`hanse.reports.chart_csv.to_csv` has their numbers.
    """
    books = books_of(groups)[0] if books is None else books
    flows = [
        chart
        for group in groups
        if group.label in books
        for make in (flow_chart, kinds_chart)
        if (chart := make(group.runs[0], books[group.label], group.label)) is not None
    ]
    maps = [chart for facts in data if (chart := class_chart(facts)) is not None]
    charts = [
        *curve_charts(groups),
        *own_charts(groups, books),
        *contribution_charts(groups),
        *estimate_charts(groups),
        *honesty_charts(groups),
        *flows,
        *market_charts(groups),
        *token_charts(groups, books),
        *told_charts(groups),
        *participation_charts(groups),
        *cost_charts(groups),
        *maps,
    ]
    keys: set[str] = set()
    unique = []
    for chart in charts:
        key = chart.key
        while key in keys:
            key += "-"
        keys.add(key)
        unique.append(replace(chart, key=key))
    return unique
