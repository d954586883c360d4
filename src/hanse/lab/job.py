"""One run as a job: an experiment with a key, how to play it, and its result.

Sweeps (:mod:`hanse.lab.sweep`) and other studies, such as the papers' tables, turn into a list of jobs, which
:mod:`hanse.lab.player` plays. This module defines what identifies a run and what its result contains.

:func:`seeded` makes a :class:`Job` from an experiment and a seed. :func:`play` runs it in memory. :func:`play_kept`
runs it in a run directory, where a run that was interrupted continues. Both return the same plain values, which
:func:`attempt` describes, and neither raises if the run fails: the failure is the result.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import statistics
import subprocess
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from hanse.base.errors import UserError
from hanse.base.files import read_arrays
from hanse.runs.config import Experiment
from hanse.runs.sections import RunSection

if TYPE_CHECKING:
    from hanse.runs.played_run import PlayedRun
    from hanse.runs.round import Played

Step = Callable[[int], None]
"""Called with the number of rounds that were finished since the last call, to move a progress bar."""


@dataclass(frozen=True)
class Job:
    """One run, described but not yet played.

    Attributes:
        key: a hash of ``sections`` (see :func:`key_of`). Two jobs with the same key are the same run, so a finished
            result is found by its key and shared by every table that needs it.
        label: what distinguishes this run from the others, as in "train.lr=0.1, seed=0".
        sections: the experiment as nested plain values, in the form of an experiment's file and with the seeds.
            Other settings have their defaults.
        called: the name that reports give its experiment. "": its mechanism's name.

    Examples:
        >>> digits = {"data": {"source": "digits", "clients": 4}, "mechanism": {"name": "fedavg"}, "run": {"rounds": 1}}
        >>> job = seeded(digits, 7, "fedavg")
        >>> job.rounds, job.experiment.run.seed
        (1, 7)
        >>> result = play(job, lambda round: None)
        >>> result["label"], result["key"] == job.key
        ('fedavg', True)
    """

    key: str
    label: str
    sections: Mapping[str, Any]
    called: str = ""

    @property
    def experiment(self) -> Experiment:
        """The experiment with its defaults filled in.

        Raises:
            UserError: ``sections`` is not a valid experiment.
        """
        return Experiment(**self.sections)

    def checked(self) -> Experiment:
        """Return the experiment. Errors begin with the job's label.

        Raises:
            UserError: ``sections`` is not a valid experiment. Each line begins with ``label``, which names the run.
        """
        try:
            return self.experiment
        except UserError as wrong:
            raise UserError(*(f"{self.label}: {line}" for line in wrong.lines)) from None

    @property
    def rounds(self) -> int:
        """How many rounds the job plays, read from ``sections`` without checking the rest of the experiment."""
        return int(self.sections.get("run", {}).get("rounds", RunSection().rounds))


def key_of(sections: Mapping[str, Any], ids: Mapping[str, str] = MappingProxyType({})) -> str:
    """Return the key of an experiment: 20 hexadecimal digits that do not depend on the order of its settings.

    Only written settings count: naming a default gives a different key than omitting it.

    Args:
        sections: the experiment as nested plain values that JSON can hold.
        ids: the ids of parts by their import paths of today. A part's id is the path that it had when the first result
            was kept, so a study's results are still found when a part of its own has moved or has another name.

    Examples:
        >>> before = key_of({"mechanism": {"settle": "study.parts:Bill"}})
        >>> key_of({"mechanism": {"settle": "study.bills:Bill"}}, {"study.bills:Bill": "study.parts:Bill"}) == before
        True
    """
    text = json.dumps(named(sections, ids), sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=10).hexdigest()


def named(value: Any, ids: Mapping[str, str]) -> Any:
    """Return a value, or nested plain values, with the id of each part that has one in the place of its import path."""
    if isinstance(value, Mapping):
        return {name: named(item, ids) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [named(item, ids) for item in value]
    return ids.get(value, value) if isinstance(value, str) else value


def seeded(
    sections: Mapping[str, Any],
    seed: int | None,
    label: str,
    of: Sequence[str] = ("data", "run"),
    ids: Mapping[str, str] = MappingProxyType({}),
) -> Job:
    """Return the run of an experiment with one seed.

    Args:
        sections: the experiment as nested plain values.
        seed: the seed for the sections in ``of``. None: the experiment keeps its own seeds.
        label: the job's label.
        of: the sections whose seed is set: "data" for the split into clients, "run" for everything else.
        ids: ids of parts, for the key (:func:`key_of`).
    """
    given = dict(sections)
    for name in () if seed is None else of:
        below = given.get(name, {})
        if isinstance(below, Mapping):  # anything else is a mistake, which the experiment's check will report
            given[name] = {**below, "seed": seed}
    return Job(key_of(given, ids), label, given)


class Rounds:
    """An observer of a run that reports finished rounds to a :data:`Step`."""

    def __init__(self, step: Step) -> None:
        self._step = step

    def on_start(self, experiment: Experiment, first_round: int, said: Sequence[str]) -> None:
        """Count the rounds that an earlier start of the same run has played, so a bar ends at the full length."""
        if first_round:
            self._step(first_round)

    def on_round(self, metrics: Mapping[str, Any], played: Played) -> None:
        """Count one finished round."""
        self._step(1)


def play(job: Job, step: Step) -> dict[str, Any]:
    """Run a job without a run directory and return its result.

    Args:
        job: the run.
        step: a function told of every finished round.

    Returns:
        The result that :func:`attempt` describes.
    """
    from hanse.runs.experiment import run

    return attempt(job, step, lambda observers: run(job.experiment, observers=observers))


_LONGEST = 80  # characters of a folder's name that say what varies


def folder_of(runs: Path, job: Job) -> Path:
    """Return the run directory of a job below ``runs``: its label and the first 8 digits of its key.

    An existing directory is found by those digits and keeps its name, because the same run may have another label in a
    wider sweep.
    """
    tail = job.key[:8]
    there = sorted(runs.glob(f"*-{tail}"))
    words = re.sub(r"[^\w.=+-]+", "_", job.label)[:_LONGEST].strip("_.")
    return there[0] if there else runs / f"{words}-{tail}"


def play_kept(job: Job, step: Step, *, runs: Path) -> dict[str, Any]:
    """Run a job in its own run directory and return its result.

    A directory that holds the same experiment is resumed from its last checkpoint. Any other directory there is
    overwritten.

    Args:
        job: the run.
        step: a function called after every finished round, and once for the rounds of an earlier start.
        runs: the folder of all run directories. :func:`folder_of` names the one of this job.

    Returns:
        The result that :func:`attempt` describes, with the run directory as ``folder``.
    """
    from hanse.runs.experiment import resume, run

    path = folder_of(runs, job)

    def go(observers: Sequence[Any]) -> PlayedRun:
        begun = (path / "config.toml").exists()
        if begun and _same(path, job.experiment):
            return resume(path, observers=observers)
        return run(job.experiment, out=path, observers=observers, overwrite=begun)

    return attempt(job, step, go) | {"folder": str(path)}


def _same(path: Path, asked: Experiment) -> bool:
    """Return whether a run directory is of this experiment.

    Engine settings that were left to "auto" are not compared: the directory has what they became on the machine that
    ran it. Nor is the value part, if it left something open, such as who judges. A directory that this version of hanse
    cannot read is not the same.
    """
    try:
        ours, theirs = asked.sections(), Experiment.read(path / "config.toml").sections()
    except UserError:
        return False
    left = [("engine", name) for name, value in ours["engine"].items() if value in (None, "auto")]
    if (value := asked.mechanism.built.value) is not None and value.resolved({}, validation=True) is not None:
        left.append(("mechanism", "value"))
    for section, name in left:
        for said in (ours, theirs):
            said[section].pop(name, None)
    return ours == theirs


def attempt(job: Job, step: Step, run: Callable[[Sequence[Any]], PlayedRun]) -> dict[str, Any]:
    """Run a job and return its result as plain values that JSON can hold.

    No exception is raised, because a failed run must not end the other runs of a sweep. The run itself handles Ctrl-C:
    it ends at a round and says that it was interrupted.

    Args:
        job: the run.
        step: a function told of every finished round.
        run: a function that plays the experiment with the observers that it gets.

    Returns:
        The result always has ``key``, ``label``, ``given`` (the job's sections) and ``status``: "done", "failed" (with
        ``error``, one line, and ``traceback``) or "interrupted". It also has ``made``, which says what played it:
        hanse's ``commit`` (None if it is not a checkout; with "+" if the checkout was changed), the versions of
        ``hanse`` and ``torch``, the ``processor``, and the ``instructions`` that PyTorch uses on it. A finished run
        also has:

        * ``experiment``: all settings as requested; "auto" stays "auto", whatever it means on this machine.
        * ``rounds``, and ``tested``, the number of rounds that had been played at each test.
        * ``curves``: for each tested figure a list with one number, or None, for each test.
        * ``clients``: the accuracy at the last test of each client that tested on its own samples.
        * ``seconds`` of all rounds; ``ms_per_round`` and ``median_ms``; and ``stages_ms``, the mean of each stage.
        * ``bytes`` sent ``down`` and ``up``, ``models_evaluated`` to value updates, and updates ``refused``.
        * ``wall_seconds`` and ``cpu_seconds`` of the whole attempt, including building the data.
    """
    found: dict[str, Any] = {"key": job.key, "label": job.label, "given": job.sections, "made": made()}
    begun = time.perf_counter(), time.process_time()
    try:
        result = run([Rounds(step)])
        if result.interrupted:
            return found | {"status": "interrupted"}
        if result.nothing:
            return found | {"status": "failed", "error": result.nothing, "traceback": ""}
        found |= {"experiment": job.experiment.sections(), **_kept(result.metrics)}
        tests = [_accuracies(result, rounds - 1) for rounds in found["tested"]]
        found["curves"] |= _by_client(tests)
        found["clients"] = {str(c): _finite(accuracy) for c, accuracy in sorted(tests[-1].items())} if tests else {}
    except Exception as wrong:
        error = " ".join(f"{type(wrong).__name__}: {wrong}".split())
        return found | {"status": "failed", "error": error, "traceback": traceback.format_exc()}
    clock = {"wall_seconds": time.perf_counter() - begun[0], "cpu_seconds": time.process_time() - begun[1]}
    return found | {"status": "done", **clock}


@cache
def made() -> dict[str, str | None]:
    """Return the software and machine that play runs here, as :func:`attempt` describes ``made``."""
    import torch

    from hanse.learning.process import processor

    return {
        "commit": commit_of(Path(__file__)),
        "hanse": version("hanse"),
        "torch": torch.__version__,
        "processor": processor(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
    }


@cache
def commit_of(file: Path) -> str | None:
    """Return the commit of a file's checkout, with "+" where its package was changed; None if it is in none.

    Args:
        file: a module of a folder of the package, or of a package that lies alone in its folder.
    """

    def git(*words: str) -> str:
        there = ["git", "-C", str(file.parent), *words]
        return subprocess.run(there, check=True, capture_output=True, text=True).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", file.name)  # an installed package may lie in somebody else's checkout
        return git("rev-parse", "HEAD") + ("+" if git("status", "--porcelain", "--", "..") else "")
    except (OSError, subprocess.CalledProcessError):
        return None


MOST_CLIENTS = 16  # whose figures are kept test by test
# figures whose curves are kept
KEPT = ("test/", "client/", "utility/", "balance/", "market/", "weigh/", "select/")


def _kept(metrics: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the part of a result that follows from a run's metrics, one line for each round."""
    tested = [line for line in metrics if any(name.startswith(("test/", "client/")) for name in line)]
    names = dict.fromkeys(name for line in tested for name in line if name.startswith(KEPT))
    seconds, rounds = [line["time/round_s"] for line in metrics], max(1, len(metrics))
    return {
        "rounds": len(metrics),
        "tested": [line["round"] + 1 for line in tested],
        "curves": {name: [_finite(line.get(name)) for line in tested] for name in names},
        "seconds": _sum(seconds),
        "ms_per_round": 1e3 * _sum(seconds) / rounds,
        "median_ms": 1e3 * statistics.median(seconds or [0.0]),
        "stages_ms": {
            name.removeprefix("time/").removesuffix("_s"): 1e3 * _sum(line.get(name, 0.0) for line in metrics) / rounds
            for name in dict.fromkeys(name for line in metrics for name in line if name.startswith("time/"))
        },
        "bytes": {way: _sum(line[f"bytes/{way}"] for line in metrics) for way in ("down", "up")},
        "models_evaluated": _sum(line.get("value/models_evaluated", 0.0) for line in metrics),
        "refused": _sum(line["refused"] for line in metrics),
    }  # fmt: skip


