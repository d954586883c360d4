"""What a report says in words, from the same numbers as its figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hanse.reports.certainty import SURE, shown
from hanse.reports.compare import run_row
from hanse.reports.contributions import Contribution, contribution
from hanse.reports.groups import Group
from hanse.reports.participation import refusal_counts
from hanse.reports.who import honest_of
from hanse.runs.record import RunRecord

__all__ = ["Result", "results", "summary", "warnings"]

_MOST_NAMED = 5  # experiments in one sentence


@dataclass(frozen=True)
class Result:
    """An experiment's end: mean and sample standard deviation (None for one run) over its seeds of one figure."""

    label: str
    mean: float
    sd: float | None
    seeds: int


def results(groups: Sequence[Group], figure: str, *, ascending: bool = False) -> list[Result]:
    """Return each experiment's ``figure`` (a key of a compare row), the best first; without those that lack it."""
    found = []
    for group in groups:
        values = [v for run in group.runs if (v := run_row(run)[figure]) is not None]
        if values:
            sd = float(np.std(values, ddof=1)) if len(values) > 1 else None
            found.append(Result(group.label, float(np.mean(values)), sd, len(values)))
    return sorted(found, key=lambda r: r.mean if ascending else -r.mean)


def summary(groups: Sequence[Group]) -> list[str]:
    """Return sentences: who won and by how much, who contributed, what was refused."""
    return [*_outcome(groups), *_value(groups), *_refused(groups)]


def _outcome(groups: Sequence[Group]) -> list[str]:
    """Say how good the models are: where all clients have test data of their own that comes first, since it is what
    they asked for them to be tested on.
    """
    who = "honest clients'" if any(honest_of(run) is not None for group in groups for run in group.runs) else "clients'"
    own = ("client_accuracy", f"accuracy on the {who} own test data after the last round", 100.0, " %")
    server = ("test_accuracy", "test accuracy after the last round", 100.0, " %")
    loss = ("test_loss", "test loss after the last round (lower is better)", 1.0, "")
    squared = ("test_mse", "mean squared error on the test set after the last round (lower is better)", 1.0, "")
    told: list[str] = []
    everywhere = len(results(groups, "client_accuracy")) == len(groups)
    for figure, what, factor, unit in (own, server, loss, squared) if everywhere else (server, own, loss, squared):
        found = results(groups, figure, ascending=figure in ("test_loss", "test_mse"))
        if not found or (told and not (figure == "test_accuracy" and everywhere)):
            continue
        told.append(f"{_ranked(found, factor, unit)}{':' if len(found) > 1 else ''} {what}.")
        told += _close(found) if len(found) > 1 and len(told) == 1 else []
    return told or ["Nothing was tested yet: the runs have no accuracy and no loss."]


def _ranked(found: Sequence[Result], factor: float, unit: str) -> str:
    told = [f"{r.label} {_number(r, factor, unit)}" for r in found]
    if len(told) > _MOST_NAMED:
        others = f"{len(told) - _MOST_NAMED + 1} others down to {_number(found[-1], factor, unit)}"
        told = [*told[: _MOST_NAMED - 1], others]
    return told[0] if len(told) == 1 else f"{told[0]} against {_list(told[1:])}"


def _number(result: Result, factor: float, unit: str) -> str:
    digits = 1 if unit else 4
    mean = f"{result.mean * factor:.{digits}f}"
    if result.sd is None:
        return f"{mean}{unit}"
    return f"{mean} ± {result.sd * factor:.{digits}f}{unit}"


def _close(found: Sequence[Result]) -> list[str]:
    """Say so where the lead is no larger than what another seed changes, or where that is not known."""
    first, second = found[:2]
    if first.sd is None or second.sd is None:
        return ["A single seed each: a small difference may be chance."]
    error = float(np.hypot(first.sd / np.sqrt(first.seeds), second.sd / np.sqrt(second.seeds)))
    if abs(first.mean - second.mean) <= 2 * error:
        return [
            f"The difference between {first.label} and {second.label} is within two standard errors over these seeds: "
            "it may be chance."
        ]
    return []


