"""Transactions, which are what the books record: lists of postings, in whole numbers of the smallest unit.

A token has 1,000,000 units (:data:`TOKEN`). A transaction moves units between accounts. :func:`client`, :func:`escrow`
and :func:`pool` name these accounts; the only other one is the mint. :func:`grant` is what a new client gets, and
:func:`left_behind` what moves when one leaves. :func:`leaf` writes a transaction as a line of the log.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from functools import lru_cache

from hanse.base.plain_text import quantity

TOKEN = 1_000_000  # units of one token
MINT = "mint"  # where grants come from: the only account that may go below its floor
BOND, RETURNED, KEPT = BONDS = ("size bond", "bond returned", "bond kept")  # kinds of transactions of proved sizes
LOG = "transactions.jsonl"  # in a run directory: the book, a line for each transaction
CLOSE = "close"  # step and kind of the line that closes a round; it moves nothing
COMMIT = "commit"  # step and kind of the line that says what a run was committed to before it began; it moves nothing
LEAVE = "leave"  # kind of the line that says that client N has left, whose step is leave/N (:func:`left_behind`)
NO_PAYMENTS = frozenset({CLOSE, COMMIT, LEAVE})


def units_of(tokens: float) -> int:
    """Return an amount of tokens in whole units, rounded down. The integer may be of any size.

    Raises:
        ValueError: the amount is NaN.
        OverflowError: the amount is infinite.

    Examples:
        >>> units_of(1.5)
        1500000
    """
    units = tokens * TOKEN
    return math.floor(units) if math.isfinite(units) else math.floor(tokens) * TOKEN


def tokens(units: int) -> str:
    """Return units as a decimal number of tokens, exactly.

    Examples:
        >>> tokens(1_500_000), tokens(-1)
        ('1.5', '-0.000001')
    """
    whole, rest = divmod(abs(units), TOKEN)
    decimals = f"{rest:06d}".rstrip("0")
    return ("-" if units < 0 else "") + str(whole) + (f".{decimals}" if decimals else "")


def in_tokens(units: int) -> str:
    """Return units as tokens with the word behind the number.

    Examples:
        >>> in_tokens(1_500_000), in_tokens(1_000_000)
        ('1.5 tokens', '1 token')
    """
    return quantity(tokens(units), "token")


def client(i: int) -> str:
    """Return the account of client ``i``."""
    return f"client/{i}"


def escrow(i: int) -> str:
    """Return the account that holds what client ``i`` has bid, until the bid is settled."""
    return f"escrow/{i}"


def pool(name: str) -> str:
    """Return the account of a pool, such as a tier's."""
    return f"pool/{name}"


def left_behind(i: int, returned: int, lost: int) -> tuple[tuple[str, int], ...]:
    """Return the postings of the line that says that client ``i`` has left, by what was agreed for leaving.

    Args:
        i: the client.
        returned: the units in escrow that it gets back.
        lost: the units of its account that go to the mint.

    Examples:
        >>> left_behind(3, 0, 0), left_behind(3, 5, 7)
        ((), (('escrow/3', -5), ('client/3', -2), ('mint', 7)))
    """
    moved = (escrow(i), -returned), (client(i), returned - lost), (MINT, lost)
    return tuple((account, units) for account, units in moved if units)


_encode = json.JSONEncoder(ensure_ascii=True, separators=(",", ":")).encode
_ACCOUNT = re.compile(r"mint|(client|escrow)/(0|[1-9][0-9]{0,17})|pool/\S+( \S+)*")


def is_account(name: object) -> bool:
    """Say whether this is a possible name of an account: the mint, a client's, an escrow or a pool."""
    return isinstance(name, str) and _is_account(name)


@lru_cache(maxsize=1 << 14)
def owner_of(account: str) -> int | None:
    """Return the client whose account or escrow this is; None for any other text."""
    kind, _, number = account.partition("/")
    return int(number) if kind in ("client", "escrow") and is_account(account) else None


@lru_cache(maxsize=1 << 14)
def _is_account(name: str) -> bool:
    """Say the same of a text, once for each of a book's accounts, which stand in many postings."""
    return name.isprintable() and len(name) <= 200 and _ACCOUNT.fullmatch(name) is not None


@dataclass(frozen=True)
class Transaction:
    """A movement of units between accounts.

    Attributes:
        step: the transaction's name, unique within its round. A transaction is identified by its round and step:
            another one with both equal is taken to be the same.
        kind: the heading under which reports group it, such as "grant".
        postings: pairs ``(account, units)``. The units are nonzero integers that sum to zero; what an account pays is
            negative.
        memo: a note for readers, such as the equation that the transaction follows.

    Examples:
        >>> pay = Transaction("gift/0", "gift", (("client/0", -250_000), ("client/1", 250_000)), memo="0.25 tokens")
        >>> sum(units for _, units in pay.postings)
        0
    """

    step: str
    kind: str
    postings: tuple[tuple[str, int], ...]
    memo: str = ""


def grant(to: int, units: int) -> Transaction:
    """Return the transaction by which the mint gives client ``to`` this much."""
    return Transaction(f"grant/{to}", "grant", ((MINT, -units), (client(to), units)))


def part_of(units: int, parts: int, number: int) -> int:
    """Return the units of one part of a grant. Parts sum to the grant and differ by one unit at most.

    Examples:
        >>> [part_of(10, 3, k) for k in range(3)]
        [3, 3, 4]
    """
    return units * (number + 1) // parts - units * number // parts


def leaf(number: int, round: int, transaction: Transaction) -> bytes:
    """Return a transaction as a line of the log, without the newline: a leaf of the book's Merkle tree.

    Args:
        number: the transaction's place in the book, counted from 1.
        round: the round that it belongs to.
        transaction: what is written.

    Examples:
        >>> leaf(1, 0, Transaction("grant/0", "grant", (("mint", -5), ("client/0", 5))))
        b'{"number":1,"round":0,"step":"grant/0","kind":"grant","memo":"","postings":[["mint",-5],["client/0",5]]}'
    """
    t = transaction
    fields = {"number": number, "round": round, "step": t.step, "kind": t.kind, "memo": t.memo, "postings": t.postings}
    return _encode(fields).encode()
