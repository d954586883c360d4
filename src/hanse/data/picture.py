"""A table and a picture of who has how many samples of which class."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

if TYPE_CHECKING:  # matplotlib is slow to import, and only the picture needs it
    from matplotlib.colors import PowerNorm
    from matplotlib.figure import Figure

_MANY = 500


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


def counts_figure(counts: NDArray[np.int64], *, title: str = "", names: Sequence[str] = ()) -> Figure:
    """Return a picture of ``counts [clients, classes]``: sizes as bars above, classes as shades of grey
    below.

    A shade is the square root of the count, so that a few samples still show; white is none. Counts are
    written in the cells where there is room. Of more than 500 clients, 500 evenly spaced ones are shown, and
    the label says so. With ``names`` the rows are those, such as the distributions of a mixture.
    """
    from matplotlib.colors import PowerNorm
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    clients, classes = counts.shape
    shown = np.arange(clients) if clients <= _MANY else np.linspace(0, clients - 1, _MANY).round().astype(int)
    part = counts[shown]
    few = len(shown) <= 25
    width = float(np.clip(2.5 + 0.45 * len(shown), 5.0, 10.0))
    figure = Figure(figsize=(width, 1.9 + 0.26 * min(classes, 30)), layout="constrained")
    grid = figure.add_gridspec(2, 2, height_ratios=[1, 3], width_ratios=[1, 0.02], wspace=0.02)
    bars = figure.add_subplot(grid[0, 0])
    cells = figure.add_subplot(grid[1, 0], sharex=bars)
    scale = figure.add_subplot(grid[1, 1])

    _bars(bars, part.sum(axis=1), few)
    norm = PowerNorm(0.5, vmin=0, vmax=max(1, int(part.max())))
    image = cells.imshow(part.T, aspect="auto", cmap="Greys", norm=norm, interpolation="nearest")
    cells.set_xlabel("client" if clients <= _MANY else f"client ({_MANY} of {clients:,} shown, evenly spaced)")
    if names:
        cells.set_yticks(range(classes), list(names))
    else:
        cells.set_ylabel("class")
        cells.yaxis.set_major_locator(MaxNLocator(nbins=min(classes, 20), integer=True))
    if few:
        cells.set_xticks(range(len(shown)))
        _numbers(cells, part, norm)
    elif clients > _MANY:
        marks = np.linspace(0, len(shown) - 1, 6).round().astype(int)
        cells.set_xticks(marks, [f"{int(shown[m]):,}" for m in marks])
    figure.colorbar(image, cax=scale, label="samples")
    if title:
        bars.set_title(title, loc="left", fontsize="medium")
    return figure


def _bars(axes: Any, sizes: NDArray[np.int64], few: bool) -> None:
    axes.bar(range(len(sizes)), sizes, width=0.8 if few else 1.0, color="0.35", linewidth=0)
    axes.set_ylabel("samples")
    axes.tick_params(labelbottom=False)
    axes.spines[["top", "right"]].set_visible(False)


def _numbers(axes: Any, part: NDArray[np.int64], norm: PowerNorm) -> None:
    for client, row in enumerate(part):
        for label, count in enumerate(row):
            if count:
                ink = "white" if float(norm(count)) > 0.55 else "black"
                axes.text(client, label, f"{count}", ha="center", va="center", color=ink, fontsize=7)
