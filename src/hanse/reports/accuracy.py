"""Charts of how good the models are: by round, by client, and compared with what clients earned.

:func:`curve_charts` draws the curves of tests and training losses, :func:`own_charts` the results on the clients' own
test data. The other functions read the figures behind them, which other charts and the comparison also use:
:func:`own_accuracy` and :func:`own_main` over the rounds, :func:`last_tested` and :func:`utilities` by client. Clients
that the experiment makes cheat are left out of all means over clients, because an attacker is tested on the model that
it sends.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from hanse.learning.metrics import ACCURACY, LOSS, MetricStyle
from hanse.reports.chart import Chart, Curve, Floats, Ints, Lines, even, slug
from hanse.reports.groups import SeedGroup, honest_of, roles_of
from hanse.reports.market import MOST
from hanse.reports.money import Books, granted
from hanse.reports.words import caption
from hanse.runs.run_record import RunRecord

_SECTION = "How well it learned"
MOST_ON_CURVE = 400  # points of a curve
MOST_READ = 200  # rounds whose own file has to be opened for a curve

# key, title, axis, factor
_CURVES = (
    ("client/test_accuracy", "Accuracy at the clients", "mean accuracy on own test data (%)", 100.0),
    ("test/accuracy", "Test accuracy", "accuracy on the test set (%)", 100.0),
    ("test/loss", "Test loss", "loss on the test set", 1.0),
    ("client/test_loss", "Loss at the clients", "mean loss on own test data", 1.0),
    ("train/loss", "Training loss", "mean loss of those who trained", 1.0),
)


def curve_charts(groups: Sequence[SeedGroup]) -> list[Chart]:
    """Return a chart over the rounds played (1, 2, ...) for each figure that any experiment recorded.

    The main metrics of the experiments come first. The clients' loss is left out where clients have an accuracy.

    Args:
        groups: the experiments, one line each.
    """
    charts: list[Chart] = []
    curves = [(*curve, "") for curve in _CURVES]
    for key, title, axis, factor, better in (*_main_curves(groups), *curves):
        lines = [line for i, group in enumerate(groups) if (line := _line(group, key, factor, i)) is not None]
        accurate = any(len(run.series("client/test_accuracy")[0]) for group in groups for run in group.runs)
        if not lines or (key == "client/test_loss" and accurate):
            continue
        band = _band(groups, lines)
        read = band if not any(band in chart.caption for chart in charts) else ""  # once in a section is enough
        told = f"{caption('curve', key, title.removeprefix('Test '), better)} {read}".strip()
        name = key.replace("/", "-").replace("_", "-")
        charts.append(Chart(name, _SECTION, title, told, Lines(tuple(lines)), x="rounds played", y=axis))
    return [*charts, *_over_time(groups)]


def _over_time(groups: Sequence[SeedGroup]) -> list[Chart]:
    """Return a chart of the main metric against the simulation's clock, if clients take time in any experiment.

    The metric is that of the first experiment.
    """
    reading, lines = groups[0].runs[0].main, []
    for i, group in enumerate(groups):
        line, clock = _line(group, f"test/{reading.key}", reading.factor, i), group.curve("clock_s")
        if line is not None and clock is not None:
            lines.append(replace(line, x=np.interp(line.x, 1.0 + clock.rounds, clock.mean)))
    if not lines:
        return []
    told = caption("over_time", _band(groups, lines))
    title = f"Test {reading.title} over virtual time"
    axis = f"{reading.title} on the test set{_unit(reading)}"
    marks = Lines(tuple(lines))
    return [Chart("test-over-time", _SECTION, title, told, marks, x="virtual seconds", y=axis)]


def _main_curves(groups: Sequence[SeedGroup]) -> list[tuple[str, str, str, float, str]]:
    """Return entries as in ``_CURVES``, and what is better, for main metrics other than accuracy and loss."""
    curves, usual = list[tuple[str, str, str, float, str]](), {ACCURACY, LOSS}
    for reading in dict.fromkeys(run.main for group in groups for run in group.runs if run.main not in usual):
        name, better = reading.title, "lower" if reading.less_is_better else "higher"
        own, factor = f"{name[:1].upper()}{name[1:]} at the clients", reading.factor
        server = f"{name} on the test set{_unit(reading)}"
        curves.append((f"test/{reading.key}", f"Test {name}", server, factor, better))
        curves.append((f"client/test_{reading.key}", own, f"mean {own_axis(reading)}", factor, better))
    return curves


def _unit(reading: MetricStyle) -> str:
    return " (%)" if reading.percent else ""


def own_axis(reading: MetricStyle) -> str:
    """Return the label of an axis with clients' values of a metric on their own test data."""
    return f"{reading.title} on own test data{_unit(reading)}"


