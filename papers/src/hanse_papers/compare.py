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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hanse.base.factories import named_choice
from hanse.reports.compare import best_so_far, effective_round, improvement
from hanse_papers.runner import NumberSource, TableOutcome, expand
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
        seeds: the finished seeds.
        held: if the number is a share of seeds, in how many seeds the statement is true. None for any other number.
    """

    variant: str
    mean: float | None
    sd: float | None
    n: int
    seeds: tuple[int, ...] = ()
    held: int | None = None

    def few(self, asked: int) -> str:
        """Return how many seeds are finished, such as "3 of 5", or "3 of 5: 0, 2, 4" if these are not the first ones.

        Args:
            asked: how many seeds were asked for. If all of them are finished, the text is empty.
        """
        if self.n == asked:
            return ""
        first = not self.seeds or self.seeds == tuple(range(self.n))
        return f"{self.n} of {asked}" + ("" if first else f": {', '.join(map(str, self.seeds))}")


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


@dataclass(frozen=True)
class CellCurve:
    """The curve of a cell's best variant over the rounds.

    Attributes:
        row: the cell.
        rounds: ``[points]``, how many rounds had been played.
        mean: ``[points]``, the means over the seeds, in the table's unit.
        sd: ``[points]``, sample standard deviations over the seeds. They are 0 for one seed.
        n: how many seeds.
    """

    row: Row
    rounds: tuple[int, ...]
    mean: tuple[float, ...]
    sd: tuple[float, ...]
    n: int


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
        found[reading.seed] = _pair(outcome, reading)
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
        return VariantScore(variant, *_against(cell, runs, table.metric))
    by_seed = _by_seed(cell, runs, table)
    values, seeds = list(by_seed.values()), tuple(by_seed)
    mean = float(np.mean(values)) if values else None
    if cell.measure == "share":
        return VariantScore(variant, mean, None, len(values), seeds, sum(value > 0 for value in values))
    return VariantScore(variant, mean, _sd(values), len(values), seeds)


def _by_seed(cell: Cell, runs: Mapping[int, Pair], table: PaperTable) -> dict[int, float]:
    """Return the number that each seed's run gives for a cell, in the table's unit; seeds without one are left out."""
    if cell.measure in ("rounds", "improvement"):
        pairs = {seed: both for seed, pair in runs.items() if (both := _curves(cell, *pair, table.metric)) is not None}
        return {seed: v for seed, both in pairs.items() if (v := _one(cell, *both)) is not None}
    factor = factor_of(cell, table)
    return {seed: v * factor for seed, (run, _) in runs.items() if (v := _mean_of(cell, run, table.metric)) is not None}


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


def _pair(outcome: TableOutcome, reading: NumberSource) -> Pair:
    """Return the result that a reading is of, and the one that it is compared with, as far as there are any."""
    against = None if reading.base is None else outcome.results.get(reading.base.key)
    return outcome.results.get(reading.job.key), against


def _mean_of(cell: Cell, result: Mapping[str, Any] | None, metric: str) -> float | None:
    """Return the cell's figure, or the mean of its figures where it has several; None if one is missing."""
    names = (cell.metric or metric,) if isinstance(cell.metric, str) else cell.metric
    numbers = [_read(cell, result, name) for name in names]
    known = [value for value in numbers if value is not None]
    return float(np.mean(known)) if len(known) == len(numbers) else None


def _read(cell: Cell, result: Mapping[str, Any] | None, metric: str) -> float | None:
    """Return a run's figure at the cell's round, or its best until then; None if it was not tested in that round."""
    if result is None or cell.at not in result["tested"] or metric not in result["curves"]:
        return None
    last = result["tested"].index(cell.at)
    if cell.measure in ("at", "share"):
        value = result["curves"][metric][last]
        return None if value is None else float(value)
    there = [v for v in result["curves"][metric][: last + 1] if v is not None]
    return float(max(there)) if there else None


def _against(
    cell: Cell, runs: Mapping[int, Pair], metric: str
) -> tuple[float | None, float | None, int, tuple[int, ...]]:
    """Return mean, deviation, number of seeds and seeds for a cell that compares each run with another one."""
    curves_by_seed = {seed: both for seed, pair in runs.items() if (both := _curves(cell, *pair, metric)) is not None}
    if not curves_by_seed:
        return None, None, 0, ()
    curves = list(curves_by_seed.values())
    tested, ours, theirs = curves[0][0], np.array([c[1] for c in curves]), np.array([c[2] for c in curves])
    each = [_one(cell, tested, a, b) for a, b in zip(ours, theirs, strict=True)]
    together = _one(cell, tested, ours.mean(axis=0), theirs.mean(axis=0))
    return together, _sd([v for v in each if v is not None]), len(curves), tuple(curves_by_seed)


