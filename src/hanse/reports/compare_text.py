"""Runs side by side on a terminal: tables that fit into 80 columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

__all__ = ["compare_tables"]

# key of a row, heading, factor, digits
_LEARNED = (
    ("test_accuracy", "test %", 100.0, 2),
    ("best_accuracy", "best %", 100.0, 2),
    ("client_accuracy", "own %", 100.0, 2),
    ("test_loss", "loss", 1.0, 4),
    ("test_mse", "MSE", 1.0, 4),
    ("effective_round", "as good after", 1.0, 0),
    ("effective_round_improvement", "fewer %", 1.0, 1),
)
_COST = (
    ("rounds", "rounds", 1.0, 0),
    ("seconds_per_round", "seconds a round", 1.0, 3),
    ("mb", "MB in all", 1.0, 1),
    ("refused", "refused", 1.0, 0),
)


def compare_tables(rows: Sequence[Mapping[str, Any]], differences: Sequence[Mapping[str, Any]]) -> list[Table]:
    """Return the tables of :func:`hanse.reports.compare.compare_runs` and of its difference rows: what was learned,
    what it cost, and the differences if there are any.
    """
    learned = _table("What was learned", _LEARNED, rows)
    if any(row["client_accuracy"] is not None for row in rows):
        learned.caption = "own %: the honest clients' accuracy on their own test data."
    tables = [learned, _table("What it cost", _COST, rows)]
    return [*tables, _differences(differences)] if differences else tables


def _table(title: str, columns: Sequence[tuple[str, str, float, int]], rows: Sequence[Mapping[str, Any]]) -> Table:
    shown = [column for column in columns if any(row[column[0]] is not None for row in rows)]
    table = _empty(title, "run", *(heading for _, heading, _, _ in shown))
    for before, row in zip([None, *rows], rows, strict=False):
        if row["kind"] == "mean" and before is not None and before["kind"] == "run":
            table.add_section()
        single, deviation = row["kind"] == "run", row["kind"] == "sd"
        numbers = [None if deviation and key == "rounds" else row[key] for key, _, _, _ in shown]
        # a mean of counts is not a count
        cells = (_cell(n, f, d if single else max(d, 1)) for n, (_, _, f, d) in zip(numbers, shown, strict=True))
        table.add_row("  ± deviation" if deviation else row["run"], *cells)
    return table


def _differences(differences: Sequence[Mapping[str, Any]]) -> Table:
    title = f"Differences from {differences[0]['base']} over the same seeds"
    table = _empty(title, "run", "seeds", "mean", "95 % interval", "p", "Holm", "flips")
    figure = None
    for row in differences:
        key, heading, factor, digits = next(column for column in _LEARNED if column[0] == row["figure"])
        if figure is not None and key != figure:
            table.add_section()
        figure = key
        mean, low, high = (f"{factor * row[k]:+,.{digits}f}" for k in ("mean", "low", "high"))
        p = ("-" if row[k] is None else f"{row[k]:.2g}" for k in ("p", "p_holm", "p_sign_flip"))
        table.add_row(f"{row['run']}: {heading}", str(row["pairs"]), mean, f"{low} to {high}", *p)
    table.caption = "p: paired t test; Holm: corrected for all experiments; flips: exact sign-flip test."
    return table


def _empty(title: str, name: str, *numbers: str) -> Table:
    """Return a table whose names fold where the terminal is narrow, and whose numbers do not."""
    table = Table(title=title, title_justify="left", caption_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    table.add_column(name, overflow="fold", min_width=14)
    for heading in numbers:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def _cell(value: float | None, factor: float, digits: int) -> str:
    return "-" if value is None else f"{value * factor:,.{digits}f}"
