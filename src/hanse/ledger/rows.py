"""Reads rows of a book inside a database transaction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, select

from hanse.ledger.entry import GENESIS, Transaction
from hanse.ledger.tables import accounts, postings, transactions

__all__ = ["Record", "Tail", "balances_of", "lines_of", "tail_of"]


@dataclass(frozen=True)
class Record:
    """A transaction as it stands in the book: its place (1, 2, ...), its round, and its link of the hash chain."""

    number: int
    round: int
    transaction: Transaction
    previous: str
    hash: str


@dataclass(frozen=True)
class Tail:
    """Where a book ends: its last transaction's place, hash and round."""

    number: int = 0
    hash: str = GENESIS
    round: int = 0


def tail_of(connection: Connection, book: int, before: int | None = None) -> Tail:
    """Return the last transaction's place, hash and round (of the rounds ``before`` one)."""
    t = transactions.c
    wanted = select(t.number, t.hash, t.round).where(t.book_id == book)
    if before is not None:
        wanted = wanted.where(t.round < before)
    found = connection.execute(wanted.order_by(t.number.desc()).limit(1)).one_or_none()
    return Tail() if found is None else Tail(found.number, found.hash, found.round)


def balances_of(connection: Connection, book: int) -> dict[str, int]:
    """Return the units of every account, in the order in which they were opened."""
    a = accounts.c
    rows = connection.execute(select(a.name, a.balance).where(a.book_id == book).order_by(a.id))
    return {row.name: row.balance for row in rows}


def lines_of(connection: Connection, ids: Sequence[int]) -> dict[int, list[tuple[str, int]]]:
    """Return the postings of transactions, by their ids."""
    a, p = accounts.c, postings.c
    found: dict[int, list[tuple[str, int]]] = {}
    wanted = select(p.transaction_id, a.name, p.amount).join(accounts, a.id == p.account_id)
    wanted = wanted.order_by(p.transaction_id, p.line)
    for start in range(0, len(ids), 500):  # databases bound the number of parameters
        for id_, name, units in connection.execute(wanted.where(p.transaction_id.in_(ids[start : start + 500]))):
            found.setdefault(id_, []).append((name, units))
    return found
