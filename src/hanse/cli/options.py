"""What several commands share: options, printing, and how to stop commands that play many runs.

The names in capitals (``RunFolder``, ``Trust``, ..) are types to annotate a command's parameters with. ``out`` and
``err`` are the consoles of standard output and standard error. Only output that other programs may read goes to
``out``.
"""

from __future__ import annotations

import gc
import inspect
import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any

import typer
from click import ClickException
from rich.console import Console
from rich.markup import escape

from hanse.base.errors import UserError, library
from hanse.base.imports import looking
from hanse.base.terminal import Terminal

# names come from outside: ":one:" in one is no emoji, "[red]" no colour
out, err = Terminal(emoji=False, markup=False), Terminal(stderr=True, emoji=False, markup=False)

Dirs = Annotated[list[Path], typer.Argument(help="Run directories, or folders of sweeps.", show_default=False)]
RunFolder = Annotated[Path, typer.Argument(metavar="DIR", help="Run directory.", show_default=False)]
Client = Annotated[str | None, typer.Option("--client", "-c", help="Its number, or its name.", show_default=False)]
ExperimentFile = Annotated[Path, typer.Argument(metavar="EXP.toml", help="The experiment's file.", show_default=False)]
Changes = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Replace section.key of the file; may be repeated. Nothing after the = removes the key.",
    ),
]

NodeConfig = Annotated[
    str, typer.Option("--node-config", help="What load_data finds in context.node_config, as 'a=1 b=2'.")
]
LedgerUrl = Annotated[
    str | None,
    typer.Option(
        "--ledger-url",
        metavar="URL",
        help="Database of the index, if not ledger.db. An address in the run's own file is not used.",
        show_default=False,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else; amounts are units.")]
# what only looks at a run imports nothing that it names, unless it is told to
Trust = Annotated[
    bool, typer.Option("--trust", help="Import the modules that the run's files name. This runs their code.")
]


Workers = Annotated[
    int | None,
    typer.Option(
        "--workers", min=1, help="Processes that play runs in parallel, with one thread each; default: one per core."
    ),
]


def flowing(app: typer.Typer) -> None:
    """Build the help of an app's commands and subcommands from their docstrings.

    Paragraphs fill the width of the terminal, and the section "Examples:" comes last, one per line. Typer by itself
    would keep the docstrings' line ends and interpret words in brackets as rich's markup.
    """
    commands: list[Any] = [*app.registered_commands, app.registered_callback]
    for command in filter(None, commands):
        text, _, examples = (inspect.getdoc(command.callback) or "").partition("\n\nExamples:\n")
        command.help = "\n\n".join(escape(" ".join(one.split())) for one in text.split("\n\n"))
        if lines := [escape(line.strip()) for line in examples.splitlines()]:
            command.epilog = "\n\n".join(["Examples:" if len(lines) > 1 else "Example:", *lines])
    for group in app.registered_groups:
        if group.typer_instance is not None:
            flowing(group.typer_instance)


def name_of(file: Path) -> str:
    """Return what an experiment's file is called: a run's ``config.toml`` by its run.

    Examples:
        >>> name_of(Path("exp.toml")), name_of(Path("runs/monday/config.toml"))
        ('exp', 'monday')
    """
    return (file.resolve().parent.name if file.name == "config.toml" else "") or file.stem


def each_run(folders: Sequence[Path]) -> list[Path]:
    """Return run directories, with its runs in place of each folder of a sweep."""
    found = list[Path]()
    for folder in folders:
        if (folder / "runs").is_dir() and not (folder / "config.toml").exists():
            from hanse.lab.sweep import kept_runs  # late: few look at a sweep

            found += kept_runs(folder) or [folder]
        else:
            found.append(folder)
    return found


def say(text: object, console: Console = out, *, wrap: bool = False, style: str | None = None) -> None:
    """Print a text as it is, without rich's markup or colours.

    Args:
        text: what to print. It can be anything that rich can print.
        console: where to print it.
        wrap: whether to break long lines at words. If not, the terminal breaks them, and paths can be copied whole.
        style: rich's name of a colour for all of it.
    """
    console.print(text, markup=False, highlight=False, soft_wrap=not wrap, style=style)


def warn(lines: Iterable[str]) -> None:
    """Print warnings that must stand before results, one paragraph each."""
    for line in lines:
        say(f"warning: {line}", style="bold yellow", wrap=True)


def print_json(value: object) -> None:
    """Print a value as JSON, which has no NaN."""
    print(json.dumps(value, indent=1, allow_nan=False))


def own_modules() -> None:
    """Allow import paths to modules in the current folder, for commands that run experiments."""
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())


@contextmanager
def importing() -> Iterator[None]:
    """Import what plays a run without collecting garbage: all of it stays, and looking at it takes long."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


@contextmanager
def trusting(trust: bool) -> Iterator[None]:
    """Within this context, follow the import paths in a run's files, or refuse them.

    Args:
        trust: the option --trust, which also allows modules from the current folder.
    """
    if trust:
        own_modules()
    with looking(trust=trust):
        yield


def parsed_node_config(given: str) -> dict[str, Any]:
    """Return what ``load_data`` finds in ``context.node_config``, as Flower reads it. Raises UserError for another
    form, or without Flower.
    """
    flower = library("flwr.common.config", "--node-config: needs Flower; pip install '.[flower]'")
    config = dict[str, Any]()
    with suppress(ClickException):  # of some words that do not fit it makes nothing, and raises nothing
        config = flower.parse_config_args([given] if given else None)
    if given and not config:
        raise UserError(f"--node-config {given!r}: must be as in 'partition-id=1 file=\"data.csv\"'")
    return config


@contextmanager
def resumable() -> Iterator[None]:
    """When Ctrl-C stops a command that plays many runs, exit with 1 and say how to continue."""
    try:
        yield
    except KeyboardInterrupt:
        err.print("hanse: stopped; the same command goes on with the runs that are left")
        raise typer.Exit(1) from None
