"""What clients that cheat (free riders, attackers, liars, senders of noise) gain or lose against honest ones.

The experiment says who cheats, because it makes them do it (:func:`hanse.reports.groups.kinds_of`). :func:`outcomes`
collects what became of each client of a run; :func:`honesty_charts` compares the kinds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hanse.core.entry import TOKEN
from hanse.core.telling import HONEST
from hanse.games.jackknife import SURE
from hanse.reports.accuracy import own_axis
from hanse.reports.chart import Bars, Chart, Floats, Series, slug
from hanse.reports.contributions import errors_of
from hanse.reports.facts import facts_of
from hanse.reports.groups import SeedGroup, kinds_of
from hanse.reports.paired import paired
from hanse.reports.words import said
from hanse.runs.run_record import RunRecord

_SECTION = "Honest and dishonest"

# figure, title, axis
_FIGURES = (
    ("value", "What their updates were worth", "value a client, all rounds"),
    ("utility", "What the market brought them", "utility a client (tokens)"),
    ("tokens", "What tokens they earned", "tokens a client, beyond its grant"),
    ("selected", "How often they were selected", "rounds selected (%)"),
    ("accuracy", "How good their own models are", "accuracy on own test data (%)"),
)


def outcomes(run: RunRecord) -> dict[str, Floats]:
    """Return what became of each client of a run.

    Args:
        run: the run.

    Returns:
        ``[N]`` numbers (NaN: not known) for each figure that the run has. These are "value", the sum of the client's
        values; "utility" of the market and "tokens" beyond the client's grant, both in tokens; "selected", in percent
        of the rounds, unless everyone always is; and "accuracy", the main metric on the client's own test data, as it
        is shown (percent for an accuracy).
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


def honesty_charts(groups: Sequence[SeedGroup]) -> list[Chart]:
    """Return a chart for each figure of :func:`outcomes` of every experiment in which clients cheat.

    Args:
        groups: the experiments. Experiments with the mechanism ``local`` are left out: a client that trains alone sends
            nothing that could be false.
    """
    return [chart for group in groups if group.runs[0].mechanism != "local" for chart in _charts(group)]


def _charts(group: SeedGroup) -> list[Chart]:
    """Return the charts of one experiment: a bar for each kind of clients, the mean over clients and seeds."""
    runs = [(run, kinds) for run in group.runs if (kinds := kinds_of(run))]
    found = [outcomes(run) for run, _ in runs]
    charts = []
    for figure, title, usual in _FIGURES:
        means = {
            kind: [_mean(of.get(figure), kinds.get(kind)) for of, (_, kinds) in zip(found, runs, strict=True)]
            for kind in dict.fromkeys(kind for _, kinds in runs for kind in kinds)
        }
        means = {kind: values for kind, values in means.items() if np.isfinite(values).all()}
        if len(means) < 2:
            continue
        run, kinds = runs[-1]
        halves = [_half(values) for values in means.values()]
        if figure == "value" and len(runs) == 1:
            spread = errors_of(run, [kinds[kind] for kind in means], np.array([run.metrics[-1]["round"]])).total[:, 0]
            halves = [SURE * error / len(kinds[kind]) for kind, error in zip(means, spread.tolist(), strict=True)]
        known = bool(np.isfinite(halves).any())
        names = tuple(f"{kind} ({len(who)} client{'s' * (len(who) != 1)})" for kind in means for who in [kinds[kind]])
        series = Series(
            "mean", np.array([np.mean(values) for values in means.values()]), np.array(halves) if known else None
        )
        told = said("honest_and_not", known, len(runs), _apart(means))
        axis = own_axis(run.main) if figure == "accuracy" else usual
        key, heading = f"honesty-{figure}-{slug(group.label)}", f"{title}: {group.label}"
        charts.append(Chart(key, _SECTION, heading, told, Bars(names, (series,)), x=axis))
    return charts


def _mean(values: Floats | None, clients: Any) -> float:
    """Return the mean of the values that are known; NaN if none is."""
    known = np.zeros(0) if values is None or clients is None else values[clients][np.isfinite(values[clients])]
    return float(known.mean()) if len(known) else math.nan


def _apart(means: Mapping[str, Sequence[float]]) -> list[dict[str, Any]]:
    """Return how each kind differs from the first one, paired by seed, with 95 % intervals; none of a single seed."""
    base, apart = next(iter(means)), list[dict[str, Any]]()
    for name, values in means.items():
        found = paired(dict(enumerate(values)), dict(enumerate(means[base])))
        if name != base and found is not None:
            # means of equal numbers, added up in another order, differ in their last bits: that is no difference
            rounding = 1e-9 * max(map(abs, values))
            mean = 0.0 if abs(found.mean) < rounding else found.mean
            called = base if base != HONEST else "honest clients"
            apart.append({"kind": name, "base": called, "mean": mean, "found": found, "varies": found.sd > rounding})
    return apart


def _half(values: Sequence[float]) -> float:
    """Return half the 95 % interval (Student's t) of a mean over seeds; NaN of one."""
    found = paired(dict(enumerate(values)), dict.fromkeys(range(len(values)), 0.0))
    return math.nan if found is None else found.high - found.mean
