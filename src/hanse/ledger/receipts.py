"""Receipts: what a participant keeps of each round, so that it can hold the ledger to account later.

The hash chain shows that nothing inside a book was changed. It does not show that the end was not cut off, or that
whoever keeps the book did not write all of it anew. A receipt names the head of the chain at the end of a round.
Participants keep theirs where the operator cannot write, and sign them if their node has an Ed25519 key.

A run makes its receipts with :func:`make_receipts` and stores them with :func:`write_receipts`. Later
:func:`read_receipts` reads a folder of them, and :class:`Comparison` (used by ``hanse ledger verify`` and ``hanse
statement``) compares each with the book at the place that it names.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hanse.base.errors import UserError, library
from hanse.core.book import Book
from hanse.core.declared import Declared
from hanse.core.entry import Transaction, client, escrow

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey


@dataclass(frozen=True)
class Receipt:
    """What one client was told about the book at the end of a round.

    Attributes:
        book: the book's name.
        round: the round.
        client: the client's number.
        count: how many transactions the book had.
        head: the hash of the last of them.
        balance: units in the client's account.
        escrow: units in the client's escrow account.
        postings: the round's postings to these two accounts, as (step, account, units) in the book's order.
        key: the node's public key (Ed25519, 64 hexadecimal digits); empty if the receipt is not signed.
        signature: of :meth:`statement`, 128 hexadecimal digits; empty if the receipt is not signed.

    Examples:
        >>> from hanse.runs.rehearsal import rehearse
        >>> small = rehearse("ipfl")
        >>> receipts = make_receipts("mine", 0, small.played.state.book, small.view.posted)
        >>> [receipt.client for receipt in receipts], receipts[0].round
        ([0, 1, 2, 3], 0)
    """

    book: str
    round: int
    client: int
    count: int
    head: str
    balance: int
    escrow: int
    postings: tuple[tuple[str, str, int], ...] = ()
    key: str = ""
    signature: str = ""

    @staticmethod
    def read(line: bytes) -> Receipt:
        """Return the receipt on a line of JSON. Raises ValueError if the line is not one."""
        return _RECEIPT.read(line.decode())

    def unsigned(self) -> Receipt:
        """Return the receipt without key and signature, as the operator sent it."""
        return replace(self, key="", signature="")

    def statement(self) -> bytes:
        """Return the bytes that a signature covers: compact JSON of all fields but the signature, with sorted keys."""
        fields = asdict(self)
        del fields["signature"]
        return json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()

    def sign(self, key: Ed25519PrivateKey) -> Receipt:
        """Return a copy with the key's public half and its signature."""
        named = replace(self, key=key.public_key().public_bytes_raw().hex(), signature="")
        return replace(named, signature=key.sign(named.statement()).hex())

    def genuine(self) -> bool:
        """Say whether the signature matches the receipt and its key. A receipt without a signature passes.

        The key in a receipt is only a claim. Compare it with the key by which the participant is known.

        Raises:
            UserError: the receipt is signed and the package ``cryptography`` is not installed.
        """
        if not self.signature and not self.key:
            return True
        _, public = _ed25519()
        from cryptography.exceptions import InvalidSignature

        try:
            public.from_public_bytes(bytes.fromhex(self.key)).verify(bytes.fromhex(self.signature), self.statement())
        except (InvalidSignature, ValueError):
            return False
        return True


_RECEIPT = Declared[Receipt](Receipt)


def make_receipts(
    run: str, round: int, book: Book, posted: Iterable[Transaction], clients: Iterable[int] | None = ()
) -> list[Receipt]:
    """Return the receipts of a finished round, sorted by client.

    Every client gets one whose account or escrow the round touched, and so does every client in ``clients``.

    Args:
        run: the book's name.
        round: the round.
        book: the book as it stands after the round.
        posted: the round's transactions, in their order.
        clients: further clients that get a receipt; None means all that have an account.
    """
    if clients is None:
        clients = [int(account.removeprefix("client/")) for account in book.balances if account.startswith("client/")]
    moved: dict[int, list[tuple[str, str, int]]] = {c: [] for c in clients}
    for transaction in posted:
        for account, units in transaction.postings:
            kind, _, number = account.partition("/")
            if kind in ("client", "escrow"):
                moved.setdefault(int(number), []).append((transaction.step, account, units))
    return [
        Receipt(
            book=run,
            round=round,
            client=c,
            count=book.count,
            head=book.head,
            balance=book.balance(client(c)),
            escrow=book.balance(escrow(c)),
            postings=tuple(lines),
        )
        for c, lines in sorted(moved.items())
    ]


