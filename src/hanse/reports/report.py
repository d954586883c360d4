"""Writes the report: one page that works offline, and each figure as PNG, SVG and CSV."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from hanse.base.errors import UserError
from hanse.base.files import write_whole
from hanse.base.import_trust import looking
from hanse.games.jackknife import SURE
from hanse.reports.accuracy import curve_charts, own_charts
from hanse.reports.answers import answers
from hanse.reports.chart import Chart, numbers, to_csv
from hanse.reports.classmap import DataFacts, class_chart, data_facts
from hanse.reports.compare import differences_tables, experiments_table, run_row, runs_table
from hanse.reports.contributions import (
    EXACT,
    Contribution,
    contribution,
    contribution_charts,
    estimate_charts,
    lost_files,
    not_ranked,
    without_values,
)
from hanse.reports.digits import between, listed, rounded
from hanse.reports.groups import ONE_SEED, SeedGroup, group_runs, honest_of
from hanse.reports.honesty import honesty_charts
from hanse.reports.market import flow_chart, kinds_chart, market_charts
from hanse.reports.money import Books, books_of, token_charts
from hanse.reports.part_charts import part_charts
from hanse.reports.participation import cost_charts, participation_charts, refusal_counts, sitting_out
from hanse.reports.text_table import TextTable
from hanse.reports.vega import DrawingError, save, script, to_vegalite
from hanse.reports.words import caption
from hanse.runs.run_record import RunRecord, load_runs

TOP = "In short"  # the section of the one picture that stands above everything else
MOST_ROWS = 200  # of a chart's numbers as a table in the page

# ---- all charts of a report, in reading order


def figures(
    groups: Sequence[SeedGroup], data: Sequence[DataFacts] = (), books: Mapping[str, Books] | None = None
) -> list[Chart]:
    """Return the charts of what these experiments recorded (and of their data), each with a key of its own.

    ``books`` are those of :func:`hanse.reports.money.books_of`, read here if they are not given.
    :mod:`hanse.reports.vega` draws the charts, and :func:`hanse.reports.chart.to_csv` has their numbers.
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
        *part_charts(groups),
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


# ---- what it says in words, from the same numbers as its figures


_MOST_NAMED = 5  # experiments in one sentence
_MOST_TIED = 3  # clients in one sentence


@dataclass(frozen=True)
class Result:
    """One figure at an experiment's end: its mean and sample standard deviation (None for one run) over the seeds."""

    label: str
    mean: float
    sd: float | None
    seeds: int


def results(groups: Sequence[SeedGroup], figure: str, *, ascending: bool = False) -> list[Result]:
    """Return each experiment's ``figure`` (a key of a compare row), the best first; experiments may lack it."""
    found = []
    for group in groups:
        values = [v for run in group.runs if (v := run_row(run).get(figure)) is not None]
        if values:
            sd = float(np.std(values, ddof=1)) if len(values) > 1 else None
            found.append(Result(group.label, float(np.mean(values)), sd, len(values)))
    return sorted(found, key=lambda r: r.mean if ascending else -r.mean)


def summary(groups: Sequence[SeedGroup]) -> list[str]:
    """Return sentences on who won and by how much, who contributed, and what was refused."""
    out = dict.fromkeys(line for group in groups for run in group.runs for line in sitting_out(run))
    return [*_outcome(groups), *_value(groups), *_refused(groups), *out, *_late(groups)]


def _outcome(groups: Sequence[SeedGroup]) -> list[str]:
    """Say how good the models are: where all clients have test data of their own that comes first, since it is what
    they asked for them to be tested on.
    """
    who = "honest clients'" if any(honest_of(run) is not None for group in groups for run in group.runs) else "clients'"
    own = ("client_accuracy", f"accuracy on the {who} own test data after the last round", 100.0, " %")
    server = ("test_accuracy", "test accuracy after the last round", 100.0, " %")
    loss = ("test_loss", "test loss after the last round (lower is better)", 1.0, "")
    squared = ("test_mse", "mean squared error on the test set after the last round (lower is better)", 1.0, "")
    told = _by_main(groups, who)
    if told:
        return told
    everywhere = len(results(groups, "client_accuracy")) == len(groups)
    if everywhere:
        server = ("test_accuracy", "accuracy on the server's test data, which are of all clients' kinds", 100.0, " %")
    for figure, what, factor, unit in (own, server, loss, squared) if everywhere else (server, own, loss, squared):
        found = results(groups, figure, ascending=figure in ("test_loss", "test_mse"))
        if not found or (told and not (figure == "test_accuracy" and everywhere)):
            continue
        told.append(f"{_ranked(found, factor, unit)}{':' if len(found) > 1 else ''} {what}.")
        told += _close(found) if len(found) > 1 and len(told) == 1 else []
    return told or ["Nothing was tested yet: the runs have no accuracy and no loss."]


