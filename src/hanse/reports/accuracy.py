"""Charts of how good the models are: by round, and by client.

:func:`curve_charts` draws the curves of tests and training losses, :func:`own_charts` the results on the clients' own
test data. :func:`own_means` is a metric of theirs over the rounds. Clients that the experiment makes cheat are left out
of all means over clients, because an attacker is tested on the model that it sends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from hanse.base.plain_text import quantity
from hanse.flower.leave import FOLDER
from hanse.learning.metrics import ACCURACY, LOSS, MetricStyle
from hanse.reports.chart import Chart, Curve, Floats, Ints, Lines, even
from hanse.reports.facts import facts_of
from hanse.reports.fits import own_mean
from hanse.reports.groups import SeedGroup, honest_of
from hanse.reports.words import said
from hanse.runs.round_record import figure_of
from hanse.runs.run_record import RunRecord

_SECTION = "How well it learned"
MOST_ON_CURVE = 400  # points of a curve
MOST_READ = 200  # rounds whose own file has to be opened for a curve


def curve_charts(groups: Sequence[SeedGroup]) -> list[Chart]:
    """Return a chart over the rounds played (1, 2, ...) for each figure that any experiment recorded.

    The main metrics of the experiments come first. The clients' loss is left out where clients have an accuracy.

    Args:
        groups: the experiments, one line each.
    """
    mains = dict.fromkeys(run.main for group in groups for run in group.runs)
    accurate = any(len(run.series("client/test_accuracy")[0]) for group in groups for run in group.runs)
    kinds = []
    for reading in dict.fromkeys([*(main for main in mains if main != LOSS), ACCURACY, LOSS]):
        name, unit = reading.title, " (%)" if reading.percent else ""
        if reading != LOSS or not accurate:
            title = f"{name[:1].upper()}{name[1:]} at the clients"
            kinds.append((f"client/test_{reading.key}", reading, title, f"mean {own_axis(reading)}"))
        kinds.append((f"test/{reading.key}", reading, f"Test {name}", f"{name} on the test set{unit}"))
    kinds.append(("train/loss", LOSS, "Training loss", "mean loss of those who trained"))
    charts: list[Chart] = []
    for key, reading, title, axis in kinds:
        lines = [line for i, group in enumerate(groups) if (line := _line(group, key, reading, i)) is not None]
        if not lines:
            continue
        alone, banded = any(len(line.x) == 1 for line in lines), any(line.low is not None for line in lines)
        band = said("band", alone, banded, any(len(group.runs) == 1 for group in groups))
        read = band if not any(band in chart.caption for chart in charts) else ""  # once in a section is enough
        told = f"{said('curve', key, reading)} {read}".strip()
        name = key.replace("/", "-").replace("_", "-")
        charts.append(Chart(name, _SECTION, title, told, Lines(tuple(lines)), x="rounds played", y=axis))
    return charts


def reached(run: RunRecord) -> tuple[str, list[str]]:
    """Return what the main metric is of, in words, and its figures in the order of the tests, the last one at the end.

    Where clients tested, it is the mean over the honest ones, with the digits that the report's table has.

    Args:
        run: the run.
    """
    tested = [figure.rpartition(" ") for line in run.metrics if (figure := figure_of(line, run.main))]
    reading, means = run.main, own_means(run, run.main, 2)[1].tolist()
    if not means:
        return tested[-1][0] if tested else "nothing tested", [figure for _, _, figure in tested]
    who = "clients" if honest_of(run) is None else "honest clients"
    unit, digits = (" %", 2) if reading.percent else ("", 4)
    return f"{reading.title} at the {who}", [f"{reading.factor * mean:.{digits}f}{unit}" for mean in means]


def own_axis(reading: MetricStyle) -> str:
    """Return the label of an axis with clients' values of a metric on their own test data."""
    return f"{reading.title} on own test data{' (%)' if reading.percent else ''}"


