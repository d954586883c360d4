"""``hanse ledger``: look at the books of a run, check them, export them.

The books are a log in the run directory, with an index in a database. Each command reads the log and prints a table, or
JSON with ``--json``. The work is done in :mod:`hanse.ledger`.

Tables show tokens. JSON has whole numbers of units; a million units are one token.
"""

from __future__ import annotations

import sys
from dataclasses import asdict, replace
from io import StringIO
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table as RichTable

from hanse.base.errors import UserError, nearest
from hanse.base.files import write_whole
from hanse.base.plain_text import quantity
from hanse.cli.options import AsJson, LedgerUrl, RunFolder, err, print_json, say

app = typer.Typer(
    help="The books of a run: who holds how much, and every movement.",
    epilog="Examples:\n\nhanse ledger balances runs/exp\n\nhanse ledger verify runs/exp",
    no_args_is_help=True,
)

Account = Annotated[
    str | None,
    typer.Option("--account", "-a", help="Only this account: client/3, escrow/3, pool/NAME, mint, or a client's name."),
]


@app.command()
def balances(folder: RunFolder, as_json: AsJson = False) -> None:
    """Show what every account holds.

    Accounts are client/N, escrow/N (what a client has bid and not yet paid), pool/NAME, and the mint. The mint pays all
    grants, and its balance is therefore negative. All accounts sum to zero.

    Examples:
        hanse ledger balances runs/exp
    """
    from hanse.core.entry import tokens
    from hanse.ledger.run_ledger import reading
    from hanse.reports.chart import natural

    with reading(folder) as ledger:
        held = dict(sorted(ledger.as_book().balances.items(), key=lambda entry: natural(entry[0])))
    _warn(folder)
    if as_json:
        print_json(held)
    else:
        rows = [[name, tokens(units)] for name, units in held.items()]
        _table(["account", "tokens"], rows, folder)