def _curves(
    cell: Cell, run: Mapping[str, Any] | None, base: Mapping[str, Any] | None, metric: str
) -> tuple[NDArray[np.int64], Floats, Floats] | None:
    """Return the rounds tested until the cell's, and the best figures so far of both runs, ``[points]`` each.

    None unless both runs are finished and have the figure at every one of these tests.
    """
    if run is None or base is None or run["tested"] != base["tested"] or cell.at not in run["tested"]:
        return None
    last = run["tested"].index(cell.at) + 1
    pair = [found["curves"].get(metric, [None])[:last] for found in (run, base)]
    if any(None in curve for curve in pair):
        return None
    ours, theirs = (best_so_far(np.array(curve, dtype=np.float64)) for curve in pair)
    return np.array(run["tested"][:last], dtype=np.int64), ours, theirs


def _one(cell: Cell, tested: NDArray[np.int64], ours: Floats, theirs: Floats) -> float | None:
    """Return the effective round of ``ours [points]`` for the last value of ``theirs [points]``, or its improvement."""
    target = float(theirs[-1])
    reached = effective_round(tested, ours, target)
    if cell.measure == "rounds":
        return None if reached is None else float(reached)
    return improvement(reached, effective_round(tested, theirs, target))


def curves(outcome: TableOutcome, found: Sequence[Row]) -> list[CellCurve]:
    """Return the curves of the best variants.

    Args:
        outcome: the table with its results.
        found: some of the table's rows. Of several rows that read the same runs at different rounds, only the last has
            a curve.

    Returns:
        One curve for each row with at least one finished run whose figure is known at every test.
    """
    last = {(r.cell.group, r.cell.algorithm, _kind(r.cell)): r for r in sorted(found, key=lambda r: r.cell.at)}
    result = []
    for row in found:
        if row not in last.values():
            continue
        metric = outcome.table.metric
        there = [d for d in finished(outcome, row) if row.cell.at in d["tested"]]  # a run may have ended before it
        there = [d for d in there if None not in d["curves"].get(metric, [None])]
        done = [d for d in there if d["tested"] == there[0]["tested"]]
        if done:
            y = np.array([d["curves"][metric] for d in done]) * outcome.table.factor
            y = best_so_far(y) if row.cell.measure == "best" else y
            sd = y.std(axis=0, ddof=1) if len(y) > 1 else np.zeros(y.shape[1])
            mean = tuple(map(float, y.mean(axis=0)))
            result.append(CellCurve(row, tuple(done[0]["tested"]), mean, tuple(map(float, sd)), len(done)))
    return result


def _kind(cell: Cell) -> str:
    """Return what tells a cell's runs from those of other cells."""
    return repr([v.sections for v in cell.variants])


def cpu_hours(outcome: TableOutcome, full: PaperTable) -> tuple[float, list[str]]:
    """Estimate the cost of the full table on this machine.

    A round is assumed to cost as much as in runs of the same mechanism, model and source. Without such runs, it costs
    as much as with the costliest mechanism measured with that model and source.

    Args:
        outcome: the table that was run, usually at a smaller scale.
        full: the table to estimate, with all of its seeds.

    Returns:
        CPU hours, and each "model on source" without a measured run, which the hours exclude.
    """
    known: dict[tuple[str, str], list[float]] = {}
    for job in outcome.jobs:
        if job.key in outcome.results:
            cost = outcome.results[job.key]["cpu_seconds"] / max(1, job.rounds)
            known.setdefault(cost_key(job.sections), []).append(cost)
    means = {key: float(np.mean(costs)) for key, costs in known.items()}
    total, missing = 0.0, []
    for job in expand(full, full.seeds, checked=False)[0]:
        work, mechanism = cost_key(job.sections)
        here = [cost for (w, _), cost in means.items() if w == work]
        if not here:
            missing.append(work)
            continue
        total += means.get((work, mechanism), max(here)) * job.rounds / 3600
    return total, list(dict.fromkeys(missing))


def cost_key(given: Mapping[str, Any]) -> tuple[str, str]:
    """Return the key by which costs are estimated: the model on the data source, and the mechanism.

    Args:
        given: an experiment as nested plain values.
    """
    return f"{given.get('model', {}).get('name')} on {named_choice(given['data']['source'], 'digits')}", str(
        given["mechanism"]["name"]
    )
