"""Reads and writes rows of a book inside a database transaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, insert, select, update

from hanse.core.book import Book, LedgerError
from hanse.core.entry import GENESIS, MINT, Transaction, digest
from hanse.ledger.tables import accounts, postings, transactions

__all__ = ["Record", "Tail", "append", "balances_of", "hash_of", "known_of", "lines_of", "tail_of"]

FEW = 400  # accounts that are looked up by name; more are read all at once


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


def tail_of(connection: Connection, book: int) -> Tail:
    """Return the last transaction's place, hash and round."""
    t = transactions.c
    wanted = select(t.number, t.hash, t.round).where(t.book_id == book)
    found = connection.execute(wanted.order_by(t.number.desc()).limit(1)).one_or_none()
    return Tail() if found is None else Tail(found.number, found.hash, found.round)


def hash_of(connection: Connection, book: int, number: int) -> str:
    """Return the hash of a book's ``number``-th transaction; of none before the first. The book must have as many."""
    t = transactions.c
    wanted = select(t.hash).where(t.book_id == book, t.number == number)
    return GENESIS if number == 0 else str(connection.execute(wanted).scalar_one())


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


def known_of(connection: Connection, book: int, round: int, wanted: Mapping[str, Transaction]) -> dict[str, Record]:
    """Return the records, by step, of what the round has already. Raises LedgerError if its content differs."""
    t = transactions.c
    rows = connection.execute(select(t.number, t.step, t.previous, t.hash).where(t.book_id == book, t.round == round))
    known = {}
    for number, step, previous, hash_ in rows:
        if step in wanted:
            if digest(previous, round, wanted[step]) != hash_:
                raise LedgerError(f"transaction '{step}': round {round} has one of this name with other content")
            known[step] = Record(number, round, wanted[step], previous, hash_)
    return known


def append(connection: Connection, book: int, floor: int, round: int, fresh: Sequence[Transaction]) -> list[Record]:
    """Write new transactions of a round behind the book's last one, with their hashes, and return their records.

    Accounts are opened with ``floor`` (units). Raises LedgerError for what cannot be posted.
    """
    a, t = accounts.c, transactions.c
    tail = tail_of(connection, book)
    names = {account for transaction in fresh for account, _ in transaction.postings}
    existing = select(a.name, a.id, a.balance).where(a.book_id == book)
    if len(names) <= FEW:
        existing = existing.where(a.name.in_(names))
    rows = connection.execute(existing).all()
    before = Book({name: balance for name, _, balance in rows}, tail.hash, tail.number, floor, tail.round)
    _, hashes = before.chain(round, fresh)

    number_of = {name: id_ for name, id_, _ in rows}
    if missing := sorted(names - number_of.keys()):
        connection.execute(
            insert(accounts),
            [
                {"book_id": book, "name": name, "floor": None if name == MINT else floor, "balance": 0}
                for name in missing
            ],
        )
        number_of = {name: id_ for name, id_, _ in connection.execute(existing)}
    records = [
        Record(tail.number + 1 + i, round, transaction, previous, hash_)
        for i, (transaction, previous, hash_) in enumerate(zip(fresh, [tail.hash, *hashes[:-1]], hashes, strict=True))
    ]
    connection.execute(
        insert(transactions),
        [
            {
                "book_id": book,
                "number": r.number,
                "round": round,
                "step": r.transaction.step,
                "kind": r.transaction.kind,
                "memo": r.transaction.memo,
                "previous": r.previous,
                "hash": r.hash,
                "sealed": False,
            }
            for r in records
        ],
    )
    mine = (t.book_id == book) & (t.number > tail.number)
    id_of = {row.number: row.id for row in connection.execute(select(t.number, t.id).where(mine))}
    connection.execute(
        insert(postings),
        [
            {"transaction_id": id_of[r.number], "line": line, "account_id": number_of[name], "amount": units}
            for r in records
            for line, (name, units) in enumerate(r.transaction.postings)
        ],
    )
    connection.execute(update(transactions).where(mine).values(sealed=True))
    return records