@app.command()
def history(
    folder: RunFolder,
    account: Account = None,
    round_: Annotated[int | None, typer.Option("--round", min=0, help="Only this round.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show the transactions, in order.

    A transaction moves tokens between accounts. Its amounts sum to zero. Each has a round, a step within it, and a kind
    such as "grant" or "market".

    Examples:
        hanse ledger history runs/exp
        hanse ledger history runs/exp -a client/3
    """
    from hanse.core.entry import leaf, tokens
    from hanse.ledger.run_ledger import reading

    with reading(folder) as ledger:
        ledger.as_book()  # books that do not hold are refused before anything is printed
        _warn(folder)
        account = _account_named(account, folder)
        if account is not None and account not in (held := ledger.as_book().balances):
            raise UserError(f"--account: '{account}': no such account{nearest(account, held)}")
        records = ledger.history(account, round=round_)
        if as_json:
            lines = (leaf(r.number, r.round, r.transaction).decode() for r in records)
            print("[" + ",\n ".join(lines) + "]")
        else:
            rows = [
                [str(r.number), str(r.round), t.step, t.kind, name, tokens(units), t.memo]
                for r, t in ((record, record.transaction) for record in records)
                for name, units in t.postings
                if account in (None, name)
            ]
            columns = ["number", "round", "step", "kind", "account", "tokens", "memo"]
            _table(columns, rows, folder)


@app.command()
def verify(
    folder: RunFolder,
    receipts: Annotated[
        Path | None, typer.Option("--receipts", help="Folder of participants' receipts to compare with the books.")
    ] = None,
    witnesses: Annotated[
        Path | None,
        typer.Option(
            "--witnesses",
            help="File of participants' witness keys, one NAME and key per line; more than half must have cosigned.",
        ),
    ] = None,
    ledger_url: LedgerUrl = None,
    as_json: AsJson = False,
) -> None:
    """Check the books of a run: balances, sums, hashes, grants, and what markets and auctions moved.

    Everything is recomputed from the transactions, the run's settings and the rounds' records. The first error is
    named, and the exit code is then 1. The index in ledger.db, or in the database at --ledger-url, is compared with the
    books.

    With --receipts, the books are also compared with receipts that participants kept, and with their signed words that
    they leave. These reveal that a run directory was rewritten as a whole, which the directory alone cannot reveal.
    With --witnesses, every head that a witness has cosigned must be in the books, more than half of the witnesses must
    have cosigned one head, and members must be registered with these keys.

    Examples:
        hanse ledger verify runs/exp --receipts receipts
        hanse ledger verify runs/exp --witnesses witnesses.txt
    """
    from hanse.flower.leave import missing_leave, words_in
    from hanse.flower.members import unregistered
    from hanse.ledger.index import difference
    from hanse.ledger.receipts import heads_of_leavers, read_receipts
    from hanse.ledger.run_ledger import COSIGNED, beyond_the_book, latest_claim, open_ledger, verify_run
    from hanse.ledger.witness import majority, read_witnesses
    from hanse.reports.words import said
    from hanse.runs.observers import counting
    from hanse.runs.replay import Examined

    apart = None
    words = [] if receipts is None else words_in(receipts)
    kept_receipts = [] if receipts is None else list(read_receipts(receipts, besides=bool(words)))
    place = ledger_url or folder / "ledger.db"
    keys = {} if witnesses is None else read_witnesses(witnesses)
    heads, newest, most = majority(folder / COSIGNED, keys)
    heads |= {} if receipts is None else heads_of_leavers(receipts)
    ledger = open_ledger(folder)
    with counting("checking the books", err):
        verdict = verify_run(folder, ledger, kept_receipts, heads)
        if verdict.ok and keys and newest is None:
            them = quantity(len(keys), "witness", "witnesses")
            alone = f"no head is cosigned by more than half of the {them}; the most is {most}"
            verdict = replace(verdict, wrong=alone)
        examined, failed = Examined(folder, verdict=verdict), None
        if verdict.ok:
            failed = examined.failed()
            gone = failed.said if failed else missing_leave(folder, words, ledger) if words else ""
            verdict = replace(verdict, wrong=gone or unregistered(folder, keys) or None)
        if verdict.ok and (ledger_url or (folder / "ledger.db").exists()):
            apart = difference(place, ledger)
    beyond = beyond_the_book(examined.rounds.beyond) if examined.rounds else ""
    if verdict.closed and latest_claim(folder) is None:
        beyond = f"No checkpoint is left to compare the book with: its end may have been cut. {beyond}".strip()
    if as_json:
        answer = {"ok": verdict.ok and not apart, **asdict(verdict), "index": apart, "receipts": len(kept_receipts)}
        del answer["closed"]  # a number for each round
        answer |= {"settled_again": examined.again.rounds, "why_not": examined.again.why_not, "beyond": beyond}
        answer |= {"checks": {check.name: check.holds for check in examined.checks}}
        print_json({**answer, "witnessed": None if newest is None else newest.round})
    elif not verdict.ok:
        lost = failed is not None and failed.name == "records"
        print(said("books_fail", verdict.wrong, lost, len(kept_receipts)), file=sys.stderr)
    else:
        if apart:  # it is made of them, and may be away
            print(f"The index does not fit the books: {apart}", file=sys.stderr)
        if examined.again.why_not and verdict.postings:
            print(said("books_unsure", examined.again.why_not))
        print(said("books_hold", verdict, examined, len(kept_receipts), newest, apart))
        print(f"head {verdict.head}")
        if beyond:
            print(beyond)
    if apart or not verdict.ok:
        raise typer.Exit(1)


@app.command()
def export(
    folder: RunFolder,
    form: Annotated[str, typer.Option("--format", "-f", help="hledger or csv.")] = "hledger",
    out: Annotated[Path | None, typer.Option("--out", "-o", help="File; default: print.")] = None,
) -> None:
    """Export all transactions as a journal for hledger, or as CSV.

    Programs for plain-text accounting, such as hledger, read the journal. Without --out it is printed.

    Examples:
        hanse ledger export runs/exp -o all.journal
        hanse ledger export runs/exp -f csv
    """
    from hanse.ledger.export import FORMATS
    from hanse.ledger.run_ledger import reading

    if form not in FORMATS:
        raise UserError(f"--format: '{form}': no such format{nearest(form, FORMATS)}")
    text = StringIO()
    with reading(folder) as ledger:
        ledger.as_book()  # books that do not hold are refused before anything is printed
        _warn(folder)
        FORMATS[form](ledger, ledger.history(), sys.stdout if out is None else text)
    if out is not None:
        write_whole(out, text.getvalue())


@app.command()
def rebuild(folder: RunFolder, ledger_url: LedgerUrl = None) -> None:
    """Rebuild the index of the books: the tables of ledger.db, or of the database at --ledger-url.

    The books themselves, transactions.jsonl and transactions.heads, do not change. The index is for your own queries
    and tools. It is built only from books that are sound.

    Examples:
        hanse ledger rebuild runs/exp
        hanse ledger rebuild runs/exp --ledger-url postgresql://user@host/database
    """
    from hanse.ledger.index import follow
    from hanse.ledger.run_ledger import reading, verify_run

    with reading(folder) as ledger:
        if wrong := verify_run(folder, ledger).wrong:
            raise UserError(f"{folder}: the books do not hold: {wrong}")
        count = follow(ledger_url or folder / "ledger.db", ledger, anew=True)
    print(f"wrote {quantity(count, 'transaction')} into the index")


def _warn(folder: Path) -> None:
    """Warn, after a command's output on books, of the first that fails, as far as no payment is computed anew."""
    from hanse.core.telling import Check
    from hanse.runs.replay import Examined

    for found in Examined(folder):
        failed = isinstance(found, Check) and not found.holds
        if failed:
            say(f"warning: {found.said}", err, style="yellow")
        if failed or found.name == "conservation":
            return


def _table(columns: list[str], rows: list[list[str]], folder: Path) -> None:
    """Print a table with amounts point below point, and whose each account is, if the run's clients have names."""
    from hanse.runs.run_record import client_names

    if names := {str(client): name for client, name in client_names(folder).items()}:
        at = columns.index("account") + 1
        whose = [row[at - 1].partition("/") for row in rows]
        called = [names.get(number, "") if kind in ("client", "escrow") else "" for kind, _, number in whose]
        rows = [[*row[:at], name, *row[at:]] for row, name in zip(rows, called, strict=True)]
        columns = [*columns[:at], "name", *columns[at:]]
    table = RichTable(*columns)
    for column in table.columns:
        if column.header in ("number", "round", "tokens"):
            column.justify, column.no_wrap = "right", True  # amounts are never cut
    for row in rows:
        table.add_row(*row)
    say(table, wrap=True)


def _account_named(account: str | None, folder: Path) -> str | None:
    """Return the account that a person means.

    That is its name in the book, or a client's name, alone or after "client/" or "escrow/". What fits nothing is
    returned as it is, for the book to say that it has no such account.
    """
    from hanse.runs.run_record import client_names

    kind, slash, name = (account or "").rpartition("/")
    if account is None or name.isdecimal() or (slash and kind not in ("client", "escrow")):
        return account
    called = [client for client, label in client_names(folder).items() if label == name]
    return f"{kind or 'client'}/{called[0]}" if len(called) == 1 else account
