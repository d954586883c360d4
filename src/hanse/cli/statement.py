"""``hanse statement``: what a run means for one participant.

This module reads the options and prints a summary. :mod:`hanse.reports.statement` makes the figures and the page.
``prospect.py`` makes what is said before joining, and ``disputes.py`` compares receipts. All of these are in
:mod:`hanse.reports`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table as RichTable

from hanse.base.errors import UserError
from hanse.base.files import write_whole
from hanse.cli.options import Trust, err, out, say, trusting, warn

if TYPE_CHECKING:
    from hanse.reports.disputes import Replay
    from hanse.reports.statement import Statement


def statement(
    place: Annotated[
        Path, typer.Argument(metavar="DIR", help="Run directory; with --dry-run an experiment.", show_default=False)
    ],
    client: Annotated[
        str | None, typer.Option("--client", "-c", help="The participant: its number, or its name.", show_default=False)
    ] = None,
    everyone: Annotated[bool, typer.Option("--all", help="A page for each participant.")] = False,
    out_file: Annotated[
        Path | None, typer.Option("--out", "-o", help="File of the page; default DIR/statements/client-N.html.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and write no page; money is in units.")] = False,
    alone: Annotated[
        Path | None, typer.Option("--alone", help="A run of the mechanism 'local' on the same data, to compare with.")
    ] = None,
    train_alone: Annotated[
        bool, typer.Option("--train-alone", help="Play that run first, into DIR/alone, unless it is there.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Before joining: the most it could pay, and what it could gain.")
    ] = False,
    check_receipts: Annotated[
        bool, typer.Option("--check-receipts", help="Compare the books with its receipts; exits with 1 if they differ.")
    ] = False,
    receipts: Annotated[
        Path | None, typer.Option("--receipts", help="The folder that has its receipts; default DIR/receipts.")
    ] = None,
    trust: Trust = False,
) -> None:
    """Write one participant's page: what it gave, gained, paid and earned, and whether joining paid.

    The page is one HTML file that works offline. The page says how good the participant's model is on its own test
    data, what its updates were worth and how certain that is, and where its models went. It lists every payment.

    To say whether joining paid, it compares the model with one trained alone. --alone names a run with such a model,
    and --train-alone plays one first. --all writes a page for each participant.

    Before joining, --dry-run takes an experiment instead of a run. It says what the client could pay at most, what it
    may gain, and what it gives.

    After a run, --check-receipts compares the books with the receipts that the participant kept, and exits with 1 if
    they differ.

    --dry-run and --train-alone build or play the experiment, and need --trust if its file has import paths.

    Examples:
        hanse statement runs/market --client 3
        hanse statement runs/market --all
        hanse statement market.toml --dry-run --client 3
        hanse statement runs/market --client 3 --check-receipts --receipts my/receipts
    """
    if dry_run and (alone or train_alone or check_receipts or receipts or out_file):
        raise UserError("--dry-run: goes with --client and --json only: nothing has been played yet")
    if everyone and (dry_run or check_receipts or receipts is not None or out_file is not None):
        raise UserError("--all: goes with --json, --alone and --train-alone only; pages go to DIR/statements")
    if (check_receipts or receipts is not None) and (out_file is not None or alone is not None or train_alone):
        raise UserError("--check-receipts: goes with --client, --receipts and --json only: it makes no page")
    if as_json and out_file is not None:
        raise UserError("--out: not with --json, which prints the statement and writes no page")
    # one of the two must be given, and not both
    if everyone == (client is not None):
        raise UserError("--client: give one, as in --client 3, or --all for a page each" + (", not both" * everyone))
    if place.is_file() and not dry_run:
        raise UserError(f"{place}: is a file; a statement is of a run directory, or, before joining, add --dry-run")
    if alone is not None and train_alone:
        raise UserError("--train-alone: not together with --alone, which names the run to compare with")
    with trusting(trust):
        if client is not None and dry_run:
            _before(place, client, as_json)
        elif client is not None and (check_receipts or receipts is not None):
            _check(place, client, receipts or place / "receipts", as_json)
        else:
            _made(place, client, alone, train_alone, out_file, as_json)


def _made(
    folder: Path, client: str | None, alone: Path | None, train_alone: bool, page: Path | None, as_json: bool
) -> None:
    """Write a client's page and print its verdict, or a page for each and a table; or print JSON alone."""
    from hanse.reports.alone import compared_with
    from hanse.reports.alone import train_alone as play
    from hanse.reports.statement import render, statements
    from hanse.runs.observers import ProgressBar, counting
    from hanse.runs.run_record import load_run

    run = load_run(folder)
    clients = list(range(run.num_clients)) if client is None else [run.client_of(client)]
    beside = None if alone is None else compared_with(run, alone)
    if train_alone:
        statements(run, clients[:1], beside)  # a mistake is told before anything is trained
        beside = compared_with(run, play(folder, [ProgressBar(err, "alone")]))
    made: list[Statement] = []
    with counting("statements", err) as progress:
        for done, one in enumerate(clients):
            progress(done, len(clients))
            made += statements(run, [one], beside)
            if not as_json:
                _kept(page or folder / "statements" / f"client-{one}.html", render(made[-1]))
    if as_json:
        found = [one.as_json() for one in made]
        print(json.dumps(found if client is None else found[0], indent=1, allow_nan=False))
        return
    warn(made[0].doubts)
    if client is None:
        _table(made, run.main.title)
        say(f"wrote {len(made)} pages in {folder / 'statements'}")
        return
    for line in made[0].lines:
        say(line, wrap=True)
    say(f"The whole of it: {page or folder / 'statements' / f'client-{clients[0]}.html'}")


