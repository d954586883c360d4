"""The tables whose numbers need no experiment: GTFLAT's Example 1, the fit of iPFL's Table 7, its clients' data."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from hanse.data.sources import is_here
from hanse.games import replicator
from hanse.lab.papers.frame import Cell

__all__ = ["COMPUTED", "fit"]

Document = Mapping[str, Any]


def fit(accuracies: Mapping[int, float]) -> dict[str, float]:
    """Return the least-squares fit ``acc = p1 / sqrt(N) + p2`` (iPFL eq. 17) with its R^2 and root mean square
    error.
    """
    x = 1 / np.sqrt(np.array(list(accuracies), dtype=np.float64))
    y = np.array(list(accuracies.values()))
    p1, p2 = np.polyfit(x, y, 1)
    residual = y - (p1 * x + p2)
    r2 = 1 - float(residual @ residual) / float(((y - y.mean()) ** 2).sum())
    return {"p1": float(p1), "p2": float(p2), "R2": r2, "RMSE": math.sqrt(float((residual**2).mean()))}


def _example1(document: Document, cells: Iterable[Cell]) -> list[Cell]:
    """Fill in Example 1: the final state, the weights, and the payoffs of pure profiles."""
    phi = document["values"]["payoffs"]
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

    return [replace(cell, computed=number(cell)) for cell in cells]


def _fit(document: Document, cells: Iterable[Cell]) -> list[Cell]:
    samples = {int(count): accuracy for count, accuracy in document["values"]["table7"]}
    found = fit(samples)
    return [replace(cell, computed=found[cell.column]) for cell in cells]


def _class_counts(document: Document, cells: Iterable[Cell]) -> list[Cell]:
    """Fill in how many samples each client has, and its largest class's share; nothing if the data are not here: the
    counts need the data set's file, and a table is laid out before anything is loaded.
    """
    from hanse.data import DataSpec, build

    data = document["experiment"]["data"]
    if data["source"] != "digits" and not is_here(data["source"]):
        return []
    counts = build(DataSpec(**data)).class_counts()
    if counts is None:
        return []
    filled = []
    for cell in cells:
        own = counts[int(cell.algorithm.removeprefix("client ")) - 1]
        share = 100.0 * float(own.max() / max(1, own.sum()))
        filled.append(replace(cell, computed=float(own.sum()) if cell.column == "samples" else share))
    return filled


COMPUTED: Mapping[str, Callable[[Document, Iterable[Cell]], list[Cell]]] = {
    "example1": _example1,
    "fit": _fit,
    "class_counts": _class_counts,
}
"""What a file names as ``computed``: the file and its cells to the cells with their numbers."""
