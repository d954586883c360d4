"""Runs what a table needs: skips what is finished, keeps what ends, records what fails."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from hanse.errors import UserError
from hanse.papers.frame import PaperTable
from hanse.papers.jobs import Job, Reading, expand, play
from hanse.papers.pool import Work, in_order, in_processes
from hanse.papers.store import Store

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
    store = Store(folder / "jobs")
    jobs, readings = expand(table, seeds)
    results = {job.key: found for job in jobs if (found := store.read(job)) is not None}
    todo = [job for job in jobs if job.key not in results]
    _check_sources(todo)
    failures: dict[str, str] = {}
    with _bar(console) as progress:
        label = f"{table.paper} {table.name}"
        task = progress.add_task(label, total=sum(j.rounds for j in todo), jobs=len(todo), ended=0, failed="")
        steps = _Steps(lambda rounds: progress.advance(task, rounds))
        doing = in_order(todo, work, steps) if workers == 1 else in_processes(todo, work, steps, workers)
        for ended, (job, found) in enumerate(doing, 1):
            if found["status"] == "interrupted":
                raise KeyboardInterrupt
            store.write(job, found)
            if found["status"] == "done":
                results[job.key] = found
            else:
                failures[job.label] = found["error"]
            steps.settle(job)
            failed = f"{len(failures)} failed" if failures else ""
            progress.update(task, ended=ended, failed=failed)
    return Outcome(table, seeds, tuple(jobs), tuple(readings), results, failures, len(todo))


def _check_sources(jobs: Sequence[Job]) -> None:
    """Load each source that the jobs need once, which downloads what is not here, before any process starts."""
    from hanse.data.sources import SOURCES, load

    lines: list[str] = []
    for source in dict.fromkeys(str(job.sections["data"]["source"]) for job in jobs):
        if source in SOURCES:
            try:
                load(source)
            except UserError as wrong:
                lines += wrong.lines
    if lines:
        raise UserError(*lines)


class _Steps:
    """Counts each job's rounds; a job that ended counts all of them, however it ended."""

    def __init__(self, advance: Callable[[int], None]) -> None:
        self._advance = advance
        self._played: dict[str, int] = {}

    def __call__(self, job: Job, rounds: int) -> None:
        self._played[job.key] = self._played.get(job.key, 0) + rounds
        self._advance(rounds)

    def settle(self, job: Job) -> None:
        self._advance(job.rounds - self._played.get(job.key, 0))


def _bar(console: Console | None) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("rounds, {task.fields[ended]}/{task.fields[jobs]} runs"),
        TimeElapsedColumn(),
        TextColumn("gone,"),
        TimeRemainingColumn(),
        TextColumn("left {task.fields[failed]}"),
        console=console,
        disable=console is None,
        speed_estimate_period=600,  # rounds of different algorithms differ much
    )
