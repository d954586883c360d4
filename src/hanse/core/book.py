"""The books as a value: balances and the head of the hash chain, as they are in the middle of a run.

The loop posts each round's transactions to a :class:`Book` first, in memory and without side effects, so that a payment
that is not allowed is found before anything is written. What was posted is then written to the database
(:mod:`hanse.ledger.store`), which checks everything again. Amounts are integers of the smallest unit
(:mod:`hanse.core.entry`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from hanse.core.entry import GENESIS, MINT, Transaction, digest, is_account

LARGEST = 2**63 - 1  # what a database's integer holds


class LedgerError(ValueError):
    """A transaction that cannot be posted. Nothing was posted or written."""


class OverdraftError(LedgerError):
    """A transaction that would leave an account below its floor. Nothing was posted or written."""


class DamagedError(LedgerError):
    """The database's file is not what was written: it is no database any more, or its pages are damaged."""


def check(transaction: Transaction) -> None:
    """Check the form of a transaction; balances are not looked at.

    Raises:
        LedgerError: a step, kind or memo that is no line of printable text, fewer than two postings, a name that is no
            account, an amount that is not a nonzero integer of at most 64 bits, or postings that do not sum to zero.
    """
    where = f"transaction '{transaction.step}'"
    for name, text in (("step", transaction.step), ("kind", transaction.kind)):
        if not isinstance(text, str) or not text or not text.isprintable():
            raise LedgerError(f"{where}: {name} {text!r}: must be a line of text, not empty")
    if not isinstance(transaction.memo, str) or not transaction.memo.isprintable():
        raise LedgerError(f"{where}: memo {transaction.memo!r}: must be a line of text")
    if len(transaction.postings) < 2:
        raise LedgerError(f"{where}: {len(transaction.postings)} postings: at least two are needed")
    total = 0
    for account, units in transaction.postings:
        if not is_account(account):
            raise LedgerError(f"{where}: account {account!r}: must be mint, client/N, escrow/N or pool/NAME")
        if type(units) is not int or units == 0 or abs(units) > LARGEST:
            raise LedgerError(f"{where}: amount {units!r} for {account}: must be a nonzero integer number of units")
        total += units
    if total:
        raise LedgerError(f"{where}: postings sum to {total}: must sum to 0")


@dataclass(frozen=True)
class Book:
    """Balances, and where the hash chain stands. A book does not change: posting returns a new one.

    No account but the mint may go below ``floor``. A step is posted once a round, and rounds do not go back.

    Attributes:
        balances: units by account; accounts without any postings are left out.
        head: the hash of the last transaction.
        count: how many transactions there were.
        floor: the units that an account may go down to; below 0 for debt.
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
    head: str = GENESIS
    count: int = 0
    floor: int = 0
    round: int = field(default=0, compare=False)
    steps: frozenset[str] = field(default=frozenset(), compare=False, repr=False)

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
            LedgerError: a transaction is malformed, the round has its step already, the round is before the last one,
                or a balance would not fit 64 bits.
            OverdraftError: an account that pays would end below its floor.
        """
        return self.chain(round, transactions)[0]

    def chain(self, round: int, transactions: Iterable[Transaction]) -> tuple[Book, list[str]]:
        """Post as :meth:`post` does, and return the book and the hash of each transaction."""
        if type(round) is not int or round < 0:
            raise LedgerError(f"round {round!r}: must be an integer, at least 0")
        if round < self.round:
            raise LedgerError(f"round {round}: the book is in round {self.round} already")
        balances, head, hashes = dict(self.balances), self.head, list[str]()
        steps = set(self.steps) if round == self.round else set()
        for transaction in transactions:
            check(transaction)
            if transaction.step in steps:
                raise LedgerError(f"transaction '{transaction.step}': round {round} has one of this name already")
            steps.add(transaction.step)
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
            head = digest(head, round, transaction)
            hashes.append(head)
        if not hashes:
            return self, hashes
        count = self.count + len(hashes)
        after = replace(self, balances=balances, head=head, count=count, round=round, steps=frozenset(steps))
        return after, hashes
