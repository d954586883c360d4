"""What clients that cheat (free riders, attackers, liars, senders of noise) gain or lose against honest ones.

The experiment says who cheats, because it makes them do it (:func:`hanse.reports.groups.kinds_of`). :func:`outcomes`
collects what became of each client of a run; :func:`honesty_charts` compares the kinds, seed by seed.
"""

from __future__ import annotations

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
MOST_SEEDS = 20  # with bars of their own; the mean is over all

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
    """Return the charts of one experiment: a bar for each kind of clients and each seed."""
    seeds: list[str] = []
    means: dict[str, dict[str, list[float]]] = {}  # by figure and kind, a mean for each seed
    sure: dict[str, list[float]] = {}  # by kind, half the 95 % interval of its mean value for each seed
    counts: dict[str, int] = {}
    for run in group.runs:
        kinds = kinds_of(run)
        if not kinds:
            continue
        seeds.append(f"seed {run.seeds[0]}" if len({r.seeds[0] for r in group.runs}) == len(group.runs) else run.name)
        counts = {name: len(clients) for name, clients in kinds.items()}
        last = np.array([run.metrics[-1]["round"]])
        spread = errors_of(run, list(kinds.values()), last).total[:, 0]
        for (name, clients), error in zip(kinds.items(), spread.tolist(), strict=True):
            sure.setdefault(name, []).append(SURE * error / len(clients))
        for figure, values in outcomes(run).items():
            for name, clients in kinds.items():
                known = values[clients][np.isfinite(values[clients])]
                means.setdefault(figure, {}).setdefault(name, []).append(
                    float(known.mean()) if len(known) else float("nan")
                )
    charts = []
    for figure, title, usual in _FIGURES:
        axis = own_axis(group.runs[0].main) if figure == "accuracy" else usual
        by_kind = {k: v for k, v in means.get(figure, {}).items() if len(v) == len(seeds)}
        if len(by_kind) > 1:
            errors = sure if figure == "value" else {}
            heading = f"{title}: {group.label}"
            charts.append(
                _chart(group, figure, heading, axis, seeds=seeds, means=by_kind, counts=counts, errors_of_means=errors)
            )
    return charts


def _chart(
    group: SeedGroup,
    figure: str,
    title: str,
    axis: str,
    *,
    seeds: Sequence[str],
    means: Mapping[str, Sequence[float]],
    counts: Mapping[str, int],
    errors_of_means: Mapping[str, Sequence[float]],
) -> Chart:
    """Return one chart.

    ``means`` has a number for each seed by kind, ``counts`` how many clients are of each kind, ``errors_of_means``
    half the means' 95 % intervals by kind, where they are known. The caption gives the difference of each kind from the
    first one, paired by seed, with its 95 % interval.
    """
    labels = [*seeds[:MOST_SEEDS]] + (["mean"] if len(seeds) > 1 else [])
    series, estimated = [], False
    for name, values in means.items():
        shown = list(values[:MOST_SEEDS])
        errors = list(errors_of_means.get(name, [float("nan")] * len(values))[:MOST_SEEDS])
        estimated = estimated or bool(np.isfinite(errors).any())
        if len(seeds) > 1:
            shown.append(float(np.mean(values)))
            errors.append(_half(values))
        told = f"{name} ({counts[name]} client{'s' if counts[name] != 1 else ''})" if name in counts else name
        series.append(
            Series(told, np.nan_to_num(np.array(shown)), np.array(errors) if np.isfinite(errors).any() else None)
        )
    base, apart = next(iter(means)), list[dict[str, Any]]()
    for name, values in means.items():
        found = paired(dict(enumerate(values)), dict(enumerate(means[base])))
        if name != base and found is not None:
            # means of equal numbers, added up in another order, differ in their last bits: that is no difference
            rounding = 1e-9 * max(map(abs, values))
            mean = 0.0 if abs(found.mean) < rounding else found.mean
            apart.append({"kind": name, "mean": mean, "found": found, "varies": found.sd > rounding})
    caption = said(
        "honest_and_not", estimated, len(seeds), MOST_SEEDS, base if base != HONEST else "honest clients", apart
    )
    marks = Bars(tuple(labels), tuple(series), upright=True)
    return Chart(f"honesty-{figure}-{slug(group.label)}", _SECTION, title, caption, marks, y=axis)


def _half(values: Sequence[float]) -> float:
    """Return half the 95 % interval (Student's t) of a mean over at least two seeds."""
    found = paired(dict(enumerate(values)), dict.fromkeys(range(len(values)), 0.0))
    return float("nan") if found is None else found.high - found.mean
