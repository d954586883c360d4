"""The transactions of a book in other formats: a journal for hledger, and CSV; the log itself is JSON lines.

``FORMATS`` maps the names that ``hanse ledger export --format`` takes to the writers.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date, timedelta
from itertools import chain
from typing import TextIO

from hanse.base import files
from hanse.core.entry import MINT, tokens
from hanse.ledger.log import Record
from hanse.ledger.store import Ledger

FIRST_DAY = date(2000, 1, 1)  # the date of round 0 in an hledger journal, which knows days but no rounds


def write_csv(ledger: Ledger, records: Iterable[Record], out: TextIO) -> None:
    """Write a header, then one line for each posting, with the amount both in units and in tokens.

    Args:
        ledger: the open ledger.
        records: which transactions, such as ``ledger.history()``.
        out: a text file to write into.
    """
    rows = (
        [r.number, r.round, r.transaction.step, r.transaction.kind, name, units, tokens(units), r.transaction.memo]
        for r in records
        for name, units in r.transaction.postings
    )
    header = ["number", "round", "step", "kind", "account", "units", "tokens", "memo"]
    files.write_csv(out, chain([header], rows))


def write_journal(ledger: Ledger, records: Iterable[Record], out: TextIO) -> None:
    """Write a journal that hledger reads, with amounts in tokens.

    Each round becomes a day, counted from 2000-01-01. A transaction's number is its code, and its kind (with the memo
    behind a bar) is its description. The mint becomes equity, and clients and escrows become assets. Pools become
    liabilities, because they are owed to whoever will be paid from them.

    Args:
        ledger: the open ledger.
        records: which transactions, such as ``ledger.history()``.
        out: a text file to write into.
    """
    out.write(f"; book {ledger.book}, amounts in tokens; a round is a day from {FIRST_DAY} on\n")
    out.write("commodity 1000.000000 tok\n\n")  # tells hledger to show six decimals
    for record in records:
        t = record.transaction
        memo = f" | {_plain(t.memo)}" if t.memo else ""
        out.write(f"{FIRST_DAY + timedelta(days=record.round)} * ({record.number}) {_plain(t.kind)}{memo}\n")
        out.write(f"    ; step: {_plain(t.step)}\n")
        out.writelines(f"    {_journal_account(name)}  {tokens(units)} tok\n" for name, units in t.postings)
        out.write("\n")


def _plain(text: str) -> str:
    """Return text with the characters replaced that would start a comment or split a line into fields in a journal."""
    return text.replace(";", ",").replace("\t", " ")


def _journal_account(name: str) -> str:
    """Return the hledger account for one of ours, such as ``assets:client:3`` for ``client/3``."""
    if name == MINT:
        return "equity:mint"
    kind, _, rest = name.partition("/")
    return f"{'liabilities' if kind == 'pool' else 'assets'}:{kind}:{_plain(rest)}"


FORMATS = {"hledger": write_journal, "csv": write_csv}