def write_receipts(
    folder: Path, receipts: Iterable[Receipt], keys: Mapping[int, Ed25519PrivateKey] | None = None
) -> None:
    """Append each receipt to its client's file, ``client-N.jsonl`` in ``folder``, and sign it if there is a key.

    A receipt that is already among the last lines of the file is not written again. This happens when a round is sent
    again after a crash.

    Args:
        folder: created if it is missing.
        receipts: of any clients and rounds, in order.
        keys: private keys by client number.
    """
    folder.mkdir(parents=True, exist_ok=True)
    by_client: dict[int, list[Receipt]] = {}
    for receipt in receipts:
        by_client.setdefault(receipt.client, []).append(receipt)
    for number, mine in by_client.items():
        path, key = folder / f"client-{number}.jsonl", (keys or {}).get(number)
        there = _last(path, len(mine))
        new = [receipt for receipt in mine if receipt.unsigned() not in there]
        _cut(path)
        with path.open("a") as file:
            file.writelines(json.dumps(asdict(r if key is None else r.sign(key))) + "\n" for r in new)


def _cut(path: Path) -> None:
    """Take away what a crash left of a last line; its receipt is sent again. Another one would be glued to it."""
    if not path.exists():
        return
    with path.open("rb+") as file:
        whole = file.read().rfind(b"\n") + 1
        file.truncate(whole)


def _last(path: Path, count: int | None) -> list[Receipt]:
    """Return the last ``count`` receipts of a file (None: all), without signatures. Lines that are no receipts are
    skipped.
    """
    found: list[Receipt] = []
    if path.exists():
        with path.open("rb") as file:
            for line in deque(file, maxlen=count):
                with suppress(ValueError):  # a crash cut the line short
                    found.append(Receipt.read(line).unsigned())
    return found


def book_of(path: Path) -> str:
    """Return the book of the last whole receipt in a file; "" if there is none."""
    kept = _last(path, 2)  # the very last may be what a crash left
    return kept[-1].book if kept else ""


def contradiction(path: Path, told: Iterable[Receipt]) -> str:
    """Return why receipts cannot be of one growing book with those in a file; "" if they can.

    In such a book the number of transactions and the rounds never go back, and each number has one head. Receipts that
    are in the file already are passed over: they are sent again if an answer was lost.

    Args:
        path: the client's file, as :func:`write_receipts` makes it.
        told: new receipts of the same client, in order.
    """
    told = list(told)
    kept = _last(path, len(told) + 1)
    for receipt in told:
        if receipt in kept:
            continue
        if kept and (why := _unlike(kept[-1], receipt)) and receipt not in _last(path, None):
            return why
        kept.append(receipt)
    return ""


def _unlike(before: Receipt, after: Receipt) -> str:
    """Return why ``after`` cannot be a later receipt of the same book; "" if it can."""
    here, there = f"the receipt of round {after.round}", f"that of round {before.round}"
    if after.book != before.book:
        return f"{here} is of another book, '{after.book}'; {there} was of '{before.book}'"
    if after.count < before.count:
        return f"{here} says {after.count} transactions; {there} said {before.count}"
    if after.count == before.count and after.head != before.head:
        return f"{here} has another head for {after.count} transactions than {there}: {after.head}, not {before.head}"
    if after.round <= before.round:
        return f"{here} differs from {there}, which was the last of its round: {after.count} transactions"
    return ""


def read_receipts(folder: Path) -> Iterator[Receipt]:
    """Yield all receipts in the ``*.jsonl`` files of a folder. A last line that a crash cut short is skipped.

    Raises:
        UserError: the folder has no such file or no receipt in any, or a line is not a receipt.
    """
    some = False
    files = sorted(folder.glob("*.jsonl"))
    if not files:
        raise UserError(f"--receipts {folder}: has no receipts (*.jsonl)")
    for path in files:
        if not path.is_file():
            raise UserError(f"--receipts {path}: is not a file")
        with path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                if not line.endswith(b"\n"):
                    continue  # a crash cut the line short
                try:
                    found = Receipt.read(line)
                except ValueError as wrong:
                    raise UserError(f"--receipts {path}: line {number}: is not a receipt ({wrong})") from None
                some = True
                yield found
    if not some:
        raise UserError(f"--receipts {folder}: its files hold no whole receipt, so there is nothing to compare")


@dataclass(frozen=True)
class Difference:
    """A disagreement between a receipt and the book.

    Attributes:
        receipt: the receipt.
        field: the field of the receipt, or "signature".
        said: its value in the receipt.
        found: its value according to the book.
    """

    receipt: Receipt
    field: str
    said: Any
    found: Any


