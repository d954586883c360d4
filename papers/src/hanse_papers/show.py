"""A finished table for people and programs: as rich tables, Markdown or JSON, and its figures as PNG, SVG and CSV."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Column
from rich.table import Table as RichTable
from rich.text import Text

from hanse.base.files import write_whole
from hanse.reports.chart import to_csv
from hanse_papers.changes import changed
from hanse_papers.compare import Row, VariantScore, cpu_hours, rows
from hanse_papers.figures import charts
from hanse_papers.runner import TableOutcome, audits
from hanse_papers.tables import PaperTable, Printed


def as_json(outcome: TableOutcome, full: PaperTable | None = None) -> dict[str, Any]:
    """Return ``{paper, table, recipe, scale, seeds, rows: [{setting, algorithm, published, mean, sd, n}]}``.

    ``published``, ``mean`` and ``sd`` are in the table's unit (percent), None if there is no number. With the table at
    full size: also variants, the scale's changes, costs, audits and failures.
    """
    table, found = outcome.table, rows(outcome)
    whole = {name: getattr(table, key) for name, key in HEAD.items()} | {"seeds": outcome.seeds}
    whole["rows"] = [_row(row, more=full is not None) for row in found]
    if full is None:
        return whole
    hours, missing = cpu_hours(outcome, full)
    return whole | {
        "unit": table.unit,
        "changes": changed(table, full),
        "notes": list(table.notes),
        "cpu_seconds": sum(r["cpu_seconds"] for r in outcome.results.values()),
        "paper_scale": {"cpu_hours": hours, "not_measured": missing},
        "audits": audits(outcome),
        "failures": dict(outcome.failures),
    }


HEAD = {"paper": "paper", "table": "name", "recipe": "recipe", "scale": "scale"}


def _row(row: Row, *, more: bool) -> dict[str, Any]:
    printed, best = row.cell.published, row.best
    found = {"setting": row.cell.setting, "algorithm": row.cell.algorithm, "published": printed and printed.mean}
    found |= {name: getattr(best, name) for name in ("mean", "sd", "n")}
    if not more:
        return found
    variants = [{"name": s.variant, "mean": s.mean, "sd": s.sd, "n": s.n} for s in row.variants]
    rest = {"published_sd": printed and printed.sd, "rounds": row.cell.at, "variant": best.variant}
    return found | rest | {"variants": variants}


def _figures(score: VariantScore | Printed | None) -> str:
    """Return a number as a table shows it; one that is whole and without a deviation, such as a count, as it is."""
    if score is None or score.mean is None:
        return "–"
    if isinstance(score, VariantScore) and score.held is not None:
        return f"{score.mean:.0f} ({score.held} of {score.n})"
    if score.sd is None:
        return f"{score.mean:.0f}" if float(score.mean).is_integer() else f"{score.mean:.2f}"
    return f"{score.mean:.2f} ± {score.sd:.2f}"


def _read_as(outcome: TableOutcome) -> str:
    """Say how to read the cells of a table."""
    unit = "units as the columns say" if outcome.table.unit == "as named" else outcome.table.unit
    return (
        f"A cell is ours / the paper's number ({unit}); without '/', or with '/ –', the paper prints none. Means ± "
        "standard deviations over seeds, of the setting in brackets where several were tried (the highest mean); "
        f"'(3 of {outcome.seeds})': so many seeds are finished; of a share of seeds: in so many it was so."
    )


def _tail(outcome: TableOutcome, full: PaperTable) -> list[str]:
    """Return the lines on audits, and on the time that the whole table would take."""
    hours, missing = cpu_hours(outcome, full)
    lines = [f"Audit: {line}." for line in audits(outcome)]
    if hours > 0:
        unknown = f", not counting {', '.join(missing)}, of which nothing was measured" if missing else ""
        about = "about" if outcome.table.scale == "paper" else "more than"
        lines.append(f"At paper scale this table takes {about} {hours:.1f} processor hours here{unknown}.")
    return lines


def _announced(table: PaperTable, lines: Sequence[str]) -> str:
    """Say by which recipe and at which scale a table was made, and announce the lines on what differs, if any."""
    words = {"paper": "what the text says", "authors": "what the authors' code does"}[table.recipe]
    differs = "What differs from the paper, or from this recipe at full size:"
    none = "Nothing in its settings differs from the paper, or from this recipe at full size."
    return f"Recipe {table.recipe} ({words}), scale {table.scale}. {differs if lines else none}"


def _grids(outcome: TableOutcome, found: Sequence[Row]) -> Iterator[tuple[list[str], list[list[str]]]]:
    """Yield each group as a heading (the group, then its columns) and a line of cells for each algorithm."""
    for group in dict.fromkeys(row.cell.group for row in found):
        here = {(r.cell.column, r.cell.algorithm): r for r in found if r.cell.group == group}
        columns, algorithms = (list(dict.fromkeys(names)) for names in zip(*here, strict=True))
        printed = {column for (column, _), row in here.items() if row.cell.published is not None}
        cells = [
            [_cell(here.get((name, algorithm)), outcome.seeds, printed=name in printed) for name in columns]
            for algorithm in algorithms
        ]
        yield [group, *columns], [[algorithm, *line] for algorithm, line in zip(algorithms, cells, strict=True)]


def _cell(row: Row | None, seeds: int, *, printed: bool) -> str:
    """Return a cell: ours, the setting that was best, the seeds if they are few, and the paper's where it prints any in
    this column.
    """
    if row is None:
        return ""
    few = f"{row.best.n} of {seeds}" if 0 < row.best.n != seeds else ""
    pieces = [_figures(row.best), *(f"({text})" for text in (row.best.variant, few) if text)]
    return " ".join([*pieces, *(["/", _figures(row.cell.published)] if printed else [])])


def _before(outcome: TableOutcome, full: PaperTable) -> list[str]:
    """Return the lines above a table: what differs, and how cells are read."""
    differing = changed(outcome.table, full)
    lines = [_announced(outcome.table, differing), "", *(f"- {line}" for line in differing)]
    return [*lines, *([""] if differing else []), _read_as(outcome)]


def print_outcome(outcome: TableOutcome, full: PaperTable, console: Console) -> None:
    """Print our numbers next to the paper's, the changes due to the scale, and the time."""
    table, found = outcome.table, rows(outcome)
    console.print(Text(table.title, "bold"), f"({table.paper} {table.name}, seeds: {outcome.seeds})")
    for line in _before(outcome, full):
        console.print(line, markup=False, highlight=False)
    for heading, lines in _grids(outcome, found):
        shown = RichTable(*(Column(Text(name), overflow="fold") for name in heading))
        for cells in lines:
            shown.add_row(*map(Text, cells))
        console.print(shown)
    for line in (*_tail(outcome, full), *(f"Note: {note}." for note in table.notes)):
        console.print(line, markup=False, highlight=False, style="dim")


