"""The tables whose numbers need no experiment of their own: GTFLAT's Example 1, the fits of iPFL's Table 7 (as printed,
and of our runs of it where they are kept), its clients' data.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from hanse.data.sources import is_here
from hanse.games import replicator
from hanse.lab.job import Job
from hanse.lab.papers.runner import job_of
from hanse.lab.papers.tables import Cell, Computed, build_table, read_table
from hanse.lab.player import Store


def fit(accuracies: Mapping[int, float]) -> dict[str, float]:
    """Return the least-squares fit ``acc = p1 / sqrt(N) + p2`` (iPFL eq. 17) with its R^2 and root mean square
    error. R^2 of accuracies that are all the same is 0: there is nothing to explain.
    """
    x = 1 / np.sqrt(np.array(list(accuracies), dtype=np.float64))
    y = np.array(list(accuracies.values()))
    p1, p2 = np.polyfit(x, y, 1)
    residual = y - (p1 * x + p2)
    spread = float(((y - y.mean()) ** 2).sum())
    r2 = 1 - float(residual @ residual) / spread if spread > 0 else 0.0
    return {"p1": float(p1), "p2": float(p2), "R2": r2, "RMSE": math.sqrt(float((residual**2).mean()))}


def _example1(cells: Sequence[Cell], values: Mapping[str, Any]) -> list[float]:
    """Return Example 1's numbers: the final state, the weights, and the payoffs of pure profiles."""
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
    """Return the fit of the printed Table 7, and then that of our own, if all of its runs are kept."""
    table7 = read_table("ipfl", "table7", "paper")
    samples = [int(column["name"].removesuffix(" samples")) for column in table7["columns"]]
    lines = [fit(dict(zip(samples, table7["published"]["CIFAR-10"]["local"], strict=True)))]
    ours = kept_table7([Path(folder) for folder in values["kept"]], values["scale"], values["recipe"])
    if ours is not None:
        lines.append(fit(ours))
    names = list(dict.fromkeys(cell.algorithm for cell in cells))
    return [lines[names.index(c.algorithm)][c.column] for c in cells if names.index(c.algorithm) < len(lines)]


def kept_table7(folders: Sequence[Path], scale: Any, recipe: Any) -> dict[int, float] | None:
    """Return our Table 7 at a scale by a recipe, the mean accuracy (%) over its seeds by number of samples, from the
    jobs that ``reproduce`` has kept below one of the ``folders``; None if a run is missing.
    """
    table = build_table("ipfl", "table7", scale, recipe, computed={})
    found: dict[int, float] = {}
    for cell in table.cells:
        [variant] = cell.variants
        each = [_kept(folders, job_of(cell, variant, seed)) for seed in range(table.seeds)]
        numbers = [value for value in each if value is not None]
        if len(numbers) < len(each):
            return None
        found[variant.sections["data"]["samples_per_client"]] = 100.0 * fmean(numbers)
    return found


def _kept(folders: Sequence[Path], job: Job) -> float | None:
    """Return the last test accuracy of a finished job; None if there is none."""
    for folder in folders:
        result = Store(folder / "jobs").read(job)
        curve = [] if result is None else result["curves"].get("test/accuracy", [])
        if curve and curve[-1] is not None:
            return float(curve[-1])
    return None


def _class_counts(cells: Sequence[Cell], values: Mapping[str, Any]) -> list[float]:
    """Return each client's number of samples, of all or of one class, or its largest class's share; nothing if the data
    are not here: the counts need the data set's file, and a table is laid out before anything is loaded.
    """
    from hanse.data import DataSpec, build

    data = cells[0].variants[0].sections["data"]
    counts = build(DataSpec(**data)).class_counts() if data["source"] == "digits" or is_here(data["source"]) else None
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


COMPUTED: Mapping[str, Computed] = {"example1": _example1, "fit": _fit, "class_counts": _class_counts}
"""What a file names as ``computed``."""
