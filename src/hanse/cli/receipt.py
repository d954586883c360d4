"""``hanse receipt``: what a participant's receipts prove by themselves, without the book."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hanse.base.plain_text import quantity
from hanse.cli.options import print_json

if TYPE_CHECKING:
    from hanse.ledger.receipts import Receipt

app = typer.Typer(
    epilog="Examples:\n\nhanse receipt verify ~/.hanse/NAME/client-3/receipts/client-3.jsonl --operator operator.pub",
    no_args_is_help=True,
)


@app.callback()
def _group() -> None:  # without a callback typer would drop the name of the only command
    """A participant's receipts: what the operator has said of its account, provable without the book."""


@app.command()
def verify(
    files: Annotated[list[Path], typer.Argument(help="Files of receipts or statements, of any participants.")],
    operator: Annotated[
        Path | None,
        typer.Option("--operator", help="The operator's public key, operator.pub; default: those that you pinned."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print what every receipt says, as JSON.")] = False,
) -> None:
    """Check receipts without the books: their proofs, the operator's signatures, and that all are of one growing book.

    Of a statement (*.html) the signature is checked. This needs only the files and the operator's public key. The first
    file that fails is named, and the exit code is then 1. The exit code is also 1 if the node that keeps the receipts
    has seen two books. Contradicting receipts of several participants prove that the operator has shown two books.

    Examples:
        hanse receipt verify client-3.jsonl --operator operator.pub
        hanse receipt verify mine/client-3.jsonl theirs/client-5.jsonl
    """
    from hanse.base.files import OPERATORS, home_of, read_text
    from hanse.flower.operator_key import public_key
    from hanse.flower.receipts import is_signed_page
    from hanse.ledger.note import fingerprint
    from hanse.ledger.receipts import read_file, split_view
    from hanse.ledger.witness import alarms

    # by default the operators' keys that are pinned in this user's folder
    names = sorted((home_of() / OPERATORS).glob("*.pub")) if operator is None else [operator]
    keys = [public_key(name) for name in names]
    pages = [path for path in files if path.suffix == ".html"]
    for page in pages:
        if not any(is_signed_page(read_text(page), key) for key in keys):
            _fail(f"{page}: is not a statement as the operator's key has signed it")
    if pages and len(pages) == len(files):
        return print(f"{quantity(len(pages), 'statement is', 'statements are')} as the operator has signed.")
    receipts_by_file = [(path, receipt) for path in files if path not in pages for receipt in read_file(path)]
    for home in {path.absolute().parents[3] for path in files if len(path.absolute().parents) > 3}:
        for alarm in alarms(home):
            _fail(f"{home}: its node has raised the alarm: {alarm}")
    signed, by = operator is not None or any(r.note.signatures for _, r in receipts_by_file), b""
    for path, receipt in receipts_by_file:
        where = f"{path}: receipt of client {receipt.client}, round {receipt.round}"
        if not receipt.holds():
            _fail(f"{where}: its proof does not lead to its head")
        key = next((key for key in keys if receipt.note.by(key)), None)
        if signed and key is None and operator is None:
            _fail(f"{where}: its head is not signed by a key that is pinned here; --operator operator.pub names one")
        if signed and key is None:
            _fail(f"{where}: its head is not signed by the operator's key, {fingerprint(keys[0])}")
        by = key or by
    if len(books := sorted({receipt.book for _, receipt in receipts_by_file})) > 1:
        _fail(f"they are of {len(books)} books, {', '.join(books)}: give the files of one run")
    if why := split_view(receipt for _, receipt in receipts_by_file):
        _fail(f"the operator has shown more than one book: {why}")
    _say([receipt for _, receipt in receipts_by_file], fingerprint(by) if signed else None, as_json)


def _fail(why: str) -> None:
    """Say what does not hold, and end with exit code 1."""
    print(f"The receipts do not hold: {why}", file=sys.stderr)
    raise typer.Exit(1)


def _say(receipts: list[Receipt], key: str | None, as_json: bool) -> None:
    """Print what was checked; ``key`` is the fingerprint of the key that has signed all heads, None if none has."""
    if as_json:
        rows = [{"book": r.book, "count": r.count, "head": r.root, **r.said} for r in receipts]
        return print_json({"ok": True, "key": key, "receipts": rows})
    rounds, books = [r.round for r in receipts], sorted({r.book for r in receipts})
    sentence = f"All heads are signed by the key {key}." if key else "The heads are not signed, as in a simulation."
    held = quantity(len(receipts), "receipt holds", "receipts hold")
    print(f"{held}: book {', '.join(books)}, rounds {min(rounds)} to {max(rounds)}.\n{sentence}")
