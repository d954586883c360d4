"""One experiment with many settings: a grid over keys and seeds, in which each point is a run.

This is the implementation of ``hanse sweep``, and can be used from Python. :func:`grid_of` reads an experiment's file
and the axes, and returns the checked :class:`GridPoint` of every run. :func:`run_sweep` plays those without a result,
and keeps a table with a row for each run (:func:`rows_of`). :func:`part_of` gives one machine's share of the runs.
"""

from __future__ import annotations

import csv
import io
import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from hanse.base.errors import UserError, collected, gated
from hanse.base.files import write_whole
from hanse.base.plain_text import quantity
from hanse.lab.job import Job, folder_of, play, play_kept, seeded
from hanse.lab.kept import Store
from hanse.lab.player import PlayedJobs, Work, play_all
from hanse.reports.groups import CALLED
from hanse.runs.config import read_file
from hanse.runs.overrides import NAMED, changed_by, fitting, name_of, replaced
from hanse.runs.refusals import idle

TABLE = "table.csv"
Row = dict[str, Any]
"""A run's figures by column; None, or no such key, where it has none."""
_ONE_CLIENT = re.compile(r"\w+/\d+(/|$)")  # a single client's figure: too many for columns, and in jobs/<key>.json
MOST = 100_000  # runs of a sweep: a grid with more is a mistake, and listing them alone would take minutes
_OPEN, _SHUT = "[{(", "]})"
_LOOKED_AT = 1000  # runs of which it is looked at whether all their settings have an effect: some seconds


@dataclass(frozen=True)
class Axis:
    """One setting that a sweep varies.

    Attributes:
        key: ``section.key`` as in the experiment's file, or ``section`` for a whole table.
        values: the values as written on the command line, such as ``("0.1", "1e-3")``.
        labels: what to call each value instead; empty if the values stand for themselves.
    """

    key: str
    values: tuple[str, ...]
    labels: tuple[str, ...] = ()


@dataclass(frozen=True)
class GridPoint:
    """One run of a sweep.

    If several mechanisms are swept, each run omits options of ``[mechanism]`` that only other mechanisms have.

    Attributes:
        at: the place in the grid, the written value of each axis by its key, or its label. An axis that this run's
            mechanism does not have is "-".
        seed: the seed of the split and of everything else. None: the sweep does not vary seeds.
        job: the run itself.
        notes: a line for the user for each omitted option.

    Examples:
        >>> file = Path("mine.toml")
        >>> _ = file.write_text('mechanism.name = "fedavg"')
        >>> points = grid_of(file, [], ["train.lr=0.1,0.2"], 2)
        >>> len(points), dict(points[0].at), points[0].seed
        (4, {'train.lr': '0.1'}, 0)
    """

    at: Mapping[str, str]
    seed: int | None
    job: Job
    notes: Sequence[str] = ()


def read_axis(text: str) -> Axis:
    """Return the axis that a ``--grid`` option describes.

    Args:
        text: ``section.key=a,b,c``, or ``mechanism=a,b,c`` (``model`` likewise) for whole tables by name, or
            ``section={...},{...}`` for whole tables. ``mechanism={mine=a, theirs={...}}`` (``model`` likewise) labels
            its values. Commas inside brackets and quotes belong to a value.

    Raises:
        UserError: the text has another form, or a value is empty or given twice.

    Example:
        >>> read_axis("model.hidden=[50],[50,25]")
        Axis(key='model.hidden', values=('[50]', '[50,25]'), labels=())
        >>> read_axis("mechanism={mine=greedyfed, theirs=fedavg}")
        Axis(key='mechanism', values=('greedyfed', 'fedavg'), labels=('mine', 'theirs'))
    """
    key, equals, rest = text.partition("=")
    key = key.strip()
    values, labels = tuple(value.strip() for value in _split(rest)), tuple[str, ...]()
    if key in NAMED and len(values) == 1 and (found := _labelled(values[0])):
        labels, values = tuple(found), tuple(found.values())
    whole = "." in key or key in NAMED or all(value.startswith("{") for value in values)
    if not (equals and whole and all(part.strip() for part in key.split("."))):
        raise UserError(f"--grid {text}: must be section.key=value,value, as in --grid train.lr=0.1,0.01")
    if not all(values):
        raise UserError(f'--grid {text}: a value is empty; write "" for empty text')
    twice = next((value for value in values if values.count(value) > 1), None)
    if twice is not None:
        raise UserError(f"--grid {text}: {twice} is given twice")
    return Axis(key, values, labels)


def _labelled(text: str) -> dict[str, str]:
    """Return the written values in a table by their labels; none if it is a table of options, which has a name."""
    pairs = [pair.partition("=") for pair in _split(text[1:-1])] if text[:1] + text[-1:] == "{}" else []
    found = {label.strip().strip("\"'"): value.strip() for label, _, value in pairs}
    return {} if "name" in found or not all(found) or len(found) < len(pairs) else found


