"""Runs side by side, as plain rows: what ``hanse compare`` prints and the report's first table shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from hanse.base.errors import UserError
from hanse.reports.effective import EPSILON, effective_round, improvement
from hanse.reports.groups import Group, group_runs
from hanse.reports.honesty import own_accuracy
from hanse.reports.paired import paired
from hanse.runs.record import RunRecord, load_runs

__all__ = ["compare_runs", "difference_rows", "group_rows", "run_row"]

NUMBERS = (
    "test_accuracy",
    "best_accuracy",
    "test_loss",
    "test_mse",
    "client_accuracy",
    "seconds_per_round",
    "mb",
    "refused",
)
TESTED = (
    "test_accuracy",
    "best_accuracy",
    "test_loss",
    "test_mse",
    "client_accuracy",
)  # what differences are tested of
EFFECTIVE = ("effective_round", "effective_round_improvement")


def compare_runs(dirs: Sequence[str | Path], epsilon: float = EPSILON) -> list[dict[str, Any]]:
    """Return a row a run, and two more for each experiment that was given with several seeds.

    All rows have the same keys. ``kind`` is "run", "mean" or "sd" (the sample standard deviation over the seeds).
    ``rounds`` were finished; accuracies are shares from 0 to 1 and, like the loss, of the last tested round;
    ``test_loss`` is a cross-entropy, ``test_mse`` the mean squared error of a regression (the one has no figure of the
    other); ``best_accuracy`` is the highest of all tested rounds, on the test set; ``client_accuracy`` is the honest
    clients' mean on their own test data; ``seconds_per_round`` is the median wall clock; ``mb`` (10^6 bytes) up and
    down over the whole run; ``refused`` updates. ``effective_round`` is how many
    rounds the run took to come within ``epsilon`` of the best accuracy of the first experiment (its run of the same
    seeds, or the first run), and ``effective_round_improvement`` how many percent fewer than that took itself (GTFLAT
    eq. 13). None: not recorded (a regression has no accuracy), or never that good. Raises UserError.
    """
    if not 0 <= epsilon < 1:
        raise UserError(f"--epsilon {epsilon}: must be at least 0 and below 1")
    runs = load_runs(dirs)
    groups = group_runs(runs)
    first = {run.seeds: run for run in groups[0].runs}
    rows = {id(run): run_row(run) | _effective(run, first.get(run.seeds, runs[0]), epsilon) for run in runs}
    means = [row for group in groups for row in group_rows(group.label, [rows[id(run)] for run in group.runs])]
    return [*rows.values(), *means]


def difference_rows(groups: Sequence[Group]) -> list[dict[str, Any]]:
    """Return, for each experiment but the first and each figure that both have, how it differs from the first over the
    seeds that both have: a paired test.

    A row has ``kind`` "difference", ``run`` and ``base`` (labels), ``figure``, and of the differences (run less base)
    ``pairs``, ``mean``, ``sd``, ``low`` and ``high`` (a 95 % interval, Student's t), ``p`` (paired t test) and
    ``p_sign_flip``, both two-sided, and ``p_holm``: ``p`` corrected for the number of experiments that are held against
    the first. Experiments with fewer than two seeds in common have no row.
    """
    found = []
    for figure in TESTED:
        base, rows = _by_seeds(groups[0], figure), []
        for group in groups[1:]:
            if (test := paired(_by_seeds(group, figure), base)) is not None:
                names = {"kind": "difference", "run": group.label, "base": groups[0].label, "figure": figure}
                rows.append(names | asdict(test))
        for row, corrected in zip(rows, _holm([row["p"] for row in rows]), strict=True):
            found.append(row | {"p_holm": corrected})
    return found


def _by_seeds(group: Group, figure: str) -> dict[Any, float]:
    """Return a figure by the run's and the split's seed, of the runs that have it."""
    return {run.seeds: float(v) for run in group.runs if (v := run_row(run)[figure]) is not None}


def _holm(p: Sequence[float]) -> list[float]:
    """Return Holm's corrected p-values: however many tests there are, a false alarm in any is as rare as in one."""
    corrected, least = [0.0] * len(p), 0.0
    for rank, i in enumerate(np.argsort(p, kind="stable").tolist()):
        least = max(least, min(1.0, (len(p) - rank) * p[i]))
        corrected[i] = least
    return corrected


def _effective(run: RunRecord, base: RunRecord, epsilon: float) -> dict[str, float | None]:
    """Return a run's effective round for the base run's best accuracy, and the improvement ratio."""
    played, theirs = base.series("test/accuracy")
    rounds, ours = run.series("test/accuracy")
    if not len(theirs) or not len(ours):
        return dict.fromkeys(EFFECTIVE)
    target = float(theirs.max())
    reached = effective_round(rounds + 1, ours, target, epsilon)
    needed = effective_round(played + 1, theirs, target, epsilon)
    return dict(zip(EFFECTIVE, (reached, improvement(reached, needed)), strict=True))


def run_row(run: RunRecord) -> dict[str, Any]:
    """Return one run's row."""
    accuracy = run.series("test/accuracy")[1]
    loss = _last(run.series("test/loss")[1])
    regression = not len(accuracy)  # its loss is a mean squared error; every other loss comes with an accuracy
    seconds = run.series("time/round_s")[1]
    traffic = [run.series(key)[1] for key in ("bytes/down", "bytes/up")]
    refused = run.series("refused")[1]
    return {
        "run": run.name,
        "kind": "run",
        "mechanism": run.mechanism,
        "rounds": len(run.metrics),
        "seed": run.seeds[0],
        "test_accuracy": _last(accuracy),
        "best_accuracy": float(accuracy.max()) if len(accuracy) else None,
        "test_loss": None if regression else loss,
        "test_mse": loss if regression else None,
        "client_accuracy": _last(own_accuracy(run, 2)[1]),
        "seconds_per_round": float(np.median(seconds)) if len(seconds) else None,
        "mb": float(sum(t.sum() for t in traffic)) / 1e6 if any(len(t) for t in traffic) else None,
        "refused": int(refused.sum()) if len(refused) else None,
    }


def group_rows(label: str, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the mean and the standard deviation of the rows of a group's runs; nothing for a single run. A figure
    that a seed lacks is None.
    """
    many = len(rows)
    if many < 2:
        return []
    shared = {"mechanism": rows[0]["mechanism"], "rounds": min(r["rounds"] for r in rows), "seed": None}
    found = []
    for kind, statistic in (("mean", np.mean), ("sd", _sd)):
        numbers: dict[str, float | None] = {}
        for key in (key for key in (*NUMBERS, *EFFECTIVE) if key in rows[0]):
            values = [r[key] for r in rows if r[key] is not None]
            numbers[key] = float(statistic(values)) if len(values) == many else None
        found.append({"run": f"{label} ({many} seeds)", "kind": kind, **shared, **numbers})
    return found


def _sd(values: Sequence[float]) -> float:
    return float(np.std(values, ddof=1))


def _last(values: np.ndarray) -> float | None:
    return float(values[-1]) if len(values) else None
