"""Compares our numbers with the published ones: each cell's mean over the seeds and its best variant.

:func:`rows` turns a table that was run into one :class:`Row` for each cell, and :func:`curves` returns the curves over
the rounds. :func:`cpu_hours` estimates the cost of the full table from what was run.

A cell's number (:attr:`hanse_papers.tables.Cell.measure`) is a figure at some round, the best figure up to it, or a
comparison with another run. That comparison is GTFLAT's effective round (Definition 3) or its improvement (eq. 13).
Both are computed from the mean curve over the seeds, since GTFLAT's Table 3 prints whole rounds. The deviation is over
the seeds, each measured separately.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hanse.base.factories import named_choice
from hanse.reports.compare import effective_round, improvement
from hanse_papers.runner import TableOutcome, expand
from hanse_papers.tables import Cell, PaperTable

Floats = NDArray[np.float64]
Pair = tuple[Mapping[str, Any] | None, Mapping[str, Any] | None]
"""One seed's finished run and the run that it is compared with; None: there is none."""


@dataclass(frozen=True)
class VariantScore:
    """The score of one variant of a cell over its finished seeds, in the table's unit (usually percent).

    Attributes:
        variant: the variant's name; "" if the cell has only one.
        mean: the mean over the seeds. None: there is no number.
        sd: the sample standard deviation over the seeds. None: there are fewer than two seeds, or the number is a share
            of seeds.
        n: how many seeds are finished.
        held: if the number is a share of seeds, in how many seeds the statement is true. None for any other number.
    """

    variant: str
    mean: float | None
    sd: float | None
    n: int
    held: int | None = None


@dataclass(frozen=True)
class Row:
    """A cell with its results.

    Attributes:
        cell: the cell.
        best: the score of the variant that counts (see :func:`rows`).
        variants: the scores of all variants, in the cell's order.

    Examples:
        >>> from pathlib import Path
        >>> from hanse_papers.runner import run_table
        >>> from hanse_papers.tables import PaperTable, Variant
        >>> digits = {"data": {"source": "digits", "clients": 4}, "mechanism": {"name": "fedavg"}, "run": {"rounds": 2}}
        >>> tried = (Variant("fedavg", digits),)
        >>> cell = Cell(group="digits", column="iid", algorithm="FedAvg", variants=tried, at=2)
        >>> table = PaperTable(paper="mine", name="table1", title="One cell", scale="smoke", cells=(cell,))
        >>> outcome = run_table(table, seeds=1, workers=1, folder=Path("kept"))
        >>> [row] = rows(outcome)
        >>> row.best.variant, row.best.n
        ('fedavg', 1)
    """

    cell: Cell
    best: VariantScore
    variants: tuple[VariantScore, ...]


def rows(outcome: TableOutcome) -> list[Row]:
    """Return every cell of a table with its results, in the table's order.

    Of several variants, those with the most finished seeds are compared, and the variant with the highest mean counts.
    This chooses hyper-parameters on the test set, as the papers do.

    Args:
        outcome: the table with its results. A cell without results has a row without a number.
    """
    table = outcome.table
    runs: dict[tuple[str, str, str], dict[int, Pair]] = {}
    for reading in outcome.readings:
        cell = reading.cell
        found = runs.setdefault((cell.setting, cell.algorithm, reading.variant.name), {})
        against = None if reading.base is None else outcome.results.get(reading.base.key)
        found[reading.seed] = outcome.results.get(reading.job.key), against
    result = []
    for cell in table.cells:
        if not cell.variants:  # computed without a run, so it is the same for every seed
            exact = VariantScore("", cell.computed, None, outcome.seeds)
            result.append(Row(cell, exact, (exact,)))
            continue
        scores = tuple(
            score(cell, v.name, runs.get((cell.setting, cell.algorithm, v.name), {}), table) for v in cell.variants
        )
        best = max(scores, key=lambda s: (s.n, -math.inf if s.mean is None else s.mean))
        result.append(Row(cell, best, scores))
    return result


