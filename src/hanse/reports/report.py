"""Writes the report: one page that works offline, and each figure as PNG, SVG and CSV."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from markupsafe import Markup

from hanse.base.errors import UserError
from hanse.base.files import given_path, read_text, write_whole
from hanse.reports.accuracy import curve_charts, own_charts
from hanse.reports.answers import Answers, answers, contributed
from hanse.reports.chart import Chart, to_csv
from hanse.reports.compare import cautions, differences_table, experiments_table
from hanse.reports.contributions import contribution, contribution_charts
from hanse.reports.facts import MISSING, VALUED_OTHERWISE, facts_of
from hanse.reports.groups import SeedGroup, group_runs
from hanse.reports.honesty import kinds_table
from hanse.reports.market import gains_charts
from hanse.reports.money import token_charts
from hanse.reports.part_charts import part_charts
from hanse.reports.vega import DrawingError, image, save, to_svg, to_vegalite
from hanse.reports.words import Note, differences, page, policy, said
from hanse.runs.run_record import RunRecord, load_runs

TOP = "In short"  # the section of the one picture that stands above everything else

# ---- all charts of a report, in reading order


def figures(groups: Sequence[SeedGroup]) -> list[Chart]:
    """Return the charts of what these experiments recorded, each with a key of its own.

    :mod:`hanse.reports.vega` draws the charts, and :func:`hanse.reports.chart.to_csv` has their numbers.
    """
    charts = [
        *curve_charts(groups),
        *own_charts(groups),
        *contribution_charts(groups),
        *gains_charts(groups),
        *token_charts(groups),
        *part_charts(groups),
    ]
    seen = Counter[str]()
    for place, chart in enumerate(charts):
        charts[place] = replace(chart, key=chart.key + "-" * seen[chart.key])
        seen[chart.key] += 1
    return charts


# ---- what a reader must know of the runs


_REPORTED = (*MISSING, "cut_short", *VALUED_OTHERWISE, "data", "unfinished", "ended_early", "late", "refusals",
             "minted", "nothing_left", "few_units", "expelled", "refused", "sat_out", "left")  # fmt: skip
_MOST_ALIKE = 3  # notes with one code


def warnings(groups: Sequence[SeedGroup], runs: Sequence[RunRecord]) -> list[tuple[Note, tuple[str, ...]]]:
    """Return what a reader must know of the runs, each note with the names of the runs that it is of; of all: none.

    Args:
        groups: the experiments.
        runs: all runs, those that repeat another one included.
    """
    whose: dict[str, list[Note]] = {}
    for note in (note for run in runs for note in facts_of(run).notes if note.code in _REPORTED):
        whose.setdefault(note.said, []).append(note)
    found: list[tuple[Note, tuple[str, ...]]] = []
    codes = Counter(notes[0].code for notes in whose.values())
    for code, many in codes.items():
        alike = [notes for notes in whose.values() if notes[0].code == code]
        for notes in alike[:_MOST_ALIKE]:
            found.append((notes[0], () if len(notes) == len(runs) else tuple(n.fields["run"] for n in notes)))
        found += [(Note("more_alike", "warning", {"more": more}), ())] if (more := many - _MOST_ALIKE) > 0 else []
    counted = {run.path for group in groups for run in group.runs}
    found += [(Note("repeats", "warning"), (run.name,)) for run in runs if run.path not in counted]
    uneven = [group.label for group in groups if len({len(run.metrics) for run in group.runs}) > 1]
    found += [(note, ()) for note in cautions(groups)]
    return found + [(Note("uneven_seeds", "warning", {"label": label}), ()) for label in uneven]


# ---- the page and the files


_TEMPLATE = "report.html.j2"
_LIVE = "; script-src 'unsafe-inline'; connect-src 'self'"  # what a live page, which asks for its next version, may do


def write_report(
    dirs: Sequence[str | Path], out: str | Path, *, progress: Callable[[int, int], None] | None = None
) -> Path:
    """Write a report on the runs in ``dirs``, and return the path of its page.

    The page is ``out/report.html``. ``out/figures`` gets each figure as PNG and SVG, and its numbers as CSV.

    Runs that differ only in their seeds become one curve with a deviation band. Nothing that the runs name is imported.
    ``progress`` is called with how many figures are drawn, and of how many. Raises UserError: not a run directory, or
    no finished round. OSError: ``out`` cannot be written.
    """
    return reported(dirs, given_path("out", out), progress)[0]


def reported(
    dirs: Sequence[str | Path], out: Path, progress: Callable[[int, int], None] | None = None
) -> tuple[Path, Answers]:
    """Write a report as :func:`write_report` does, and return its page and the answers on top of it."""
    words = _words(dirs)
    drawn = _write_figures(out, words["charts"], progress)
    write_whole(out / "report.html", _page(words, drawn))
    return out / "report.html", words["answers"]


def report_page(dirs: Sequence[str | Path], poll: str) -> str:
    """Return the page of a report on the runs in ``dirs``, without files of its figures.

    Args:
        dirs: the run directories.
        poll: a script element that loads the page again when there is a new one.

    Raises:
        UserError: there is no run, or it has no finished round.
    """
    words = _words(dirs)
    return _page(words, [_drawn(chart) for chart in words["charts"]], Markup(poll))


def _words(dirs: Sequence[str | Path]) -> dict[str, Any]:
    """Return what the page says and shows of runs."""
    runs = load_runs(dirs)
    groups = group_runs(runs)
    charts = figures(groups)
    first = answers(groups)
    # the picture on top: who contributed, or else the first of the others, which then does not stand below again
    key = charts[0].key if first.picture is None and charts else getattr(first.picture, "key", "")
    charts = sorted((replace(c, section=TOP) if c.key == key else c for c in charts), key=lambda c: c.section != TOP)
    valued = [(group, found) for group in groups if (found := contribution(group)) is not None]
    others = [contributed(found, g.label, doubtful=any(r.coded_doubts for r in g.runs)) for g, found in valued[1:]]
    size = {"clients": groups[0].runs[0].num_clients, "rounds": len(groups[0].runs[0].metrics)}
    return {
        "title": said("report_title", [group.label for group in groups], **size),
        "doubts": first.doubts,
        "answers": first,
        "summary": others,
        "warnings": warnings(groups, runs),
        "experiments": experiments_table(groups),
        "kinds": [(g.label, table) for g in groups if (table := kinds_table(g)) is not None],
        "differences": differences_table(groups),
        "measures": list(dict.fromkeys(found.measure for _, found in valued)),
        "base": groups[0].label,
        "repeated": any(len(group.runs) > 1 for group in groups),
        "run_count": len(runs),
        "charts": charts,
        "parts": [(g.label, lines) for g in groups if (lines := g.runs[0].about.sentences)],
        "configs": [(g.label, g.runs[0].name, (g.runs[0].folder / "config.toml").read_text("utf-8")) for g in groups],
    }


def check(dirs: Sequence[Path], file: Path) -> list[str]:
    """Return what is wrong with the numbers of a page, held against its runs; nothing if they agree.

    Args:
        dirs: the run directories; several for a report alone.
        file: the page: a statement, an invoice or a report.

    Raises:
        UserError: the page is none of these, or a directory holds no run.
    """
    from hanse.reports import invoice, statement

    text = _SIGNATURE.sub("", read_text(file))
    kind = re.search(r'<meta name="kind" content="([^"]*)">', text)
    what, *of = kind[1].split() if kind else [""]
    if what != "report" and len(dirs) > 1:
        raise UserError(f"--check {file}: goes with one run; only a report is of several")
    if what == "statement" and len(of) == 1 and of[0].isdecimal():
        return differences(text, statement.render(statement.statement(dirs[0], int(of[0]))))
    if what == "invoice" and len(of) == 3:
        return differences(text, invoice.as_page(invoice.invoice(dirs[0], of[0], of[1], of[2])))
    if what != "report":
        raise UserError(f"--check {file}: is no page that hanse makes (a statement, an invoice, a report)")
    words = _words(dirs)
    return differences(text, _page(words, [_drawn(chart) for chart in words["charts"]]))


def _write_figures(out: Path, charts: Sequence[Chart], progress: Callable[[int, int], None] | None = None) -> list[str]:
    """Write each chart's files instead of those of an earlier report; return its drawing, an element of a page."""
    drawn = []
    (out / "figures").mkdir(parents=True, exist_ok=True)
    _remove_earlier(out)
    for done, chart in enumerate(charts):
        if progress is not None:
            progress(done, len(charts))
        write_whole(out / "figures" / f"{chart.key}.csv", to_csv(chart))
        drawn.append(_drawn(chart, lambda one: save(one, out / "figures")))
    return drawn


