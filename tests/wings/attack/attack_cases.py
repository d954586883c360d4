"""What plays a job of a search for cheats without training."""

from typing import Any

from hanse.lab.job import Job


def played(job: Job, outcome: list[float], measure: str, granted: float = 100.0) -> dict[str, Any]:
    """Return a finished job whose clients end with this outcome."""
    return {
        "key": job.key, "label": job.label, "given": job.sections, "status": "done", "made": {},
        "experiment": job.experiment.sections(), "measure": measure, "outcome": outcome, "granted": granted,
        "trades_of": {}, "cpu_seconds": 0.1, "tested": [], "curves": {}, "rounds": job.rounds,
    }  # fmt: skip