def score(cell: Cell, variant: str, runs: Mapping[int, Pair], table: PaperTable) -> VariantScore:
    """Return what a variant came to.

    Args:
        cell: the cell.
        variant: the variant's name.
        runs: by seed, the run and the one that it is compared with.
        table: the cell's table.

    A seed without a finished run does not count. An effective round that the mean curve never reaches leaves no mean;
    a seed that never reaches it counts, but is left out of the deviation.
    """
    if cell.measure in ("rounds", "improvement"):
        return VariantScore(variant, *_against(cell, runs, table))
    values = _values(cell, runs, table)
    mean = float(np.mean(values)) if values else None
    if cell.measure == "share":
        return VariantScore(variant, mean, None, len(values), sum(value > 0 for value in values))
    return VariantScore(variant, mean, _sd(values), len(values))


def _values(cell: Cell, runs: Mapping[int, Pair], table: PaperTable) -> list[float]:
    """Return the number that each seed's run gives for a cell, in the table's unit; seeds without one are left out. The
    best of several figures is the mean of the best of each.
    """
    names = (cell.metric,) if isinstance(cell.metric, str) else cell.metric
    found = []
    for run, _ in runs.values():
        each = [curve_of(replace(cell, metric=name), table, run, cell.at) for name in names]
        known = [curve[1] for curve in each if curve is not None]
        if len(known) == len(each):
            found.append(float(np.mean([np.nanmax(y) if cell.measure == "best" else y[-1] for y in known])))
    return found


def factor_of(cell: Cell, table: PaperTable) -> float:
    """Return the factor of a cell's recorded figure: the cell's own if it has one, else the table's."""
    return table.factor if cell.factor is None else cell.factor


def _sd(values: Sequence[float]) -> float | None:
    """Return the sample standard deviation; None for fewer than two values."""
    return float(np.std(values, ddof=1)) if len(values) > 1 else None


def finished(outcome: TableOutcome, row: Row) -> list[Mapping[str, Any]]:
    """Return the results of the finished runs of a row's best variant, one for each seed."""
    keys = [r.job.key for r in outcome.readings if r.cell is row.cell and r.variant.name == row.best.variant]
    return [outcome.results[key] for key in keys if key in outcome.results]


def curve_of(
    cell: Cell, table: PaperTable, result: Mapping[str, Any] | None, at: int
) -> tuple[NDArray[np.int64], Floats] | None:
    """Return a run's tests up to a round: their rounds, and the cell's figure (or mean of several) in the table's unit.

    Args:
        cell: the cell.
        table: its table.
        result: the run's result; None if there is none.
        at: the round. None is returned if it was not tested or has no figure.
    """
    names = [cell.metric or table.metric] if isinstance(cell.metric, str) else list(cell.metric)
    if result is None or at not in result["tested"] or any(name not in result["curves"] for name in names):
        return None
    points = result["tested"].index(at) + 1
    found = np.array([result["curves"][name][:points] for name in names], dtype=np.float64).mean(axis=0)
    return (np.array(result["tested"][:points]), found * factor_of(cell, table)) if math.isfinite(found[-1]) else None


def together(
    cell: Cell, table: PaperTable, run: Mapping[str, Any] | None, base: Mapping[str, Any] | None
) -> tuple[NDArray[np.int64], Floats, Floats] | None:
    """Return the tests of two runs until the cell's round, and the best of each so far, 0 to 1; None unless both have
    the figure in the same tests, every one of them.
    """
    both = [curve for found in (run, base) if (curve := curve_of(cell, table, found, cell.at)) is not None]
    if len(both) < 2 or not np.array_equal(both[0][0], both[1][0]) or any(np.isnan(curve).any() for _, curve in both):
        return None
    ours, theirs = (np.maximum.accumulate(curve / factor_of(cell, table)) for _, curve in both)
    return both[0][0], ours, theirs


def _against(cell: Cell, runs: Mapping[int, Pair], table: PaperTable) -> tuple[float | None, float | None, int]:
    """Return mean, deviation and number of seeds for a cell that compares each run with another one."""
    curves = [both for pair in runs.values() if (both := together(cell, table, *pair)) is not None]
    if not curves:
        return None, None, 0
    tested, ours, theirs = curves[0][0], np.array([c[1] for c in curves]), np.array([c[2] for c in curves])
    each = [_one(cell, tested, a, b) for a, b in zip(ours, theirs, strict=True)]
    of_means = _one(cell, tested, ours.mean(axis=0), theirs.mean(axis=0))
    return of_means, _sd([v for v in each if v is not None]), len(curves)


