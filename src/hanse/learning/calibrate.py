"""Which engine trains a job fastest: measured once on the job's real shapes, explained, and remembered.

The decision is cached by machine, PyTorch version, model and job shape, so that the same experiment run twice uses the
same settings and gives the same bits.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import median

import pooch
import torch
from torch import Tensor

from hanse.data.samples import Samples
from hanse.errors import UserError
from hanse.learning.batches import plan_seats
from hanse.learning.job import Engine, Problem, Recipe, SeatJob, smallest_batch
from hanse.learning.local import Precision, has_convolutions
from hanse.learning.processes import ProcessEngine, why_not_processes
from hanse.learning.program import read_stack
from hanse.learning.sequential import SequentialEngine
from hanse.learning.stacked import StackedEngine
from hanse.learning.vmapped import VmappedEngine, why_not_vmapped

__all__ = ["Choice", "choose", "make_engine", "pick_device"]

_BETTER = 1.15  # how many times faster an engine must be to displace one that stands before it
_SPAWN_S = 3.0  # what starting worker processes costs
_VERSION = 2


@dataclass(frozen=True)
class Choice:
    """An engine and its settings: intra-op ``threads`` of one program, ``workers`` that train seats side by side.

    ``measured`` is the projected time of a round's training in ms by candidate, ``why`` explains the choice in lines.
    """

    engine: str
    threads: int
    workers: int
    why: list[str] = field(default_factory=list, compare=False)
    measured: dict[str, float] = field(default_factory=dict, compare=False)

    @property
    def label(self) -> str:
        """What it is called in explanations."""
        if self.engine == "processes":
            return f"processes ({self.workers} of 1 thread)"
        if self.workers > 1:
            what = "stacks" if self.engine == "stacked" else "seats"
            return f"{self.engine} ({self.workers} {what} side by side, 1 thread each)"
        return f"{self.engine} ({self.threads} thread{'s' if self.threads > 1 else ''})"


def pick_device(name: str) -> torch.device:
    """Return the device: "auto" is CUDA if there is one, else the CPU. Raises UserError for one that is not there."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise UserError(f"device is {name!r}; allowed: 'auto', 'cpu', 'cuda', 'cuda:0'") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UserError(f"device is {name!r}, but this PyTorch sees no CUDA device; use 'auto' or 'cpu'")
    return device


def make_engine(
    choice: Choice, problem: Problem, device: torch.device | str = "cpu", precision: Precision = "float32"
) -> Engine:
    """Return the chosen engine. ``precision`` "bf16" concerns the engines that run the module itself."""
    device = torch.device(device)
    match choice.engine:
        case "stacked":
            return StackedEngine(problem, device, choice.threads, choice.workers)
        case "vmapped":
            return VmappedEngine(problem, device, choice.threads)
        case "processes":
            return ProcessEngine(problem, device, choice.workers, precision)
        case "sequential":
            return SequentialEngine(problem, device, choice.threads, choice.workers, precision)
    raise UserError(f"engine is {choice.engine!r}; allowed: stacked, vmapped, sequential, processes")


def choose(
    problem: Problem,
    recipe: Recipe,
    pool: Samples,
    jobs: Sequence[SeatJob],
    *,
    rounds: int,
    train: str = "auto",
    threads: int | None = None,
    workers: int | None = None,
    device: torch.device | str = "cpu",
    precision: Precision = "float32",
    fresh: bool = False,
) -> Choice:
    """Return the engine for rounds like ``jobs``; what is given (``train``, ``threads``, ``workers``) is kept.

    Measures a few steps of every candidate unless one is left or the same question was answered before (``fresh``
    measures again). Raises UserError if the engine asked for cannot train this model.
    """
    device = torch.device(device)
    candidates, notes = _candidates(problem, pool, jobs, train, threads, workers, device, precision)
    if not candidates and not notes:
        raise UserError(f"engine.threads is {threads} and engine.workers {workers}; several workers use 1 thread each")
    if not candidates:
        raise UserError(f"engine.train is {train!r}, but it cannot train this model: {'; '.join(notes)}")
    if len(candidates) == 1:
        only = candidates[0]
        return replace(only, why=[*notes, f"{only.label}: the only one that fits what was asked for"])
    path = _cache_file(problem, recipe, jobs, candidates, device, precision)
    if not fresh and (found := _read(path)) in candidates:
        assert found is not None
        return replace(found, why=[*found.why, f"(measured earlier; kept in {path})"])
    choice = _measure(problem, recipe, pool, jobs, candidates, notes, rounds, device, precision)
    return _write(path, choice)