def _by_main(groups: Sequence[SeedGroup], who: str) -> list[str]:
    """Say it by the main metrics that the experiments' files name, each for those that share it."""
    told: list[str] = []
    for reading in dict.fromkeys(run.main for group in groups for run in group.runs if run.readings):
        same = [group for group in groups if group.runs[0].main == reading]
        better = " (lower is better)" if reading.less_is_better else ""
        own = (f"client_{reading.key}", f"{reading.title} on the {who} own test data after the last round{better}")
        server = (f"test_{reading.key}", f"test {reading.title} after the last round{better}")
        for figure, what in (own, server):
            found = results(same, figure, ascending=reading.less_is_better)
            if found:
                unit = " %" if reading.percent else ""
                told.append(f"{_ranked(found, reading.factor, unit)}{':' if len(found) > 1 else ''} {what}.")
                told += _close(found) if len(found) > 1 and figure == own[0] else []
    return told


def _ranked(found: Sequence[Result], factor: float, unit: str) -> str:
    told = [f"{r.label} {_number(r, factor, unit)}" for r in found]
    if len(told) > _MOST_NAMED:
        others = f"{len(told) - _MOST_NAMED + 1} others down to {_number(found[-1], factor, unit)}"
        told = [*told[: _MOST_NAMED - 1], others]
    return told[0] if len(told) == 1 else f"{told[0]} against {listed(told[1:])}"


def _number(result: Result, factor: float, unit: str) -> str:
    digits = 1 if unit else 4
    mean = f"{result.mean * factor:.{digits}f}"
    if result.sd is None:
        return f"{mean}{unit}"
    return f"{mean} ± {result.sd * factor:.{digits}f}{unit}"


def _close(found: Sequence[Result]) -> list[str]:
    """Say so where the lead is no larger than what another seed changes, or where that is not known."""
    first, second = found[:2]
    if first.sd is None or second.sd is None:
        return [ONE_SEED]
    error = float(np.hypot(first.sd / np.sqrt(first.seeds), second.sd / np.sqrt(second.seeds)))
    if abs(first.mean - second.mean) <= 2 * error:
        return [
            f"The difference between {first.label} and {second.label} is within two standard errors over these seeds: "
            "it may be chance."
        ]
    return []


def _value(groups: Sequence[SeedGroup]) -> list[str]:
    told: list[str] = []
    sure = ""
    for group in groups:
        found = contribution(group)
        if found is None:
            continue
        several = np.flatnonzero(found.seats > 1)  # one update says too little to be ranked by
        if len(several) < 2:
            continue
        best, worst = (_placed(found, int(several[at])) for at in (0, -1))
        below = int((found.totals < 0).sum())
        told.append(caption("ends", group, found, best, worst, below) + not_ranked(found.seats))
        sure = sure or (f" {EXACT}." if found.last.exact else "")
    if told:
        told[-1] += sure
    return told


def _placed(found: Contribution, at: int) -> dict[str, Any]:
    """Return the name of the client at a position, its sum or its part of the whole with the 95 % interval, and who
    cannot be told apart from it: names, or how many of how many; nothing if nobody, or if that is not known.
    """
    if found.shares is None:
        size = _sure(found.totals[at], found.errors[at])
    else:
        error = found.sums.parts()[1][np.searchsorted(found.sums.clients, found.clients[at])]
        size = _sure(100 * found.shares[at], 100 * error, " %")
    ranked = found.ranked
    tied, others = ranked.tied(int(found.clients[at])).tolist() if ranked.known else [], len(ranked.clients) - 1
    labels = dict(zip(found.clients.tolist(), found.labels, strict=True))
    names = [labels[client] for client in tied] if len(tied) <= _MOST_TIED else []
    return {"name": found.labels[at], "size": size, "names": names, "tied": len(tied), "others": others}


def _sure(value: float, error: float, unit: str = "") -> str:
    """Return a value with its 95 % interval behind it; without one if the error is not known, or the value is exact."""
    half = SURE * error
    if not np.isfinite(half) or half == 0:
        return f"{value:.3g}{unit}"
    return f"{rounded(value, half)}{unit}, 95 % interval {between(value, half)}"


