"""Runs jobs: skips what is finished, keeps what ends, records what fails."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from hanse.base.errors import UserError
from hanse.lab.jobs.job import Job
from hanse.lab.jobs.store import Store

__all__ = ["Doing", "Done", "check_sources", "run_jobs"]

Doing = Callable[[Sequence[Job], Callable[[Job, int], None]], Iterable[tuple[Job, dict[str, Any]]]]


@dataclass(frozen=True)
class Done:
    """Finished jobs' results by key, the reason of each failure by key, and how many jobs were run now."""

    results: Mapping[str, Mapping[str, Any]]
    failures: Mapping[str, str]
    played: int


def run_jobs(
    jobs: Sequence[Job],
    store: Store,
    doing: Doing,
    *,
    label: str,
    console: Console | None = None,
    ended: Callable[[Done], None] = lambda done: None,
) -> Done:
    """Run the jobs that ``store`` has no finished result of, and keep what comes out there.

    ``doing`` does jobs and yields each with its result (:mod:`hanse.lab.jobs.pool`). A job that fails is recorded and
    tried again next time. ``ended`` sees what is there after every job. Raises UserError for data that are not here
    and cannot be downloaded; KeyboardInterrupt once it is stopped (what has ended is kept).
    """
    results = {job.key: found for job in jobs if (found := store.read(job)) is not None}
    todo = [job for job in jobs if job.key not in results]
    check_sources(todo)
    failures: dict[str, str] = {}
    with _bar(console) as progress:
        task = progress.add_task(label, total=sum(j.rounds for j in todo), jobs=len(todo), ended=0, failed="")
        steps = _Steps(lambda rounds: progress.advance(task, rounds))
        for count, (job, found) in enumerate(doing(todo, steps), 1):
            if found["status"] == "interrupted":
                raise KeyboardInterrupt
            store.write(job, found)
            if found["status"] == "done":
                results[job.key] = found
            else:
                failures[job.key] = found["error"]
            steps.settle(job)
            failed = f"{len(failures)} failed" if failures else ""
            progress.update(task, ended=count, failed=failed)
            ended(Done(results, failures, len(todo)))
    return Done(results, failures, len(todo))


def check_sources(jobs: Sequence[Job]) -> None:
    """Load each source that the jobs need once, which downloads what is not here, before any process starts."""
    from hanse.data.sources import SOURCES, load

    lines: list[str] = []
    wanted = dict.fromkeys((s.source, s.path, s.download) for s in (job.experiment.data for job in jobs))
    for source, path, download in wanted:
        if source in SOURCES:
            try:
                load(source, root=None if path is None else Path(path), download=download)
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
