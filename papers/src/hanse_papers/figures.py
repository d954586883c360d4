"""The pictures of a finished table.

:func:`charts` returns them as descriptions, which ``hanse.reports`` draws. Read this module to add a kind of picture,
or to learn what a ``[[figure]]`` in a table's file may say. Each ``[[figure]]`` becomes one picture for every group of
the table that has something to show.

Points are means over seeds. Bands and whiskers are one sample standard deviation, up and down. Hollow markers are the
paper's numbers. ``kind`` is one of:

* "curves": the table's figure over the rounds, one line for each algorithm, and the published numbers at their rounds.
* "cdf": the share of clients that are below a number, one line for each algorithm. ``each`` names the number:
  "clients", the accuracy at the last test, or a figure such as "utility/client/*".
* "imports": who imported whose model, and in what share of the markets, with the algorithms side by side.
* "scatter": column ``y`` against column ``x``, one point for each algorithm. ``missing`` replaces a ``y`` that the
  table does not have.
* "bars": the numbers of ``columns`` (default: all) for each row, side by side or ``stacked``. The rows in ``hide`` are
  left out.
* "fit": the numbers against the setting ``x`` of their experiments, with the curve p1/sqrt(x) + p2 fitted to them.
  ``printed_at [n]`` are the x of the published numbers, ``printed_fit`` the published p1 and p2.

``x_name`` and ``y_name`` name axes that the table's unit does not name; ``title`` replaces the table's title.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from hanse.base.toml import flat
from hanse.core.table import Floats
from hanse.reports.chart import Bars, Chart, Curve, Lines, Series, slug
from hanse_papers.compare import Row, curves, factor_of, finished, rows
from hanse_papers.computed import fit
from hanse_papers.runner import TableOutcome

OVER_SEEDS = "Means over the seeds, with bands and whiskers of one standard deviation; a single seed has none."
CAPTIONS = {
    **dict.fromkeys(("curves", "scatter", "fit", "bars"), OVER_SEEDS),
    "imports": "The share of the markets in which a client (row) imported another one's model (column), as a mean over "
    "the seeds.",
    "cdf": "The share of the clients (0 to 1) that are below this number: the k-th of n clients, by their numbers, "
    "stands at (k - 1) / (n - 1). A point is the mean over the seeds of the k-th client's number, the band one "
    "standard deviation to the left and right; with a single seed there is none.",
}
"""How each kind of picture is read."""
HOLLOW = "hollow: the paper's"
Spec = Mapping[str, Any]
"""One ``[[figure]]`` of a table's file."""
Here = Mapping[tuple[str, str], Row]
"""A group's rows by column and algorithm."""


def charts(outcome: TableOutcome, stem: str) -> list[Chart]:
    """Return the pictures of a table. Pictures that would have none of our numbers are left out.

    Args:
        outcome: the table with its results.
        stem: the key of the picture, which is the name of its file. If there are several pictures, it is the beginning
            of their keys.
    """
    table_rows = rows(outcome)
    drawn: list[Chart] = []
    for spec in outcome.table.figures:
        for group in dict.fromkeys(row.cell.group for row in table_rows):
            here = {(r.cell.column, r.cell.algorithm): r for r in table_rows if r.cell.group == group}
            drawn += KINDS[spec["kind"]](outcome, here, spec)
    many = len(drawn) > 1
    return [replace(chart, key=f"{stem}-{chart.key}" if many else stem) for chart in drawn]


def _chart(outcome: TableOutcome, here: Here, spec: Spec, marks: Lines | Bars, **more: str) -> Chart:
    """Return a chart of a group.

    ``also`` tells it from other charts of the same group and figure; the other words go to :class:`Chart` as they are.
    """
    group, also = next(iter(here.values())).cell.group, more.pop("also", "")
    name = f"{group}: {also}" if also else group
    kinds = [other["kind"] for other in outcome.table.figures]
    suffix = f"{spec['kind']}-{name}" if len(kinds) > 1 else name
    title = f"{spec.get('title', outcome.table.title)} ({name})"
    table = outcome.table
    title += f"; {table.paper}, recipe {table.recipe}, scale {table.scale}"  # a picture is shown without its page, too
    caption = more.pop("caption", CAPTIONS.get(spec["kind"], ""))
    return Chart(slug(suffix), "Reproduction", title, caption, marks, **more)


