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
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import torch
from platformdirs import user_cache_dir

from hanse.data.samples import Samples
from hanse.errors import UserError
from hanse.learning.job import Problem, Recipe, SeatJob
from hanse.learning.local import Precision, has_convolutions
from hanse.learning.processes import why_not_processes
from hanse.learning.products import processor
from hanse.learning.program import read_stack
from hanse.learning.trial import Choice, Trial, make_engine
from hanse.learning.vmapped import why_not_vmapped

__all__ = ["Choice", "choose", "make_engine", "pick_device"]

_BETTER = 1.15  # how many times faster an engine must be to displace one that stands before it
_SPAWN_S = 3.0  # what starting worker processes costs
_GUIDED = "it trains without the guide that the mechanism sends (FedGen's generator)"
_ADAMW = "its steps are SGD's, and train.optimizer asks for others"
_LONG = 20  # how many such starts long a run must be for processes to be tried
_VERSION = 6


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
    guided: bool = False,
) -> Choice:
    """Return the engine for rounds like ``jobs``; what is given (``train``, ``threads``, ``workers``) is kept.

    Measures a few steps of every candidate unless one is left or the same question was answered before (``fresh``
    measures again). Raises UserError if the engine asked for cannot train this model; with ``guided`` seats (FedGen)
    the engines that batch seats cannot.
    """
    device = torch.device(device)
    unfit = _GUIDED if guided else _ADAMW if recipe.optimizer != "sgd" else None
    candidates, notes = _candidates(problem, pool, jobs, train, threads, workers, device, precision, unfit)
    if not candidates and not notes:
        raise UserError(f"engine.threads is {threads} and engine.workers {workers}; several workers use 1 thread each")
    if not candidates:
        raise UserError(f"engine.train is {train!r}, but it cannot train this model: {'; '.join(notes)}")
    if len(candidates) == 1:
        only = candidates[0]
        return replace(only, why=[*notes, f"{only.label}: the only one that fits what was asked for"])
    path = _cache_file(problem, recipe, jobs, candidates, device, precision, rounds)
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
    unfit: str | None,
) -> tuple[list[Choice], list[str]]:
    """Return what can train this model, in the order of preference, and notes on what cannot.

    ``unfit``: why engines that batch seats are not for this job, if they are not.
    """
    most = torch.get_num_threads()
    counts = [threads] if threads else sorted({most, min(most, 4), 1}, reverse=True)
    side = min(workers or most, max(1, len(jobs))) if device.type == "cpu" else 1
    images = has_convolutions(problem.module)
    notes: list[str] = []
    found: list[Choice] = []
    if threads and workers:
        counts, side = [threads], (workers if device.type == "cpu" else 1)  # exactly what a finished run wrote down
    stackable = unfit is None and read_stack(problem) is not None
    if train in ("auto", "stacked"):
        if unfit:
            notes.append(f"stacked: {unfit}")
        elif not stackable:
            notes.append("stacked: the model is not a sequence of layers that can be stacked")
        else:
            stacked = [Choice("stacked", t, 1) for t in counts] if workers in (None, 1) or side == 1 else []
            if side > 1 and not (threads and threads > 1):
                stacked.insert(1 if stacked else 0, Choice("stacked", 1, side))
            found += stacked
            if precision == "bf16":
                notes.append("stacked: computes in float32, where bf16 gains nothing")
    if train in ("auto", "vmapped") and not (train == "auto" and (found or images)):
        reason = unfit or why_not_vmapped(problem, jobs[0].start.cpu(), _few(pool))
        if reason:
            notes.append(f"vmapped: {reason}")
        else:
            found += [Choice("vmapped", t, 1) for t in counts]
    if train == "auto" and found:
        pass  # one seat after another has never been the faster way to train what can be stacked
    elif train in ("auto", "sequential"):
        if side > 1 and not (threads and threads > 1):
            found.append(Choice("sequential", 1, side))
        # with seats enough, one convolution on all threads is no faster, and collapses beside a busy process
        alone = workers in (None, 1) and not (images and side > 1 and not threads)
        if alone or side == 1:
            found += [Choice("sequential", t, 1) for t in counts]
    if train == "processes" or (train == "auto" and not stackable and device.type == "cpu" and side > 1):
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
    """Time a few steps of every candidate, project a round, and take the first that none beats clearly.

    Worker processes are measured, which starts them, only for a run that is long against that.
    """
    trial = Trial.of(problem, recipe, pool, jobs, device, precision)
    why = [*notes]
    measured = trial.measure([c for c in candidates if c.engine != "processes"])
    best = _first_not_beaten(candidates, measured)
    for candidate in candidates:
        if candidate.engine == "processes":
            length = measured[best.label] / 1e3 * rounds
            if length > _LONG * _SPAWN_S:
                measured |= trial.measure([candidate])
                best = _first_not_beaten(candidates, measured)
            else:
                why.append(f"{candidate.label}: not tried, as a run of {length:.0f} s does not pay for starting them")
    for label, value in measured.items():
        why.append(f"{label}: {value:.1f} ms a round{' <- chosen' if label == best.label else ''}")
    return replace(best, why=why, measured=measured)


def _first_not_beaten(candidates: Sequence[Choice], measured: dict[str, float]) -> Choice:
    here = [c for c in candidates if c.label in measured]
    best = here[0]
    for candidate in here[1:]:
        if measured[candidate.label] * _BETTER < measured[best.label]:
            best = candidate
    return best


def _cache_file(
    problem: Problem,
    recipe: Recipe,
    jobs: Sequence[SeatJob],
    candidates: Sequence[Choice],
    device: torch.device,
    precision: Precision,
    rounds: int,
) -> Path:
    """Return where the answer to this question is kept."""
    question = {
        "version": _VERSION,
        "machine": [platform.node(), platform.machine(), processor(), os.cpu_count(), torch.get_num_threads()],
        "torch": torch.__version__,
        "model": [repr(problem.module), [list(s) for s in problem.layout.shapes], problem.loss],
        "recipe": asdict(replace(recipe, lr=0.0, lr_decay=1.0)),
        "jobs": sorted((len(j.index), j.centre is not None, j.tilt is not None) for j in jobs),
        "candidates": [c.label for c in candidates],
        "device": str(device),
        "precision": precision,
        "rounds": rounds if any(c.engine == "processes" for c in candidates) else 0,
    }
    digest = hashlib.blake2b(json.dumps(question, sort_keys=True).encode(), digest_size=12).hexdigest()
    return Path(user_cache_dir("hanse")) / "calibration" / f"{digest}.json"


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
