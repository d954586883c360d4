"""The report's tables as text: numbers with the digits that they deserve."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hanse.reports.compare import difference_rows, group_rows, run_row
from hanse.reports.groups import Group
from hanse.runs.record import RunRecord

__all__ = ["TextTable", "differences_tables", "experiments_table", "runs_table"]

# key of a row, heading, factor, digits
_COLUMNS = (
    ("rounds", "rounds", 1.0, 0),
    ("test_accuracy", "test accuracy %", 100.0, 2),
    ("best_accuracy", "best round %", 100.0, 2),
    ("test_loss", "test loss", 1.0, 3),
    ("test_mse", "test MSE", 1.0, 4),
    ("client_accuracy", "at the clients %", 100.0, 2),
    ("seconds_per_round", "seconds a round", 1.0, 3),
    ("mb", "MB in all", 1.0, 1),
    ("refused", "refused", 1.0, 0),
)
_SURE = ("rounds", "mb", "seconds_per_round")  # their deviation over seeds says nothing of the mechanism


@dataclass(frozen=True)
class TextTable:
    """Headings ``[n]`` and rows of ``[n]`` texts; the first column is a name, the others are numbers."""

    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def experiments_table(groups: Sequence[Group]) -> TextTable:
    """Return a row an experiment: mean ± sample standard deviation over its seeds. Empty columns are left out."""
    found = [(group.label, [run_row(run) for run in group.runs]) for group in groups]
    rows = [group_rows(label, each) or each for label, each in found]
    shown = _shown([row for pair in rows for row in pair])
    body = []
    for group, pair in zip(groups, rows, strict=True):
        deviation = pair[1] if len(pair) > 1 else {}
        cells = [_cell(pair[0].get(k), None if k in _SURE else deviation.get(k), f, d) for k, _, f, d in shown]
        body.append((group.label, str(len(group.runs)), *cells))
    return TextTable(("experiment", "seeds", *(heading for _, heading, _, _ in shown)), tuple(body))


def runs_table(runs: Sequence[RunRecord]) -> TextTable:
    """Return a row a run."""
    rows = [run_row(run) for run in runs]
    shown = _shown(rows)
    body = [
        (row["run"], row["mechanism"], str(row["seed"]), *(_cell(row[k], None, f, d) for k, _, f, d in shown))
        for row in rows
    ]
    return TextTable(("run", "mechanism", "seed", *(heading for _, heading, _, _ in shown)), tuple(body))


def differences_tables(groups: Sequence[Group]) -> list[TextTable]:
    """Return how each experiment differs from the first over the seeds that they share, a table a figure, the most
    telling one first; none if they share too few.
    """
    rows: dict[str, list[tuple[str, ...]]] = {}
    for row in difference_rows(groups):
        _, heading, factor, digits = next(column for column in _COLUMNS if column[0] == row["figure"])
        mean, low, high = (f"{factor * row[k]:+,.{digits}f}" for k in ("mean", "low", "high"))
        flip = "–" if row["p_sign_flip"] is None else f"{row['p_sign_flip']:.3g}"
        name = f"{row['run']} – {row['base']}: {heading}"
        p = (f"{row[k]:.2g}" for k in ("p", "p_holm"))
        cells = (name, str(row["pairs"]), mean, f"{low} to {high}", *p, flip)
        rows.setdefault(row["figure"], []).append(cells)
    headings = ("difference", "seeds", "mean", "95 % interval", "p (t test)", "p (Holm)", "p (sign flips)")
    return [TextTable(headings, tuple(found)) for found in rows.values()]


def _shown(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, str, float, int]]:
    found = [column for column in _COLUMNS if any(row[column[0]] is not None for row in rows)]
    return [column for column in found if column[0] != "refused" or any(row["refused"] for row in rows)]


def _cell(value: float | None, deviation: float | None, factor: float, digits: int) -> str:
    if value is None:
        return "–"
    if deviation is None:
        return f"{value * factor:,.{digits}f}"
    digits = max(digits, 1)  # a mean of counts is not a count
    return f"{value * factor:,.{digits}f} ± {deviation * factor:,.{digits}f}"
