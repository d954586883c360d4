"""Runs what a table needs; see :mod:`hanse.jobs`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from hanse.errors import UserError
from hanse.jobs.job import Job, play
from hanse.jobs.pool import Work, in_order, in_processes
from hanse.jobs.run import run_jobs
from hanse.jobs.store import Store
from hanse.papers.frame import PaperTable
from hanse.papers.jobs import Reading, expand

__all__ = ["Outcome", "run_table"]


@dataclass(frozen=True)
class Outcome:
    """A table that was run: its jobs' results by key, the reason of each failure by label, and what was left to do.

    ``played``: how many jobs were run now; the others were finished before.
    """

    table: PaperTable
    seeds: int
    jobs: tuple[Job, ...]
    readings: tuple[Reading, ...]
    results: Mapping[str, Mapping[str, Any]]
    failures: Mapping[str, str]
    played: int


def run_table(
    table: PaperTable,
    *,
    seeds: int,
    workers: int,
    folder: Path,
    console: Console | None = None,
    work: Work = play,
) -> Outcome:
    """Run a table's jobs with seeds 0..seeds-1 and return what came out; results go to ``folder/jobs``.

    ``workers`` processes, or this one if it is 1. A job that fails is recorded and tried again next time. Raises
    UserError for seeds or workers below 1, or for data that are not here and cannot be downloaded; KeyboardInterrupt
    once it is stopped (what has ended is kept).
    """
    for name, value in (("--seeds", seeds), ("--workers", workers)):
        if value < 1:
            raise UserError(f"{name} {value}: must be at least 1")
    jobs, readings = expand(table, seeds)
    doing = partial(in_order, work=work) if workers == 1 else partial(in_processes, work=work, workers=workers)
    done = run_jobs(jobs, Store(folder / "jobs"), doing, label=f"{table.paper} {table.name}", console=console)
    failures = {job.label: done.failures[job.key] for job in jobs if job.key in done.failures}
    return Outcome(table, seeds, tuple(jobs), tuple(readings), done.results, failures, done.played)
