"""One run of a sweep, in a run directory of its own that an interrupted sweep goes on with."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hanse.base.errors import UserError
from hanse.lab.jobs.job import Job, Step, attempt, play
from hanse.runs.config import Experiment

if TYPE_CHECKING:
    from hanse.runs.experiment import Observer, Run

__all__ = ["folder_of", "play_bare", "play_kept"]

_LONGEST = 80  # characters of a folder's name that say what varies


def folder_of(runs: Path, job: Job) -> Path:
    """Return the run directory of a job: what varies and a part of its key. One that is there keeps its name."""
    tail = job.key[:8]
    there = sorted(runs.glob(f"*-{tail}"))
    words = re.sub(r"[^\w.=+-]+", "_", job.label)[:_LONGEST].strip("_.")
    return there[0] if there else runs / f"{words}-{tail}"


def play_kept(job: Job, step: Step, *, runs: Path) -> dict[str, Any]:
    """Run a job in its run directory below ``runs``, or go on there; return what is kept of it."""
    path = folder_of(runs, job)
    found = attempt(job, step, lambda observers: _go(path, job, observers))
    return found | _asked(job, found) | {"folder": str(path)}


def play_bare(job: Job, step: Step) -> dict[str, Any]:
    """Run a job without a run directory; return what is kept of it."""
    found = play(job, step)
    return found | _asked(job, found)


def _asked(job: Job, found: Mapping[str, Any]) -> dict[str, Any]:
    """The experiment as it was asked for: what "auto" became on this machine is no reason to run it again."""
    return {"experiment": job.experiment.sections()} if found["status"] == "done" else {}


def _go(path: Path, job: Job, observers: Sequence[Observer]) -> Run:
    from hanse.runs.experiment import resume, run

    if (path / "config.toml").exists():
        if _same(_begun(path), job.experiment):
            return resume(path, observers=observers)
        return run(job.experiment, out=path, observers=observers, overwrite=True)
    return run(job.experiment, out=path, observers=observers)


def _begun(path: Path) -> Experiment | None:
    """Return the experiment that a run directory holds; None if this version cannot read it any more."""
    try:
        return Experiment.read(path / "config.toml")
    except UserError:
        return None


def _same(there: Experiment | None, asked: Experiment) -> bool:
    """Say whether a run directory is of this experiment, whatever engine "auto" became."""
    if there is None:
        return False
    ours, theirs = asked.sections(), there.sections()
    open_ = {name for name, value in ours["engine"].items() if value in (None, "auto")}
    return all(
        {k: v for k, v in ours[name].items() if k not in open_ or name != "engine"}
        == {k: v for k, v in theirs[name].items() if k not in open_ or name != "engine"}
        for name in ours
    )
