"""A grid over an experiment's keys: each point is one run."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hanse.base.errors import UserError
from hanse.lab.jobs.job import Job, key_of
from hanse.runs.config import Experiment, read_sections

__all__ = ["MOST", "Axis", "Point", "grid_of", "read_axis"]

MOST = 100_000  # runs: more is a slip of the pen
_OPEN, _SHUT = "[{(", "]})"


@dataclass(frozen=True)
class Axis:
    """One varied key, ``section.key``, and its values as they are written."""

    key: str
    values: tuple[str, ...]


@dataclass(frozen=True)
class Point:
    """One run: where it lies in the grid (written values by key), its seed if seeds vary, and its job."""

    at: Mapping[str, str]
    seed: int | None
    job: Job

    @property
    def name(self) -> str:
        """What varies, in words."""
        return self.job.label


def read_axis(text: str) -> Axis:
    """Return the axis that ``section.key=a,b,c`` says; commas inside brackets and quotes belong to a value.

    Raises UserError for anything else, and for a value that is there twice.
    """
    key, equals, rest = text.partition("=")
    key = key.strip()
    if not equals or not key or len(key.split(".")) < 2 or not all(part.strip() for part in key.split(".")):
        raise UserError(f"--grid {text}: must be section.key=value,value, as in --grid train.lr=0.1,0.01")
    values = tuple(value.strip() for value in _split(rest))
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


def grid_of(file: Path, overrides: Sequence[str], grid: Sequence[str], seeds: int | None) -> list[Point]:
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
    points: list[Point] = []
    lines: list[str] = []
    for seed in range(seeds) if seeds is not None else (None,):
        for values in itertools.product(*(axis.values for axis in axes)):
            at = dict(zip((axis.key for axis in axes), values, strict=True))
            point = _point(file, overrides, at, seed)
            lines += _wrong(point)
            points.append(point)
        if lines:  # another seed would say the same again
            raise UserError(*dict.fromkeys(lines))
    same = _same_run(points)
    if same is not None:
        raise UserError(f"--grid: {same[0].name} and {same[1].name} are one and the same run")
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


def _point(file: Path, overrides: Sequence[str], at: Mapping[str, str], seed: int | None) -> Point:
    varied = [f"{key}={value}" for key, value in at.items()]
    sections: dict[str, Any] = read_sections(file, [*overrides, *varied])
    if seed is not None:
        for name in ("data", "run"):
            below = sections.setdefault(name, {})
            if isinstance(below, dict):  # anything else the experiment's check will refuse
                below["seed"] = seed
    words = [*varied, *([f"seed={seed}"] if seed is not None else [])]
    return Point(at, seed, Job(key_of(sections), ", ".join(words) or file.stem, sections))


def _wrong(point: Point) -> list[str]:
    """Return what is wrong with a point's experiment."""
    try:
        Experiment(**point.job.sections)
    except UserError as wrong:
        return [f"{point.name}: {line}" for line in wrong.lines]
    return []


def _same_run(points: Sequence[Point]) -> tuple[Point, Point] | None:
    """Return two points that say the same in different words (``0.1`` and ``0.10``)."""
    seen: dict[str, Point] = {}
    for point in points:
        other = seen.setdefault(point.job.key, point)
        if other is not point:
            return other, point
    return None
