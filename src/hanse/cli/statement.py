"""``hanse statement``: what a run means for one participant.

This module reads the options and prints a summary. :mod:`hanse.reports.statement` makes the figures and the page.
:mod:`hanse.reports.prospect` makes what is said before joining.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hanse.base.errors import UserError
from hanse.base.files import write_whole
from hanse.base.plain_text import quantity
from hanse.cli.options import Client, Trust, err, print_json, say, trusting, warn

if TYPE_CHECKING:
    from hanse.reports.statement import Statement


def statement(
    place: Annotated[
        Path, typer.Argument(metavar="DIR", help="Run directory; with --dry-run an experiment.", show_default=False)
    ],
    client: Client = None,
    everyone: Annotated[bool, typer.Option("--all", help="A page for each participant.")] = False,
    out_file: Annotated[
        Path | None, typer.Option("--out", "-o", help="File of the page; default DIR/statements/client-N.html.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and write no page; money is in units.")] = False,
    train_alone: Annotated[
        bool, typer.Option("--train-alone", help="Play that run first, into DIR/alone, unless it is there.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Before joining: the most it could pay, and what it could gain.")
    ] = False,
    trust: Trust = False,
) -> None:
    """Write one participant's page: what it gave, gained, paid and earned, and whether joining paid.

    The page is one HTML file that works offline. The page says how good the participant's model is on its own test
    data, and what its updates were worth and how certain that is. It lists every payment.

    To say whether joining paid, it compares the model with one trained alone, by a run of the mechanism 'local' in
    DIR/alone or next to DIR; --train-alone plays one first. --all writes a page for each participant.

    Before joining, --dry-run takes an experiment instead of a run. It says what the client could pay at most, what it
    may gain, and what it gives.

    --dry-run and --train-alone build or play the experiment, and need --trust if its file has import paths.

    Examples:
        hanse statement runs/market --client 3
        hanse statement runs/market --all
        hanse statement market.toml --dry-run --client 3
    """
    if dry_run and (train_alone or out_file):
        raise UserError("--dry-run: goes with --client and --json only: nothing has been played yet")
    if everyone and (dry_run or out_file is not None):
        raise UserError("--all: goes with --json and --train-alone only; pages go to DIR/statements")
    if as_json and out_file is not None:
        raise UserError("--out: not with --json, which prints the statement and writes no page")
    # one of the two must be given, and not both
    if everyone == (client is not None):
        raise UserError("--client: give one, as in --client 3, or --all for a page each" + (", not both" * everyone))
    if place.is_file() and not dry_run:
        raise UserError(f"{place}: is a file; a statement is of a run directory, or, before joining, add --dry-run")
    with trusting(trust):
        if client is not None and dry_run:
            _before(place, client, as_json)
        else:
            _made(place, client, train_alone, out_file, as_json)


def _made(folder: Path, client: str | None, train_alone: bool, page: Path | None, as_json: bool) -> None:
    """Write a client's page and print its verdict, or a page and a line for each; or print JSON alone."""
    from hanse.reports.alone import train_alone as play
    from hanse.reports.statement import render, statements
    from hanse.runs.observers import ProgressBar, counting
    from hanse.runs.run_record import load_run

    run = load_run(folder)
    clients = list(range(run.num_clients)) if client is None else [run.client_of(client)]
    if train_alone:
        statements(run, clients[:1])  # a mistake is told before anything is trained
        play(folder, [ProgressBar(err, "alone")])
        run = load_run(folder)
    made: list[Statement] = []
    with counting("statements", err) as progress:
        for done, one in enumerate(clients):
            progress(done, len(clients))
            made += statements(run, [one])
            if not as_json:
                write_whole(page or folder / "statements" / f"client-{one}.html", render(made[-1]))
    if as_json:
        found = [one.as_json() for one in made]
        return print_json(found if client is None else found[0])
    warn(made[0].doubts)
    if client is None:
        for line in (*made[0].missing, *(f"{one.client.name}: {one.headline}." for one in made)):
            say(line, wrap=True)
        say(f"wrote {quantity(len(made), 'page')} in {folder / 'statements'}; 'hanse facts {folder}' has their numbers")
        return
    for line in made[0].lines:
        say(line, wrap=True)
    say(f"The whole of it: {page or folder / 'statements' / f'client-{clients[0]}.html'}")


def _before(file: Path, client: str, as_json: bool) -> None:
    """Print what an experiment may cost and bring a client, before anything is played."""
    from hanse.reports.prospect import prospect
    from hanse.runs.config import Experiment

    if file.is_dir():
        raise UserError(f"{file}: is a folder; --dry-run takes an experiment (TOML)")
    outlook = prospect(Experiment.read(file), int(client) if client.isdecimal() else client)
    if as_json:
        return print_json(outlook.as_json())
    for line in outlook.lines:
        say(line, wrap=True)