def _refused(groups: Sequence[SeedGroup]) -> list[str]:
    """Say in one sentence how many updates each experiment refused, and the reason that occurs most."""
    told, reasons = [], Counter[str]()
    for group in groups:
        counts = refusal_counts(group)
        if counts:
            asked = sum(seat.staleness == 0 for run in group.runs for seat in run.clients)
            told.append(f"{group.label} {counts.total():,} of {asked:,}")
            reasons += counts
    if not told:
        return []
    return [f"Updates refused: {listed(told, len(told))}, most often because: {reasons.most_common(1)[0][0]}."]


def _late(groups: Sequence[SeedGroup]) -> list[str]:
    """Say in one sentence how many updates no round waited for, and how many of them joined a later one."""
    told = []
    for group in groups:
        if late := sum(len(run.under_way) for run in group.runs):
            seats = [seat for run in group.runs for seat in run.clients]
            asked, mixed = sum(not seat.staleness for seat in seats), sum(seat.staleness > 0 for seat in seats)
            told.append(f"{group.label} {late:,} of {asked:,}, of which {mixed:,} joined a later one")
    return [f"Updates that their round did not wait for: {listed(told, len(told))}."] if told else []


def warnings(groups: Sequence[SeedGroup], runs: Sequence[RunRecord]) -> list[str]:
    """Return what a reader must know of the runs: unfinished ones, rounds without values, and ignored repeats."""
    told = [
        f"{run.name} has {len(run.metrics)} of {run.rounds_planned} rounds: "
        + ("it is not finished." if run.ended_early is None else f"{run.ended_early}.")
        for run in runs
        if len(run.metrics) < run.rounds_planned
    ]
    counted = {run.path for group in groups for run in group.runs}
    told += [f"{run.name}: {line}" for run in runs for line in (*lost_files(run), *without_values(run))]
    told += dict.fromkeys(line for run in runs for line in run.about.notes)  # once each
    told += [
        f"{run.name} repeats another run (same experiment, same seeds), so that it does not count in means and curves."
        for run in runs
        if run.path not in counted
    ]
    for group in groups:
        lengths = {len(run.metrics) for run in group.runs}
        if len(lengths) > 1:
            told.append(f"The seeds of {group.label} are not equally far; curves end with the shortest.")
    return told


# ---- the page and the files


# what the page may do: its own inline script and style, and pictures that the script makes; nothing from elsewhere
_POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:"


@dataclass(frozen=True)
class _Figure:
    chart: Chart
    number: int
    json: Markup
    table: TextTable | None
    """The numbers as a table, for those who cannot see the drawing; None: too many, they are in the CSV."""


