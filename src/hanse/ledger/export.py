"""The books in other forms: an hledger journal, CSV, JSON lines."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable
from datetime import date, timedelta
from typing import Any, TextIO

from hanse.core.entry import MINT, Transaction, tokens
from hanse.ledger.store import Ledger, Record, as_dict

__all__ = ["FORMATS", "as_dict", "from_dict", "line_of", "tokens", "write_csv", "write_journal", "write_jsonl"]

FIRST_DAY = date(2000, 1, 1)


def line_of(record: Record) -> str:
    """Return a transaction as a line of JSON: one of the journal, too."""
    return json.dumps(as_dict(record)) + "\n"


def from_dict(fields: dict[str, Any]) -> Record:
    """Return the record that :func:`as_dict` wrote."""
    postings = tuple((account, units) for account, units in fields["postings"])
    transaction = Transaction(fields["step"], fields["kind"], postings, fields["memo"])
    return Record(fields["number"], fields["round"], transaction, fields["previous"], fields["hash"])


def write_jsonl(ledger: Ledger, records: Iterable[Record], out: TextIO) -> None:
    """Write a JSON line a transaction."""
    out.writelines(map(line_of, records))


def write_csv(ledger: Ledger, records: Iterable[Record], out: TextIO) -> None:
    """Write a line a posting, with a header."""
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["number", "round", "step", "kind", "account", "units", "tokens", "memo", "hash"])
    for record in records:
        t = record.transaction
        for account, units in t.postings:
            writer.writerow(
                [record.number, record.round, t.step, t.kind, account, units, tokens(units), t.memo, record.hash]
            )


def write_journal(ledger: Ledger, records: Iterable[Record], out: TextIO) -> None:
    """Write a journal that hledger reads.

    A round is a day, counted from 2000-01-01; the transaction's number is its code, the kind its description; the mint
    is equity, escrow and the clients' accounts are assets, pools are liabilities towards those who will be paid.
    """
    out.write(f"; book {ledger.book}, amounts in tokens; a round is a day from {FIRST_DAY} on\n")
    out.write("commodity 1000.000000 tok\n\n")
    for record in records:
        t = record.transaction
        memo = f" | {_plain(t.memo)}" if t.memo else ""
        out.write(f"{FIRST_DAY + timedelta(days=record.round)} * ({record.number}) {_plain(t.kind)}{memo}\n")
        out.write(f"    ; step: {_plain(t.step)}\n    ; hash: {record.hash}\n")
        out.writelines(f"    {_journal_account(name)}  {tokens(units)} tok\n" for name, units in t.postings)
        out.write("\n")


def _plain(text: str) -> str:
    """Return text without what begins a comment or a tag's end in a journal."""
    return text.replace(";", ",").replace("\t", " ")


def _journal_account(name: str) -> str:
    if name == MINT:
        return "equity:mint"
    kind, _, rest = name.partition("/")
    return f"{'liabilities' if kind == 'pool' else 'assets'}:{kind}:{_plain(rest)}"


FORMATS = {"hledger": write_journal, "csv": write_csv, "json": write_jsonl}
