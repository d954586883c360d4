"""What several commands share: their options, and how those that play many runs are stopped."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer
from rich.console import Console

__all__ = ["LedgerUrl", "Trust", "Workers", "resumable"]

# what only looks at a run does these two things if it is told to, else not
LedgerUrl = Annotated[
    str | None,
    typer.Option(
        "--ledger-url",
        metavar="URL",
        help="Where the books are, if not in the run directory. A run's own file is not believed about other places.",
        show_default=False,
    ),
]
Trust = Annotated[
    bool, typer.Option("--trust", help="Import the modules that the run's files name: this runs their code.")
]
Workers = Annotated[int | None, typer.Option("--workers", help="Processes of one thread each; default one a core.")]


@contextmanager
def resumable(console: Console) -> Iterator[None]:
    """End a command that plays many runs with exit code 1 when it is stopped, and say how it goes on."""
    try:
        yield
    except KeyboardInterrupt:
        console.print("hanse: stopped; the same command goes on with the runs that are left")
        raise typer.Exit(1) from None
