"""Books to test with: grants, payments through escrow, and random transactions."""

import io
import random
from collections.abc import Iterator, Sequence

import numpy as np

from hanse.core.book import Book, OverdraftError
from hanse.core.entry import MINT, TOKEN, Transaction, client, escrow, pool
from hanse.ledger.receipts import RecordDigest, close
from hanse.ledger.store import Ledger
from hanse.runs.round_record import HASH, file_hash


def grant(i: int, units: int = 100 * TOKEN) -> Transaction:
    return Transaction(f"grant/{i}", "grant", ((MINT, -units), (client(i), units)))


def pay(i: int, j: int, units: int, step: str = "") -> Transaction:
    return Transaction(step or f"pay/{i}/{j}", "market", ((client(i), -units), (client(j), units)), "iPFL eq. (7)")


def fee(i: int, units: int) -> Transaction:
    half = units // 2
    return Transaction(f"fee/{i}", "fee", ((client(i), -units), (pool("tier 0"), half), (escrow(i), units - half)))


def history(rounds: int, clients: int, seed: int = 0) -> list[tuple[int, list[Transaction]]]:
    """Rounds of valid transactions of many forms, a list a round."""
    draw = random.Random(seed)
    book, size = Book(), draw.randint(1, 5) * TOKEN
    told = []
    for number in range(rounds):
        new = [grant(i, size) for i in range(clients)] if number == 0 else []
        for k in range(draw.randint(1, 6) if number else 0):
            candidate = one(draw, clients, f"step/{k}")
            try:
                book.post(number, [*new, candidate])
            except OverdraftError:
                continue
            new.append(candidate)
        book = book.post(number, new)
        told.append((number, new))
    return told


def line_of(number: int, head: str) -> dict[str, object]:
    """The line of the metrics that :func:`closed` commits to, of a round whose file has no arrays."""
    return {"round": number, "ledger/head": head, HASH: file_hash(empty())}


def empty() -> io.BytesIO:
    """The file of a round without arrays."""
    file = io.BytesIO()
    np.savez(file)
    file.seek(0)
    return file


def closed(told: Sequence[tuple[int, list[Transaction]]]) -> list[tuple[int, list[Transaction]]]:
    """The rounds, each with its close, whose record is a line of the metrics alone."""
    book, after = Book(), []
    for number, new in told:
        book = book.post(number, new)
        closing = close(number, book, new, RecordDigest.of(line_of(number, book.head), []))
        book = book.post(number, [closing])
        after.append((number, [*new, closing]))
    return after


def one(draw: random.Random, clients: int, step: str) -> Transaction:
    """A balanced transaction with two to five postings; it may overdraw."""
    names = [MINT, pool("tier 0"), *(client(i) for i in range(clients)), *(escrow(i) for i in range(clients))]
    chosen = draw.sample(names, draw.randint(2, min(5, len(names))))
    amounts = [draw.choice([-1, 1]) * draw.randint(1, 2 * TOKEN) for _ in chosen[1:]]
    if sum(amounts) == 0:
        amounts[0] += 1
    if amounts[0] == 0:
        amounts[0] += 2
    rest = -sum(amounts)
    if rest == 0:
        return Transaction(step, "any", ((chosen[0], 1), (chosen[1], -1)))
    return Transaction(step, draw.choice(["reward", "fee"]), tuple(zip(chosen, [rest, *amounts], strict=True)), "é λ")


def play(ledger: Ledger, told: Sequence[tuple[int, list[Transaction]]]) -> None:
    for number, new in told:
        ledger.post(number, new)


def book_of(told: Sequence[tuple[int, list[Transaction]]], floor: int = 0) -> Book:
    book = Book(floor=floor)
    for number, new in told:
        book = book.post(number, new)
    return book


def flat(told: Sequence[tuple[int, list[Transaction]]]) -> Iterator[tuple[int, Transaction]]:
    for number, new in told:
        for transaction in new:
            yield number, transaction
