"""The account book on disk: an append-only log of transactions, and its heads.

Use it to post payments or to read balances and history. :class:`Ledger` is the whole interface. It takes
:class:`hanse.core.entry.Transaction` objects. It returns :class:`Record` objects, which add a transaction's place in
the book.

A book is two files. The log, ``transactions.jsonl``, has a line for each transaction; the lines are the leaves of a
Merkle tree (RFC 9162). The heads, ``transactions.heads``, have a note after each posting, with the number of
transactions and the root of the tree. Lines after the last head are not part of the book: an interrupted posting does
not count. Every reader checks what it reads against the heads and the rules of :mod:`hanse.core.book`.

The transactions of one call are written all or none, and are on disk when the call returns. A transaction that is sent
twice is written only once.

That a book was cut off, or rewritten consistently, cannot be detected from the book itself: :meth:`Ledger.verify`
compares it with receipts or heads from outside. :class:`Issuer` makes a run's receipts from its log.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from types import MappingProxyType
from typing import IO

from hanse.base.errors import UserError
from hanse.base.lock import flock
from hanse.base.merkle import Tree, as_text, root_of
from hanse.base.plain_text import quantity
from hanse.core.book import Book, DamagedError, LedgerError, MutableBook
from hanse.core.entry import Transaction
from hanse.ledger.log import LogHead, Record, Walk, heads_of
from hanse.ledger.note import PrivateKey, public_of
from hanse.ledger.receipts import NOTHING, Closed, Closes, Receipt, RecordDigest, Records, close


@dataclass(frozen=True)
class VerifyResult:
    """What was checked, and the first fault, if any. The counts cover what was checked before it.

    Attributes:
        transactions: how many transactions were checked and found right.
        postings: how many postings these transactions have.
        accounts: how many accounts these transactions touch.
        head: the recomputed root of the tree over these transactions.
        wrong: the first fault in words. None: the book is sound.
        closed: the rounds that it has closed; empty unless they were compared with a run's records.
        minted: the units that transactions of each kind took from the mint.
    """

    transactions: int
    postings: int
    accounts: int
    head: str
    wrong: str | None = None
    closed: frozenset[int] = frozenset()
    minted: Mapping[str, int] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether the book holds."""
        return self.wrong is None


def _first_wrong(
    walk: Walk,
    receipts: Iterable[Receipt],
    heads: dict[str, str],
    lacking: Callable[[int], Iterable[tuple[int, Transaction]]],
    closes: Closes | None,
    met: Callable[[Record], object],
) -> str:
    """Return the first claim of others about the book that does not hold, or "". The arguments are those of
    :meth:`Ledger.verify`.

    Claims are ticked off while the walk passes the place that they speak of; what remains at the end speaks of
    something that the book does not have.
    """
    faults = [(receipt, receipt.wrong(walk.book, walk.public)) for receipt in receipts]
    told, tally = {receipt.root: receipt for receipt, fault in reversed(faults) if fault is None}, walk.tally
    for record in walk.records():
        if (heads or told) and tally.count == walk.count:  # heads are those of whole postings
            heads.pop(tally.head, None)
            told.pop(tally.head, None)
        if closes and (wrong := closes.wrong(record, tally, walk.before)):
            return wrong
        met(record)
    for receipt, fault in faults:  # after faults in rows
        if fault is not None:
            return f"{receipt.who}: {fault}"
    if told:
        first = min(told.values(), key=lambda receipt: receipt.count)
        if first.count > tally.count:
            saw = quantity(first.count, "transaction")
            return f"{first.who}: saw {saw}, the book has {tally.count}: its tail is cut"
        return f"{first.who}: root after transaction {first.count}: is not the book's, which was written anew"
    after = MutableBook.of(tally.book())
    with suppress(LedgerError):  # if they cannot follow, the heads after them are left over
        for round, transaction in lacking(tally.count):
            after.add(round, transaction)
            heads.pop(after.head, None)
    lost = (
        f"{who}: head {head} is not in the book: its tail is cut, or it was written anew" for head, who in heads.items()
    )
    return next(lost, "")


LONGEST_NAME = 100  # characters of a book's name, which stands twice in each head and receipt


