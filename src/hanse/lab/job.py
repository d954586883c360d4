"""One run as a job: an experiment with a key, how it is played, and what is kept of it."""

from __future__ import annotations

import hashlib
import json
import math
import re
import statistics
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hanse.base.errors import UserError
from hanse.base.files import read_arrays
from hanse.runs.config import Experiment, RunSection

if TYPE_CHECKING:
    from hanse.runs.experiment import Run

Step = Callable[[int], None]


@dataclass(frozen=True)
class Job:
    """One run: ``key`` is a hash of what is said of it (seeds included), ``label`` says it in words."""

    key: str
    label: str
    sections: Mapping[str, Any]

    @property
    def experiment(self) -> Experiment:
        """The experiment. Raises UserError if it is not a valid one."""
        return Experiment(**self.sections)

    def checked(self) -> Experiment:
        """Return the experiment. Raises UserError with lines that begin with the label if it is not a valid one."""
        try:
            return self.experiment
        except UserError as wrong:
            raise UserError(*(f"{self.label}: {line}" for line in wrong.lines)) from None

    @property
    def rounds(self) -> int:
        """How many rounds it plays."""
        return int(self.sections.get("run", {}).get("rounds", RunSection().rounds))


def key_of(sections: Mapping[str, Any]) -> str:
    """Return the key of an experiment as it is written down: 20 hexadecimal digits, whatever the order of its keys."""
    text = json.dumps(sections, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=10).hexdigest()


def seeded(sections: Mapping[str, Any], seed: int | None, label: str, of: Sequence[str] = ("data", "run")) -> Job:
    """Return the run of an experiment with one seed: that of the split ("data") and of everything else ("run"), or of
    what ``of`` names; None: its own seeds.
    """
    given = dict(sections)
    for name in () if seed is None else of:
        below = given.get(name, {})
        if isinstance(below, Mapping):  # anything else the experiment's check will refuse
            given[name] = {**below, "seed": seed}
    return Job(key_of(given), label, given)


class _Rounds:
    """Tells how far a run is."""

    def __init__(self, step: Step) -> None:
        self._step = step

    def on_start(self, experiment: Any, first_round: int, said: Any) -> None:
        """Rounds of an earlier start count, too."""
        if first_round:
            self._step(first_round)

    def on_round(self, metrics: Mapping[str, Any], played: Any) -> None:
        """One more."""
        self._step(1)


def play(job: Job, step: Step) -> dict[str, Any]:
    """Run a job without a run directory and return what is kept of it; see :func:`attempt`."""
    from hanse.runs.experiment import run

    return attempt(job, step, lambda observers: run(job.experiment, observers=observers))


_LONGEST = 80  # characters of a folder's name that say what varies


def folder_of(runs: Path, job: Job) -> Path:
    """Return the run directory of a job: what varies and a part of its key. One that is there keeps its name."""
    tail = job.key[:8]
    there = sorted(runs.glob(f"*-{tail}"))
    words = re.sub(r"[^\w.=+-]+", "_", job.label)[:_LONGEST].strip("_.")
    return there[0] if there else runs / f"{words}-{tail}"


def play_kept(job: Job, step: Step, *, runs: Path) -> dict[str, Any]:
    """Run a job in its run directory below ``runs``, or go on there; return what is kept of it."""
    from hanse.runs.experiment import resume, run

    path = folder_of(runs, job)

    def go(observers: Sequence[Any]) -> Run:
        begun = (path / "config.toml").exists()
        if begun and _same(path, job.experiment):
            return resume(path, observers=observers)
        return run(job.experiment, out=path, observers=observers, overwrite=begun)

    return attempt(job, step, go) | {"folder": str(path)}


def _same(path: Path, asked: Experiment) -> bool:
    """Say whether a run directory is of this experiment, whatever engine "auto" became; it is not, if this version
    cannot read it any more.
    """
    try:
        ours, theirs = asked.sections(), Experiment.read(path / "config.toml").sections()
    except UserError:
        return False
    open_ = {name for name, value in ours["engine"].items() if value in (None, "auto")}
    return all(
        {k: v for k, v in ours[name].items() if k not in open_ or name != "engine"}
        == {k: v for k, v in theirs[name].items() if k not in open_ or name != "engine"}
        for name in ours
    )


def attempt(job: Job, step: Step, run: Callable[[Sequence[Any]], Run]) -> dict[str, Any]:
    """Run a job and return what is kept of it, as plain values; a failure is a result, too.

    ``status`` is "done", "failed" (with ``error`` and ``traceback``) or "interrupted". A finished run has
    ``experiment`` as it was asked for (what "auto" became on this machine is no reason to run it again), ``tested``
    (the rounds played at each test), ``curves`` (a list for each tested figure), ``seconds`` of all its rounds,
    ``ms_per_round``, the same for each stage of a round, and ``clients`` (what each client that tested on its own
    samples had at the last test).
    """
    found: dict[str, Any] = {"key": job.key, "label": job.label, "given": job.sections}
    begun = time.perf_counter(), time.process_time()
    try:
        result = run([_Rounds(step)])
        if result.interrupted:
            return found | {"status": "interrupted"}
        found |= {"experiment": job.experiment.sections(), **_kept(result.metrics)}
        tests = [_accuracies(result, rounds - 1) for rounds in found["tested"]]
        found["curves"] |= _by_client(tests)
        found["clients"] = {str(c): _finite(accuracy) for c, accuracy in sorted(tests[-1].items())} if tests else {}
    except Exception as wrong:
        error = " ".join(f"{type(wrong).__name__}: {wrong}".split())
        return found | {"status": "failed", "error": error, "traceback": traceback.format_exc()}
    clock = {"wall_seconds": time.perf_counter() - begun[0], "cpu_seconds": time.process_time() - begun[1]}
    return found | {"status": "done", **clock}


MOST_CLIENTS = 16  # whose figures are kept test by test
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


def _accuracies(result: Run, round: int) -> dict[int, float]:
    """Return the accuracy of each client that tested on its own share after a round, of this process or before it."""
    from hanse.runs.record import round_file  # late, as the run itself is

    tests: Mapping[str, Any] = result.tests.get(round, {})
    if not tests and result.path is not None and (file := round_file(result.path, round)).exists():
        tests = read_arrays(file, ("tested", "test_accuracy"))
    pairs = zip(tests.get("tested", ()), tests.get("test_accuracy", ()), strict=True)
    return {int(client): float(accuracy) for client, accuracy in pairs if math.isfinite(accuracy)}


def _by_client(tests: Sequence[Mapping[int, float]]) -> dict[str, list[float | None]]:
    """Return what the clients' own tests say, a point a test: each client's accuracy, of a few clients, and
    "client/best_accuracy", the mean over clients of the best that each has had so far.

    iPFL's public code prints that mean: the best round of each client, by the test set itself.
    """
    clients = sorted({client for test in tests for client in test})
    if not clients:
        return {}
    best: dict[int, float] = {}
    means: list[float | None] = []
    for test in tests:
        best |= {client: max(found, best.get(client, found)) for client, found in test.items()}
        means.append(_sum(best.values()) / len(best) if best else None)
    each = {f"client/{c}/test_accuracy": [_finite(test.get(c)) for test in tests] for c in clients}
    return ({} if len(clients) > MOST_CLIENTS else each) | {"client/best_accuracy": means}


def _sum(values: Iterable[float]) -> float:
    return float(sum(values))


def _finite(value: float | None) -> float | None:
    """Return a figure to seven digits, which is what is worth keeping; JSON has no NaN: it is not there."""
    return float(f"{value:.7g}") if value is not None and math.isfinite(value) else None