def write_report(
    dirs: Sequence[str | Path],
    out: str | Path,
    *,
    title: str | None = None,
    lead: str | None = None,
    trust: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Path:
    """Write a report on the runs in ``dirs``, and return the path of its page.

    The page is ``out/report.html``. ``out/figures`` gets each figure as PNG and SVG, and its numbers as CSV.

    Runs that differ only in their seeds become one curve with a deviation band. ``title`` and ``lead`` (a paragraph on
    top) replace the default words. For the map of classes, each run's split is built once more; nothing is downloaded
    for it. Whatever would need an import path of the runs to be imported is left out and named, unless ``trust``.
    ``progress`` is called with how many figures are drawn, and of how many. Raises UserError: not a run directory, no
    finished round, or ``out`` cannot be written.
    """
    words = _words(dirs, trust=trust)
    words |= {"title": title or words["title"], "lead": lead or "", "poll": ""}
    words["warnings"] += _write_figures(Path(out), words["charts"], progress)
    page = _page(**words)
    with _written_to(Path(out)):
        write_whole(Path(out) / "report.html", page)
    return Path(out) / "report.html"


def report_page(dirs: Sequence[str | Path], poll: str) -> str:
    """Return the page of a report on the runs in ``dirs``, without files of its figures.

    Args:
        dirs: the run directories.
        poll: a script element that loads the page again when there is a new one.

    Raises:
        UserError: there is no run, or it has no finished round.
    """
    return _page(**_words(dirs, trust=False), lead="", poll=Markup(poll))


def _words(dirs: Sequence[str | Path], *, trust: bool) -> dict[str, Any]:
    """Return what the page says and shows of runs."""
    runs = load_runs(dirs)
    groups = group_runs(runs)
    with looking(trust=trust):
        data = data_facts(groups)
        books, unread = books_of(groups)
        charts = figures(groups, data, books)
    first = answers(groups)
    # the picture on top: who contributed, or else the first of the others, which then does not stand below again
    charts = charts if first.picture is None else [first.picture, *charts]
    charts = [replace(chart, section=TOP) if i == 0 else chart for i, chart in enumerate(charts)]
    notes = dict.fromkeys(f"Data: {facts.note}" for facts in data if facts.note)  # once each
    return {
        "title": _title(groups),
        "doubts": first.doubts,
        "answers": first,
        "summary": summary(groups),
        "warnings": [*warnings(groups, runs), *unread, *notes],
        "experiments": experiments_table(groups),
        "differences": differences_tables(groups),
        "base": groups[0].label,
        "runs": runs_table(runs) if len(runs) > 1 else None,
        "repeated": any(len(group.runs) > 1 for group in groups),
        "run_count": len(runs),
        "charts": charts,
        "skipped": [f"{facts.name}: {facts.skipped}" for facts in data if facts.skipped],
        "told": [(g.label, said) for g in groups if (said := g.runs[0].about.sentences)],
        "configs": [(g.label, g.runs[0].name, (g.runs[0].path / "config.toml").read_text("utf-8")) for g in groups],
    }


def _write_figures(out: Path, charts: Sequence[Chart], progress: Callable[[int, int], None] | None = None) -> list[str]:
    """Write each chart's files instead of those of an earlier report; return lines that say which could not be
    drawn and why. The numbers of these are written all the same.
    """
    missing: dict[str, list[str]] = {}
    with _written_to(out):
        (out / "figures").mkdir(parents=True, exist_ok=True)
        _remove_earlier(out)
        for done, chart in enumerate(charts):
            if progress is not None:
                progress(done, len(charts))
            write_whole(out / "figures" / f"{chart.key}.csv", to_csv(chart))
            try:
                save(chart, out / "figures")
            except DrawingError as wrong:
                missing.setdefault(str(wrong), []).append(chart.title)
    return [f"Not drawn as PNG and SVG: {', '.join(titles)}. Cause: {why}." for why, titles in missing.items()]


def _remove_earlier(out: Path) -> None:
    """Remove the figures of the report that is already in ``out``, as its page names them; other files stay."""
    page = out / "report.html"
    if not page.is_file():
        return
    for key in _KEY.findall(page.read_text("utf-8", errors="replace")):
        for kind in ("png", "svg", "csv"):
            (out / "figures" / f"{key}.{kind}").unlink(missing_ok=True)


_KEY = re.compile(r"Files: figures/([a-z0-9.-]+)</span>")


@contextmanager
def _written_to(out: Path) -> Iterator[None]:
    try:
        yield
    except OSError as wrong:
        raise UserError(f"{out}: the report cannot be written: {wrong.strerror or wrong}") from None


def _page(*, charts: Sequence[Chart], poll: str, **words: Any) -> str:
    environment = Environment(
        loader=PackageLoader("hanse.reports", "."), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    sections: dict[str, list[_Figure]] = {}
    for number, chart in enumerate(charts, start=1):
        # inside a script element only "<" can end the script or begin a comment
        spec = json.dumps(to_vegalite(chart, page=True), separators=(",", ":"), allow_nan=False)
        figure = _Figure(chart, number, Markup(spec.replace("<", "\\u003c")), _numbers(chart))
        sections.setdefault(chart.section, []).append(figure)
    top = sections.pop(TOP, [])
    return environment.get_template("report.html.j2").render(
        policy=_POLICY + ("; connect-src 'self'" if poll else ""),
        poll=poll,
        vega=Markup(script()),
        top=top,
        sections=sections,
        version=version("hanse"),
        **words,
    )


def _numbers(chart: Chart) -> TextTable | None:
    headings, *rows = numbers(chart)
    if len(rows) > MOST_ROWS:
        return None
    # a column that is empty everywhere, such as that of unknown errors, is left out
    kept = [i for i in range(len(headings)) if any(row[i] != "" for row in rows)]
    return TextTable(tuple(headings[i] for i in kept), tuple(tuple(str(row[i]) for i in kept) for row in rows))


def _title(groups: Sequence[SeedGroup]) -> str:
    labels = [group.label for group in groups]
    if len(labels) > 4:
        return f"Report on {len(labels)} experiments side by side"
    if len(labels) > 1:
        named = " against ".join(labels) if len(labels) < 3 else f"{', '.join(labels[:-1])} and {labels[-1]}"
        return f"Report on {named}"
    run = groups[0].runs[0]
    return f"Report on {labels[0]}: {run.num_clients} clients, {len(run.metrics)} rounds"