@dataclass(eq=False)
class Ledger:
    """One book, usually the book of one run. Use :meth:`open` to get one.

    Files are never open between calls. Several processes may write to the same book at once: they take turns.

    Attributes:
        file: the log. The heads are in the file next to it with the suffix ``.heads``.
        book: the book's name.
        floor: the lowest balance, in units, that any account except the mint may have.
        read_only: whether :meth:`post` is refused.
        public: the operator's key (32 bytes), which signs each head. None: heads are not signed.

    Examples:
        Two clients get a grant of one token each from the mint, and one pays the other a quarter of a token:

        >>> from hanse.core.entry import MINT, TOKEN, Transaction, client
        >>> from hanse.ledger.store import Ledger
        >>> ledger = Ledger.open("town.jsonl")
        >>> for i in (0, 1):
        ...     postings = ((MINT, -TOKEN), (client(i), TOKEN))
        ...     [record] = ledger.post(0, [Transaction(f"grant/{i}", "grant", postings)])
        >>> gift = Transaction("gift", "gift", ((client(0), -TOKEN // 4), (client(1), TOKEN // 4)))
        >>> ledger.post(1, [gift])[0].number
        3
        >>> ledger.as_book().balances
        {'mint': -2000000, 'client/0': 750000, 'client/1': 1250000}
        >>> ledger.verify().ok
        True
    """

    file: Path
    book: str
    floor: int
    read_only: bool
    _key: PrivateKey | None
    public: bytes | None
    _walk: Walk | None = None  # the last one that came to its end: the next goes on from there

    @staticmethod
    def open(
        file: str | Path,
        *,
        book: str = "main",
        floor: int = 0,
        read_only: bool = False,
        key: PrivateKey | None = None,
        public: bytes | None = None,
    ) -> Ledger:
        """Open a book. A book that does not exist is created, unless ``read_only``.

        Args:
            file: the log.
            book: the book's name, which its heads contain.
            floor: the lowest balance, in units, that any account except the mint may have.
            read_only: whether the book is opened only for reading. Whether it exists is then checked when it is read. A
                reader never waits for a writer.
            key: the operator's Ed25519 key, which signs the heads that are written here (:mod:`hanse.ledger.note`).
            public: the key (32 bytes) whose signature heads must have. Default: the public half of ``key``.

        Raises:
            UserError: ``book`` is not a line of 1 to 100 characters, or, if there is a key, contains a space or a plus.
            OSError: the book cannot be created.

        Examples:
            A book keeps its contents when it is opened again:

            >>> from hanse.core.entry import MINT, Transaction
            >>> ledger = Ledger.open("book.jsonl", book="town")
            >>> posted = ledger.post(0, [Transaction("grant/0", "grant", ((MINT, -5), ("client/0", 5)))])
            >>> Ledger.open("book.jsonl", book="town", read_only=True).as_book().balance("client/0")
            5
        """
        file = Path(file)
        if not 0 < len(book) <= LONGEST_NAME or not book.isprintable():
            raise UserError(f"book: {book[:200]!r}: must be a line of text of 1 to {LONGEST_NAME} characters")
        if not read_only and not file.exists():
            for new in (heads_of(file), file):  # the log last: one without heads is taken for damage
                new.touch()
        return Ledger(file, book, floor, read_only, key, public_of(key) if public is None and key else public)

    # ---- writing

    def post(self, round: int, new: Iterable[Transaction]) -> list[Record]:
        """Write transactions of one round, all of them or none, and return their records in the order given.

        A transaction's key is (round, step). If the book already has a transaction with this key and the same content,
        it is not written again, and its existing record is returned. So you can safely send a round again after a
        crash.

        Args:
            round: the round, at least 0. It must not be before the round of the book's last transaction, unless all of
                ``new`` is in the book already.
            new: the transactions, in the order of the book.

        Raises:
            LedgerError: a transaction is malformed, its key exists with other content, the round is in the past, or the
                ledger is read-only. Nothing is written.
            OverdraftError: a payer would end below its floor. Nothing is written.
            DamagedError: the existing book is damaged.
            OSError: the book cannot be written. It stays as it was.
        """
        if self.read_only:
            raise LedgerError(f"{self.file}: is open for reading only")
        wanted: dict[str, Transaction] = {}
        order = []
        for transaction in new:
            order.append(transaction.step)
            if wanted.setdefault(transaction.step, transaction) != transaction:
                raise LedgerError(f"transaction '{transaction.step}': comes twice with different content")
        with self._turn() as (log, heads, walk):
            known = self._known(walk.tally, round, wanted)
            fresh = [t for step, t in wanted.items() if step not in known]
            if fresh:
                tally = MutableBook.of(walk.tally.book())
                lines = b"".join(tally.add(round, t) + b"\n" for t in fresh)
                head = LogHead(self.book, tally.count, root_of(tally.peaks), round).signed(self._key)
                note = head.note().encode()
                for file, blob in ((log, lines), (heads, note)):  # the head last: with it the lines count
                    file.write(blob)
                    file.flush()
                    os.fsync(file.fileno())
                first = walk.tally.count + 1
                known |= {t.step: Record(first + i, round, t) for i, t in enumerate(fresh)}
                at = (walk.lines + len(lines), walk.notes + len(note), tally.count)
                self._walk = Walk(self.file, self.book, tally, *at, head=head, public=self.public)
        return [known[step] for step in order]

    @contextmanager
    def _turn(self) -> Iterator[tuple[IO[bytes], IO[bytes], Walk]]:
        """Take this writer's turn: yield the log and its heads, open for appending, and the walk at their end."""
        with self.file.open("ab") as log, heads_of(self.file).open("ab") as heads:
            flock(heads)
            walk = self._at_end()
            # an interrupted posting, which nobody was told of, may have left a part of its lines
            os.ftruncate(log.fileno(), walk.lines)
            os.ftruncate(heads.fileno(), walk.notes)
            yield log, heads, walk

    def _known(self, tally: MutableBook, round: int, wanted: Mapping[str, Transaction]) -> dict[str, Record]:
        """Return the records that the round already has of the ``wanted`` transactions, by step.

        Raises LedgerError if one of them is in the book with other content.
        """
        if round > tally.round or (round == tally.round and tally.steps.isdisjoint(wanted)):
            return {}
        known = {r.transaction.step: r for r in self.history(round=round) if r.transaction.step in wanted}
        for step, record in known.items():
            if record.transaction != wanted[step]:
                raise LedgerError(f"transaction '{step}': round {round} has one of this name with other content")
        return known

    def post_rounds(self, new: Iterable[tuple[int, Transaction]]) -> None:
        """Write transactions of several rounds, one :meth:`post` per round.

        If a round fails, the rounds before it stay written.

        Args:
            new: pairs ``(round, transaction)``, in the order of their rounds.
        """
        for round, same in groupby(new, key=lambda one: one[0]):
            self.post(round, [transaction for _, transaction in same])

    def close_round(self, round: int, facts: RecordDigest = NOTHING) -> Record:
        """Write the close of a round (:mod:`hanse.ledger.receipts`), after which nothing can be posted in it.

        Args:
            round: the round to close: the book's last one, or a later one in which nothing was posted.
            facts: what the round's record says. Default: there is no record.

        Raises:
            LedgerError: as :meth:`post`.
        """
        posted = [record.transaction for record in self.history(round=round)]
        return self.post(round, [close(round, self.as_book(), posted, facts)])[0]

    # ---- reading

    def as_book(self) -> Book:
        """Return the book's present state as a value in memory: its balances, head and number of transactions.

        Examples:
            >>> from hanse.core.entry import MINT, Transaction
            >>> ledger = Ledger.open("balances.jsonl")
            >>> _ = ledger.post(0, [Transaction("grant/0", "grant", ((MINT, -5), ("client/0", 5)))])
            >>> book = ledger.as_book()
            >>> book.balance("client/0"), book.balance("mint"), book.balance("client/9"), book.count
            (5, -5, 0, 1)
        """
        return self._at_end().tally.book()

    def _at_end(self) -> Walk:
        """Return the walk along the whole book as it is now. Raises DamagedError if the book does not hold."""
        for _ in self.history(after=0 if self._walk is None else self._walk.count):
            pass
        assert self._walk is not None
        return self._walk

    def history(
        self, account: str | None = None, *, round: int | None = None, after: int = 0
    ) -> Generator[Record, None, None]:
        """Yield the book's transactions in order, all of them or those that meet the given conditions.

        The result is the book as it was at the first record, whatever others write in the meantime. A posting is
        yielded only after all of it was compared with its head. With ``after``, a call continues where an earlier one
        ended instead of starting over.

        Args:
            account: only transactions with a posting to this account.
            round: if given, only transactions of this round are returned.
            after: only transactions with a number above this.

        Raises:
            DamagedError: the book is damaged. What was yielded before is sound.
        """
        walk, self._walk = self._walk, None
        if walk is None or walk.count > after:
            walk = self.walk()
        batch: list[Record] = []
        for record in walk.records():
            batch.append(record)
            if walk.tally.count > walk.count:
                continue  # its head is not reached yet
            for one in batch:
                named = account is None or account in dict(one.transaction.postings)
                if named and one.number > after and round in (None, one.round):
                    yield one
            batch = []
        self._walk = walk

    def walk(self) -> Walk:
        """Return a walk over the book that stands at its beginning."""
        return Walk(self.file, self.book, MutableBook(floor=self.floor), public=self.public)

    def verify(
        self,
        receipts: Iterable[Receipt] = (),
        heads: Mapping[str, str] = MappingProxyType({}),
        lacking: Callable[[int], Iterable[tuple[int, Transaction]]] = lambda count: (),
        closes: Closes | None = None,
        met: Callable[[Record], object] = lambda record: None,
    ) -> VerifyResult:
        """Read the whole book and compare it with its rules, and with receipts, heads and records.

        Memory grows with the number of accounts and receipts, not with the length of the history.

        Args:
            receipts: what participants were told. The head of each must be in the book, whose close it proves. That
                the close follows from the book is for ``closes`` to find.
            heads: heads that the book must have had after one of its postings. Each comes with who names it, such as a
                checkpoint, for the message.
            lacking: a function of a number of transactions. It returns the transactions, each with its round, that may
                still be missing after so many, because a checkpoint is written before its transactions. Heads that the
                book would have with them count as met.
            closes: the object that compares the closes of rounds with the run's records. None: there is no run.
            met: is called with each transaction that was found right, for who would walk along the book again.

        Returns:
            The verdict. A fault is never raised but reported in ``VerifyResult.wrong``.

        Raises:
            UserError: heads are signed and the package ``cryptography`` is not installed; or a record is damaged.
            OSError: a file cannot be read.

        Examples:
            >>> from hanse.core.entry import MINT, Transaction
            >>> from hanse.ledger.store import Issuer
            >>> ledger = Ledger.open("mine.jsonl", book="town")
            >>> _ = ledger.post(0, [Transaction("grant/0", "grant", ((MINT, -5), ("client/0", 5)))])
            >>> _ = ledger.close_round(0)
            >>> receipts = list(Issuer(ledger, Path()).new())  # what client 0 keeps
            >>> ledger.verify(receipts).ok
            True
            >>> empty = Ledger.open("other.jsonl", book="town")  # an operator who shows another book is found out
            >>> empty.verify(receipts).wrong
            'receipt of client 0, round 0: saw 2 transactions, the book has 0: its tail is cut'
        """
        walk = self.walk()
        walk.checked = True
        try:
            wrong = _first_wrong(walk, receipts, dict(heads), lacking, closes, met) or None
        except DamagedError as damage:
            wrong = str(damage)
        tally = walk.tally
        closed = frozenset(closes.seen if closes else ())
        return VerifyResult(
            tally.count, walk.postings, len(tally.balances), tally.head, wrong, closed, dict(walk.minted)
        )