def _split(text: str) -> list[str]:
    """Return the pieces of a text between the commas that are not within brackets or quotes."""
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
    """Return the runs of a sweep, each checked: every combination of the axes' values with every seed.

    All combinations of seed 0 come first, then those of seed 1. A sweep that is stopped therefore has complete seeds.

    Args:
        file: the experiment's file (TOML).
        overrides: changes for all runs, each written as after ``--set``: ``section.key=value``.
        grid: the axes, each written as after ``--grid`` (see :func:`read_axis`).
        seeds: the number of seeds, which are 0, 1, ... Each sets the seed of the split (``data.seed``) and that of
            everything else (``run.seed``). None leaves the experiment's own seeds.

    Returns:
        At most 100,000 runs. Combinations that differ only in an option that their mechanism does not have count as one
        run.

    Raises:
        UserError: the file, an axis or an experiment is not valid, with a line for each mistake; or two runs are the
            same, written differently, such as ``train.lr=0.1`` and ``train.lr=0.10``.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = Path(folder) / "exp.toml"
        ...     _ = file.write_text('[mechanism]\\nname = "fedavg"\\nclients_per_round = 2\\n')
        ...     points = grid_of(file, ["run.rounds=3"], ["train.lr=0.1,0.01"], seeds=2)
        >>> for point in points:
        ...     print(point.job.label, "-", point.job.rounds, "rounds")
        train.lr=0.1, seed=0 - 3 rounds
        train.lr=0.01, seed=0 - 3 rounds
        train.lr=0.1, seed=1 - 3 rounds
        train.lr=0.01, seed=1 - 3 rounds
    """
    axes = _axes(grid, seeds)
    for axis, change in itertools.product(axes, overrides):
        if axis.key == change.partition("=")[0].strip():
            raise UserError(f"--set {change}: --grid sets it already; give one of the two")
    if seeds is not None and seeds < 1:
        raise UserError(f"--seeds {seeds}: must be at least 1")
    count = math.prod(len(axis.values) for axis in axes) * (seeds or 1)
    if count > MOST:
        raise UserError(f"--grid: {quantity(f'{count:,}', 'run')}; at most {MOST:,}")
    base = read_file(file)
    grid_points = [
        dict(zip((axis.key for axis in axes), v, strict=True)) for v in itertools.product(*(a.values for a in axes))
    ]
    # an option that only some of the mechanisms have is no mistake where one of the others is played
    every = [base, *(changed_by(base, _words(overrides, at)) for at in grid_points)]
    written_for = [name for name in dict.fromkeys(map(name_of, every)) if name is not None]
    labels = {axis.key: dict(zip(axis.values, axis.labels, strict=True)) for axis in axes if axis.labels}
    points: list[GridPoint] = []
    lines: list[str] = []
    for seed in range(seeds) if seeds is not None else (None,):
        there: dict[tuple[str, ...], GridPoint] = {}
        for at in grid_points:
            point = _point(base, overrides, at, seed, written_for, file.stem, labels)
            if there.setdefault(tuple(point.at.values()), point) is not point:
                continue  # it differs from one that is there only in an option that this mechanism does not have
            points.append(point)
            with collected(lines):
                point.job.checked()
        if lines:  # the other seeds would repeat the same mistakes
            raise UserError(*dict.fromkeys(lines))
    if misfits := _misfits(points):
        raise UserError(*misfits)
    seen: dict[str, GridPoint] = {}
    for point in points:  # "0.1" and "0.10" are one run in different words
        if (other := seen.setdefault(point.job.key, point)) is not point:
            raise UserError(f"--grid: {other.job.label} and {point.job.label} are one and the same run")
    return points


def without_effect(points: Sequence[GridPoint]) -> list[str]:
    """Return a warning for each setting that changes nothing in any run of a sweep. One that only some of the swept
    mechanisms use is none.

    Args:
        points: the runs.
    """
    told = [{line.split(": ")[1]: line for line in idle(point.job.experiment)} for point in points[:_LOOKED_AT]]
    return [line for key, line in told[0].items() if all(key in lines for lines in told)] if told else []


def _axes(grid: Sequence[str], seeds: int | None) -> list[Axis]:
    """Return the axes, and refuse a key that is set twice, by two axes or by an axis and ``--seeds``."""
    axes = [read_axis(text) for text in grid]
    keys = [axis.key for axis in axes]
    for key in keys:
        if keys.count(key) > 1:
            raise UserError(f"--grid {key}: is given twice; write all its values in one --grid")
        if seeds is not None and key in ("run.seed", "data.seed"):
            raise UserError(f"--grid {key}: --seeds sets it already; give one of the two")
    return axes


