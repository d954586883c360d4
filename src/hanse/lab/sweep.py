"""One experiment at many settings: a grid over its keys and seeds, each point a run, each run a row of a table."""

from __future__ import annotations

import csv
import io
import itertools
import math
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table as RichTable

from hanse.base.errors import UserError
from hanse.base.files import write_whole
from hanse.lab.job import Job, play, play_kept, seeded
from hanse.lab.player import PlayedJobs, Work, play_all
from hanse.learning.metrics import readings_of
from hanse.runs.config import read_file
from hanse.runs.overrides import NAMED, changed_by, fitting, name_of, replaced

TABLE = "table.csv"
Row = dict[str, Any]
_ONE_CLIENT = re.compile(r"\w+/\d+(/|$)")  # a single client's figure: it is in the run's own file
MOST = 100_000  # runs: more is a slip of the pen
_OPEN, _SHUT = "[{(", "]})"


@dataclass(frozen=True)
class Axis:
    """One varied key, ``section.key`` (or a whole table, ``section``), and its values as they are written."""

    key: str
    values: tuple[str, ...]


@dataclass(frozen=True)
class GridPoint:
    """One run: where it lies in the grid (written values by key), its seed if seeds vary, and its job.

    Options of ``[mechanism]`` that belong to other mechanisms of the sweep are left out; an axis among them has the
    value "-", and ``notes`` has a line for each other one.
    """

    at: Mapping[str, str]
    seed: int | None
    job: Job
    notes: Sequence[str] = ()


def read_axis(text: str) -> Axis:
    """Return the axis that ``section.key=a,b,c`` or ``mechanism=a,b,c`` says; commas inside brackets and quotes belong
    to a value.

    Raises UserError for anything else, and for a value that is there twice.
    """
    key, equals, rest = text.partition("=")
    key = key.strip()
    if not equals or not all(part.strip() for part in key.split(".")):
        raise UserError(f"--grid {text}: must be section.key=value,value, as in --grid train.lr=0.1,0.01")
    values = tuple(value.strip() for value in _split(rest))
    if "." not in key and key not in NAMED and not all(value.startswith("{") for value in values):
        raise UserError(f"--grid {text}: must be section.key=value,value, as in --grid train.lr=0.1,0.01")
    if not all(values):
        raise UserError(f'--grid {text}: a value is empty; write "" for empty text')
    twice = next((value for value in values if values.count(value) > 1), None)
    if twice is not None:
        raise UserError(f"--grid {text}: {twice} is there twice")
    return Axis(key, values)


def _split(text: str) -> list[str]:
    """Split at commas that are not within brackets or quotes."""
    parts, depth, quote = [""], 0, ""
    for letter in text:
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "\"'":
            quote = letter
        elif letter in _OPEN:
            depth += 1
        elif letter in _SHUT:
            depth -= 1
        elif letter == "," and depth == 0:
            parts.append("")
            continue
        parts[-1] += letter
    return parts


def grid_of(file: Path, overrides: Sequence[str], grid: Sequence[str], seeds: int | None) -> list[GridPoint]:
    """Return the runs of a sweep, checked: every combination of the axes' values, with ``seeds`` seeds each.

    A seed is that of the split and of everything else (``data.seed`` and ``run.seed``). All combinations of seed 0
    come first, so that a sweep that was stopped has complete seeds. Raises UserError with a line for each mistake.
    """
    axes = _axes(grid, seeds)
    if seeds is not None and seeds < 1:
        raise UserError(f"--seeds {seeds}: must be at least 1")
    count = math.prod(len(axis.values) for axis in axes) * (seeds or 1)
    if count > MOST:
        raise UserError(f"--grid: {count:,} runs; at most {MOST:,}")
    base = read_file(file)
    grid_points = [
        dict(zip((axis.key for axis in axes), v, strict=True)) for v in itertools.product(*(a.values for a in axes))
    ]
    written_for = _mechanisms(base, overrides, grid_points)
    points: list[GridPoint] = []
    lines: list[str] = []
    for seed in range(seeds) if seeds is not None else (None,):
        there: dict[tuple[str, ...], GridPoint] = {}
        for at in grid_points:
            point = _point(base, overrides, at, seed, written_for, file.stem)
            if there.setdefault(tuple(point.at.values()), point) is not point:
                continue  # they differ only in an option that this mechanism does not have
            points.append(point)
            try:
                point.job.checked()
            except UserError as wrong:
                lines += wrong.lines
        if lines:  # another seed would say the same again
            raise UserError(*dict.fromkeys(lines))
    same = _same_run(points)
    if same is not None:
        raise UserError(f"--grid: {same[0].job.label} and {same[1].job.label} are one and the same run")
    return points


def _axes(grid: Sequence[str], seeds: int | None) -> list[Axis]:
    axes = [read_axis(text) for text in grid]
    keys = [axis.key for axis in axes]
    for key in keys:
        if keys.count(key) > 1:
            raise UserError(f"--grid {key}: is given twice; write all its values in one")
        if seeds is not None and key in ("run.seed", "data.seed"):
            raise UserError(f"--grid {key}: --seeds sets it already; give one of the two")
    return axes


def _mechanisms(base: Mapping[str, Any], overrides: Sequence[str], grid: Sequence[Mapping[str, str]]) -> list[str]:
    """Return the names of all mechanisms that the file and the sweep have options for."""
    every = [base, *(changed_by(base, _words(overrides, at)) for at in grid)]
    return [name for name in dict.fromkeys(map(name_of, every)) if name is not None]


def _words(overrides: Sequence[str], at: Mapping[str, str]) -> list[str]:
    return [*overrides, *(f"{key}={value}" for key, value in at.items())]