def _unit(outcome: TableOutcome, spec: Spec, axis: str, otherwise: str = "") -> str:
    """Return what an axis ("x" or "y") is called: the file's word for it, else ``otherwise``, else the table's unit."""
    unit = "" if outcome.table.unit == "as named" else outcome.table.unit
    return str(spec.get(f"{axis}_name") or otherwise or unit)


def _algorithms(here: Here) -> list[str]:
    return list(dict.fromkeys(algorithm for _, algorithm in here))


def _named(outcome: TableOutcome, here: Here, algorithm: str) -> str:
    """Return an algorithm's name in the legend, with how many seeds are finished unless all are.

    Lines of one picture may be means over different numbers of seeds, and a reader has to see that.
    """
    counts = sorted({row.best.n for (_, name), row in here.items() if name == algorithm and row.best.mean is not None})
    if not counts or counts == [outcome.seeds]:
        return algorithm
    few = f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else f"{counts[0]}"
    return f"{algorithm} ({few} of {outcome.seeds} seeds)"


def _known(row: Row | None) -> tuple[float, float] | None:
    """Return a cell's mean and standard deviation (0 for one seed); None if there is no such cell or no number."""
    if row is None or row.best.mean is None:
        return None
    return row.best.mean, row.best.sd or 0.0


def _dot(
    name: str, x: float, y: float, look: int, sd: tuple[float, float] = (0.0, 0.0), *, hollow: bool = False
) -> Curve:
    """Return a single point with whiskers of one deviation ``sd`` along x and along y.

    A deviation of 0 means one seed, so it gets no whisker: one of no length would claim certainty.
    """
    at_x, at_y = np.array([x]), np.array([y])
    left, right = (at_x - sd[0], at_x + sd[0]) if sd[0] else (None, None)
    low, high = (at_y - sd[1], at_y + sd[1]) if sd[1] else (None, None)
    return Curve(name, at_x, at_y, low, high, look, dots=True, left=left, right=right, hollow=hollow)


def _lines(lines: Sequence[Curve], *, hollow: str = HOLLOW, whole: bool = False, **more: Any) -> Lines:
    """Return lines as the marks of a chart, with the meaning of hollow markers if there are any."""
    named = hollow if any(line.hollow for line in lines) else ""
    # a title names the paper's algorithms; of a picture that has one alone its name stands there all the same
    return Lines(tuple(lines), whole=whole, hollow=named, named=True, **more)


# ---- over rounds, and over clients


def _curves(outcome: TableOutcome, here: Here, spec: Spec) -> Iterator[Chart]:
    """Yield the "curves" of a group; a published number has the colour of its algorithm's curve."""
    lines, printed = [], []
    for look, (row, x, y) in enumerate(curves(outcome, list(here.values()))):
        name = f"{_named(outcome, here, row.cell.algorithm)} {row.best.variant}".strip()
        mean, sd = y.mean(axis=0), y.std(axis=0, ddof=1) if len(y) > 1 else np.zeros(y.shape[1])
        lines.append(Curve(name, x.astype(np.float64), mean, *_around(outcome, mean, sd), look))
        for other in (r for r in here.values() if r.cell.algorithm == row.cell.algorithm):
            if (number := other.cell.published) is not None:
                sds = (0.0, number.sd or 0.0)
                printed.append(
                    _dot(f"{row.cell.algorithm}, printed", other.cell.at, number.mean, look, sds, hollow=True)
                )
    if lines:
        y_name = _unit(outcome, spec, "y")
        yield _chart(outcome, here, spec, _lines([*lines, *printed], whole=True), x="rounds played", y=y_name)


