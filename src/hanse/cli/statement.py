"""``hanse statement``: what a run means for one participant.

This module reads the options and prints a summary. :mod:`hanse.reports.statement` makes the figures, and
``statement_page.py`` the page. ``prospect.py`` makes what is said before joining, and ``disputes.py`` compares
receipts. All of these are in :mod:`hanse.reports`.
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
    from hanse.reports.prospect import Prospect
    from hanse.reports.statement import Statement
    from hanse.reports.statement_fit import ModelQuality
    from hanse.reports.statement_verdict import Answer


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
        if client is None:
            _all(place, alone, train_alone, as_json)
        elif dry_run:
            _before(place, client, as_json)
        elif check_receipts or receipts is not None:
            _check(place, client, receipts or place / "receipts", as_json)
        else:
            number, made = _made(place, client, alone, train_alone)
            page = out_file or place / "statements" / f"client-{number}.html"
            _write(made, None if as_json else page)


def _made(folder: Path, client: str, alone: Path | None, train_alone: bool) -> tuple[int, Statement]:
    """Return the client's number and its statement, after training it alone if that is asked for."""
    from hanse.reports.statement import statement as make
    from hanse.runs.observers import counting
    from hanse.runs.run_record import load_run

    number = load_run(folder).client_of(client)
    # first of all, so a mistake is told before anything is trained
    with counting("statement", err):
        report = make(folder, number, alone=alone)
    if train_alone:
        alone = _alone(folder)
        with counting("statement", err):
            report = make(folder, number, alone=alone)
    return number, report


def _alone(folder: Path) -> Path:
    """Train every client by itself on the same data, unless that was done already, and return where that run is."""
    from hanse.reports.alone import train_alone
    from hanse.runs.observers import ProgressBar

    return train_alone(folder, [ProgressBar(err, "alone")])


def _all(folder: Path, alone: Path | None, train_alone: bool, as_json: bool) -> None:
    """Write a page for each participant, and print a table with the verdict of each."""
    from hanse.reports.statement import statement as make
    from hanse.reports.statement_page import render
    from hanse.runs.observers import counting
    from hanse.runs.run_record import load_run

    run = load_run(folder)
    make(folder, 0, alone=alone)  # so that a mistake is told before anything is trained
    if train_alone:
        alone = _alone(folder)
    made = []
    with counting("statements", err) as progress:
        for client in range(run.num_clients):
            progress(client, run.num_clients)
            made.append(make(folder, client, alone=alone))
            if not as_json:
                _kept(folder / "statements" / f"client-{client}.html", render(made[-1]))
    if as_json:
        print(json.dumps([found.as_json() for found in made], indent=1, allow_nan=False))
        return
    warn(made[0].doubts)
    for line in made[0].lost:
        say(line, wrap=True)
    table = RichTable("client", "did joining pay?", f"its model's {run.main.title}", "alone", "worth of its updates")
    for found in made:
        ours, theirs = _figures(found.fit)
        table.add_row(found.label, _IN_A_WORD[found.verdict.answer], ours, theirs, _worth(found))
    say(table, wrap=True)
    say("In brackets: 95 % intervals.")
    say(f"wrote {len(made)} pages in {folder / 'statements'}")


_IN_A_WORD: dict[Answer, str] = {
    "yes": "yes", "no": "no", "even": "not clear", "unknown": "not known"
}  # fmt: skip


def _worth(found: Statement) -> str:
    """Return what a client's updates were worth, with the 95 % interval behind it if that is known; "-": not known."""
    from hanse.reports.digits import between, rounded

    value, ends = found.contributed.value, found.contributed.interval
    half = 0.0 if ends is None else (ends[1] - ends[0]) / 2
    if value is None:
        return "-"
    return rounded(value, half) + (f" ({between(value, half)})" if half else "")


def _figures(fit: ModelQuality) -> tuple[str, str]:
    """Return the main metric of a client's model on its own test data, and that of the model that it trained alone.

    The first has its 95 % interval behind it, if that is known. What is not known is "-".
    """
    from hanse.learning.metrics import ACCURACY
    from hanse.reports.statement_fit import MainFit

    main = fit.main or MainFit(reading=ACCURACY, values=(fit.last,), alone=fit.alone_accuracy)
    ours, alone = ("-" if value is None else main.reading.show(value) for value in (main.last, main.alone))
    between = "" if main.interval is None else f" ({' to '.join(map(main.reading.show, main.interval))})"
    return ours + between, alone


def _kept(page: Path, text: str) -> None:
    """Write a page. Raises UserError if its place cannot be written."""
    try:
        write_whole(page, text)
    except OSError as wrong:
        raise UserError(f"{page}: the statement cannot be written: {wrong.strerror or wrong}") from None


def _write(found: Statement, page: Path | None) -> None:
    """Write the page and print the verdict with its reasons; without a page print JSON alone."""
    from hanse.reports.statement_page import render

    if page is None:
        print(json.dumps(found.as_json(), indent=1, allow_nan=False))
        return
    _kept(page, render(found))
    warn(found.doubts)
    for line in found.lines:
        say(line, wrap=True)
    say(f"The whole of it: {page}")


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
    for line in _told(outlook):
        say(line, wrap=True)


def _told(found: Prospect) -> Sequence[str]:
    """Return the lines of that: the money first, then what it pays, gains and gives, and what is not known."""
    from hanse.core.entry import tokens

    lines = [f"Client {found.client} in {found.rounds} rounds of {found.mechanism}, before joining", ""]
    if found.most is not None and found.grant is not None:
        lines += [f"  It is given        {tokens(found.grant)} tokens", f"  It can lose        {tokens(found.most)}"]
        each = "what its account can bear" if found.most_round is None else tokens(found.most_round)
        lines += [f"  at most in a round {each}", ""]
    for heading, sections in (
        ("What it pays", found.pays),
        ("What it stands to gain", found.gains),
        ("What it gives", found.gives),
        ("What is not known", found.unknown),
    ):
        lines += [heading, *(f"  - {line}" for line in sections), ""]
    return lines[:-1]


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