def _words(overrides: Sequence[str], at: Mapping[str, str]) -> list[str]:
    """Return the overrides of one run: those of all runs, and then its place in the grid."""
    return [*overrides, *(f"{key}={value}" for key, value in at.items())]


def _point(
    base: Mapping[str, Any],
    overrides: Sequence[str],
    at: Mapping[str, str],
    seed: int | None,
    written_for: Sequence[str],
    name: str,
    labels: Mapping[str, Mapping[str, str]],
) -> GridPoint:
    """Return the run at one place of the grid, without the options that only other mechanisms have.

    Args:
        base: the experiment's file as it is read.
        overrides: changes for all runs.
        at: the written value of each axis.
        seed: the run's seed, or None.
        written_for: the names of all mechanisms of the file and the grid, whose options may be left out.
        name: the label if nothing varies.
        labels: what to call the values of an axis, by its key.
    """
    sections, gone = fitting(changed_by(base, _words(overrides, at)), written_for)
    lost = {key for key in at if key.startswith("mechanism.") and key.split(".")[1].strip() in gone}
    of = name_of(sections)
    notes = [f"note: mechanism.{key}: left out of '{of}', which has no such option" for key in gone]
    notes += replaced(base, sections, _words(overrides, at))
    called = {key: labels[key][value] for key, value in at.items() if key in labels}
    at = {key: "-" if key in lost else called.get(key, value) for key, value in at.items()}
    words = [called.get(key) or f"{key}={value}" for key, value in at.items() if key not in lost]
    words += [f"seed={seed}"] if seed is not None else []
    job = seeded(sections, seed, ", ".join(words) or name)
    return GridPoint(at, seed, replace(job, called=", ".join(called.values())), notes)


def _misfits(points: Sequence[GridPoint]) -> list[str]:
    """Return a line for each part that cannot work in one of the mechanisms, whatever data and settings surround it."""
    from hanse.mechanisms.fits import WORDS, unmet_needs  # late: --dry-run needs no torch
    from hanse.mechanisms.registry import SLOTS

    elsewhere = {name for name, word in WORDS.items() if word.by not in SLOTS}
    mechanisms = {repr(point.job.sections.get("mechanism")): point.job for point in points}
    found = [
        (name_of(job.sections), unmet_needs(job.experiment.mechanism.built, elsewhere)) for job in mechanisms.values()
    ]
    return list(dict.fromkeys(f"--grid: {name}: {lack.line}" for name, lacks in found for lack in lacks))