def _around(outcome: TableOutcome, mean: Floats, sd: Floats) -> tuple[Floats, Floats]:
    """Return one deviation below and above the means ``[n]``; percentages stay between 0 and 100."""
    low, high = mean - sd, mean + sd
    return (low.clip(0, 100), high.clip(0, 100)) if outcome.table.unit.endswith("%") else (low, high)


def _cdf(outcome: TableOutcome, here: Here, spec: Spec) -> Iterator[Chart]:
    """Yield the "cdf" of a group, with the paper's means on the x axis."""
    lines: list[Curve] = []
    for look, algorithm in enumerate(_algorithms(here)):
        found = _by_client(outcome, here, algorithm, spec)
        if found is None:
            continue
        mean, sd, share = found
        left, right = _around(outcome, mean, sd) if sd.any() else (None, None)
        lines.append(Curve(_named(outcome, here, algorithm), mean, share, look=look, left=left, right=right))
        row = here.get(("mean", algorithm))
        if row is not None and row.cell.published is not None:
            lines.append(_dot(f"{algorithm}, printed mean", row.cell.published.mean, 0.0, look, hollow=True))
    if lines:
        marks = _lines(lines, hollow="hollow, below: the paper's mean")
        yield _chart(outcome, here, spec, marks, x=_unit(outcome, spec, "x"), y="share of clients")


def _by_client(outcome: TableOutcome, here: Here, algorithm: str, spec: Spec) -> tuple[Floats, Floats, Floats] | None:
    """Return the quantiles of a number over the clients: mean and deviation over the seeds, and their shares.

    Each is ``[n]``, for as many shares from 0 to 1 as the run with the fewest clients has numbers. Quantiles are taken
    run by run and then averaged, so runs with different clients can be put together. None if no run has kept the
    number client by client.
    """
    row = next(row for (_, name), row in here.items() if name == algorithm)
    each = [values for run in finished(outcome, row) if len(values := _each(outcome, row, run, spec)) > 1]
    if not each:
        return None
    share = np.linspace(0.0, 1.0, min(map(len, each)))
    found = np.stack([np.quantile(values, share) for values in each])
    return found.mean(axis=0), found.std(axis=0, ddof=1) if len(found) > 1 else np.zeros_like(share), share


def _each(outcome: TableOutcome, row: Row, run: Mapping[str, Any], spec: Spec) -> Floats:
    """Return a run's number of each client at the cell's round, ``[n]``, in the table's unit."""
    at = run["tested"].index(row.cell.at) if row.cell.at in run["tested"] else None
    if spec.get("each") == "clients":
        values = list(run.get("clients", {}).values()) if run["tested"][-1:] == [row.cell.at] else []
    else:
        pattern = re.escape(spec.get("each", "")).replace(r"\*", r"\d+")
        named = [curve for name, curve in run["curves"].items() if re.fullmatch(pattern, name)]
        values = [curve[at] for curve in named if at is not None]
    return np.array([v for v in values if v is not None], dtype=np.float64) * factor_of(row.cell, outcome.table)


# ---- columns against each other


def _scatter(outcome: TableOutcome, here: Here, spec: Spec) -> Iterator[Chart]:
    """Yield the "scatter" of a group."""
    lines = []
    for look, algorithm in enumerate(_algorithms(here)):
        cells = [here.get((spec[axis], algorithm)) for axis in ("x", "y")]
        x, y = (_known(cell) for cell in cells)
        y = (float(spec["missing"]), 0.0) if y is None and cells[1] is None and "missing" in spec else y
        if x is not None and y is not None:
            lines.append(_dot(_named(outcome, here, algorithm), x[0], y[0], look, (x[1], y[1])))
        printed = [None if cell is None else cell.cell.published for cell in cells]
        if printed[0] is not None and printed[1] is not None:
            lines.append(_dot(f"{algorithm}, printed", printed[0].mean, printed[1].mean, look, hollow=True))
    if any(not line.hollow for line in lines):
        marks = _lines(lines, zero=any(line.y.min() < 0 for line in lines))
        x_name, y_name = _unit(outcome, spec, "x", spec["x"]), _unit(outcome, spec, "y", spec["y"])
        yield _chart(outcome, here, spec, marks, x=x_name, y=y_name)