def table_markdown(outcome: TableOutcome, full: PaperTable) -> str:
    """Return the table as Markdown: one block per group, with our figure and the paper's in each cell."""
    table, found = outcome.table, rows(outcome)
    lines = [f"### {table.name}: {table.title}", "", *_before(outcome, full), ""]
    for heading, body in _grids(outcome, found):
        lines += [f"| {' | '.join(cells)} |" for cells in (heading, ["---"] * len(heading), *body)]
        lines.append("")
    lines += [*_tail(outcome, full), "", *(f"- {note}" for note in table.notes), ""]
    if outcome.failures:
        lines += ["Failed:", "", *(f"- {label}: {why}" for label, why in outcome.failures.items()), ""]
    return "\n".join(lines)


_LONGEST = 100  # characters of a file's name that say what a table was cut down to


def stem_of(table: PaperTable) -> str:
    """Return the beginning of a table's file names.

    It has the table's name, the authors' recipe if used, the scale, and the ``--only`` filters. A part of a table
    therefore does not overwrite the whole. If that is too long for a file name, it ends in a hash.
    """
    recipe = ("authors",) if table.recipe == "authors" else ()
    asked = "-or-".join(table.only).lower()
    part = re.sub(r"[^a-z0-9.=]+", "-", asked.replace("%", "-percent-").replace("&", "-and-")).strip("-")
    if len(part) > _LONGEST:
        part = f"{part[:_LONGEST]}-{hashlib.blake2b(asked.encode(), digest_size=4).hexdigest()}"
    return "-".join((table.name, *recipe, table.scale, *((f"only-{part}",) if table.only else ())))


def write_outcome(outcome: TableOutcome, full: PaperTable, folder: Path) -> list[Path]:
    """Write a finished table into files, and return their paths.

    These are ``<table>-<scale>.json`` (``<table>-authors-<scale>.json`` by the authors' recipe) and ``.md``, and for
    each picture a ``.png``, an ``.svg`` and a ``.csv``.
    """
    from hanse.reports.vega import save

    stem = stem_of(outcome.table)
    drawn = charts(outcome, stem)
    texts = {
        f"{stem}.json": json.dumps(as_json(outcome, full), indent=1, allow_nan=False) + "\n",
        f"{stem}.md": table_markdown(outcome, full),
        **{f"{chart.key}.csv": to_csv(chart) for chart in drawn},
    }
    for name, text in texts.items():
        write_whole(folder / name, text)
    for chart in drawn:
        save(chart, folder)
    pictures = (f"{chart.key}.{kind}" for chart in drawn for kind in ("png", "svg"))
    return [folder / name for name in (*texts, *pictures)]
