"""Runs a sweep and keeps its table up to date."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from rich.console import Console

from hanse.base.errors import UserError
from hanse.lab.jobs.cluster import in_ray
from hanse.lab.jobs.pool import Work, doing
from hanse.lab.jobs.run import Done, run_jobs
from hanse.lab.jobs.store import Store
from hanse.lab.sweep.grid import Point
from hanse.lab.sweep.play import play_bare, play_kept
from hanse.lab.sweep.rows import rows_of, write_rows

__all__ = ["TABLE", "run_sweep"]

TABLE = "table.csv"


def run_sweep(
    points: Sequence[Point],
    folder: Path,
    *,
    workers: int,
    ray: str | None = None,
    rows_only: bool = False,
    console: Console | None = None,
    work: Work | None = None,
) -> Done:
    """Run what is left of a sweep over ``workers`` processes, or on the Ray cluster at ``ray``.

    ``folder`` gets ``table.csv`` (a row a run, rewritten after each), ``jobs/<key>.json`` (what is kept of a run) and
    ``runs/`` (a run directory each, unless ``rows_only`` or on Ray). Every run uses one thread, so that its numbers do
    not depend on ``workers``. A run that fails is a row that says why, and is tried again next time. Raises UserError
    for fewer than 1 worker, data that are not here, or a cluster that does not answer; KeyboardInterrupt once it is
    stopped (what has ended is kept, and a run directory is gone on with).
    """
    if workers < 1:
        raise UserError(f"--workers {workers}: must be at least 1")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as wrong:
        raise UserError(f"--out {folder}: cannot be written: {wrong.strerror}") from None
    bare = rows_only or ray is not None
    play: Work = work or (play_bare if bare else partial(play_kept, runs=folder / "runs"))

    def table(done: Done) -> None:
        write_rows(folder / TABLE, rows_of(points, done))

    done = run_jobs(
        [point.job for point in points],
        Store(folder / "jobs"),
        doing(play, workers) if ray is None else partial(in_ray, work=play, address=ray),
        label=folder.name,
        console=console,
        ended=table,
    )
    table(done)
    return done
