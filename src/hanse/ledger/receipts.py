"""Receipts: what a participant keeps of a round, so that the books can be held against it.

A hash chain shows that nothing in it was changed, but whoever keeps the books could write all of them anew, or leave
out the end. A receipt names the head of the chain as it was; the participants hold theirs where the operator cannot
reach them, and where a node has a key it signs what it keeps.
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
    """The books as client ``client`` was told of them at the end of a round.

    ``count`` transactions led to ``head``; ``balance`` and ``escrow`` are the client's units then; ``postings`` are the
    round's (step, account, units) of its two accounts, in their order. ``key`` (Ed25519, 64 hexadecimal digits) and
    ``signature`` are empty if its node has no key.
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
        """Return the receipt in a line of JSON. Raises ValueError."""
        return _RECEIPT.read(line.decode())

    def unsigned(self) -> Receipt:
        """Return the receipt as it was told: without key and signature."""
        return replace(self, key="", signature="")

    def statement(self) -> bytes:
        """Return the bytes that are signed: everything but the signature."""
        fields = asdict(self)
        del fields["signature"]
        return json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()

    def sign(self, key: Ed25519PrivateKey) -> Receipt:
        """Return the receipt with the key's signature."""
        named = replace(self, key=key.public_key().public_bytes_raw().hex(), signature="")
        return replace(named, signature=key.sign(named.statement()).hex())

    def genuine(self) -> bool:
        """Say whether the signature is right; a receipt without one is taken as it is.

        Raises UserError if it is signed and the package ``cryptography`` is not installed.
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
    """Return the receipts of a finished round, by client: of all whose accounts it touched, and of ``clients`` (None:
    of all who have an account).

    ``book`` is as it stands after the round, ``posted`` what the round posted, in its order, ``run`` the book's name.
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
    """Add each receipt to its client's file, ``folder/client-N.jsonl``, signed if ``keys`` has the client's key.

    Receipts that stand at the end of the file already (told again after a crash) are not written twice.
    """
    folder.mkdir(parents=True, exist_ok=True)
    by_client: dict[int, list[Receipt]] = {}
    for receipt in receipts:
        by_client.setdefault(receipt.client, []).append(receipt)
    for number, mine in by_client.items():
        path, key = folder / f"client-{number}.jsonl", (keys or {}).get(number)
        there = _last(path, len(mine))
        new = [receipt for receipt in mine if receipt.unsigned() not in there]
        with path.open("a") as file:
            file.writelines(json.dumps(asdict(r if key is None else r.sign(key))) + "\n" for r in new)


def _last(path: Path, count: int) -> list[Receipt]:
    """Return the last receipts of a file, without their signatures."""
    found: list[Receipt] = []
    if path.exists():
        with path.open("rb") as file:
            for line in deque(file, maxlen=count):
                with suppress(ValueError):  # torn by a crash while it was written
                    found.append(Receipt.read(line).unsigned())
    return found


def read_receipts(folder: Path) -> Iterator[Receipt]:
    """Yield the receipts in all ``*.jsonl`` files of a folder. Raises UserError for a line that is none."""
    files = sorted(folder.glob("*.jsonl"))
    if not files:
        raise UserError(f"--receipts {folder}: has no receipts (*.jsonl)")
    for path in files:
        with path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                if not line.endswith(b"\n"):
                    continue  # torn by a crash while it was written
                try:
                    yield Receipt.read(line)
                except ValueError as wrong:
                    raise UserError(f"--receipts {path}: line {number}: is not a receipt ({wrong})") from None


@dataclass(frozen=True)
class Difference:
    """A ``field`` of a receipt in which the receipt (``said``) and the book (``found``) differ."""

    receipt: Receipt
    field: str
    said: Any
    found: Any


def foreign(receipt: Receipt, book: str) -> list[Difference]:
    """Return what makes a receipt none of this book's: another book's name, a wrong signature."""
    found = [] if receipt.book == book else [Difference(receipt, "book", receipt.book, book)]
    if not receipt.genuine():
        found.append(Difference(receipt, "signature", "signed by its key", "the signature is wrong"))
    return found


class Comparison:
    """Holds receipts of one book against it. It is told of every transaction in order (:meth:`reached`), and compares
    each receipt at the place in the chain that the receipt names.
    """

    def __init__(self, receipts: Iterable[Receipt]) -> None:
        self._waiting: dict[int, list[Receipt]] = {}  # by the number of transactions that they saw
        self._held: dict[str, int] = {}  # units of the accounts that the receipts are of
        self._lines: dict[int, list[tuple[str, str, int]]] = {}  # of the round, by client
        self._round = -1
        for receipt in receipts:
            self._waiting.setdefault(receipt.count, []).append(receipt)
            self._held |= {client(receipt.client): 0, escrow(receipt.client): 0}

    def reached(
        self, number: int, round: int, head: str, step: str = "", postings: Iterable[tuple[str, int]] = ()
    ) -> list[Difference]:
        """Take in transaction ``number`` (0: the beginning) with its ``postings`` (account, units), and return where
        receipts that saw so many transactions differ from the book.
        """
        if round != self._round:
            self._round, self._lines = round, {}
        for account, units in postings:
            if account in self._held:
                self._held[account] += units
                self._lines.setdefault(int(account.partition("/")[2]), []).append((step, account, units))
        return [difference for r in self._waiting.pop(number, ()) for difference in self._compared(r, head)]

    def _compared(self, receipt: Receipt, head: str) -> list[Difference]:
        there = {
            "head": head,
            "balance": self._held[client(receipt.client)],
            "escrow": self._held[escrow(receipt.client)],
            "postings": tuple(self._lines.get(receipt.client, ())) if receipt.round == self._round else (),
        }
        said = {name: getattr(receipt, name) for name in there}
        return [Difference(receipt, name, said[name], there[name]) for name in there if said[name] != there[name]]

    def unmet(self) -> list[Receipt]:
        """Return the receipts that saw more transactions than were reached."""
        return [receipt for receipts in self._waiting.values() for receipt in receipts]


def load_key(path: Path) -> Ed25519PrivateKey:
    """Read an Ed25519 private key (PEM or OpenSSH). Raises UserError if the file is none."""
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
    said = "receipts: signed ones need the package 'cryptography'; 'pip install cryptography'"
    found = library("cryptography.hazmat.primitives.asymmetric.ed25519", said)
    return found.Ed25519PrivateKey, found.Ed25519PublicKey
