"""The account book on disk: a double-entry ledger in SQLite or PostgreSQL.

Come here to post payments or to read balances and history. :class:`Ledger` is the whole interface. It takes
:class:`hanse.core.entry.Transaction` objects and gives back :class:`Record` objects, which add a transaction's
place in the book and its link of the hash chain.

Every posting is checked twice: in Python by the rules of :mod:`hanse.core.book`, and in the database by triggers.
The transactions of one call are written together or not at all, they are on disk when the call returns, and a
transaction that is sent twice is written once.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from sqlalchemy import ColumnElement, Connection, Engine, Row, insert, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import URL

from hanse.base.errors import UserError
from hanse.core.book import Book, LedgerError, check
from hanse.core.entry import GENESIS, MINT, Transaction, digest, is_account
from hanse.ledger.connect import as_url, open_engine, session
from hanse.ledger.tables import accounts, books, postings, transactions

if TYPE_CHECKING:
    from hanse.ledger.receipts import Receipt
    from hanse.ledger.verify import Verdict

CHUNK = 2000  # transactions read at a time, so that memory does not grow with the history
FEW = 400  # look up at most this many accounts by name; for more, read all (databases limit a query's parameters)


@dataclass(frozen=True)
class Record:
    """A transaction as it stands in the book.

    Attributes:
        number: its place in the book, counted from 1.
        round: the round that it belongs to.
        transaction: what was posted.
        previous: the hash of the transaction before it, 64 hexadecimal digits (all zero for the first one).
        hash: its own hash, which covers ``previous``, the round and the whole transaction.

    Examples:
        >>> from hanse.core.entry import MINT
        >>> ledger = Ledger.open(":memory:")
        >>> [record] = ledger.post(0, [Transaction("grant/0", "grant", ((MINT, -5), ("client/0", 5)))])
        >>> record.number, record.round, len(record.hash)
        (1, 0, 64)
        >>> ledger.close()
    """

    number: int
    round: int
    transaction: Transaction
    previous: str
    hash: str


def as_dict(record: Record) -> dict[str, Any]:
    """Return a record as a dict that JSON can hold; amounts are integers of units (millionths of a token).

    The keys and their order are those of the journal and of ``hanse ledger export -f json``.
    :func:`hanse.ledger.export.from_dict` reads it back.
    """
    transaction = record.transaction
    return {
        "number": record.number,
        "round": record.round,
        "step": transaction.step,
        "kind": transaction.kind,
        "memo": transaction.memo,
        "postings": [list(posting) for posting in transaction.postings],
        "previous": record.previous,
        "hash": record.hash,
    }


@dataclass(frozen=True)
class Tail:
    """Where a book ends: the number, hash and round of its last transaction. The defaults describe an empty book."""

    number: int = 0
    hash: str = GENESIS
    round: int = 0


class Ledger:
    """One book in a database, usually the book of one run. Use :meth:`open` to get one.

    A ledger is a context manager; outside a ``with`` statement call :meth:`close`. Several processes may write to the
    same book at once: they take turns.

    Attributes:
        id: the book's number in the database (``book_id`` in its tables).
        url: the database.
        book: the book's name.
        floor: the lowest balance, in units, that any account except the mint may have.
        read_only: whether :meth:`post` is refused.

    Examples:
        Two clients get a grant of one token each from the mint, and one pays the other a quarter of a token:

        >>> from hanse.core.entry import MINT, TOKEN, Transaction, client
        >>> from hanse.ledger.store import Ledger
        >>> ledger = Ledger.open(":memory:")
        >>> for i in (0, 1):
        ...     postings = ((MINT, -TOKEN), (client(i), TOKEN))
        ...     [record] = ledger.post(0, [Transaction(f"grant/{i}", "grant", postings)])
        >>> ledger.transfer(client(0), client(1), TOKEN // 4, round=1, step="gift").number
        3
        >>> ledger.balances()
        {'client/0': 750000, 'mint': -2000000, 'client/1': 1250000}
        >>> ledger.verify().ok
        True
        >>> ledger.close()
    """

    def __init__(self, engine: Engine, url: URL, book: str, book_id: int, floor: int, read_only: bool) -> None:
        self._engine, self.id = engine, book_id
        self.url, self.book, self.floor, self.read_only = url, book, floor, read_only

    @staticmethod
    def open(url: str | Path, *, book: str = "main", floor: int | None = None, read_only: bool = False) -> Ledger:
        """Open a book. A book that does not exist is created, unless ``read_only``.

        Args:
            url: a path to an SQLite file, ``":memory:"``, or a database URL: ``sqlite:///FILE`` or
                ``postgresql://...``.
            book: the book's name. One database can hold many books.
            floor: the lowest balance, in units, that any account except the mint may have. A new book gets 0 by
                default; an existing book keeps the floor that it has, and any other value is refused.
            read_only: open the book for reading only. A reader never waits for a writer.

        Raises:
            UserError: ``url`` is not a database URL, its driver is not installed, or ``book`` is not a line of text.
            LedgerError: the book has another floor, it does not exist and ``read_only`` is set, or the database cannot
                be opened.

        Examples:
            A book in a file is still there when the file is opened again:

            >>> import tempfile
            >>> from pathlib import Path
            >>> from hanse.core.entry import MINT, Transaction
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     file = Path(folder, "ledger.db")
            ...     with Ledger.open(file, book="town") as ledger:
            ...         posted = ledger.post(0, [Transaction("grant/0", "grant", ((MINT, -5), ("client/0", 5)))])
            ...     with Ledger.open(file, book="town", read_only=True) as ledger:
            ...         ledger.balance("client/0")
            5
        """
        parsed = as_url(url)
        if not book or not book.isprintable():
            raise UserError(f"book: {book!r}: must be a line of text, not empty")
        engine = open_engine(parsed, read_only=read_only)
        try:
            with session(engine, parsed, writing=not read_only) as connection:
                wanted = select(books.c.id, books.c.floor).where(books.c.name == book)
                found = connection.execute(wanted).one_or_none()
                if found is None and read_only:
                    raise LedgerError(f"{parsed.render_as_string()}: has no book '{book}'")
                if found is None:
                    dialect = postgresql if connection.dialect.name == "postgresql" else sqlite
                    made = dialect.insert(books).values(name=book, floor=floor or 0)
                    # another process may create the same book at this moment: then take the one it made
                    connection.execute(made.on_conflict_do_nothing())
                    found = connection.execute(wanted).one()
            if floor is not None and floor != found.floor:
                raise LedgerError(f"floor: {floor}: book '{book}' was made with the floor {found.floor}")
        except BaseException:
            engine.dispose()
            raise
        return Ledger(engine, parsed, book, found.id, found.floor, read_only)

    def close(self) -> None:
        """Close the connections to the database. A ledger in memory is lost."""
        self._engine.dispose()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @contextmanager
    def begin(self, *, writing: bool = False) -> Iterator[Connection]:
        """Yield a connection inside one database transaction, for queries of one's own.

        A connection that is not ``writing`` sees the book as it was at one moment and never blocks a writer. One that
        is waits for its turn.

        Raises:
            LedgerError: the database refuses a statement. Nothing is written then.
        """
        with session(self._engine, self.url, writing=writing) as connection:
            yield connection

    # ---- writing

    def post(self, round: int, new: Iterable[Transaction]) -> list[Record]:
        """Write transactions of one round, all of them or none, and return their records in the order given.

        A transaction's key is (book, round, step). If the book already has a transaction with this key and the same
        content, it is not written again, and its existing record is returned. So it is safe to send a round again after
        a crash.

        Args:
            round: the round, at least 0. It must not lie before the round of the book's last transaction, unless all of
                ``new`` is in the book already.
            new: the transactions, in the order in which they are to be chained.

        Raises:
            LedgerError: a transaction is malformed, its key exists with other content, the round lies in the past, the
                ledger is read-only, or the database cannot write. Nothing is written.
            OverdraftError: a payer would end below its floor. Nothing is written.
        """
        if self.read_only:
            raise LedgerError(f"{self.url.render_as_string()}: is open for reading only")
        wanted: dict[str, Transaction] = {}
        order = []
        for transaction in new:
            check(transaction)
            order.append(transaction.step)
            if wanted.setdefault(transaction.step, transaction) != transaction:
                raise LedgerError(f"transaction '{transaction.step}': comes twice with different content")
        if type(round) is not int or round < 0:
            raise LedgerError(f"round {round!r}: must be an integer, at least 0")
        with self.begin(writing=True) as connection:
            # Writers of one book take turns. In SQLite, BEGIN IMMEDIATE has already taken the only turn there is.
            if connection.dialect.name == "postgresql":
                connection.execute(select(books.c.id).where(books.c.id == self.id).with_for_update())
            known = _known(connection, self.id, round, wanted)
            fresh = [t for step, t in wanted.items() if step not in known]
            if fresh:
                written = _append(connection, self.id, self.floor, round, fresh)
                known |= {record.transaction.step: record for record in written}
        return [known[step] for step in order]

    def post_rounds(self, new: Iterable[tuple[int, Transaction]]) -> str:
        """Write transactions of several rounds and return the hash of the last one (64 zeros if there are none).

        Each round is written by a :meth:`post` of its own. If one of them fails, the rounds before it stay written.

        Args:
            new: pairs ``(round, transaction)``, in the order of their rounds.
        """
        last = GENESIS
        for round, same in groupby(new, key=lambda one: one[0]):
            last = self.post(round, [transaction for _, transaction in same])[-1].hash
        return last

    def transfer(
        self,
        source: str,
        target: str,
        units: int,
        *,
        round: int,
        step: str,
        kind: str = "transfer",
        memo: str = "",
    ) -> Record:
        """Move units from one account to another, as a transaction with two postings; see :meth:`post`.

        Args:
            source: the account that pays. It must exist, which means that something was posted to it before.
            target: the account that receives. It must exist, too. The mint always does.
            units: how many units (millionths of a token) to move, at least 1.
            round: the round of the transaction.
            step: its name, unique within the round.
            kind: what reports group it by.
            memo: a note for people.

        Raises:
            LedgerError: ``units`` is not a positive integer, an account does not exist, or :meth:`post` refuses it.
            OverdraftError: ``source`` would end below the floor.

        Examples:
            >>> from hanse.core.book import OverdraftError
            >>> from hanse.core.entry import MINT, TOKEN, Transaction, client
            >>> ledger = Ledger.open(":memory:")
            >>> grants = [Transaction(f"grant/{i}", "grant", ((MINT, -TOKEN), (client(i), TOKEN))) for i in (0, 1)]
            >>> _ = ledger.post(0, grants)
            >>> ledger.transfer(client(0), client(1), 400_000, round=1, step="fee").transaction.postings
            (('client/0', -400000), ('client/1', 400000))
            >>> ledger.balance(client(0))
            600000
            >>> try:
            ...     ledger.transfer(client(0), client(1), TOKEN, round=1, step="too much")
            ... except OverdraftError as refused:
            ...     print(refused)
            transaction 'too much': client/0 would hold -400000 units; its floor is 0
        """
        if type(units) is not int or units <= 0:
            raise LedgerError(f"transaction '{step}': amount {units!r}: must be a positive integer number of units")
        for account in (source, target):
            if account != MINT and not self.has(account):
                raise LedgerError(f"transaction '{step}': account '{account}': the book has no such account")
        return self.post(round, [Transaction(step, kind, ((source, -units), (target, units)), memo)])[0]

    # ---- reading

    def head(self) -> str:
        """Return the book's head: the hash of its last transaction, 64 hexadecimal digits (all 0 if it has none)."""
        with self.begin() as connection:
            return tail_of(connection, self.id).hash

    def count(self) -> int:
        """Return how many transactions the book has."""
        with self.begin() as connection:
            return tail_of(connection, self.id).number

    def has(self, account: str) -> bool:
        """Say whether the account exists, which means that something was posted to it."""
        a = accounts.c
        with self.begin() as connection:
            wanted = select(a.id).where(a.book_id == self.id, a.name == account)
            return connection.execute(wanted).one_or_none() is not None

    def balance(self, account: str) -> int:
        """Return the balance of an account in units; 0 if nothing was ever posted to it.

        Raises:
            LedgerError: ``account`` is not a valid name: ``mint``, ``client/N``, ``escrow/N`` or ``pool/NAME``.

        Examples:
            >>> from hanse.core.entry import MINT, Transaction
            >>> ledger = Ledger.open(":memory:")
            >>> _ = ledger.post(0, [Transaction("grant/0", "grant", ((MINT, -5), ("client/0", 5)))])
            >>> ledger.balance("client/0"), ledger.balance("mint"), ledger.balance("client/9")
            (5, -5, 0)
        """
        if not is_account(account):
            raise LedgerError(f"account {account!r}: must be mint, client/N, escrow/N or pool/NAME")
        a = accounts.c
        with self.begin() as connection:
            found = connection.execute(select(a.balance).where(a.book_id == self.id, a.name == account)).scalar()
        return 0 if found is None else int(found)

    def balances(self) -> dict[str, int]:
        """Return the balance, in units, of every account that exists, in the order in which they were opened."""
        with self.begin() as connection:
            return _balances(connection, self.id)

    def as_book(self) -> Book:
        """Return the book's present state as a value in memory, with which further postings can be tried out."""
        t = transactions.c
        with self.begin() as connection:
            tail = tail_of(connection, self.id)
            steps = connection.execute(select(t.step).where(t.book_id == self.id, t.round == tail.round)).scalars()
            balances = _balances(connection, self.id)
            return Book(balances, tail.hash, tail.number, self.floor, tail.round, frozenset(steps))

    def history(
        self, account: str | None = None, *, round: int | None = None, after: int = 0, chunk: int = CHUNK
    ) -> Generator[Record, None, None]:
        """Yield the book's transactions in order, all of them or those that meet the given conditions.

        The whole reading is one database transaction: it sees the book as it was at its first record, whatever others
        write meanwhile. Memory use does not depend on the length of the history. Exhaust or close the generator to end
        the database transaction.

        Args:
            account: only transactions with a posting to this account.
            round: only transactions of this round.
            after: only transactions with a higher number than this.
            chunk: how many transactions to fetch at a time.
        """
        a, t, p = accounts.c, transactions.c, postings.c
        wanted: list[ColumnElement[bool]] = []
        if round is not None:
            wanted.append(t.round == round)
        if account is not None:
            touching = select(p.transaction_id).join(accounts, a.id == p.account_id)
            wanted.append(t.id.in_(touching.where(a.book_id == self.id, a.name == account)))
        with self.begin() as connection:
            while rows := self.rows(connection, after, chunk, wanted):
                for _, lines in groupby(rows, key=lambda row: row.number):
                    first, *others = lines
                    # a transaction without postings comes as one row whose line is None (see rows)
                    moved = tuple((row.name, row.amount) for row in (first, *others) if row.line is not None)
                    transaction = Transaction(first.step, first.kind, moved, first.memo)
                    yield Record(first.number, first.round, transaction, first.previous, first.hash)
                after = rows[-1].number

    def rows(
        self, connection: Connection, after: int, chunk: int = CHUNK, wanted: Sequence[ColumnElement[bool]] = ()
    ) -> Sequence[Row[Any]]:
        """Return the raw rows of the next transactions: one row for each posting, in order.

        A row has the transaction's columns, the posting's columns, and its account's ``name`` and book (``owner``). A
        transaction without postings has one row in which the last two groups are None. No posting can make such a
        transaction, but :func:`hanse.ledger.verify.verify` must see it if a damaged database has one.

        Args:
            connection: from :meth:`begin`.
            after: start behind the transaction with this number.
            chunk: the highest number of transactions (not rows) to return.
            wanted: conditions that the transactions must all meet.
        """
        a, t, p = accounts.c, transactions.c, postings.c
        some = (
            select(transactions).where(t.book_id == self.id, t.number > after, *wanted).order_by(t.number).limit(chunk)
        )
        page = some.subquery()
        joined = select(page, p.line, p.amount, p.account_id, a.name, a.book_id.label("owner")).select_from(page)
        joined = joined.outerjoin(postings, p.transaction_id == page.c.id).outerjoin(accounts, a.id == p.account_id)
        return connection.execute(joined.order_by(page.c.number, p.line)).all()

    def verify(self, receipts: Iterable[Receipt] = ()) -> Verdict:
        """Recompute the whole book and say whether it holds; see :func:`hanse.ledger.verify.verify`.

        Args:
            receipts: what participants kept of the book. The book must agree with each of them.

        Examples:
            >>> from hanse.core.entry import MINT, Transaction
            >>> from hanse.ledger.receipts import make_receipts
            >>> ledger = Ledger.open(":memory:", book="town")
            >>> grant = Transaction("grant/0", "grant", ((MINT, -5), ("client/0", 5)))
            >>> _ = ledger.post(0, [grant])
            >>> [receipt] = make_receipts("town", 0, ledger.as_book(), [grant])  # what client 0 keeps
            >>> ledger.verify([receipt]).ok
            True
            >>> empty = Ledger.open(":memory:", book="town")  # an operator who shows another book is found out
            >>> empty.verify([receipt]).wrong
            'receipt of client 0, round 0: saw 1 transactions, the book has 0: its tail is cut'
        """
        from hanse.ledger.verify import verify

        return verify(self, receipts)


def tail_of(connection: Connection, book: int) -> Tail:
    """Return where the book with id ``book`` ends."""
    t = transactions.c
    wanted = select(t.number, t.hash, t.round).where(t.book_id == book)
    found = connection.execute(wanted.order_by(t.number.desc()).limit(1)).one_or_none()
    return Tail() if found is None else Tail(found.number, found.hash, found.round)


def hash_of(connection: Connection, book: int, number: int) -> str:
    """Return the hash of a book's transaction ``number``; 64 zeros for number 0. The book must have that many.

    Args:
        connection: an open connection, as :meth:`Ledger.begin` yields it.
        book: the book's number in the database, ``Ledger.id``.
        number: the transaction's number, from 1.
    """
    t = transactions.c
    wanted = select(t.hash).where(t.book_id == book, t.number == number)
    return GENESIS if number == 0 else str(connection.execute(wanted).scalar_one())


def _balances(connection: Connection, book: int) -> dict[str, int]:
    """Return the units of every account, in the order in which they were opened."""
    a = accounts.c
    rows = connection.execute(select(a.name, a.balance).where(a.book_id == book).order_by(a.id))
    return {row.name: row.balance for row in rows}


def _known(connection: Connection, book: int, round: int, wanted: Mapping[str, Transaction]) -> dict[str, Record]:
    """Return the records that the round already has of the ``wanted`` transactions, by step.

    Raises LedgerError if one of them is in the book with other content. The comparison is by hash, so that postings
    need not be read.
    """
    t = transactions.c
    rows = connection.execute(select(t.number, t.step, t.previous, t.hash).where(t.book_id == book, t.round == round))
    known = {}
    for number, step, previous, hash_ in rows:
        if step in wanted:
            if digest(previous, round, wanted[step]) != hash_:
                raise LedgerError(f"transaction '{step}': round {round} has one of this name with other content")
            known[step] = Record(number, round, wanted[step], previous, hash_)
    return known


def _append(connection: Connection, book: int, floor: int, round: int, fresh: Sequence[Transaction]) -> list[Record]:
    """Write new transactions of a round behind the last one of the book, and return their records.

    The order of the statements is what the triggers ask for: transactions enter open, then their postings, and the
    update at the end seals them, which checks the sums and moves the balances. New accounts get ``floor`` (units).
    Raises LedgerError for what cannot be posted.
    """
    a, t = accounts.c, transactions.c
    tail = tail_of(connection, book)
    names = {account for transaction in fresh for account, _ in transaction.postings}
    existing = select(a.name, a.id, a.balance).where(a.book_id == book)
    if len(names) <= FEW:
        existing = existing.where(a.name.in_(names))
    rows = connection.execute(existing).all()
    # a book in memory with the accounts that matter here: it checks the transactions and computes their hashes
    before = Book({name: balance for name, _, balance in rows}, tail.hash, tail.number, floor, tail.round)
    _, hashes = before.chain(round, fresh)

    number_of = {name: id_ for name, id_, _ in rows}
    if missing := sorted(names - number_of.keys()):  # sorted: accounts get the same ids in every replay of a run
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
            {"book_id": book, "sealed": False} | {name: v for name, v in as_dict(r).items() if name != "postings"}
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