def foreign(receipt: Receipt, book: str) -> list[Difference]:
    """Return why a receipt does not belong to this book: another book's name, a wrong signature, or both."""
    found = [] if receipt.book == book else [Difference(receipt, "book", receipt.book, book)]
    if not receipt.genuine():
        found.append(Difference(receipt, "signature", "signed by its key", "the signature is wrong"))
    return found


def _round_of(receipt: Receipt) -> int:
    return receipt.round


class Comparison:
    """Compares receipts with a book while somebody walks along the book.

    Call :meth:`reached` for each transaction in order. Each receipt is compared as soon as the walk reaches the number
    of transactions that it names, so a single pass over the history serves all receipts. A receipt also closes its
    round: no transaction behind it may be dated in that round or an earlier one. At the end, :meth:`unmet` has those
    that name more transactions than the book has.
    """

    def __init__(self, receipts: Iterable[Receipt]) -> None:
        self._waiting: dict[int, list[Receipt]] = {}  # not compared yet, by the number of transactions they saw
        self._held: dict[str, int] = {}  # units by account, only for accounts of clients that have receipts
        self._lines: dict[int, list[tuple[str, str, int]]] = {}  # postings of the current round, by client
        self._round = -1
        self._closing: Receipt | None = None  # of the receipts compared so far the one with the latest round
        for receipt in receipts:
            self._waiting.setdefault(receipt.count, []).append(receipt)
            self._held |= {client(receipt.client): 0, escrow(receipt.client): 0}

    def reached(
        self, number: int, round: int, head: str, step: str = "", postings: Iterable[tuple[str, int]] = ()
    ) -> list[Difference]:
        """Take in the next transaction and return where it, or the book up to it, differs from the receipts.

        Args:
            number: the transaction's number; 0, with nothing else, stands for the empty book.
            round: its round.
            head: its hash.
            step: its step.
            postings: its postings, (account, units).
        """
        if round != self._round:
            self._round, self._lines = round, {}
        for account, units in postings:
            if account in self._held:
                self._held[account] += units
                self._lines.setdefault(int(account.partition("/")[2]), []).append((step, account, units))
        late = [] if number == 0 else self._late(number, round)
        ending = self._waiting.pop(number, [])
        self._closing = max([*([self._closing] if self._closing else []), *ending], key=_round_of, default=None)
        return late + [difference for r in ending for difference in self._compared(r, head)]

    def _late(self, number: int, round: int) -> list[Difference]:
        """Return the difference of a transaction that is dated in a round which a receipt before it has closed."""
        closing = self._closing
        if closing is None or round > closing.round:
            return []
        return [Difference(closing, "count", closing.count, f"transaction {number}, dated round {round}")]

    def _compared(self, receipt: Receipt, head: str) -> list[Difference]:
        """Return where a receipt differs from the book as it stands at this place of the walk."""
        there = {
            "head": head,
            "balance": self._held[client(receipt.client)],
            "escrow": self._held[escrow(receipt.client)],
            # a round that posted nothing leaves the walk at an earlier round, and its receipt has no postings
            "postings": tuple(self._lines.get(receipt.client, ())) if receipt.round == self._round else (),
        }
        said = {name: getattr(receipt, name) for name in there}
        return [Difference(receipt, name, said[name], there[name]) for name in there if said[name] != there[name]]

    def unmet(self) -> list[Receipt]:
        """Return the receipts that name more transactions than the walk has reached."""
        return [receipt for receipts in self._waiting.values() for receipt in receipts]


def load_key(path: Path) -> Ed25519PrivateKey:
    """Read an Ed25519 private key without a password, in PEM or OpenSSH format.

    Raises:
        UserError: the file is no such key, or the package ``cryptography`` is not installed.
    """
    private, _ = _ed25519()
    from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_ssh_private_key

    blob = path.read_bytes()
    try:
        key = (load_ssh_private_key if b"OPENSSH" in blob else load_pem_private_key)(blob, None)
    except (ValueError, TypeError) as wrong:
        raise UserError(f"{path}: is not a private key without a password ({wrong})") from None
    if not isinstance(key, private):
        raise UserError(f"{path}: is not an Ed25519 key")
    found: Ed25519PrivateKey = key
    return found


def _ed25519() -> tuple[Any, Any]:
    """Return the classes of private and public keys. Raises UserError if ``cryptography`` is not installed."""
    said = "receipts: signed ones need the package 'cryptography'; 'pip install cryptography'"
    found = library("cryptography.hazmat.primitives.asymmetric.ed25519", said)
    return found.Ed25519PrivateKey, found.Ed25519PublicKey