def _table(made: Sequence[Statement], metric: str) -> None:
    """Print a row for each participant, and what is missing in the run's records."""
    from hanse.reports.words import said

    for line in made[0].missing:
        say(line, wrap=True)
    table = RichTable("client", "did joining pay?", f"its model's {metric}", "alone", "worth of its updates")
    for found in made:
        table.add_row(found.client.name, *(said(cell, found, found.client) for cell in _CELLS))
    say(table, wrap=True)
    say("In brackets: 95 % intervals.")


_CELLS = ("verdict_cell", "model_cell", "alone_cell", "worth_cell")  # sentences of a statement, a few words each


def _kept(page: Path, text: str) -> None:
    """Write a page. Raises UserError if its place cannot be written."""
    try:
        write_whole(page, text)
    except OSError as wrong:
        raise UserError(f"{page}: the statement cannot be written: {wrong.strerror or wrong}") from None


def _before(file: Path, client: str, as_json: bool) -> None:
    """Print what an experiment may cost and bring a client, before anything is played."""
    from hanse.reports.prospect import prospect
    from hanse.runs.config import Experiment

    if file.is_dir():
        raise UserError(f"{file}: is a folder; --dry-run takes an experiment (TOML)")
    outlook = prospect(Experiment.read(file), int(client) if client.isdecimal() else client)
    if as_json:
        print(json.dumps(outlook.as_json(), indent=1, allow_nan=False))
        return
    for line in outlook.lines:
        say(line, wrap=True)


def _check(folder: Path, client: str, receipts: Path, as_json: bool) -> None:
    """Hold a participant's receipts against the books and print each difference. Raises typer.Exit with 1 if there
    is one.
    """
    from hanse.reports.disputes import replay
    from hanse.runs.run_record import load_run

    run = load_run(folder)
    number = run.client_of(client)
    if number >= run.num_clients:
        raise UserError(f"--client {number}: no such client; this run has clients 0 to {run.num_clients - 1}")
    comparison = replay(folder, number, receipts)
    if as_json:
        print(json.dumps(comparison.as_json(), indent=1))
    else:
        _print(comparison, folder, receipts)
    if not comparison.holds:
        raise typer.Exit(1)


def _print(found: Replay, folder: Path, receipts: Path) -> None:
    """Print what was compared, and every difference as a row of a table."""
    if found.book:
        say(f"The book itself does not hold: {found.book}", wrap=True)
    if found.disputes:
        table = RichTable("by", "what", "it says", "the book says")
        for d in found.disputes:
            table.add_row(d.who, d.what, d.said, d.found)
        out.print(table)
    receipts_read, records = _counted(found.receipts, "receipt"), _counted(found.records, "record")
    what = f"{receipts_read} ({found.signed} signed) and {records} of rounds"
    verdict = "agree with the book" if found.holds else f"were compared: {_counted(len(found.disputes), 'difference')}"
    say(f"{what} {verdict}.", wrap=True)
    # whoever rewrites the books can rewrite the receipts next to them
    if receipts.resolve() == (folder / "receipts").resolve():
        advice = (
            "These receipts lie where the operator can write. They prove more if you kept your own copy: --receipts."
        )
        say(advice, wrap=True)


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