def run_sweep(
    points: Sequence[GridPoint],
    folder: Path,
    *,
    workers: int | None,
    ray: str | None = None,
    gpus: float | None = None,
    rows_only: bool = False,
    table_name: str = TABLE,
    console: Console | None = None,
    work: Work | None = None,
) -> PlayedJobs:
    """Play the runs of a sweep that have no result in ``folder`` yet.

    Repeat the call with the same folder to continue: finished runs are kept, failed runs are tried again, and an
    interrupted run continues from its last checkpoint. Every run uses one thread, so numbers do not depend on
    ``workers``.

    Args:
        points: the runs, as :func:`grid_of` returns them.
        folder: the folder for the results, which is made if it is missing. It gets the table (rewritten after every
            run), ``jobs/<key>.json`` (the result of each run, as :func:`hanse.lab.job.attempt` describes it) and
            ``runs/`` (the run directories).
        workers: how many processes play, at least 1. None: one for each core.
        ray: the address of a Ray cluster to use instead of processes. None: no cluster.
        gpus: how many GPUs each run gets on Ray. With a fraction, runs share one.
        rows_only: whether to leave no run directories. On Ray there are none in any case.
        table_name: the name of the table in ``folder``.
        console: where the progress bar is drawn. None: it is not drawn.
        work: a function that plays one job. None: a run of hanse.

    Returns:
        The results by the jobs' keys, and the reason of each failed run.

    Raises:
        UserError: ``workers`` is below 1, a part does not fit into its mechanism, the folder cannot be written, a data
            source is missing and cannot be downloaded, or the cluster does not answer.
        KeyboardInterrupt: the user stopped it. What has ended by then is kept.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = Path(folder) / "exp.toml"
        ...     _ = file.write_text('[mechanism]\\nname = "fedavg"\\nclients_per_round = 2\\n[run]\\nrounds = 1\\n')
        ...     points = grid_of(file, ["model.name=logistic"], ["train.lr=0.1,0.01"], seeds=None)
        ...     done = run_sweep(points, Path(folder) / "sweep", workers=1, rows_only=True)
        ...     again = run_sweep(points, Path(folder) / "sweep", workers=1, rows_only=True)
        >>> done.played, len(done.results), again.played
        (2, 2, 0)
        >>> [(row["train.lr"], row["status"], row["rounds"]) for row in rows_of(points, done)]
        [('0.1', 'done', 1), ('0.01', 'done', 1)]
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as wrong:
        raise UserError(f"--out {folder}: cannot be written: {wrong.strerror}") from None
    bare = rows_only or ray is not None

    def table(done: PlayedJobs) -> None:
        _write_rows(folder / table_name, rows_of(points, done))

    done = play_all(
        [point.job for point in points],
        Store(folder / "jobs"),
        work or (play if bare else partial(play_kept, runs=folder / "runs")),
        workers=workers,
        ray=ray,
        gpus=gpus,
        label=folder.name,
        console=console,
        ended=table,
    )
    table(done)
    for job in (point.job for point in points if point.job.called):
        if (run := folder_of(folder / "runs", job)).is_dir():
            write_whole(run / CALLED, job.called + "\n")
    return done


def part_of(points: Sequence[GridPoint], text: str) -> tuple[list[GridPoint], str]:
    """Return one machine's part of a sweep if several machines share a folder, and the name of its table.

    Each part has a table of its own, because parts that run at the same time must not share one.

    Args:
        points: the runs.
        text: which part of how many, such as "2/8": every eighth run from the second on.

    Raises:
        UserError: the text is not ``i/n`` with whole numbers ``1 <= i <= n``.
    """
    number, _, count = text.partition("/")
    if not (number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)):
        raise UserError(f"--part {text}: must be i/n with i from 1 to n, as in --part 2/8")
    return list(points[int(number) - 1 :: int(count)]), f"part-{int(number)}-of-{int(count)}.csv"


def rows_of(points: Sequence[GridPoint], done: PlayedJobs) -> list[Row]:
    """Return one row for each run, in the order of the points.

    Args:
        points: the runs.
        done: the state of the runs.

    Returns:
        Rows with the value of each axis, ``seed`` if seeds vary, ``status`` ("done", "failed" or "waiting"), ``error``
        (why it failed) and the job's ``key``. A finished run also has ``rounds``, the last value of each tested figure
        under its own name ("test/accuracy"), "best test/accuracy" with "best after rounds", ``ms_per_round``,
        ``seconds`` (wall clock), ``megabytes`` (10^6 bytes, both ways), and ``folder`` (its run directory, or None).
        Figures of single clients are only in ``jobs/<key>.json``.
    """
    rows = []
    for point in points:
        row: Row = {**point.at} if point.seed is None else {**point.at, "seed": point.seed}
        result = done.results.get(point.job.key)
        error = done.failures.get(point.job.key)
        row["status"] = "done" if result is not None else "waiting" if error is None else "failed"
        if result is not None:
            row |= _figures(result)
        row |= {"error": error, "key": point.job.key}
        rows.append(row)
    return rows


def _figures(found: Mapping[str, Any]) -> Row:
    """Return a finished run's part of its row."""
    curves = {name: values for name, values in found["curves"].items() if not _ONE_CLIENT.match(name)}
    row: Row = {"rounds": found["rounds"]}
    row |= {name: values[-1] if values else None for name, values in curves.items()}
    tested = [(value, -at) for at, value in zip(found["tested"], curves.get("test/accuracy", ()), strict=False)
              if value is not None]  # fmt: skip
    if tested:
        best, at = max(tested)  # of equal accuracies the earliest, as rounds are negative here
        row |= {"best test/accuracy": best, "best after rounds": -at}
    row |= {
        "ms_per_round": found["ms_per_round"],
        "seconds": found["wall_seconds"],
        "megabytes": (found["bytes"]["down"] + found["bytes"]["up"]) / 1e6,
        "folder": found.get("folder"),
    }
    return row


def _write_rows(path: Path, rows: Sequence[Row]) -> None:
    """Write the rows as a CSV file, whole or not at all, so a reader never sees half a table.

    Args:
        path: the file.
        rows: may have different columns; a cell that a row lacks is empty.
    """
    text, last = io.StringIO(), ("error", "key")
    columns = dict.fromkeys(name for row in rows for name in row if name not in last)  # in order of appearance
    writer = csv.DictWriter(text, [*columns, *last], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_whole(path, text.getvalue())


def kept_runs(folder: Path) -> list[Path]:
    """Return the run directories of a sweep's folder that its tables name; none if it has no tables.

    Raises UserError if one is damaged.
    """
    found = dict[Path, None]()
    for file in (folder / TABLE, *sorted(folder.glob("part-*-of-*.csv"))):
        if file.is_file():
            with gated(f"{file}: is damaged"), file.open(newline="", encoding="utf-8") as table:
                named = [row.get("folder") for row in csv.DictReader(table)]
                places = [folder / "runs" / Path(name).name for name in named if name]  # the whole sweep may have moved
                found |= dict.fromkeys(place for place in places if place.is_dir())
    return list(found)