def _one(cell: Cell, tested: NDArray[np.int64], ours: Floats, theirs: Floats) -> float | None:
    """Return the effective round of ``ours [points]`` for the last value of ``theirs [points]``, or its improvement."""
    target = float(theirs[-1])
    reached = effective_round(tested, ours, target)
    if cell.measure == "rounds":
        return None if reached is None else float(reached)
    return improvement(reached, effective_round(tested, theirs, target))


def curves(outcome: TableOutcome, found: Sequence[Row]) -> list[tuple[Row, NDArray[np.int64], Floats]]:
    """Return the curves of the best variants: the row, the rounds ``[tests]`` and the figures ``[seeds, tests]``.

    Args:
        outcome: the table with its results.
        found: some of the table's rows. Of several rows that read the same runs at different rounds, only the last has
            a curve, and only if a run is finished whose figure is known at every test.
    """
    last = {
        (r.cell.group, r.cell.algorithm, repr([v.sections for v in r.cell.variants])): r
        for r in sorted(found, key=lambda r: r.cell.at)
    }
    result = []
    for row in (row for row in found if row in last.values()):
        each = [curve_of(row.cell, outcome.table, run, row.cell.at) for run in finished(outcome, row)]
        there = [curve for curve in each if curve is not None and not np.isnan(curve[1]).any()]
        done = [y for x, y in there if np.array_equal(x, there[0][0])]
        if done:
            y = np.maximum.accumulate(done, axis=1) if row.cell.measure == "best" else np.array(done)
            result.append((row, there[0][0], y))
    return result


def cpu_hours(outcome: TableOutcome, full: PaperTable) -> tuple[float, list[str]]:
    """Estimate the cost of the full table on this machine.

    A round is assumed to cost what :func:`costs_of` says of the runs that were played.

    Args:
        outcome: the table that was run, usually at a smaller scale.
        full: the table to estimate, with all of its seeds.

    Returns:
        CPU hours, and each "model on source" without a measured run, which the hours exclude.
    """
    done = [(job, outcome.results[job.key]) for job in outcome.jobs if job.key in outcome.results]
    cost = costs_of((job.sections, result["cpu_seconds"] / max(1, job.rounds)) for job, result in done)
    total, missing = 0.0, []
    for job in expand(full, full.seeds, checked=False)[0]:
        seconds = cost(job.sections)
        total += (seconds or 0.0) * job.rounds / 3600
        missing += [cost_key(job.sections)[0]] if seconds is None else []
    return total, list(dict.fromkeys(missing))


def costs_of(measured: Iterable[tuple[Mapping[str, Any], float]]) -> Callable[[Mapping[str, Any]], float | None]:
    """Return a function that estimates the seconds of an experiment's round.

    They are those of the same mechanism, model and source; without any, of the costliest mechanism with that model and
    source; without these, None.

    Args:
        measured: experiments as nested plain values, each with the seconds of one of its rounds.
    """
    seen: dict[str, dict[str, list[float]]] = {}
    for given, seconds in measured:
        work, mechanism = cost_key(given)
        seen.setdefault(work, {}).setdefault(mechanism, []).append(seconds)
    means = {work: {name: float(np.mean(found)) for name, found in by.items()} for work, by in seen.items()}

    def cost(given: Mapping[str, Any]) -> float | None:
        work, mechanism = cost_key(given)
        here = means.get(work, {})
        return here.get(mechanism, max(here.values())) if here else None

    return cost


def cost_key(given: Mapping[str, Any]) -> tuple[str, str]:
    """Return the key by which costs are estimated: the model on the data source, and the mechanism.

    Args:
        given: an experiment as nested plain values.
    """
    return f"{given.get('model', {}).get('name')} on {named_choice(given['data']['source'], 'digits')}", str(
        given["mechanism"]["name"]
    )
