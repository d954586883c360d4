"""A finished table for people and programs: as rich tables, Markdown or JSON, and its figures as PNG, SVG and CSV."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from hanse.base.files import write_whole
from hanse.reports.chart import to_csv
from hanse_papers.changes import changed
from hanse_papers.compare import Row, VariantScore, cpu_hours, rows
from hanse_papers.figures import charts
from hanse_papers.runner import TableOutcome, audits
from hanse_papers.tables import PaperTable, Printed


def as_json(outcome: TableOutcome) -> dict[str, Any]:
    """Return ``{paper, table, recipe, scale, seeds, rows: [{setting, algorithm, published, mean, sd, n}]}``.

    ``published``, ``mean`` and ``sd`` are in the table's unit (percent), None if there is no number.
    """
    return _head(outcome) | {"rows": [_row(row) for row in rows(outcome)]}


def _head(outcome: TableOutcome) -> dict[str, Any]:
    table = outcome.table
    return {
        "paper": table.paper, "table": table.name, "recipe": table.recipe, "scale": table.scale,
        "seeds": outcome.seeds,
    }  # fmt: skip


def _row(row: Row) -> dict[str, Any]:
    published = row.cell.published
    return {
        "setting": row.cell.setting,
        "algorithm": row.cell.algorithm,
        "published": None if published is None else published.mean,
        "mean": row.best.mean,
        "sd": row.best.sd,
        "n": row.best.n,
    }


def table_json(outcome: TableOutcome, full: PaperTable) -> dict[str, Any]:
    """Return what :func:`as_json` returns, with variants, the scale's changes, costs and failures."""
    cell_rows = rows(outcome)
    hours, missing = cpu_hours(outcome, full)
    lines = []
    for row in cell_rows:
        published = row.cell.published
        lines.append(
            _row(row)
            | {
                "published_sd": None if published is None else published.sd,
                "rounds": row.cell.at,
                "variant": row.best.variant,
                "variants": [{"name": s.variant, "mean": s.mean, "sd": s.sd, "n": s.n} for s in row.variants],
            }
        )
    return _head(outcome) | {
        "unit": outcome.table.unit,
        "changes": changed(outcome.table, full),
        "notes": list(outcome.table.notes),
        "rows": lines,
        "cpu_seconds": sum(r["cpu_seconds"] for r in outcome.results.values()),
        "paper_scale": {"cpu_hours": hours, "not_measured": missing},
        "audits": audits(outcome),
        "failures": dict(outcome.failures),
    }


def _figures(score: VariantScore | Printed | None, *, whole: bool = False) -> str:
    if score is None or score.mean is None:
        return "–"
    if isinstance(score, VariantScore) and score.held is not None:
        return f"{score.mean:.0f} ({score.held} of {score.n})"
    if whole:
        return f"{score.mean:.0f}"
    return f"{score.mean:.2f}" + ("" if score.sd is None else f" ± {score.sd:.2f}")


def _counts(found: Sequence[Row]) -> bool:
    """Say whether a column's numbers, ours and the paper's, are whole and without deviations, such as numbers of
    samples, and so need no decimals.
    """
    scores = [score for row in found for score in (row.best, row.cell.published) if score is not None]
    return all(s.mean is None or (s.sd is None and float(s.mean).is_integer()) for s in scores)


def _read_as(outcome: TableOutcome, found: Sequence[Row]) -> str:
    """Say how to read the cells of a table's Markdown."""
    unit = "units as the columns say" if outcome.table.unit == "as named" else outcome.table.unit
    lines = [f"A cell is ours / the paper's number ({unit}); without '/', or with '/ –', the paper prints none."]
    if any(row.best.sd is not None for row in found):
        lines.append("Mean ± standard deviation over seeds.")
    shares = [row.best for row in found if row.best.held is not None]
    if shares:
        first = _figures(shares[0])
        lines.append(f"'{first}': the share of the seeds in %, and in how many of how many it was so.")
    if tried := next((row.best.variant for row in found if row.best.variant), None):
        lines.append(f"'({tried})': of the settings that were tried the one with the highest mean, which counts.")
    few = min((row.best.n for row in found if row.best.n > 0), default=outcome.seeds)
    if few < outcome.seeds:
        lines.append(
            f"'({few} of {outcome.seeds})': {few} of {outcome.seeds} seeds are finished; one seed has no deviation."
        )
    return " ".join(lines)


def _blocks(found: Sequence[Row]) -> Iterator[tuple[str, list[str], list[str], dict[tuple[str, str], Row]]]:
    """Yield each group with its columns, its algorithms, and its rows by both."""
    for group in dict.fromkeys(row.cell.group for row in found):
        here = {(r.cell.column, r.cell.algorithm): r for r in found if r.cell.group == group}
        yield group, list(dict.fromkeys(c for c, _ in here)), list(dict.fromkeys(a for _, a in here)), here


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


