"""Computes the tables whose numbers need no run of their own.

There are four: GTFLAT's Example 1; the fit of iPFL's printed Table 7; the class counts of iPFL's clients; and what the
papers prove (:mod:`hanse_papers.theorems`). A table's file names a function of :data:`COMPUTED` under ``computed``.
Such a function takes the table's cells and its ``values`` and returns one number for each cell.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hanse.base.factories import named_choice
from hanse.data.sources import is_here
from hanse.games import replicator
from hanse_papers.tables import Cell, Computed, read_table
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
    """Return the fit of the printed Table 7."""
    table7 = read_table("ipfl", "table7", "paper")
    samples = [int(column["name"].removesuffix(" samples")) for column in table7["columns"]]
    found = fit(dict(zip(samples, table7["published"]["CIFAR-10"]["local"], strict=True)))
    return [found[cell.column] for cell in cells]


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
