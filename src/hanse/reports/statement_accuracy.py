"""How good the model that a participant holds is on its own data, and how good one would be that it trains alone."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from hanse.base.errors import UserError
from hanse.base.files import read_toml, table
from hanse.runs.record import RunRecord, load_run

__all__ = ["Fit", "find_alone", "fit_of"]

HERE = "alone"  # the folder inside a run directory where --train-alone leaves its run
_SAME = ("data", "model", "train")  # what both runs must share, or the difference is not that of joining


@dataclass(frozen=True)
class Fit:
    """A client's own test: the ``rounds`` (from 0) after which it tested, with ``accuracy`` and ``loss`` of the model
    that it held, and ``samples`` it tested on (None: not recorded).

    ``alone_accuracy`` and ``alone_loss`` are those of a model that it trained by itself, at the end of the run
    ``alone`` (its folder's name) after ``alone_rounds``; None if there is no such run, and then ``how`` says how to get
    one. ``error`` is the standard error of the difference of the accuracies, from the number of samples; ``loss_error``
    that of the difference of the losses, from their spread over the samples (None: not recorded).
    """

    rounds: tuple[int, ...] = ()
    accuracy: tuple[float | None, ...] = ()
    loss: tuple[float | None, ...] = ()
    samples: int | None = None
    alone: str | None = None
    alone_accuracy: float | None = None
    alone_loss: float | None = None
    alone_rounds: int | None = None
    how: str = ""
    loss_error: float | None = None

    @property
    def last(self) -> float | None:
        """The accuracy at the last test."""
        return self.accuracy[-1] if self.accuracy else None

    @property
    def last_loss(self) -> float | None:
        """The loss at the last test."""
        return self.loss[-1] if self.loss else None

    @property
    def error(self) -> float | None:
        """The standard error of the difference of two accuracies on the same samples, at most: as if the two models
        erred independently. None if something of it is not known.
        """
        if self.last is None or self.alone_accuracy is None or not self.samples:
            return None
        return math.sqrt(sum(p * (1 - p) for p in (self.last, self.alone_accuracy)) / self.samples)


def fit_of(run: RunRecord, client: int, alone: Path | None = None) -> Fit:
    """Return a client's tests in a run, beside those of ``alone`` (or of a run that :func:`find_alone` finds).

    Raises UserError for an ``alone`` that is no run of single clients on the same data with the same training.
    """
    tests = _tests(run, client)
    named = None if alone is None else _checked(run, load_run(alone))
    if not tests:
        return Fit(how=_why_untested(run))
    rounds, loss, accuracy, samples, errors = zip(*tests, strict=True)
    known = next((n for n in reversed(samples) if n is not None), run.members.get(client, {}).get("tests"))
    found = Fit(rounds, accuracy, loss, known)
    other = find_alone(run) if named is None else named
    if other is None:
        return replace(found, how=_how(run, client))
    theirs = _tests(other, client)
    if not theirs:
        return replace(found, how=f"{other.name} did not test client {client} on its own data")
    _, alone_loss, alone_accuracy, _, alone_error = theirs[-1]
    # as if the two models erred independently: at most that, on the same samples
    error = None if errors[-1] is None or alone_error is None else math.hypot(errors[-1], alone_error)
    rounds_alone = len(other.metrics)
    return Fit(rounds, accuracy, loss, known, other.name, alone_accuracy, alone_loss, rounds_alone, loss_error=error)


def _tests(run: RunRecord, client: int) -> list[tuple[int, float | None, float | None, int | None, float | None]]:
    """Return (round, loss, accuracy, samples, error of the loss) of every test of the client on its own share."""
    found = []
    for line in run.metrics:
        if line.get("client/test_loss") is None:
            continue
        tests = run.own_tests(int(line["round"]))
        at = [] if tests is None else np.flatnonzero(tests.clients == client).tolist()
        if tests is None or not at:
            continue
        loss, accuracy, error = (_finite(values[at[0]]) for values in (tests.loss, tests.accuracy, tests.error))
        samples = None if tests.samples is None else int(tests.samples[at[0]])
        if loss is not None or accuracy is not None:
            found.append((int(line["round"]), loss, accuracy, samples, error))
    return found


def _finite(value: Any) -> float | None:
    return float(value) if np.isfinite(value) else None


def find_alone(run: RunRecord) -> RunRecord | None:
    """Return a finished run of the same clients by themselves: in the run directory's folder "alone", or beside it.

    It must have the same data, model and training, and at least one finished round; of several the first by name.
    """
    if run.mechanism == "local":
        return None
    beside = sorted(p for p in run.path.resolve().parent.iterdir() if p != run.path.resolve())
    for path in (run.path / HERE, *beside):
        if not (path / "config.toml").exists():
            continue
        try:
            given = read_toml(path / "config.toml")
            if table(given, "mechanism").get("name") == "local" and not _differences(run.config, given):
                return load_run(path)
        except UserError:  # damaged, or without a round: it does not stand in the way of this run's statement
            continue
    return None


def _checked(run: RunRecord, other: RunRecord) -> RunRecord:
    if other.mechanism != "local":
        raise UserError(
            f"--alone {other.path}: its mechanism is '{other.mechanism}'; it must be 'local', every client by itself"
        )
    if apart := _differences(run.config, other.config):
        raise UserError(f"--alone {other.path}: is another experiment than {run.path}: {apart[0]}")
    return other


def _differences(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[str]:
    """Return what of two experiments' data, model and training differs, a line each."""
    found = []
    for name in _SAME:
        a, b = ({k: v for k, v in table(c, name).items() if k not in ("path", "download")} for c in (ours, theirs))
        keys = [k for k in sorted({*a, *b}) if a.get(k) != b.get(k)]
        found += [f"{name}.{k} is {b.get(k)!r} there, {a.get(k)!r} here" for k in keys]
    return found


def _why_untested(run: RunRecord) -> str:
    if run.config.get("data", {}).get("client_test", 0) == 0:
        return "clients keep no test data of their own in this run: [data] client_test is 0"
    return "the run has not tested this client on its own data: [eval] clients says how many are tested"


def _how(run: RunRecord, client: int) -> str:
    """Return how to learn what the client would have reached alone."""
    if run.mechanism == "local":
        return "in this run everyone is alone"
    if (run.path / "members.json").exists():
        return (
            "only the participant can tell: its data are not here. Train the same model on your own data alone, for as "
            "many steps, and compare on the same test data"
        )
    return (
        f"what it would be alone is not known yet: 'hanse statement DIR --client {client} --train-alone' plays the "
        "same experiment with everyone alone"
    )
