"""A sweep as a table: a row a run, and the means over seeds."""

from __future__ import annotations

import csv
import io
import re
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table as RichTable

from hanse.base.files import write_whole
from hanse.lab.jobs.run import Done
from hanse.lab.sweep.grid import Point

__all__ = ["means", "means_table", "printed_rows", "rows_of", "write_rows"]

Row = dict[str, Any]
_ONE_CLIENT = re.compile(r"\w+/\d+(/|$)")  # a single client's figure: it is in the run's own file


def rows_of(points: Sequence[Point], done: Done) -> list[Row]:
    """Return a row a run, in the order of the points: what varied, ``status`` and what came out.

    ``status`` is "done", "failed" (with ``error``) or "waiting". A finished run has the last value of each tested
    figure under its own name, the best test accuracy with the round of it, and what the run took.
    """
    rows = []
    for point in points:
        row: Row = {**point.at} if point.seed is None else {**point.at, "seed": point.seed}
        found = done.results.get(point.job.key)
        error = done.failures.get(point.job.key)
        row["status"] = "done" if found is not None else "waiting" if error is None else "failed"
        if found is not None:
            row |= _figures(found)
        row |= {"error": error, "key": point.job.key}
        rows.append(row)
    return rows


def _figures(found: Mapping[str, Any]) -> Row:
    curves = {name: values for name, values in found["curves"].items() if not _ONE_CLIENT.match(name)}
    row: Row = {"rounds": found["rounds"]}
    row |= {name: values[-1] if values else None for name, values in curves.items()}
    tested = [(value, -at) for at, value in zip(found["tested"], curves.get("test/accuracy", ()), strict=False)
              if value is not None]  # fmt: skip
    if tested:
        best, at = max(tested)
        row |= {"best test/accuracy": best, "best after rounds": -at}
    row |= {
        "ms_per_round": found["ms_per_round"],
        "seconds": found["wall_seconds"],
        "megabytes": (found["bytes"]["down"] + found["bytes"]["up"]) / 1e6,
        "folder": found.get("folder"),
    }
    return row


def means(points: Sequence[Point], rows: Sequence[Row]) -> list[Row]:
    """Return a row for each combination of the grid: finished seeds ``n``, mean and sample deviation of each tested
    figure over them (no deviation for one seed).
    """
    groups: dict[tuple[str, ...], list[Row]] = {}
    for point, row in zip(points, rows, strict=True):
        groups.setdefault(tuple(point.at.values()), []).append(row)
    keys = list(points[0].at)
    found = []
    for values, group in groups.items():
        ended = [row for row in group if row["status"] == "done"]
        mean: Row = {**dict(zip(keys, values, strict=True)), "n": len(ended)}
        for name in dict.fromkeys(name for row in ended for name in row if "/" in name):
            numbers = [row[name] for row in ended if row.get(name) is not None]
            if numbers:
                mean[name] = statistics.fmean(numbers)
                mean[f"{name} sd"] = statistics.stdev(numbers) if len(numbers) > 1 else None
        found.append(mean)
    return found


def write_rows(path: Path, rows: Sequence[Row]) -> None:
    """Write the rows as a CSV file, whole or not at all; what a run does not have is empty."""
    text = io.StringIO()
    writer = csv.DictWriter(text, _columns(rows), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_whole(path, text.getvalue())


def _columns(rows: Sequence[Row]) -> list[str]:
    """Return all columns, where errors and keys come last."""
    every = dict.fromkeys(name for row in rows for name in row)
    return [name for name in every if name not in ("error", "key")] + ["error", "key"]


def printed_rows(rows: Sequence[Row]) -> RichTable:
    """Return what a person wants of the rows: what varied, status, accuracies, time, and why a run failed."""
    hidden = {"key", "folder", "best after rounds", "megabytes", "seconds"}
    if _said(rows, "test/accuracy"):
        hidden.add("test/loss")
    return _rich(rows, [name for name in _columns(rows) if name not in hidden and _said(rows, name)])


def means_table(found: Sequence[Row]) -> RichTable:
    """Return the means with their deviations behind a plus-minus sign."""
    lines = []
    for row in found:
        line = {}
        for name, value in row.items():
            if name.endswith(" sd"):
                continue
            sd = row.get(f"{name} sd")
            line[name] = value if sd is None else f"{value:.4g} ± {sd:.2g}"
        lines.append(line)
    return _rich(lines, list(dict.fromkeys(name for line in lines for name in line)))


def _said(rows: Sequence[Row], name: str) -> bool:
    return any(row.get(name) is not None for row in rows)


def _rich(rows: Sequence[Row], columns: Sequence[str]) -> RichTable:
    table = RichTable()
    for name in columns:
        short = name.rpartition(".")[2]  # of section.key, where no other column is called so
        alone = sum(other.rpartition(".")[2] == short for other in columns) == 1
        table.add_column(short if alone else name, overflow="fold")
    for row in rows:
        table.add_row(*(_cell(row.get(name)) for name in columns))
    return table


def _cell(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value).replace("[", "\\[")
