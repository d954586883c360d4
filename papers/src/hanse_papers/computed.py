"""Computes the tables whose numbers need no run of their own.

There are four: GTFLAT's Example 1; the fits of iPFL's Table 7 (to the printed numbers, and to our own where the runs
are kept); the class counts of iPFL's clients; and what the papers prove (:mod:`hanse_papers.theorems`). A table's
file names a function of :data:`COMPUTED` under ``computed``. Such a function takes the table's cells and its ``values``
and returns one number for each cell.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from hanse.base.factories import named_choice
from hanse.data.sources import is_here
from hanse.games import replicator
from hanse.lab.job import Job
from hanse.lab.kept import KeptFile
from hanse_papers.ids import IDS
from hanse_papers.runner import job_of
from hanse_papers.tables import Cell, Computed, build_table, read_table
from hanse_papers.theorems import joining, self_enforcement, theorems, theory


def fit(accuracies: Mapping[int, float]) -> dict[str, float]:
    """Return the least-squares fit of ``accuracy = p1 / sqrt(N) + p2``, iPFL eq. (17).

    Args:
        accuracies: accuracy (percent) by the number ``N`` of samples, for at least two numbers.

    Returns:
        ``p1`` and ``p2``; ``R2`` (0 if all accuracies are equal, since there is nothing to explain); and ``RMSE``, the
        root mean square error in percentage points.

    Example:
        >>> found = fit({100: 50.0, 400: 60.0, 10000: 68.0})  # 70 - 200 / sqrt(N)
        >>> {name: round(value, 6) for name, value in found.items()}
        {'p1': -200.0, 'p2': 70.0, 'R2': 1.0, 'RMSE': 0.0}
    """
    x = 1 / np.sqrt(np.array(list(accuracies), dtype=np.float64))
    y = np.array(list(accuracies.values()))
    p1, p2 = np.polyfit(x, y, 1)
    residual = y - (p1 * x + p2)
    spread = float(((y - y.mean()) ** 2).sum())
    r2 = 1 - float(residual @ residual) / spread if spread > 0 else 0.0
    return {"p1": float(p1), "p2": float(p2), "R2": r2, "RMSE": math.sqrt(float((residual**2).mean()))}


def _example1(cells: Sequence[Cell], values: Mapping[str, Any]) -> list[float]:
    """Return the numbers of GTFLAT's Example 1: the final state, the weights, and the payoffs of pure profiles.

    What a cell asks for is in its names: column "X[i,a]" is the state, "omega[a]" a weight, and any other column the
    payoff of player i where the players choose the profile that the row names.
    """
    phi = values["payoffs"]
    states = {"integers": replicator.equilibrium(phi, population=100), "closed form": replicator.equilibrium(phi)}

    def number(cell: Cell) -> float:
        at = [int(digit) for digit in cell.column if digit.isdigit()]
        if cell.column.startswith("X"):  # X[i,a]
            return float(states[cell.algorithm][at[0], at[1]])
        if cell.column.startswith("omega"):  # omega[a]
            return float(replicator.weights(states[cell.algorithm])[at[0]])
        profile = [int(digit) for digit in cell.algorithm if digit.isdigit()]  # u[i] where the players choose s
        chosen = np.zeros((3, 3))
        chosen[np.arange(3), profile] = 1.0
        return float(replicator.expected_payoffs(phi, chosen)[at[0], profile[at[0]]])

    return [number(cell) for cell in cells]


def _fit(cells: Sequence[Cell], values: Mapping[str, Any]) -> list[float]:
    """Return the fit of the printed Table 7 for the first row's cells, and of our own runs for the second row's.

    The second row is left out unless all runs of our table are kept. Cells come row by row, so it is the end of the
    list.
    """
    table7 = read_table("ipfl", "table7", "paper")
    samples = [int(column["name"].removesuffix(" samples")) for column in table7["columns"]]
    lines = [fit(dict(zip(samples, table7["published"]["CIFAR-10"]["local"], strict=True)))]
    ours = kept_table7([Path(folder) for folder in values["kept"]], values["scale"], values["recipe"])
    if ours is not None:
        lines.append(fit(ours))
    names = list(dict.fromkeys(cell.algorithm for cell in cells))
    return [lines[names.index(c.algorithm)][c.column] for c in cells if names.index(c.algorithm) < len(lines)]


def kept_table7(folders: Sequence[Path], scale: Any, recipe: Any) -> dict[int, float] | None:
    """Return our own Table 7 of iPFL from runs that were kept.

    Args:
        folders: the folders in which ``hanse reproduce`` has kept runs. Each job is taken from the first folder that
            has it.
        scale: the table's scale, by name (:data:`hanse_papers.tables.Scale`).
        recipe: the table's recipe, by name (:data:`hanse_papers.tables.Recipe`).

    Returns:
        The mean accuracy (percent) over the table's seeds, by the number of samples of a client, or None if any run is
        missing.
    """
    table = build_table("ipfl", "table7", scale, recipe, computed={})
    accuracies: dict[int, float] = {}
    for cell in table.cells:
        [variant] = cell.variants
        each = [_kept(folders, job_of(cell, variant, seed)) for seed in range(table.seeds)]
        numbers = [value for value in each if value is not None]
        if len(numbers) < len(each):
            return None
        accuracies[variant.sections["data"]["partition"]["samples_per_client"]] = 100.0 * fmean(numbers)
    return accuracies


def _kept(folders: Sequence[Path], job: Job) -> float | None:
    """Return the last test accuracy (0 to 1) of a job that one of the folders has finished; None if none has."""
    for folder in folders:
        result = KeptFile(folder, IDS).read(job)
        curve = [] if result is None else result["curves"].get("test/accuracy", [])
        if curve and curve[-1] is not None:
            return float(curve[-1])
    return None


def _class_counts(cells: Sequence[Cell], values: Mapping[str, Any]) -> list[float]:
    """Return each client's number of samples, of all classes or of one, or the share (percent) of its largest class.

    Nothing if the data set's file is not here: a table is also built to be listed, when nothing may be downloaded.
    """
    from hanse.data import DataSpec, build

    data = cells[0].variants[0].sections["data"]
    source = named_choice(data["source"], "digits")
    counts = build(DataSpec(**data)).class_counts() if source == "digits" or is_here(source) else None
    if counts is None:
        return []
    found = []
    for cell in cells:
        own = counts[int(cell.algorithm.removeprefix("client ")) - 1]
        share = 100.0 * float(own.max() / max(1, own.sum()))
        label = cell.column.removeprefix("class ")
        count = own[int(label)] if label.isdecimal() else own.sum()
        found.append(share if label == "largest class %" else float(count))
    return found


COMPUTED: Mapping[str, Computed] = {
    "example1": _example1,
    "fit": _fit,
    "class_counts": _class_counts,
    "theorems": theorems,
    "self_enforcement": self_enforcement,
    "joining": joining,
    "theory": theory,
}
"""What a file names as ``computed``."""