def _accuracies(result: PlayedRun, round: int) -> dict[int, float]:
    """Return the accuracy after ``round`` of each client that tested on its own share.

    A run that was resumed has the tests of earlier rounds only in its run directory, so they are read from there.
    """
    from hanse.runs.round_record import round_file  # imported late, as hanse.runs.experiment is in play

    tests: Mapping[str, Any] = result.tests.get(round, {})
    if not tests and result.path is not None and (file := round_file(result.path, round)).exists():
        tests = read_arrays(file, ("tested", "test_accuracy"))
    pairs = zip(tests.get("tested", ()), tests.get("test_accuracy", ()), strict=True)
    return {int(client): float(accuracy) for client, accuracy in pairs if math.isfinite(accuracy)}


def _by_client(tests: Sequence[Mapping[int, float]]) -> dict[str, list[float | None]]:
    """Return the curves that follow from the clients' own tests, one point for each test.

    They are each client's accuracy, if there are at most 16 clients, and "client/best_accuracy": the mean over clients
    of the best accuracy that each has had so far. iPFL's public code prints that mean, in which the best round of each
    client is chosen by the test set itself.
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
    """Return the sum as a plain float, whatever numpy types the values have: JSON cannot hold those."""
    return float(sum(values))


def _finite(value: float | None) -> float | None:
    """Return a figure to seven digits, which keeps the files small; None for NaN and infinity, which JSON lacks."""
    return float(f"{value:.7g}") if value is not None and math.isfinite(value) else None
