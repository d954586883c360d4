"""What several commands share: their options, how they print, and how those that play many runs are stopped."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from hanse.base.looking import looking, own_modules

out, err = Console(), Console(stderr=True)

RunFolder = Annotated[Path, typer.Argument(metavar="DIR", help="Run directory.", show_default=False)]
ExperimentFile = Annotated[Path, typer.Argument(metavar="EXP.toml", help="The experiment.", show_default=False)]
Changes = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Replace section.key in the file.")
]

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


def say(text: object, console: Console = out, *, wrap: bool = False, style: str | None = None) -> None:
    """Print a text as it stands: what looks like rich's markup is none, and no word is coloured. Unless ``wrap``, a
    long line is left to the terminal, so that a path can be copied from it.
    """
    console.print(text, markup=False, highlight=False, soft_wrap=not wrap, style=style)


@contextmanager
def trusting(trust: bool) -> Iterator[None]:
    """Refuse import paths of the run's files inside, unless ``trust`` (the option --trust): then modules of the current
    folder may be named, too.
    """
    if trust:
        own_modules()
    with looking(trust=trust):
        yield


@contextmanager
def resumable(console: Console) -> Iterator[None]:
    """End a command that plays many runs with exit code 1 when it is stopped, and say how it goes on."""
    try:
        yield
    except KeyboardInterrupt:
        console.print("hanse: stopped; the same command goes on with the runs that are left")
        raise typer.Exit(1) from None
