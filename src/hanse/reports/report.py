"""Writes the report: one page that works offline, and each figure as PNG, SVG and CSV."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from hanse.base.errors import UserError
from hanse.base.files import write_whole
from hanse.base.looking import looking
from hanse.reports.chart import Chart
from hanse.reports.chart_csv import to_csv
from hanse.reports.classmap import data_facts
from hanse.reports.draw_matplotlib import save
from hanse.reports.figures import figures, to_plotly
from hanse.reports.groups import Group, group_runs
from hanse.reports.money import books_of
from hanse.reports.summary import summary, warnings
from hanse.reports.tables import differences_tables, experiments_table, runs_table
from hanse.reports.who import unknown_roles
from hanse.runs.record import load_runs

__all__ = ["write_report"]

# what the page may do: its own inline script and style, and pictures that the script makes; nothing from elsewhere
_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:; font-src data:"
)


@dataclass(frozen=True)
class _Figure:
    chart: Chart
    number: int
    json: Markup
    height: int


def write_report(
    dirs: Sequence[str | Path],
    out: str | Path,
    *,
    title: str | None = None,
    lead: str | None = None,
    trust: bool = False,
    ledger_url: str | None = None,
) -> Path:
    """Write ``out/report.html``, and in ``out/figures`` each figure as PNG, SVG and its numbers as CSV, for the runs in
    ``dirs``, and return the page's path.

    Runs that differ only in their seeds become one curve with a deviation band. ``title`` and ``lead`` (a paragraph on
    top) replace the default words. Each run's split is built once more for the map of classes, never downloaded; what
    an import path of the runs would have to be imported for is left out and named, unless ``trust``. ``ledger_url``:
    where the runs' books are, if not in their directories.
    Raises UserError: not a run directory, no finished round, or ``out`` cannot be written.
    """
    runs = load_runs(dirs, ledger_url)
    groups = group_runs(runs)
    with looking(trust=trust):
        data = data_facts(groups)
        books, unread = books_of(groups)
        charts = figures(groups, data, books)
        roles = unknown_roles(groups)
    notes = dict.fromkeys(f"Data: {facts.note}" for facts in data if facts.note)  # once each
    page = _page(
        title=title or _title(groups),
        lead=lead or "",
        summary=summary(groups),
        warnings=[*warnings(groups, runs), *unread, *notes],
        experiments=experiments_table(groups),
        differences=differences_tables(groups),
        base=groups[0].label,
        runs=runs_table(runs) if len(runs) > 1 else None,
        repeated=any(len(group.runs) > 1 for group in groups),
        run_count=len(runs),
        charts=charts,
        skipped=[f"{facts.name}: {facts.skipped}" for facts in data if facts.skipped],
        roles=roles,
        told=[(g.label, said) for g in groups if (said := g.runs[0].about.sentences)],
        configs=[(g.label, g.runs[0].name, (g.runs[0].path / "config.toml").read_text("utf-8")) for g in groups],
    )
    return _write(Path(out), page, charts)


def _write(out: Path, page: str, charts: Sequence[Chart]) -> Path:
    try:
        (out / "figures").mkdir(parents=True, exist_ok=True)
        for chart in charts:
            save(chart, out / "figures")
            write_whole(out / "figures" / f"{chart.key}.csv", to_csv(chart))
        write_whole(out / "report.html", page)
    except OSError as wrong:
        raise UserError(f"{out}: the report cannot be written: {wrong.strerror or wrong}") from None
    return out / "report.html"


def _page(*, charts: Sequence[Chart], **words: Any) -> str:
    environment = Environment(
        loader=PackageLoader("hanse.reports", "."), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    sections: dict[str, list[_Figure]] = {}
    for number, chart in enumerate(charts, start=1):
        figure = to_plotly(chart)
        # inside a script element only "<" can end the script or begin a comment
        json = Markup(figure.to_json().replace("<", "\\u003c"))
        sections.setdefault(chart.section, []).append(_Figure(chart, number, json, int(figure.layout.height)))
    return environment.get_template("report.html.j2").render(
        policy=_POLICY, plotly=Markup(get_plotlyjs()), sections=sections, version=version("hanse"), **words
    )


def _title(groups: Sequence[Group]) -> str:
    labels = [group.label for group in groups]
    if len(labels) > 4:
        return f"{len(labels)} experiments side by side"
    return " against ".join(labels) if len(labels) < 3 else f"{', '.join(labels[:-1])} and {labels[-1]}"