def _candidates(
    problem: Problem,
    pool: Samples,
    jobs: Sequence[SeatJob],
    train: str,
    threads: int | None,
    workers: int | None,
    device: torch.device,
    precision: Precision,
) -> tuple[list[Choice], list[str]]:
    """Return what can train this model, in the order of preference, and notes on what cannot."""
    most = torch.get_num_threads()
    counts = [threads] if threads else sorted({most, min(most, 4), 1}, reverse=True)
    side = min(workers or most, max(1, len(jobs))) if device.type == "cpu" else 1
    images = has_convolutions(problem.module)
    notes: list[str] = []
    found: list[Choice] = []
    if threads and workers:
        counts, side = [threads], (workers if device.type == "cpu" else 1)  # exactly what a finished run wrote down
    if train in ("auto", "stacked"):
        if read_stack(problem) is None:
            notes.append("stacked: the model is not a sequence of layers that can be stacked")
        else:
            stacked = [Choice("stacked", t, 1) for t in counts] if workers in (None, 1) or side == 1 else []
            if side > 1 and not (threads and threads > 1):
                # side by side stands first where every worker has a stack of its own: it bears busy neighbours better
                stacked.insert(0 if len(jobs) >= 2 * side else len(stacked), Choice("stacked", 1, side))
            found += stacked
            if precision == "bf16":
                notes.append("stacked: computes in float32, where bf16 gains nothing")
    if train in ("auto", "vmapped") and not (train == "auto" and (found or images)):
        reason = why_not_vmapped(problem, jobs[0].start.cpu(), _few(pool))
        if reason:
            notes.append(f"vmapped: {reason}")
        else:
            found += [Choice("vmapped", t, 1) for t in counts]
    if train in ("auto", "sequential"):
        if side > 1 and not (threads and threads > 1):
            found.append(Choice("sequential", 1, side))
        if workers in (None, 1) or side == 1:
            found += [Choice("sequential", t, 1) for t in counts]
    if train in ("auto", "processes") and device.type == "cpu" and (train == "processes" or side > 1):
        reason = why_not_processes(problem)
        if reason:
            notes.append(f"processes: {reason}")
        else:
            found.append(Choice("processes", 1, workers or max(2, side)))
    return found, notes


def _few(pool: Samples) -> Samples:
    return Samples(pool.x[:4].cpu(), pool.y[:4].cpu())


def _measure(
    problem: Problem,
    recipe: Recipe,
    pool: Samples,
    jobs: Sequence[SeatJob],
    candidates: Sequence[Choice],
    notes: Sequence[str],
    rounds: int,
    device: torch.device,
    precision: Precision,
) -> Choice:
    """Time a few steps of every candidate in turn, project a round, and take the first that none beats clearly."""
    here = [c for c in candidates if c.engine != "processes"]
    steps = 2 if has_convolutions(problem.module) else 6
    trial = replace(recipe, steps=steps, epochs=1, batches_per_epoch=None, batch_size=_batch(recipe, jobs))
    plans = plan_seats(jobs, recipe, smallest_batch(problem))
    scale = sum(plan.steps for plan in plans) / (steps * len(jobs))
    engines = [make_engine(c, problem, device, precision) for c in here]
    samples: list[list[float]] = [[] for _ in here]
    warm = replace(trial, steps=1)
    trials = [replace(job, epochs=None) for job in jobs]
    for engine in engines:
        _timed(engine, pool, trials, warm, device)
    for _ in range(3):
        for times, engine in zip(samples, engines, strict=True):
            times.append(_timed(engine, pool, trials, trial, device) * scale)
    for engine in engines:
        engine.close()
    measured = {c.label: round(median(times) * 1e3, 2) for c, times in zip(here, samples, strict=True)}
    why = [*notes]
    best = here[0]
    for candidate in here[1:]:
        if measured[candidate.label] * _BETTER < measured[best.label]:
            best = candidate
    best = _or_processes(candidates, best, measured, rounds, why)
    for label, value in measured.items():
        why.append(f"{label}: {value:.1f} ms a round{' <- chosen' if label == best.label else ''}")
    return replace(best, why=why, measured=measured)