def receipts_of(closed: Closed, head: LogHead) -> list[Receipt]:
    """Return the receipts of a round that was closed, sorted by client.

    Args:
        closed: the round.
        head: the head of the log that ends with the round's close.
    """
    tree, record = Tree(list(closed.statements.values())), as_text(closed.record)
    proof = as_text(*reversed(closed.before))
    return [
        Receipt(line.decode(), i, len(tree), as_text(*tree.inclusion(i)), record, proof, head.note())
        for i, line in enumerate(closed.statements.values())
    ]


class Issuer:
    """Makes the receipts of a run, round by round, from its log and its records.

    Args:
        ledger: the log.
        folder: the run directory, which has the records.
        first: the first round whose receipts are made.
    """

    def __init__(self, ledger: Ledger, folder: Path, first: int = 0) -> None:
        self._walk = ledger.walk()
        self._closes = Closes(Records(folder), first)

    def new(self) -> Iterator[Receipt]:
        """Yield the receipts of the rounds that were closed since the last call.

        Raises:
            LedgerError: the log is not sound, or a close does not follow from the records.
            UserError: a record is damaged.
        """
        walk = self._walk
        for record in walk.records():
            closed = self._closes.reached(record, walk.tally, walk.before)
            if closed is None:
                continue
            if closed.line != record.transaction or walk.head is None or walk.count != record.number:
                raise LedgerError(f"round {record.round}: its close is not what follows from the book and the records")
            yield from receipts_of(closed, walk.head)