def _point(
    base: Mapping[str, Any],
    overrides: Sequence[str],
    at: Mapping[str, str],
    seed: int | None,
    written_for: Sequence[str],
    name: str,
) -> GridPoint:
    """Return a run, without the options that only other mechanisms of the sweep have (``written_for``)."""
    sections, gone = fitting(changed_by(base, _words(overrides, at)), written_for)
    lost = {key for key in at if key.startswith("mechanism.") and key.split(".")[1].strip() in gone}
    at = {key: "-" if key in lost else value for key, value in at.items()}
    words = [f"{key}={value}" for key, value in at.items() if key not in lost]
    words += [f"seed={seed}"] if seed is not None else []
    of = name_of(sections)
    notes = [f"note: mechanism.{key}: left out of '{of}', which has no such option" for key in gone]
    notes += replaced(base, sections, _words(overrides, at))
    return GridPoint(at, seed, seeded(sections, seed, ", ".join(words) or name), notes)


def _same_run(points: Sequence[GridPoint]) -> tuple[GridPoint, GridPoint] | None:
    """Return two points that say the same in different words (``0.1`` and ``0.10``)."""
    seen: dict[str, GridPoint] = {}
    for point in points:
        other = seen.setdefault(point.job.key, point)
        if other is not point:
            return other, point
    return None


def run_sweep(
    points: Sequence[GridPoint],
    folder: Path,
    *,
    workers: int,
    ray: str | None = None,
    gpus: float | None = None,
    rows_only: bool = False,
    table_name: str = TABLE,
    console: Console | None = None,
    work: Work | None = None,
) -> PlayedJobs:
    """Run what is left of a sweep over ``workers`` processes, or on the Ray cluster at ``ray``, with so many ``gpus``
    for each run there.

    ``folder`` gets the table (a row a run, rewritten after each), ``jobs/<key>.json`` (what is kept of a run) and
    ``runs/`` (a run directory each, unless ``rows_only`` or on Ray). Every run uses one thread, so that its numbers do
    not depend on ``workers``. A run that fails is a row that says why, and is tried again next time. Raises UserError
    for fewer than 1 worker, data that are not here, or a cluster that does not answer; KeyboardInterrupt once it is
    stopped (what has ended is kept, and a run directory is gone on with).
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as wrong:
        raise UserError(f"--out {folder}: cannot be written: {wrong.strerror}") from None
    bare = rows_only or ray is not None

    def table(done: PlayedJobs) -> None:
        write_rows(folder / table_name, rows_of(points, done))

    done = play_all(
        [point.job for point in points],
        folder,
        work or (play if bare else partial(play_kept, runs=folder / "runs")),
        workers=workers,
        ray=ray,
        gpus=gpus,
        label=folder.name,
        console=console,
        ended=table,
    )
    table(done)
    return done


@dataclass(frozen=True)
class SweepPart:
    """Part ``number`` of ``count``, from 1: every ``count``-th run of a sweep, for machines that share a folder."""

    number: int
    count: int

    @classmethod
    def read(cls, text: str) -> SweepPart:
        """Return the part that ``i/n`` says. Raises UserError."""
        number, slash, count = text.partition("/")
        found = cls(int(number), int(count)) if number.isdecimal() and count.isdecimal() else None
        if not slash or found is None or not 1 <= found.number <= found.count:
            raise UserError(f"--part {text}: must be i/n with i from 1 to n, as in --part 2/8")
        return found

    def of(self, points: Sequence[GridPoint]) -> list[GridPoint]:
        """Return the runs of this part, in the order of the sweep."""
        return list(points[self.number - 1 :: self.count])

    @property
    def table(self) -> str:
        """The name of its table: parts that run at the same time write none together."""
        return f"part-{self.number}-of-{self.count}.csv"


def rows_of(points: Sequence[GridPoint], done: PlayedJobs) -> list[Row]:
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


def means(points: Sequence[GridPoint], rows: Sequence[Row]) -> list[Row]:
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


def printed_rows(points: Sequence[GridPoint], rows: Sequence[Row]) -> RichTable:
    """Return what a person wants of the rows, as many columns as a terminal has room for: what varied, status, the
    figures of :func:`_asked`, time, and why a run failed. The file has all.
    """
    hidden = {"key", "folder", "rounds", "best after rounds", "megabytes", "seconds"}
    asked = _asked(points, rows)
    columns = [name for name in _columns(rows) if ("/" not in name and name not in hidden) or name in asked]
    return _rich(rows, [name for name in columns if _said(rows, name)])


def _asked(points: Sequence[GridPoint], rows: Sequence[Row]) -> set[str]:
    """Return the figures that the experiments ask for, of the server's test and the mean over clients: of the metrics
    that they name, or else the accuracy and its best, or else (there are no classes) the loss.
    """
    named = {r.key for p in points for r in readings_of(p.job.sections.get("eval", {}).get("metrics"))}
    best = {"best test/accuracy"}
    if not named:
        of_classes = _said(rows, "test/accuracy") or _said(rows, "client/test_accuracy")
        named, best = ({"accuracy"}, best) if of_classes else ({"loss"}, set())
    elif "accuracy" not in named:
        best = set()
    return {figure for key in named for figure in (f"test/{key}", f"client/test_{key}")} | best


def means_table(points: Sequence[GridPoint], found: Sequence[Row]) -> RichTable:
    """Return the means of :func:`_asked` with their deviations behind a plus-minus sign."""
    lines, asked = [], _asked(points, found)
    for row in found:
        line = {}
        for name, value in row.items():
            if name.endswith(" sd") or ("/" in name and name not in asked):
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