def _line(group: SeedGroup, key: str, factor: float, look: int) -> Curve | None:
    """Return an experiment's line for a figure, its band limited to the figure's possible values; None without
    figures."""
    curve = group.curve(key, _read)
    if curve is None:
        return None
    name = group.label if curve.sd is None else f"{group.label} ({len(group.runs)} seeds)"
    line = curve.line(name, MOST_ON_CURVE, factor, look)
    if line.low is None or line.high is None:
        return line
    if key.endswith("accuracy"):
        return replace(line, low=line.low.clip(0.0, 100.0), high=line.high.clip(0.0, 100.0))
    return replace(line, low=line.low.clip(0.0)) if curve.mean.min() >= 0 else line


def _read(run: RunRecord, key: str) -> tuple[Ints, Floats]:
    """Return a figure's rounds ``[n]`` and values ``[n]``; those of clients are means over the honest ones."""
    if key == "client/test_accuracy":
        return own_accuracy(run, MOST_READ)
    return own_main(run, MOST_READ) if key == f"client/test_{run.main.key}" != "client/test_loss" else run.series(key)


def _band(groups: Sequence[SeedGroup], lines: Sequence[Curve]) -> str:
    """Return how to read lines, bands and single markers, as the end of a caption."""
    alone, banded = any(len(line.x) == 1 for line in lines), any(line.low is not None for line in lines)
    return caption("band", alone, banded, any(len(group.runs) == 1 for group in groups))


# ---- clients on their own data


MOST_POINTS = 2000  # points of a line or dots of a chart


def own_charts(groups: Sequence[SeedGroup], books: Mapping[str, Books]) -> list[Chart]:
    """Return the charts of clients' results on their own test data, if they were tested on it.

    One shows the distribution over the clients; another, if there is money, has a dot for each client with what it
    earned.

    Args:
        groups: the experiments.
        books: the books of experiments with payments, by the group's label.
    """
    cdf = _cdf(groups)
    earned = [chart for group in groups if (chart := _earned(group, books.get(group.label))) is not None]
    return [*([] if cdf is None else [cdf]), *earned]


def own_accuracy(run: RunRecord, most: int | None = None) -> tuple[Ints, Floats]:
    """Return the mean accuracy of the honest clients on their own test data, round by round.

    Args:
        run: the run.
        most: the most rounds to read if somebody cheats, evenly spread, since each round then has its own file. None:
            all.

    Returns:
        The rounds (0-based) ``[n]`` in which clients were tested, and the means ``[n]``, 0 to 1.
    """
    return _of_honest(run, ACCURACY, most)


def own_main(run: RunRecord, most: int | None = None) -> tuple[Ints, Floats]:
    """Return what :func:`own_accuracy` returns, but for the run's main metric; the mean is over clients that have it.

    Args:
        run: the run.
        most: how many rounds are read at most.
    """
    return _of_honest(run, run.main, most)


def _of_honest(run: RunRecord, reading: MetricStyle, most: int | None) -> tuple[Ints, Floats]:
    """Return rounds ``[n]`` and means ``[n]`` of a metric over the honest clients.

    If nobody cheats, these are the recorded means. Otherwise each round's file is read for each client's figure.
    """
    rounds, values = run.series(f"client/test_{reading.key}")
    honest = honest_of(run)
    if honest is None or not len(rounds):
        return rounds, values
    found = []
    for r in rounds[even(len(rounds), most or len(rounds))].tolist():
        tests = run.own_tests(r)
        if tests is not None:
            own = (tests.accuracy if reading == ACCURACY else tests.main)[np.isin(tests.clients, honest)]
            own = own if reading == ACCURACY else own[np.isfinite(own)]
            found += [(r, float(own.mean()))] if len(own) else []
    kept, means = (np.array(column) for column in zip(*found, strict=True)) if found else (rounds[:0], values[:0])
    return kept.astype(np.int64), means.astype(np.float64)


