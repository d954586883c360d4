"""A table of who has how many samples of which class."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from rich.table import Table


def counts_table(counts: NDArray[np.int64], *, limit: int = 30, names: Sequence[str] = ()) -> Table:
    """Return a table of ``counts [clients, classes]``: a row a client (the first ``limit``), then all clients
    together.

    Zeros are dots; the last column is how many classes the client has at all. With ``names`` the columns are those,
    such as the distributions of a mixture.
    """
    clients, classes = counts.shape
    kind = "distribution" if names else "class"
    title = f"samples per client and {kind} ({clients:,} clients, {int(counts.sum()):,} samples)"
    table = Table(title=title, title_justify="left")
    for name in ("client", "samples", *(names or map(str, range(classes))), "of them" if names else "classes"):
        table.add_column(name, justify="right")
    for client in range(min(clients, limit)):
        table.add_row(str(client), *_cells(counts[client]))
    if clients > limit:
        table.add_row("...")
    table.add_section()
    table.add_row("all", *_cells(counts.sum(axis=0)))
    return table


def _cells(row: NDArray[np.int64]) -> list[str]:
    return [f"{int(row.sum()):,}", *(f"{int(v):,}" if v else "·" for v in row), str(int((row > 0).sum()))]