def _or_processes(
    candidates: Sequence[Choice], best: Choice, measured: dict[str, float], rounds: int, why: list[str]
) -> Choice:
    """Consider worker processes, projected from one thread's time, if the run is long enough to pay for their start."""
    single = measured.get(Choice("sequential", 1, 1).label)
    for candidate in candidates:
        if candidate.engine == "processes" and single is not None:
            projected = single / candidate.workers * 1.05
            saved = (measured[best.label] - projected) / 1e3 * rounds
            if measured[best.label] > _BETTER * projected and saved > _SPAWN_S:
                measured[candidate.label] = round(projected, 2)
                return candidate
            why.append(f"{candidate.label}: would save {max(saved, 0):.1f} s in {rounds} rounds, start {_SPAWN_S} s")
    return best


def _batch(recipe: Recipe, jobs: Sequence[SeatJob]) -> int:
    """Return the batch size to measure with: the recipe's, or a typical one of its batches."""
    if recipe.batches_per_epoch is None and recipe.batch_size is not None:
        return recipe.batch_size
    size = median(len(job.index) for job in jobs)
    return max(1, round(size / (recipe.batches_per_epoch or 1)))


def _timed(engine: Engine, pool: Samples, jobs: Sequence[SeatJob], recipe: Recipe, device: torch.device) -> float:
    begin = time.perf_counter()
    trained = engine.train(pool, jobs, recipe, 0.0)
    _settle(trained.rows, device)
    return time.perf_counter() - begin


def _settle(rows: Tensor, device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        float(rows[0, 0])


def _cache_file(
    problem: Problem,
    recipe: Recipe,
    jobs: Sequence[SeatJob],
    candidates: Sequence[Choice],
    device: torch.device,
    precision: Precision,
) -> Path:
    """Return where the answer to this question is kept."""
    question = {
        "version": _VERSION,
        "machine": [platform.node(), platform.machine(), _processor(), os.cpu_count(), torch.get_num_threads()],
        "torch": torch.__version__,
        "model": [repr(problem.module), [list(s) for s in problem.layout.shapes], problem.loss],
        "recipe": asdict(replace(recipe, lr=0.0, lr_decay=1.0)),
        "jobs": sorted((len(j.index), j.centre is not None, j.tilt is not None) for j in jobs),
        "candidates": [c.label for c in candidates],
        "device": str(device),
        "precision": precision,
    }
    digest = hashlib.blake2b(json.dumps(question, sort_keys=True).encode(), digest_size=12).hexdigest()
    return Path(pooch.os_cache("hanse")) / "calibration" / f"{digest}.json"


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor()


def _read(path: Path) -> Choice | None:
    try:
        return Choice(**json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):  # not there, or not ours: measure again
        return None


def _write(path: Path, choice: Choice) -> Choice:
    """Keep the choice, whole or not at all; return it, with a note if the folder cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent)
        with os.fdopen(handle, "w") as file:
            json.dump(asdict(choice), file)
        os.replace(name, path)
    except OSError as error:
        return replace(choice, why=[*choice.why, f"(not remembered: {error})"])
    return choice