def _line(group: SeedGroup, key: str, reading: MetricStyle, look: int) -> Curve | None:
    """Return an experiment's line for a figure, its band limited to the figure's possible values; None without
    figures. Figures of clients are means over the honest ones, but for the loss.
    """
    own = key.startswith("client/") and reading != LOSS
    curve = group.curve(key, lambda run, _: own_means(run, reading, MOST_READ) if own else run.series(key))
    if curve is None:
        return None
    name = group.label if curve.sd is None else f"{group.label} ({quantity(len(group.runs), 'seed')})"
    line = curve.line(name, MOST_ON_CURVE, reading.factor, look)
    if line.low is None or line.high is None:
        return line
    least, most = (reading.factor * end for end in reading.within)
    least = max(least, 0.0) if curve.mean.min() >= 0 else least
    return replace(line, low=line.low.clip(least, most), high=line.high.clip(least, most))


# ---- clients on their own data


MOST_POINTS = 2000  # points of a line or dots of a chart


def own_charts(groups: Sequence[SeedGroup]) -> list[Chart]:
    """Return the distribution of the main metric over the clients, on their own test data, if they were tested on it.

    Args:
        groups: the experiments, a line each if they have the same metric.
    """
    reading, lines = groups[0].runs[0].main, []
    for i, group in enumerate(groups):
        rows = [row for run in group.runs if run.main == reading for row in facts_of(run).clients]
        own = [row.joined for row in rows if row.honest and row.joined is not None]
        if own:
            values = np.sort(own)
            share = np.arange(1, len(values) + 1) / len(values)
            # the curve begins at a share of 0, so its first step is drawn from the bottom
            x, y = np.concatenate([values[:1], values]), np.concatenate([[0.0], share])
            kept = even(len(x), MOST_POINTS)
            lines.append(Curve(group.label, reading.factor * x[kept], 100.0 * y[kept], look=i))
    if not lines:
        return []
    cheats = any(honest_of(run) is not None for group in groups for run in group.runs)
    told = said("distribution", reading, cheats)
    title, marks = "How clients fare on their own test data", Lines(tuple(lines), steps=True, whole=False)
    return [Chart("own-accuracy-cdf", _SECTION, title, told, marks, x=own_axis(reading), y="clients (%)")]


def own_means(run: RunRecord, reading: MetricStyle, most: int | None = None) -> tuple[Ints, Floats]:
    """Return the mean of a metric over the honest clients that have it, on their own test data, round by round. Who has
    left, or is away, counts by its last test, so that the last mean is :func:`hanse.reports.fits.own_mean`.

    If all clients test in each tested round, and nobody cheats, these are the recorded means, as in an app, which may
    tell nothing else. Otherwise each round's file is read for each client's figure.

    Args:
        run: the run.
        reading: the metric: the accuracy, or the run's main one.
        most: the most rounds whose files are read, evenly spread. None: all.

    Returns:
        The rounds (0-based) ``[n]`` in which clients were tested, and the means ``[n]``.
    """
    rounds, values = run.series(f"client/test_{reading.key}")
    honest = honest_of(run)
    if not len(rounds) or (honest is None and (run.in_app or not run.members) and not run.has(FOLDER)):
        return rounds, values
    found, last = list[tuple[int, float | None]](), dict[int, float]()
    for r in rounds[even(len(rounds), most or len(rounds))].tolist():
        if (tests := run.own_tests(r)) is not None:
            own = tests.accuracy if reading == ACCURACY else tests.main
            counts = np.isfinite(own) & (honest is None or np.isin(tests.clients, honest))
            last |= zip(tests.clients[counts].tolist(), own[counts].tolist(), strict=True)
            found += [(r, float(np.mean([*last.values()])))] if last else []
    found[-1:] = [(r, own_mean(run, reading)) for r, _ in found[-1:]]  # with who tested last between two of these
    kept, means = (np.array(column) for column in zip(*found, strict=True)) if found else (rounds[:0], values[:0])
    return kept.astype(np.int64), means.astype(np.float64)
