"""From a table to jobs: one experiment each, shared by all cells that read the same run."""

from __future__ import annotations

import hashlib
import json
import math
import statistics
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from hanse.config import Experiment
from hanse.errors import UserError
from hanse.papers.frame import Cell, PaperTable, Variant

__all__ = ["Job", "Reading", "expand", "job_of", "play"]

Step = Callable[[int], None]


@dataclass(frozen=True)
class Job:
    """One run: ``key`` is a hash of what the table says of it (seeds included), ``label`` says it in words."""

    key: str
    label: str
    sections: Mapping[str, Any]

    @property
    def experiment(self) -> Experiment:
        """The experiment. Raises UserError if it is not a valid one."""
        return Experiment(**self.sections)

    @property
    def rounds(self) -> int:
        """How many rounds it plays."""
        return int(self.sections["run"]["rounds"])


@dataclass(frozen=True)
class Reading:
    """Where one number of one seed is found: in which job, after how many rounds; ``base`` is the job that it is
    compared with, if any.
    """

    cell: Cell
    variant: Variant
    seed: int
    job: Job
    base: Job | None = None


def job_of(cell: Cell, variant: Variant, seed: int) -> Job:
    """Return a variant's run with one seed: the seed of the split and of everything else."""
    sections = {name: dict(entries) for name, entries in variant.sections.items()}
    sections["data"] = {**sections.get("data", {}), "seed": seed}
    sections["run"] = {**sections.get("run", {}), "seed": seed}
    text = json.dumps(sections, sort_keys=True)
    key = hashlib.blake2b(text.encode(), digest_size=10).hexdigest()
    name = f"{cell.algorithm} {variant.name}".strip()
    return Job(key, f"{cell.setting}: {name}, seed {seed}", sections)


def expand(table: PaperTable, seeds: int) -> tuple[list[Job], list[Reading]]:
    """Return the jobs of a table, each once, and the readings that its cells are made of.

    All of seed 0 comes before seed 1, so that a table that was stopped has complete seeds. Raises UserError if an
    experiment is not valid, or a number would be read in a round that is not tested.
    """
    jobs: dict[str, Job] = {}
    readings: list[Reading] = []
    for seed in range(seeds):
        for cell in table.cells:
            for variant in cell.variants:
                sides = [variant] if variant.against is None else [variant, Variant("", variant.against)]
                pair = [job_of(cell, side, seed) for side in sides]
                for found in pair:
                    if found.key not in jobs:
                        _check(found, cell)
                    jobs.setdefault(found.key, found)
                readings.append(Reading(cell, variant, seed, *(jobs[found.key] for found in pair)))
    return list(jobs.values()), readings


def _check(job: Job, cell: Cell) -> None:
    try:
        experiment = job.experiment
    except UserError as wrong:
        raise UserError(*(f"{job.label}: {line}" for line in wrong.lines)) from None
    last = cell.at == experiment.run.rounds
    if cell.at > experiment.run.rounds or (cell.at % experiment.eval.every and not last):
        raise UserError(f"{job.label}: nothing is tested after round {cell.at}")


class _Steps:
    """Tells how far a run is."""

    def __init__(self, step: Step) -> None:
        self._step = step

    def on_start(self, experiment: Any, first_round: int, said: Any) -> None:
        """Nothing has been played."""

    def on_round(self, metrics: Mapping[str, Any], played: Any) -> None:
        """One more."""
        self._step(1)

    def on_end(self, result: Any) -> None:
        """Nothing is left to say."""


def play(job: Job, step: Step) -> dict[str, Any]:
    """Run a job and return what is kept of it, as plain values; a failure is a result, too.

    ``status`` is "done", "failed" (with ``error`` and ``traceback``) or "interrupted". A finished run has ``tested``
    (the rounds played at each test), ``curves`` (a list for each tested figure), ``seconds`` of all its rounds,
    ``ms_per_round``, and the same for each stage of a round.
    """
    from hanse.experiment import run

    found: dict[str, Any] = {"key": job.key, "label": job.label, "given": job.sections}
    begun = time.perf_counter(), time.process_time()
    try:
        result = run(job.experiment, observers=[_Steps(step)])
        if result.interrupted:
            return found | {"status": "interrupted"}
        found |= {"experiment": result.experiment.sections(), **_kept(result.metrics)}
        found["curves"] |= _by_client(result.tested, len(found["tested"]))
    except Exception as wrong:
        error = " ".join(f"{type(wrong).__name__}: {wrong}".split())
        return found | {"status": "failed", "error": error, "traceback": traceback.format_exc()}
    clock = {"wall_seconds": time.perf_counter() - begun[0], "cpu_seconds": time.process_time() - begun[1]}
    return found | {"status": "done", **clock}


MOST_CLIENTS = 64  # whose figures are kept one by one
KEPT = ("test/", "client/", "utility/", "balance/", "market/")  # figures whose curves are kept


def _kept(metrics: list[dict[str, Any]]) -> dict[str, Any]:
    tested = [line for line in metrics if any(name.startswith(("test/", "client/")) for name in line)]
    names = dict.fromkeys(name for line in tested for name in line if name.startswith(KEPT))
    return {
        "rounds": len(metrics),
        "tested": [line["round"] + 1 for line in tested],
        "curves": {name: [_finite(line.get(name)) for line in tested] for name in names},
        "seconds": _sum(line["time/round_s"] for line in metrics),
        "ms_per_round": 1e3 * _sum(line["time/round_s"] for line in metrics) / max(1, len(metrics)),
        "median_ms": 1e3 * statistics.median([line["time/round_s"] for line in metrics] or [0.0]),
        "stages_ms": {
            name.removeprefix("time/").removesuffix("_s"): 1e3 * _sum(line.get(name, 0.0) for line in metrics)
            / max(1, len(metrics))
            for name in dict.fromkeys(name for line in metrics for name in line if name.startswith("time/"))
        },
        "bytes": {way: _sum(line[f"bytes/{way}"] for line in metrics) for way in ("down", "up")},
        "models_evaluated": _sum(line.get("value/models_evaluated", 0.0) for line in metrics),
        "refused": _sum(line["refused"] for line in metrics),
    }  # fmt: skip


def _by_client(tested: Mapping[str, Any], points: int) -> dict[str, list[float | None]]:
    """Return each client's own last test as a curve with that point alone, for a few clients."""
    if not points or len(tested.get("tested", ())) > MOST_CLIENTS:
        return {}
    pairs = zip(tested.get("tested", ()), tested.get("test_accuracy", ()), strict=True)
    before: list[float | None] = [None] * (points - 1)
    return {f"client/{c}/test_accuracy": [*before, _finite(float(a))] for c, a in pairs}


def _sum(values: Iterable[float]) -> float:
    return float(sum(values))


def _finite(value: float | None) -> float | None:
    """JSON has no NaN: a figure that is not finite is not there."""
    return value if value is not None and math.isfinite(value) else None
