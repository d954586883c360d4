"""``hanse network``: a federation on this machine for a trial, and the operator's orders to a run on any network."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from hanse.errors import UserError

__all__ = ["app"]

app = typer.Typer(
    help="A federation on Flower: bring one up on this machine, operate one.",
    epilog="Example:\n\nhanse new harvest && hanse network up harvest && hanse network run harvest",
    no_args_is_help=True,
)

Folder = Annotated[Path, typer.Argument(metavar="DIR", help="The project (see 'hanse new').")]
RunDir = Annotated[Path, typer.Argument(metavar="RUN", help="The server's run directory.", show_default=False)]
Reason = Annotated[str, typer.Option("--reason", "-r", help="Why; it is recorded.", show_default=False)]


@app.command(epilog="Example:\n\nhanse network up harvest --nodes 3 && hanse network run harvest")
def up(
    folder: Folder = Path(),
    nodes: Annotated[int, typer.Option("--nodes", "-n", min=1, max=200, help="SuperNodes.")] = 3,
    port: Annotated[
        int, typer.Option("--port", min=1024, max=65000, help="The SuperLink's; the nodes' follow.")
    ] = 18000,
    cold: Annotated[
        bool, typer.Option("--cold", help="A fresh interpreter for every message, as Flower does.")
    ] = False,
    imports: Annotated[
        list[str] | None,
        typer.Option("--import", metavar="MODULE", help="What the nodes' warm process has ready beside hanse."),
    ] = None,
) -> None:
    """Make certificates and keys, start a SuperLink with TLS and node authentication, register and start nodes."""
    from hanse.federation.flower.loopback import Loopback

    project = folder.resolve()
    if not (project / "pyproject.toml").exists():
        raise UserError(f"{folder}: is not a project (it has no pyproject.toml); 'hanse new NAME' makes one")
    ports = (port, *(port + 101 + i for i in range(nodes)))
    Loopback(project, project, ports, not cold, tuple(imports or ())).up()
    typer.echo(f"{nodes} nodes and a SuperLink on port {port}; logs in {folder / 'logs'}")


@app.command(epilog="Example:\n\nhanse network run harvest")
def run(folder: Folder = Path()) -> None:
    """Play the project's experiment with the nodes that are up, or go on with the run that is there.

    Shows each round with its accuracy, and who is kept out or refused, and why; logs/run.log has all the rest.
    """
    from hanse.federation.flower.loopback import Loopback

    Loopback.read(folder.resolve()).play(show=typer.echo)
    typer.echo(f"log: {folder / 'logs' / 'run.log'}")


@app.command(epilog="Example:\n\nhanse network down harvest")
def down(folder: Folder = Path()) -> None:
    """Stop what 'up' started, by process id."""
    from hanse.federation.flower.loopback import Loopback

    for name in Loopback.read(folder.resolve()).down():
        typer.echo(f"{name}: was not running")


@app.command(epilog="Example:\n\nhanse network pause run --reason 'node 3 is being repaired'")
def pause(folder: RunDir, reason: Reason) -> None:
    """Let the server wait before its next exchange, until 'go-on'."""
    from hanse.federation.flower.operator import give

    give(folder, "pause", reason)


@app.command(name="go-on", epilog="Example:\n\nhanse network go-on run --reason 'repaired'")
def go_on(folder: RunDir, reason: Reason) -> None:
    """End a pause."""
    from hanse.federation.flower.operator import give

    give(folder, "go-on", reason)


@app.command(epilog="Example:\n\nhanse network expel run --client 3 --reason 'sends noise'")
def expel(
    folder: RunDir,
    client: Annotated[int, typer.Option("--client", "-c", min=0, help="Its number.", show_default=False)],
    reason: Reason,
) -> None:
    """Keep a participant out from the next exchange on; its account stays."""
    from hanse.federation.flower.operator import give

    give(folder, "expel", reason, client)


@app.command(epilog="Example:\n\nhanse network orders run")
def orders(folder: RunDir) -> None:
    """Show the orders given so far, with their reasons."""
    from hanse.federation.flower.operator import FILE

    for line in (folder / FILE).read_text().splitlines() if (folder / FILE).exists() else []:
        said = json.loads(line)
        who = f" {said['client']} ({said['name']})" if "client" in said else ""
        typer.echo(f"{said['time']}  {said['order']}{who}: {said['reason']}")
