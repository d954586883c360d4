"""``hanse ledger``: look at the books of a run, check them, take them elsewhere.

The books are a database (by default ``ledger.db`` in the run directory). Every command here opens the one that belongs
to the run, prints for people by default, and for programs with ``--json`` or ``--csv``. The work is done in
:mod:`hanse.ledger`.

Tables show tokens; JSON has units, whole numbers of which a million are a token.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from io import StringIO
from pathlib import Path
from typing import Annotated, TextIO

import typer
from rich.table import Table as RichTable

from hanse.base.errors import UserError, nearest
from hanse.base.files import write_whole
from hanse.cli.options import LedgerUrl, RunFolder, err, say

app = typer.Typer(
    help="The books of a run: who holds how much, and every movement.",
    epilog="Examples:\n\nhanse ledger balances runs/exp\n\nhanse ledger verify runs/exp",
    no_args_is_help=True,
)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table; amounts are units.")]
AsCsv = Annotated[bool, typer.Option("--csv", help="Print CSV instead of a table.")]
Account = Annotated[
    str | None,
    typer.Option("--account", "-a", help="Only this account: client/3, escrow/3, pool/NAME, mint, or a client's name."),
]


@app.command()
def balances(folder: RunFolder, ledger_url: LedgerUrl = None, as_json: AsJson = False, as_csv: AsCsv = False) -> None:
    """Show what every account holds.

    Accounts are client/N, escrow/N (what a client has bid and not yet paid), pool/NAME and the mint, from which grants
    come and which is therefore below zero. Their sum is always zero.

    Examples:
        hanse ledger balances runs/exp
    """
    from hanse.ledger.export import tokens
    from hanse.ledger.place import reading
    from hanse.reports.chart import natural

    _warn(folder, ledger_url)
    with reading(folder, ledger_url) as ledger:
        held = dict(sorted(ledger.balances().items(), key=lambda entry: natural(entry[0])))
    if as_json:
        print(json.dumps(held, indent=1))
    elif as_csv:
        _csv(["account", "units", "tokens"], [[name, units, tokens(units)] for name, units in held.items()])
    else:
        rows = [[name, tokens(units)] for name, units in held.items()]
        _table(*_with_names(["account", "tokens"], rows, folder))


@app.command()
def history(
    folder: RunFolder,
    account: Account = None,
    round_: Annotated[int | None, typer.Option("--round", help="Only this round.")] = None,
    ledger_url: LedgerUrl = None,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
) -> None:
    """Show the transactions, in order.

    A transaction moves tokens between two accounts or more, and its amounts sum to zero. Each has the round and the
    step of the round that made it, and a kind such as "grant" or "market".

    Examples:
        hanse ledger history runs/exp
        hanse ledger history runs/exp -a client/3 --csv
    """
    from hanse.ledger.export import as_dict, tokens, write_csv
    from hanse.ledger.place import reading

    _warn(folder, ledger_url)
    with reading(folder, ledger_url) as ledger:
        account = _account_named(account, folder)
        if account is not None and not ledger.has(account):
            raise UserError(
                f"--account: '{account}': the book has no such account{nearest(account, ledger.balances())}"
            )
        records = ledger.history(account, round=round_)
        if as_json:
            lines = (json.dumps(as_dict(record)) for record in records)
            print("[" + ",\n ".join(lines) + "]")
        elif as_csv:
            write_csv(ledger, records, sys.stdout)
        else:
            rows = [
                [str(r.number), str(r.round), t.step, t.kind, name, tokens(units), t.memo]
                for r, t in ((record, record.transaction) for record in records)
                for name, units in t.postings
                if account in (None, name)
            ]
            columns = ["number", "round", "step", "kind", "account", "tokens", "memo"]
            _table(*_with_names(columns, rows, folder))


@app.command()
def verify(
    folder: RunFolder,
    receipts: Annotated[
        Path | None, typer.Option("--receipts", help="Folder of participants' receipts to hold against the books.")
    ] = None,
    ledger_url: LedgerUrl = None,
    as_json: AsJson = False,
) -> None:
    """Check that the books of a run hold: balances, sums, hashes, grants, and what markets and auctions moved.

    Everything is computed anew from the transactions, the run's settings and the rounds' records. If something does not
    hold, the first wrong row is named and the exit code is 1.

    With --receipts the books are also held against receipts that participants kept. They find a run directory that was
    rewritten as a whole, which no look at the directory alone can find.

    Examples:
        hanse ledger verify runs/exp --receipts receipts
    """
    from hanse.core.book import LedgerError
    from hanse.ledger.place import place_of, verify_run
    from hanse.ledger.receipts import read_receipts
    from hanse.ledger.store import Ledger
    from hanse.ledger.verify import Verdict
    from hanse.runs.replay import Replayed, replay_books

    replayed = Replayed()
    told = [] if receipts is None else list(read_receipts(receipts))
    url, book = place_of(folder, ledger_url)
    try:
        with Ledger.open(url, book=book, read_only=True) as ledger:
            verdict = verify_run(folder, ledger, told)
            if verdict.ok:
                replayed = replay_books(folder, ledger)
                verdict = replace(verdict, wrong=replayed.wrong)
    except LedgerError as damaged:  # gone, or too damaged to be opened
        verdict = Verdict(0, 0, 0, "", str(damaged))
    if as_json:
        said = {"ok": verdict.ok, **asdict(verdict), "receipts": len(told)}
        print(json.dumps(said | {"markets": replayed.markets, "auctions": replayed.auctions}, indent=1))
    elif verdict.ok:
        print(
            f"The books hold: {verdict.transactions} transactions, {verdict.postings} postings, "
            f"{verdict.accounts} accounts{f', {len(told)} receipts' if told else ''}"
            f"{f', {replayed.markets} markets replayed' if replayed.markets else ''}"
            f"{f', {replayed.auctions} auctions replayed' if replayed.auctions else ''}.\nhead {verdict.head}"
        )
        if replayed.auctions == 0:
            say("Auctions were not replayed: an older hanse wrote the run, and its records hold too little.", err)
    elif replayed.lost:
        told_too = " and agree with the receipts" if told else ""
        print(
            f"The books are whole{told_too}, but they cannot be held against all records: {verdict.wrong}",
            file=sys.stderr,
        )
    else:
        print(f"The books do not hold: {verdict.wrong}", file=sys.stderr)
    if not verdict.ok:
        raise typer.Exit(1)


@app.command()
def export(
    folder: RunFolder,
    form: Annotated[str, typer.Option("--format", "-f", help="hledger, csv or json (JSON lines).")] = "hledger",
    out: Annotated[Path | None, typer.Option("--out", "-o", help="File; default: print.")] = None,
    ledger_url: LedgerUrl = None,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
) -> None:
    """Write all transactions in another form: a journal that hledger reads, CSV, or JSON lines.

    hledger and other programs for plain-text accounting can then make balances and reports of it. Without --out it is
    printed.

    Examples:
        hanse ledger export runs/exp -o all.journal
        hanse ledger export runs/exp -f csv
    """
    from hanse.ledger.export import FORMATS
    from hanse.ledger.place import reading

    form = "json" if as_json else "csv" if as_csv else form
    if form not in FORMATS:
        raise UserError(f"--format: '{form}': no such format{nearest(form, FORMATS)}")
    _warn(folder, ledger_url)
    with reading(folder, ledger_url) as ledger, _written(out) as file:
        FORMATS[form](ledger, ledger.history(), file)


@app.command()
def backup(
    folder: RunFolder,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Archive to write (.tar.gz).", show_default=False)],
    ledger_url: LedgerUrl = None,
) -> None:
    """Write the run directory with a consistent copy of its ledger into one archive; the run may go on meanwhile.

    'hanse ledger restore' unpacks it. The line that is printed ends with the head: the hash of the last transaction in
    the copy, by which you can later tell that a restored book is this one.

    Examples:
        hanse ledger backup runs/exp exp-backup.tar.gz
    """
    from hanse.ledger import archive

    try:
        head = archive.backup(folder, file, ledger_url)
    except OSError as wrong:
        raise UserError(f"{file}: the backup cannot be written: {wrong.strerror or wrong}") from None
    print(f"wrote {file}; head {head}")


@app.command()
def restore(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Archive that backup wrote.", show_default=False)],
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Run directory to make.", show_default=False)],
    ledger_url: Annotated[
        str | None,
        typer.Option(
            "--ledger-url",
            metavar="URL",
            help="Post the books there; default: a file in the run directory.",
            show_default=False,
        ),
    ] = None,
    most: Annotated[int, typer.Option("--most", min=1, help="Bytes that the archive may unpack to.")] = 10**9,
) -> None:
    """Unpack a backup into a new run directory and verify its ledger, to look at it or to go on with it.

    'hanse resume DIR' goes on; 'hanse network run' does where it is a federation's and DIR its project's run.

    The books become a file in that directory, or go to --ledger-url. What the archive says of other databases is not
    believed: config.toml is changed, and a line says so. An archive that would unpack to more than --most bytes is
    refused.

    Examples:
        hanse ledger restore exp-backup.tar.gz runs/restored
    """
    from hanse.ledger import archive

    verdict = archive.restore(file, folder, ledger_url, most=most, said=print)
    print(f"restored {folder}: {verdict.transactions} transactions verified; head {verdict.head}")


@app.command()
def rebuild(folder: RunFolder, ledger_url: LedgerUrl = None) -> None:
    """Write a lost or damaged ledger anew from transactions.jsonl.

    That is done only if these transactions lead to the head of the last checkpoint, so a journal that was changed is
    refused. Books that hold are left as they are.

    Examples:
        hanse ledger rebuild runs/exp
    """
    from hanse.ledger.recover import rebuild_run

    for line in rebuild_run(folder, ledger_url) or ["The books hold; nothing was changed."]:
        print(line)


@app.command()
def migrate(folder: RunFolder, ledger_url: LedgerUrl = None) -> None:
    """Bring the ledger of an older hanse to the present schema (resuming the run does this too).

    It is verified afterwards; the exit code is 1 if it does not hold.

    Examples:
        hanse ledger migrate runs/old
    """
    from hanse.ledger.place import open_ledger
    from hanse.ledger.tables import SCHEMA

    with open_ledger(folder, ledger_url, read_only=False) as ledger:
        verdict = ledger.verify()
    if verdict.wrong is not None:
        print(f"The books do not hold: {verdict.wrong}", file=sys.stderr)
        raise typer.Exit(1)
    print(f"schema {SCHEMA}; {verdict.transactions} transactions verified")


@contextmanager
def _written(path: Path | None) -> Iterator[TextIO]:
    """Give a text to write into: the standard output, or a file that appears as a whole once all is written."""
    if path is None:
        yield sys.stdout
        return
    text = StringIO()
    yield text
    try:
        write_whole(path, text.getvalue())
    except OSError as wrong:
        raise UserError(f"--out {path}: cannot be written: {wrong.strerror}") from None


def _warn(folder: Path, ledger_url: str | None) -> None:
    """Say beside what a command prints of books that they do not hold."""
    from hanse.ledger.place import wrong_in

    if wrong := wrong_in(folder, ledger_url):
        say(f"warning: the books do not hold: {wrong}", err, style="yellow")


def _table(columns: list[str], rows: list[list[str]]) -> None:
    """Print a table whose amounts stand point below point."""
    table = RichTable(*(column for column in columns))
    for column in table.columns:
        if column.header in ("number", "round"):
            column.justify = "right"
    at = columns.index("tokens")
    for row, amount in zip(rows, _points_aligned([row[at] for row in rows]), strict=True):
        table.add_row(*row[:at], amount, *row[at + 1 :])
    say(table, wrap=True)


def _with_names(columns: list[str], rows: list[list[str]], folder: Path) -> tuple[list[str], list[list[str]]]:
    """Return a table with a column that says whose each account is, if the run's clients have names."""
    from hanse.runs.names import client_names

    names = {str(client): name for client, name in client_names(folder).items()}
    if not names:
        return columns, rows
    at = columns.index("account") + 1
    whose = [row[at - 1].partition("/") for row in rows]
    called = [names.get(number, "") if kind in ("client", "escrow") else "" for kind, _, number in whose]
    named = [[*row[:at], name, *row[at:]] for row, name in zip(rows, called, strict=True)]
    return [*columns[:at], "name", *columns[at:]], named


def _account_named(account: str | None, folder: Path) -> str | None:
    """Return the account that a person means.

    That is its name in the book, or a client's name, alone or after "client/" or "escrow/". What fits nothing is
    returned as it is, for the book to say that it has no such account.
    """
    from hanse.runs.names import client_names

    kind, slash, name = (account or "").rpartition("/")
    if account is None or name.isdecimal() or (slash and kind not in ("client", "escrow")):
        return account
    called = [client for client, label in client_names(folder).items() if label == name]
    return f"{kind or 'client'}/{called[0]}" if len(called) == 1 else account


def _points_aligned(amounts: list[str]) -> list[str]:
    """Return amounts padded on both sides, so that their decimal points stand below each other."""
    parts = [amount.partition(".") for amount in amounts]
    before, after = (max((len(part[side]) for part in parts), default=0) for side in (0, 2))
    return [whole.rjust(before) + (point + decimals).ljust(after + bool(after)) for whole, point, decimals in parts]


def _csv(header: list[str], rows: list[list[str | int]]) -> None:
    """Print rows as CSV."""
    import csv

    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
