"""What clients that cheat (free riders, attackers, liars, senders of noise) gain or lose against honest ones.

The experiment says who cheats, because it makes them do it (:func:`hanse.reports.groups.kinds_of`). :func:`outcomes`
collects what became of each client of a run; :func:`kinds_table` compares the kinds.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from hanse.core.entry import TOKEN
from hanse.games.jackknife import SURE
from hanse.reports.chart import Floats
from hanse.reports.contributions import sums_of
from hanse.reports.digits import number
from hanse.reports.facts import facts_of, mean_interval
from hanse.reports.groups import SeedGroup, kinds_of
from hanse.reports.text_table import TextTable
from hanse.runs.run_record import RunRecord

_FIGURES = {
    "value": "value a client, all rounds",
    "utility": "utility a client (tokens)",
    "tokens": "tokens a client, beyond its grant",
    "selected": "rounds selected (%)",
    "accuracy": "{} on own test data",
}


def outcomes(run: RunRecord) -> dict[str, Floats]:
    """Return what became of each client, ``[N]`` a figure. NaN: not known of this client.

    The figures are "value" (sum of its updates' values), "utility" (sum over the rounds), "tokens" (received less paid,
    without grants; not if there is a utility), "selected" (percent of rounds), and "accuracy" (the main metric of its
    own model). Figures that a run did not record are missing.

    Args:
        run: the run.
    """
    rows, asked = facts_of(run).clients, 100.0 / len(run.metrics)
    columns: dict[str, list[float | None]] = {
        "value": [row.value or 0.0 for row in rows] if any(row.updates for row in rows) else [],
        "utility": [row.utility for row in rows],
        "tokens": [None if row.balance is None or row.utility is not None else row.net / TOKEN for row in rows],
        "selected": [asked * row.asked for row in rows] if any(asked * row.asked < 100 for row in rows) else [],
        "accuracy": [None if row.joined is None else run.main.factor * row.joined for row in rows],
    }
    found = {name: np.array(column, np.float64) for name, column in columns.items()}
    return {name: column for name, column in found.items() if np.isfinite(column).any()}


def kinds_table(group: SeedGroup) -> TextTable | None:
    """Return the mean figures of honest clients and of each kind of dishonest ones; None without such kinds.

    Means are over the clients of a kind and over the seeds that have the figure, with 95 % intervals: over the seeds;
    of a single run's values, for their errors.

    Args:
        group: the seeds of one experiment.
    """
    runs = [(outcomes(run), kinds, run) for run in group.runs if (kinds := kinds_of(run))]
    if not runs or runs[0][2].mechanism == "local":
        return None
    _, last, run = runs[-1]
    names = list(dict.fromkeys(kind for _, kinds, _ in runs for kind in kinds))
    columns: dict[str, list[str]] = {}
    for figure, title in _FIGURES.items():
        means = [[_mean(of.get(figure), kinds.get(kind)) for of, kinds, _ in runs] for kind in names]
        if not np.isfinite(means).all():
            continue
        halves = [None if (high := mean_interval(own)[2]) is None else high - float(np.mean(own)) for own in means]
        if figure == "value" and len(runs) == 1:
            errors = sums_of(run, [last[kind] for kind in names]).errors
            halves = [SURE * error / len(last[kind]) for kind, error in zip(names, errors.tolist(), strict=True)]
        cells = [_cell(float(np.mean(own)), half) for own, half in zip(means, halves, strict=True)]
        columns[title.format(run.main.title)] = cells
    rows = zip((f"{kind} ({len(last.get(kind, ()))})" for kind in names), *columns.values(), strict=True)
    return TextTable(("kind (clients)", *columns), tuple(rows)) if columns else None


def _mean(values: Floats | None, clients: Any) -> float:
    known = np.zeros(0) if values is None or clients is None else values[clients][np.isfinite(values[clients])]
    return float(known.mean()) if len(known) else math.nan


def _cell(mean: float, half: float | None) -> str:
    known = half is not None and math.isfinite(half)
    return f"{number(mean)} ± {number(half)}" if known else number(mean)
