"""The books as an immutable value: balances and the head of the log at one moment of a run.

The loop posts each round's transactions to a :class:`Book` first, in memory, so a forbidden payment is found before
anything is written. The transactions are then appended to the log (:mod:`hanse.ledger.store`), whose readers check
everything again by the same :class:`MutableBook`. Amounts are integers of the smallest unit (:mod:`hanse.core.entry`).

The head of a book is the root of a Merkle tree over its transactions (RFC 9162), in hexadecimal digits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from hanse.base.merkle import grow, root_of
from hanse.core.entry import CLOSE, LEAVE, MINT, NO_PAYMENTS, Transaction, is_account, leaf

LARGEST = 2**63 - 1  # what a database's integer holds
LENGTHS = {"step": (1, 200), "kind": (1, 200), "memo": (0, 10_000)}  # characters, from least to most


class LedgerError(ValueError):
    """A transaction that cannot be posted. Nothing was posted or written."""


class OverdraftError(LedgerError):
    """A transaction that would leave an account below its floor. Nothing was posted or written."""


class DamagedError(LedgerError):
    """The log is not what was written."""


def check(transaction: Transaction) -> None:
    """Check the form of a transaction. Balances are not checked.

    Raises:
        LedgerError: a step, kind or memo is not one line of printable text; there are fewer than two postings; a kind
            of account is unknown; an amount is not a nonzero integer of at most 64 bits; or the postings do not sum to
            zero. A transaction that closes a round (:mod:`hanse.ledger.receipts`) and a commitment are refused if they
            move units; these and a leave, if they have the wrong name.
    """
    where = f"transaction '{str(transaction.step)[:80]}'"
    for name, (least, most) in LENGTHS.items():
        text = getattr(transaction, name)
        if not isinstance(text, str) or not text.isprintable() or not least <= len(text) <= most:
            raise LedgerError(f"{where}: {name} {str(text)[:80]!r}: must be a line of {least} to {most} characters")
    name = LEAVE if transaction.step.startswith(f"{LEAVE}/") else transaction.step
    if named := NO_PAYMENTS & {transaction.kind, name}:
        if transaction.kind != name or (transaction.postings and name != LEAVE):
            raise LedgerError(f"{where}: '{min(named)}' is step and kind of a line that is no payment")
        if not transaction.postings:
            return
    if len(transaction.postings) < 2:
        raise LedgerError(f"{where}: {len(transaction.postings)} postings: at least two are needed")
    total = 0
    for account, units in transaction.postings:
        if not is_account(account):
            raise LedgerError(f"{where}: account {str(account)[:80]!r}: must be mint, client/N, escrow/N or pool/NAME")
        if type(units) is not int or units == 0 or abs(units) > LARGEST:
            raise LedgerError(
                f"{where}: amount {units!r} for {account}: must be an int, not 0, of at most {LARGEST} units"
            )
        total += units
    if total:
        raise LedgerError(f"{where}: postings sum to {total}: must sum to 0")


@dataclass(frozen=True)
class Book:
    """Balances, and the Merkle tree over the transactions. Immutable: posting returns a new book.

    No account but the mint may go below ``floor``. Each step is posted at most once per round, rounds never decrease,
    and a round's close is its last transaction.

    Attributes:
        balances: units by account; accounts without any postings are left out.
        peaks: the hashes that represent the Merkle tree and to which leaves can be added; see
            :func:`hanse.base.merkle.grow`.
        count: how many transactions there were.
        floor: the lowest balance that an account may have, in units. Below 0, accounts may have debt.
        round: the last round that was posted to.
        steps: the steps posted in that round.

    Examples:
        >>> from hanse.core.entry import MINT, TOKEN, client
        >>> grant = Transaction("grant/0", "grant", ((MINT, -TOKEN), (client(0), TOKEN)))
        >>> book = Book().post(0, [grant])
        >>> book.balance("client/0"), book.count
        (1000000, 1)
    """

    balances: Mapping[str, int] = field(default_factory=dict)
    peaks: tuple[bytes, ...] = ()
    count: int = 0
    floor: int = 0
    round: int = field(default=0, compare=False)
    steps: frozenset[str] = field(default=frozenset(), compare=False, repr=False)

    @property
    def head(self) -> str:
        """The root of the tree over all transactions, 64 hexadecimal digits."""
        return root_of(self.peaks).hex()

    def balance(self, account: str) -> int:
        """Return an account's units; 0 if nothing was ever posted to it."""
        return self.balances.get(account, 0)

    def can_pay(self, account: str, units: int) -> bool:
        """Say whether ``units`` can leave the account without going below its floor. The mint can always pay."""
        return account == MINT or self.balance(account) - units >= self.floor

    def post(self, round: int, transactions: Iterable[Transaction]) -> Book:
        """Return the book after a round's transactions. Either all of them are posted or none.

        Args:
            round: the round, not before the last one posted to.
            transactions: what to post, in order.

        Raises:
            LedgerError: a transaction is malformed, its step was already posted in the round, the round is before the
                last one, or a balance would not fit 64 bits.
            OverdraftError: an account that pays would end below its floor.
        """
        tally = MutableBook.of(self)
        for transaction in transactions:
            tally.add(round, transaction)
        return self if tally.count == self.count else tally.book()


