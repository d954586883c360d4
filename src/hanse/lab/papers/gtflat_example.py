"""GTFLAT's Example 1: the payoffs, the final state and the weights of a game of three players, computed."""

from __future__ import annotations

import numpy as np

from hanse.games import replicator
from hanse.lab.papers.frame import Cell, PaperTable, Published, Scale
from hanse.lab.papers.gtflat_cells import PHI, STATE, TABLE1, WEIGHTS

__all__ = ["example1"]


def example1(scale: Scale) -> PaperTable:
    """Return Example 1 as a table; nothing is trained, and it is the same at every scale."""
    cells: list[Cell] = []

    def add(group: str, column: str, row: str, computed: float, printed: float) -> None:
        tags = frozenset({group.split(",")[0].lower(), column.lower()})
        cells.append(Cell(group, column, row, (), 0, Published(printed), False, tags, computed=computed))

    modes = {"integers": replicator.equilibrium(PHI, population=100), "closed form": replicator.equilibrium(PHI)}
    for mode, state in modes.items():
        for (i, a), printed in STATE.items():
            add("X, the final state", f"X[{i},{a}]", mode, float(state[i, a]), printed)
    for mode, state in modes.items():
        for a, share in enumerate(replicator.weights(state).tolist()):
            add("omega, the weights", f"omega[{a}]", mode, share, WEIGHTS[a])
    for profile, payoffs in TABLE1.items():
        chosen = np.zeros((3, 3))
        chosen[np.arange(3), profile] = 1.0
        own = replicator.expected_payoffs(PHI, chosen)
        for i, printed in enumerate(payoffs):
            add("Table 1, payoffs", f"u[{i}]", f"s={profile}", float(own[i, profile[i]]), printed)
    return PaperTable(
        "gtflat",
        "example1",
        "Example 1, a game of three players",
        scale,
        tuple(cells),
        seeds=1,
        changes=("nothing is trained: the same at every scale, and a seed changes nothing",),
        notes=(
            "'integers': populations of 100 individuals, rounded after every generation, as in the authors' code; they "
            "give X exactly and omega = (0.0833, 0.4600, 0.4567)",
            "in Table 1 the last payoff of s=(1, 0, 1) is -0.427, not -0.42 as printed (docs/papers.md T9)",
        ),
        factor=1.0,
        unit="shares and payoffs",
    )