def _value(groups: Sequence[Group]) -> list[str]:
    told: list[str] = []
    sure = ""
    for group in groups:
        found = contribution(group)
        if found is None:
            continue
        several = np.flatnonzero(found.seats > 1)  # one update says too little to be ranked by
        if len(several) < 2:
            continue
        best, worst = int(several[0]), int(several[-1])
        shares, totals, total = found.shares, found.totals, float(found.totals.sum())
        if shares is not None:
            first, last = (_error(100 * found.errors[i] / total, 1) for i in (best, worst))
            top, low = f"{100 * shares[best]:.0f}{first} % of the total value", f"{100 * shares[worst]:.1f}{last} %"
        else:
            first, last = (_error(found.errors[i]) for i in (best, worst))
            # values relative to a mean sum to 0 but for their last bits
            together = 0.0 if abs(total) < 1e-9 * float(np.abs(totals).sum()) else total
            top = f"value {totals[best]:.3g}{first}, all together {together:.3g}"
            low = f"{totals[worst]:.3g}{last}"
        comma = "," if group.seeds_text else ""
        told.append(
            f"In {group.label}{group.seeds_text}{comma} the client of the highest value was {found.labels[best]} "
            f"({top}), that of the lowest {found.labels[worst]} ({low}){_harm(found)}."
        )
        sure = sure or (shown(found.last) if np.isfinite(found.errors[[best, worst]]).any() else "")
    if sure:
        told[-1] += f" After ± of a value: {sure}."
    return told


def _harm(found: Contribution) -> str:
    """Say whose updates did harm: those whose whole 95 % interval lies below zero."""
    below = found.totals < 0
    surely = int((found.totals + SURE * found.errors < 0).sum())  # NaN: not known, so not said
    if not below.any():
        return ""
    told = f"; {int(below.sum())} of {len(below)} clients have a negative sum"
    if surely:
        return f"{told}, and of {surely} of them the whole 95 % interval is below zero: their updates did harm"
    return f"{told}, none of them so clearly that it could not be chance"


def _error(error: float, digits: int | None = None) -> str:
    """Return a standard error as it stands behind its number; nothing if it is not known."""
    if not np.isfinite(error):
        return ""
    return f" ± {error:.2g}" if digits is None else f" ± {error:.{digits}f}"


def _refused(groups: Sequence[Group]) -> list[str]:
    """Say in one sentence how many updates each experiment refused, and the reason that occurs most."""
    told, reasons = [], Counter[str]()
    for group in groups:
        counts = refusal_counts(group)
        if counts:
            asked = sum(len(run.clients) for run in group.runs)
            told.append(f"{group.label} {counts.total():,} of {asked:,}")
            reasons += counts
    if not told:
        return []
    return [f"Updates refused: {_list(told)}, most often because: {reasons.most_common(1)[0][0]}."]


def warnings(groups: Sequence[Group], runs: Sequence[RunRecord]) -> list[str]:
    """Return what a reader must know of the runs themselves: unfinished ones, and repeats that do not count."""
    told = [
        f"{run.name} has {len(run.metrics)} of {run.rounds_planned} rounds: it is not finished."
        for run in runs
        if len(run.metrics) < run.rounds_planned
    ]
    counted = {run.path for group in groups for run in group.runs}
    told += [
        f"{run.name} repeats another run (same experiment, same seeds), so that it does not count in means and curves."
        for run in runs
        if run.path not in counted
    ]
    for group in groups:
        lengths = {len(run.metrics) for run in group.runs}
        if len(lengths) > 1:
            told.append(f"The seeds of {group.label} are not equally far; curves end with the shortest.")
    return told


def _list(items: Sequence[str]) -> str:
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"