@dataclass
class MutableBook:
    """A mutable book, to which transactions are added one at a time; see :class:`Book` for the attributes.

    Do not use it again after an error.
    """

    balances: dict[str, int] = field(default_factory=dict)
    peaks: list[bytes] = field(default_factory=list)
    count: int = 0
    floor: int = 0
    round: int = 0
    steps: set[str] = field(default_factory=set)

    @staticmethod
    def of(book: Book) -> MutableBook:
        """Return a tally that starts from a book."""
        return MutableBook(dict(book.balances), list(book.peaks), book.count, book.floor, book.round, set(book.steps))

    @property
    def head(self) -> str:
        """The root of the tree over all transactions, 64 hexadecimal digits."""
        return root_of(self.peaks).hex()

    def book(self) -> Book:
        """Return the tally's present state as a book."""
        steps = frozenset(self.steps)
        return Book(dict(self.balances), tuple(self.peaks), self.count, self.floor, self.round, steps)

    def add(self, round: int, transaction: Transaction, line: bytes | None = None) -> bytes:
        """Post a transaction and return its line of the log.

        Args:
            round: the transaction's round.
            transaction: what is posted.
            line: the transaction's line, if it comes from a log that is being read. None: the line is made here.

        Raises:
            LedgerError, OverdraftError: as :meth:`Book.post`.
        """
        if type(round) is not int or round < 0:
            raise LedgerError(f"round {round!r}: must be an integer, at least 0")
        if round < self.round:
            raise LedgerError(f"round {round}: the book is in round {self.round} already")
        check(transaction)
        if round > self.round:
            self.round, self.steps = round, set()
        if transaction.step in self.steps:
            raise LedgerError(f"transaction '{transaction.step}': round {round} has one of this name already")
        if CLOSE in self.steps:
            raise LedgerError(f"transaction '{transaction.step}': round {round} is closed")
        self.steps.add(transaction.step)
        balances = self.balances
        for account, units in transaction.postings:
            balances[account] = balances.get(account, 0) + units
        # after all postings of the transaction: an account may stand in several of them
        for account, units in transaction.postings:
            if units < 0 and account != MINT and balances[account] < self.floor:
                raise OverdraftError(
                    f"transaction '{transaction.step}': {account} would hold {balances[account]} units; "
                    f"its floor is {self.floor}"
                )
            if abs(balances[account]) > LARGEST:
                raise LedgerError(
                    f"transaction '{transaction.step}': {account} would hold {balances[account]} units: at most "
                    f"{LARGEST} can be written"
                )
        line = leaf(self.count + 1, round, transaction) if line is None else line
        grow(self.peaks, self.count, line)
        self.count += 1
        return line