def _drawn(chart: Chart, draw: Callable[[Chart], str] = lambda chart: to_svg(to_vegalite(chart))) -> str:
    """Return a chart's drawing as an element of a page, or why there is none."""
    try:
        return image(chart, draw(chart))
    except DrawingError as wrong:
        return f"Not drawn: {wrong}."


def _remove_earlier(out: Path) -> None:
    """Remove the figures of the report that is already in ``out``, as its page names them; other files stay."""
    earlier = out / "report.html"
    if not earlier.is_file():
        return
    for key in _KEY.findall(earlier.read_text("utf-8", errors="replace")):
        for kind in ("png", "svg", "csv"):
            (out / "figures" / f"{key}.{kind}").unlink(missing_ok=True)


_SIGNATURE = re.compile(r"<!-- \S hanse/statement [A-Za-z0-9+/=]+ -->\n\Z")  # of an operator, below a statement
_KEY = re.compile(r"Files: figures/([a-z0-9.-]+)</span>")


def _page(words: Mapping[str, Any], drawn: Sequence[str], poll: str = "") -> str:
    sections: dict[str, list[tuple[Chart, str]]] = {}
    for chart, picture in zip(words["charts"], drawn, strict=True):
        sections.setdefault(chart.section, []).append((chart, picture))
    top, own = sections.pop(TOP, []), {"policy": policy(_TEMPLATE) + _LIVE} if poll else {}
    return page(_TEMPLATE, poll=poll, top=top, sections=sections, **words, **own)