def _bars(outcome: TableOutcome, here: Here, spec: Spec) -> Iterator[Chart]:
    """Yield the "bars" of a group: a series for each column of ours, then one for each column that is published."""
    asked = list(spec.get("columns", dict.fromkeys(c for c, _ in here)))
    columns = [c for c in asked if any(_known(row) for (column, _), row in here.items() if column == c)]
    drawn = [a for a in _algorithms(here) if a not in spec.get("hide", ())]
    labels = [a for a in drawn if any(_known(here.get((c, a))) for c in columns)]
    nothing = (np.nan, np.nan)
    series = []
    for look, column in enumerate(columns):
        values, sds = np.array([_known(here.get((column, a))) or nothing for a in labels]).reshape(-1, 2).T
        series.append(Series(column, values, np.where(sds > 0, sds, np.nan), look))
    for look, column in enumerate(columns, len(columns)):
        cells = [here.get((column, a)) for a in labels]
        printed = np.array([np.nan if c is None or c.cell.published is None else c.cell.published.mean for c in cells])
        if np.isfinite(printed).any():
            series.append(Series(f"{column}, the paper's", printed, look=look))
    if labels:
        x = _unit(outcome, spec, "x", columns[0] if len(columns) == 1 else "")
        if len(columns) == 1 < len(asked):  # bars of one kind have no legend, and the axis is called after all of them
            x = columns[0]
        names = tuple(_named(outcome, here, algorithm) for algorithm in labels)
        marks = Bars(names, tuple(series), stacked=spec.get("stacked", False), whiskers="standard deviation")
        yield _chart(outcome, here, spec, marks, x=x, also=str(spec.get("also", "")))


def _fit(outcome: TableOutcome, here: Here, spec: Spec) -> Iterator[Chart]:
    """Yield the "fit" of a group, ours with the published points and the published curve."""
    points, printed = [], []
    for place, row in enumerate(here.values()):
        if known := _known(row):
            points.append((float(dict(flat(row.cell.variants[0].sections))[spec["x"]]), *known))
        if row.cell.published is not None and "printed_at" in spec:
            printed.append((float(spec["printed_at"][place]), row.cell.published.mean))
    if not points:
        return
    x, mean, sd = np.array(sorted(points)).T
    low, high = (mean - sd, mean + sd) if sd.any() else (None, None)
    ours = _named(outcome, {(column, "ours"): row for (column, _), row in here.items()}, "ours")
    lines = [Curve(ours, x, mean, low, high, 0, dots=True)]
    if len(np.unique(x)) > 2:  # the curve has two parameters, and meets any two points
        p = fit(dict(zip(x, mean, strict=True)))
        lines.append(_root(f"ours, fitted: {p['p1']:.1f} / sqrt(x) + {p['p2']:.1f}", (p["p1"], p["p2"]), x, 0))
    if printed:
        at, theirs = np.array(sorted(printed)).T
        lines.append(Curve("printed", at, theirs, look=1, dots=True, hollow=True))
        if "printed_fit" in spec:
            lines.append(_root("the paper's fit", spec["printed_fit"], at, 1))
    x_name, y_name = _unit(outcome, spec, "x", spec["x"]), _unit(outcome, spec, "y")
    yield _chart(outcome, here, spec, _lines(lines, whole=True), x=x_name, y=y_name)


def _root(name: str, p: Sequence[float], x: Floats, look: int) -> Curve:
    """Return the curve ``p[0] / sqrt(x) + p[1]`` (iPFL eq. 17) over the range of ``x [n]``, without markers."""
    at = np.geomspace(x.min(), x.max(), 60)
    return Curve(name, at, p[0] / np.sqrt(at) + p[1], look=look, bare=True)


KINDS: Mapping[str, Callable[[TableOutcome, Here, Spec], Iterator[Chart]]] = {
    "curves": _curves, "cdf": _cdf, "scatter": _scatter, "bars": _bars, "fit": _fit,
}  # fmt: skip
"""What draws each ``kind`` of a ``[[figure]]``."""