def last_tested(run: RunRecord) -> tuple[Ints, Floats] | None:
    """Return the clients ``[n]`` of the last test on own data and their main metric ``[n]``; None if there was none.

    Clients without a value of the metric are left out.
    """
    tested = [line["round"] for line in run.metrics if line.get(f"client/test_{run.main.key}") is not None]
    tests = run.own_tests(tested[-1]) if tested else None
    if tests is None:
        return None
    known = np.isfinite(tests.main)
    return (tests.clients[known], tests.main[known]) if known.any() else None


def utilities(run: RunRecord) -> Floats | None:
    """Return each client's utility over all markets of a run, ``[N]`` tokens (iPFL eq. 1); None without a market."""
    if not any("utility/mean" in line for line in run.metrics):
        return None
    total = np.zeros(run.num_clients)
    for line in run.metrics:
        record = run.arrays(int(line["round"]), only=("market_utility", "market_client"))
        if "market_utility" in record:
            total[record["market_client"]] += record["market_utility"]
    return total


def _cdf(groups: Sequence[SeedGroup]) -> Chart | None:
    """Return the distribution of the main metric over the clients, a line for each experiment with the same metric."""
    reading, lines = groups[0].runs[0].main, []
    for i, group in enumerate(groups):
        own = [f for run in group.runs if run.main == reading and (f := _honest_at_the_last_test(run)) is not None]
        if own:
            values = np.sort(np.concatenate(own))
            share = np.arange(1, len(values) + 1) / len(values)
            # the curve begins at a share of 0, so its first step is drawn from the bottom
            x, y = np.concatenate([values[:1], values]), np.concatenate([[0.0], share])
            kept = even(len(x), MOST_POINTS)
            lines.append(Curve(group.label, reading.factor * x[kept], 100.0 * y[kept], look=i))
    if not lines:
        return None
    cheats = any(honest_of(run) is not None for group in groups for run in group.runs)
    told = caption("distribution", reading, cheats)
    title, marks = "How clients fare on their own test data", Lines(tuple(lines), steps=True, whole=False)
    return Chart("own-accuracy-cdf", _SECTION, title, told, marks, x=own_axis(reading), y="clients (%)")


def _honest_at_the_last_test(run: RunRecord) -> Floats | None:
    """Return the main metric of the clients that do not cheat, at the last test on own data; None without any."""
    found, honest = last_tested(run), honest_of(run)
    if found is None:
        return None
    values = found[1] if honest is None else found[1][np.isin(found[0], honest)]
    return values if len(values) else None


def _earned(group: SeedGroup, books: Books | None) -> Chart | None:
    """Return utility (in a market) or tokens (elsewhere) against the main metric, a dot for each client.

    It shows the group's first run only, since other seeds may have other clients.
    """
    run = group.runs[0]
    tested, utility = last_tested(run), utilities(run)
    if tested is None or len(tested[0]) < 2:
        return None
    if utility is not None:
        worth, what, axis = utility, "Utility", "utility over the run (tokens)"
    elif books is not None:
        worth, what, axis = books.held[-1] - granted(run), "Tokens earned", "tokens earned or lost"
    else:
        return None
    clients, accuracy = tested
    kept = even(len(clients), MOST_POINTS)
    clients, accuracy = clients[kept], accuracy[kept]
    roles = roles_of(run)
    kinds = [roles.get(c, "client") for c in clients.tolist()]
    lines = []
    for kind in dict.fromkeys(kinds):
        here = np.array([k == kind for k in kinds])
        x, y = run.main.factor * accuracy[here], worth[clients[here]]
        few = len(clients) <= MOST
        names = tuple(f"client {run.client_label(c)}" for c in clients[here].tolist()) if few else ()
        lines.append(Curve(kind, x, y, dots=True, names=names))
    told = caption("earned", run.main, utility is not None, run.seeds[0])
    marks = Lines(tuple(lines), zero=True, whole=False)
    title = f"{what} against {run.main.title}: {group.label}"
    return Chart(f"earned-{slug(group.label)}", _SECTION, title, told, marks, x=own_axis(run.main), y=axis)
