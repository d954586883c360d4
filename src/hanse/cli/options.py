"""Options that several commands share: what only looks at a run does these things if it is told to, else not."""

from __future__ import annotations

from typing import Annotated

import typer

__all__ = ["LedgerUrl", "Trust"]

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
