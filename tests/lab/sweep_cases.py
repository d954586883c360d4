"""An experiment of a second, and jobs that do not train."""

import os
from pathlib import Path
from typing import Any

from hanse.lab.job import Job, Step, play_kept
from hanse.lab.sweep import GridPoint, grid_of

EXPERIMENT = """
data.clients = 4
model.name = "logistic"
mechanism = { name = "fedavg", clients_per_round = 2 }
engine = { train = "stacked", threads = 1 }
[run]
rounds = 4
"""


def points_of(folder: Path, *grid: str, seeds: int | None = None, more: str = "") -> list[GridPoint]:
    path = folder / "exp.toml"
    path.write_text(EXPERIMENT + more)
    return grid_of(path, [], list(grid), seeds)


def made_up(job: Job, step: Step) -> dict[str, Any]:
    """Plays nothing; accuracies follow from the settings. A learning rate of 66 fails."""
    lr, seed = job.experiment.train.lr, job.experiment.run.seed
    found: dict[str, Any] = {"key": job.key, "label": job.label, "given": dict(job.sections)}
    if lr == 66.0:
        return found | {"status": "failed", "error": "ValueError: as ordered", "traceback": ""}
    step(job.rounds)
    return found | {
        "status": "done", "experiment": job.experiment.sections(), "rounds": 4, "tested": [1, 2, 3, 4],
        "curves": {"test/accuracy": [0.125, 0.25, lr + seed / 8, 0.5], "client/3/test_accuracy": [*[None] * 3, 0.5]},
        "ms_per_round": 2.0, "cpu_seconds": 0.008, "wall_seconds": 1.0, "bytes": {"down": 1e6, "up": 5e5},
    }  # fmt: skip


def dies_once(job: Job, step: Step, *, runs: Path) -> dict[str, Any]:
    """Plays a run in its folder; the process dies after two rounds of the first run that any process begins."""
    mark = runs / "died"

    def step_or_die(rounds: int) -> None:
        step(rounds)
        if mark.stat().st_size == 1:
            os._exit(9)
        mark.write_text("1")

    if mark.exists():
        return play_kept(job, step, runs=runs)
    mark.write_text("")
    return play_kept(job, step_or_die, runs=runs)