def print_outcome(outcome: TableOutcome, full: PaperTable, console: Console) -> None:
    """Print our numbers next to the paper's, the changes due to the scale, and the time."""
    table, cell_rows = outcome.table, rows(outcome)
    unit = "units as the columns say" if table.unit == "as named" else table.unit
    below = ", below it the paper's" if any(row.cell.published is not None for row in cell_rows) else ""
    console.print(
        Text(table.title, "bold"),
        f"({table.paper} {table.name}), {unit}: ours "
        f"({f'seeds: {outcome.seeds}' if outcome.jobs else 'computed, without a seed'}){below}",
    )
    differing = changed(table, full)
    console.print(_announced(table, differing), markup=False, highlight=False)
    for line in differing:
        console.print(f"- {line}", markup=False, highlight=False)
    for group, columns, algorithms, here in _blocks(cell_rows):
        printed = {name: any(here[at].cell.published is not None for at in here if at[0] == name) for name in columns}
        cells = {
            name: [_cell(here.get((name, row)), outcome.seeds, printed=printed[name]) for row in algorithms]
            for name in columns
        }
        for shown in _fitting(group, algorithms, cells, console.width, labelled=any(printed.values())):
            console.print(shown)
    for line in (*_tail(outcome, full), *(f"Note: {note}." for note in table.notes)):
        console.print(line, markup=False, highlight=False, style="dim")


def _cell(row: Row | None, seeds: int, *, printed: bool) -> Text:
    """Return a cell's lines: ours, the paper's where the column has any (``printed``), the setting that was best."""
    if row is None:
        return Text()
    ours, theirs = (_figures(score).replace(" ± ", "±") for score in (row.best, row.cell.published))
    few = f" ({said})" if (said := row.best.few(seeds)) else ""
    lines = [Text.assemble((ours, "bold"), few)]
    lines += [Text(theirs, "dim")] if printed else []
    lines += [Text(row.best.variant, "dim italic")] if row.best.variant else []
    return Text("\n").join(lines)


_BORDER = 3  # a column's line and its two spaces


def _fitting(
    group: str, algorithms: Sequence[str], cells: Mapping[str, Sequence[Text]], width: int, *, labelled: bool
) -> Iterator[RichTable]:
    """Yield a group as tables one below the other, each as wide as the terminal allows, so no name is cut and no
    number is broken; headings may take several lines.

    Args:
        group: the heading; followed by "(more)" from the second table on.
        algorithms: the names of the rows.
        cells: each column's cells, one per row.
        width: the terminal's width, in characters.
        labelled: whether each cell has ours above the paper's number, which the row's name then says.
    """
    names = max(cell_len(name) for name in algorithms) + _BORDER + 1 + cell_len(": ours") * labelled
    least = {
        name: max(cell_len(word) for word in (*name.split(), *(line for c in lines for line in c.plain.split("\n"))))
        for name, lines in cells.items()
    }
    pieces: list[list[str]] = [[]]
    for name in cells:
        if pieces[-1] and names + sum(least[n] + _BORDER for n in (*pieces[-1], name)) > width:
            pieces.append([])
        pieces[-1].append(name)
    for number, piece in enumerate(pieces):
        shown = RichTable("", title=group if number == 0 else f"{group} (more)", title_justify="left")
        for name in piece:  # a terminal too narrow for one column breaks a number, and does not cut it
            shown.add_column(name, overflow="fold", min_width=None if names + least[name] > width else least[name])
        for position, algorithm in enumerate(algorithms):
            lines = [f"{algorithm}: ours" if labelled else algorithm, *(["the paper's"] if labelled else [])]
            shown.add_row("\n".join(lines), *(cells[name][position] for name in piece))
        yield shown


def table_markdown(outcome: TableOutcome, full: PaperTable) -> str:
    """Return the table as Markdown: one block per group, with our figure and the paper's in each cell."""
    table, cell_rows = outcome.table, rows(outcome)
    differing = changed(table, full)
    lines = [f"### {table.name}: {table.title}", "", _announced(table, differing), ""]
    lines += [*(f"- {line}" for line in differing), ""] if differing else []
    lines += [_read_as(outcome, cell_rows), ""]
    for group, columns, algorithms, here in _blocks(cell_rows):
        lines += [f"| {group} | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
        of = {name: [row for (column, _), row in here.items() if column == name] for name in columns}
        whole = {name: _counts(of[name]) for name in columns}
        printed = {name: any(row.cell.published is not None for row in of[name]) for name in columns}
        for algorithm in algorithms:
            cells = [
                _markdown(here.get((name, algorithm)), outcome.seeds, whole=whole[name], printed=printed[name])
                for name in columns
            ]
            lines.append(f"| {algorithm} | {' | '.join(cells)} |")
        lines.append("")
    lines += [*_tail(outcome, full), "", *(f"- {note}" for note in table.notes), ""]
    if outcome.failures:
        lines += ["Failed:", "", *(f"- {label}: {why}" for label, why in outcome.failures.items()), ""]
    return "\n".join(lines)


def _markdown(row: Row | None, seeds: int, *, whole: bool, printed: bool) -> str:
    """Return a cell: ours, the setting that was best, the seeds if they are few, and the paper's where it prints any in
    this column.
    """
    if row is None:
        return ""
    few = row.best.few(seeds) if row.best.n > 0 else ""
    pieces = [_figures(row.best, whole=whole), *(f"({text})" for text in (row.best.variant, few) if text)]
    return " ".join([*pieces, *(["/", _figures(row.cell.published, whole=whole)] if printed else [])])


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
        f"{stem}.json": json.dumps(table_json(outcome, full), indent=1, allow_nan=False) + "\n",
        f"{stem}.md": table_markdown(outcome, full),
        **{f"{chart.key}.csv": to_csv(chart) for chart in drawn},
    }
    for name, text in texts.items():
        write_whole(folder / name, text)
    for chart in drawn:
        save(chart, folder)
    pictures = (f"{chart.key}.{kind}" for chart in drawn for kind in ("png", "svg"))
    return [folder / name for name in (*texts, *pictures)]
