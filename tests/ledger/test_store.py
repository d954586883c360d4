"""The ledger's database: what it takes, what it refuses, what it gives back."""

import hashlib
import json
from pathlib import Path

import pytest
from ledger_cases import book_of, fee, flat, grant, history, pay, play
from sqlalchemy import Connection, insert, text, update
from sqlalchemy.exc import DBAPIError

from hanse.base.errors import UserError
from hanse.core.book import LedgerError, OverdraftError
from hanse.core.entry import GENESIS, MINT, TOKEN, Transaction, client, escrow, pool
from hanse.ledger.store import Ledger
from hanse.ledger.tables import accounts, postings, transactions


def test_what_is_posted_stands_in_the_book(ledger: Ledger) -> None:
    told = history(8, 5)
    play(ledger, told)
    book = book_of(told)
    assert ledger.as_book() == book
    assert ledger.head() == book.head
    assert ledger.count() == book.count == sum(len(new) for _, new in told)
    assert ledger.balances() == dict(book.balances)
    assert ledger.balance(client(2)) == book.balance(client(2))
    assert [(r.round, r.transaction) for r in ledger.history()] == list(flat(told))
    assert [r.number for r in ledger.history()] == list(range(1, book.count + 1))
    verdict = ledger.verify()
    assert verdict.ok
    assert (verdict.transactions, verdict.head, verdict.accounts) == (book.count, book.head, len(book.balances))
    assert verdict.postings == sum(len(t.postings) for _, t in flat(told))


def test_the_hash_is_of_the_canonical_text(ledger: Ledger) -> None:
    first, second = ledger.post(3, [grant(0), fee(0, 5)])
    assert first.previous == GENESIS
    assert second.previous == first.hash
    text_ = json.dumps(
        [first.hash, 3, "fee/0", "fee", "", [["client/0", -5], ["pool/tier 0", 2], ["escrow/0", 3]]],
        separators=(",", ":"),
    )
    assert second.hash == hashlib.blake2b(text_.encode(), digest_size=32).hexdigest()


def test_history_by_account_and_round(ledger: Ledger) -> None:
    told = history(6, 4, seed=1)
    play(ledger, told)
    for account in (client(1), pool("tier 0"), MINT):
        want = [(n, t) for n, t in flat(told) if account in dict(t.postings)]
        assert [(r.round, r.transaction) for r in ledger.history(account)] == want
    assert [r.transaction for r in ledger.history(round=2)] == told[2][1]


def test_a_second_posting_returns_the_first(ledger: Ledger) -> None:
    first = ledger.post(0, [grant(0), grant(1)])
    again = ledger.post(0, [grant(1), grant(2), grant(0)])  # a round told again, with more in it
    assert again[0] == first[1]
    assert again[2] == first[0]
    assert again[1].number == 3
    ledger.post(1, [pay(0, 1, 5)])
    assert ledger.post(0, [grant(0)]) == [first[0]]  # later rounds do not matter
    assert ledger.balance(client(0)) == 100 * TOKEN - 5


def test_other_content_under_the_same_key_is_refused(ledger: Ledger) -> None:
    ledger.post(0, [grant(0)])
    before = ledger.as_book()
    with pytest.raises(LedgerError, match="'grant/0': round 0 has one of this name with other content"):
        ledger.post(0, [grant(1), grant(0, 99)])
    with pytest.raises(LedgerError, match="comes twice with different content"):
        ledger.post(0, [pay(0, 1, 5), pay(0, 1, 6)])
    assert ledger.as_book() == before
    assert ledger.post(0, [pay(0, 1, 5), pay(0, 1, 5)])[0].number == 2  # twice the same is once
    assert ledger.balance(client(1)) == 5


BAD = {
    "do not sum": ((("client/0", -5), ("client/1", 4)), "postings sum to -1: must sum to 0"),
    "one": ((("client/0", -5),), "1 postings: at least two are needed"),
    "zero": ((("client/0", 0), ("client/1", 0)), "amount 0 for client/0"),
    "float": ((("client/0", -5.0), ("client/1", 5.0)), "amount -5.0 for client/0: must be a nonzero integer"),
    "bool": ((("client/0", -1), ("client/1", True)), "amount True for client/1"),
    "name": ((("clinet/0", -5), ("client/1", 5)), "account 'clinet/0': must be mint, client/N, escrow/N or pool/NAME"),
    "number": ((("client/01", -5), ("client/1", 5)), "account 'client/01'"),
    "line": ((("pool/a\nb", -5), ("client/1", 5)), "must be mint"),
    "huge": ((("mint", -(2**63)), ("client/1", 2**63)), "amount -9223372036854775808 for mint"),
    "sum of huge": ((("mint", -(2**63 - 1)), ("pool/a", 2**63 - 1), ("mint", -5), ("pool/a", 5)), "at most"),
    "overdraft": ((("client/0", -101 * TOKEN), ("client/1", 101 * TOKEN)), "client/0 would hold -1000007 units"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_postings_are_refused_whole(ledger: Ledger, case: str) -> None:
    ledger.post(0, [grant(0)])
    before, (rows, said) = ledger.as_book(), BAD[case]
    with pytest.raises(LedgerError) as refused:
        ledger.post(1, [pay(0, 1, 7), Transaction("bad", "x", rows)])  # type: ignore[arg-type]
    assert said in str(refused.value)
    assert ledger.as_book() == before
    assert not ledger.has(client(1))


def test_rounds_do_not_go_back(ledger: Ledger) -> None:
    ledger.post(0, [grant(0)])
    ledger.post(5, [pay(0, 1, 5)])
    with pytest.raises(LedgerError, match="round 4: the book is in round 5 already"):
        ledger.post(4, [pay(0, 1, 5, "late")])
    for number in (-1, 1.0, True):
        with pytest.raises(LedgerError, match="must be an integer"):
            ledger.post(number, [pay(0, 1, 5, "odd")])  # type: ignore[arg-type]


def test_transfer(ledger: Ledger) -> None:
    ledger.post(0, [grant(0), grant(1)])
    record = ledger.transfer(client(0), client(1), 25, round=1, step="gift", memo="thanks")
    assert record.transaction.postings == ((client(0), -25), (client(1), 25))
    assert ledger.transfer(client(0), client(1), 25, round=1, step="gift", memo="thanks") == record
    for units in (-5, 0, 2.5, True):
        with pytest.raises(LedgerError, match="must be a positive integer"):
            ledger.transfer(client(0), client(1), units, round=1, step="bad")  # type: ignore[arg-type]
    with pytest.raises(LedgerError, match="account 'client/7': the book has no such account"):
        ledger.transfer(client(0), client(7), 5, round=1, step="nobody")
    with pytest.raises(OverdraftError):
        ledger.transfer(client(0), client(1), 101 * TOKEN, round=1, step="much")
    with pytest.raises(LedgerError, match="must be mint, client/N"):
        ledger.balance("client")
    assert ledger.balance(escrow(12)) == 0


def test_a_floor_below_zero_is_credit(url: str) -> None:
    with Ledger.open(url, book="credit", floor=-50) as ledger:
        ledger.post(0, [pay(0, 1, 50)])
        with pytest.raises(OverdraftError, match="client/0 would hold -51 units; its floor is -50"):
            ledger.post(0, [pay(0, 2, 1)])
    with Ledger.open(url, book="credit") as again:
        assert again.floor == -50
        assert again.balance(client(0)) == -50
    with pytest.raises(LedgerError, match="floor: 0: book 'credit' was made with the floor -50"):
        Ledger.open(url, book="credit", floor=0)


def test_books_in_one_database_do_not_see_each_other(url: str) -> None:
    with Ledger.open(url, book="a") as a, Ledger.open(url, book="b") as b:
        told, others = history(4, 3, seed=1), history(4, 3, seed=2)
        for mine, theirs in zip(told, others, strict=True):
            a.post(*mine)
            b.post(*theirs)
        assert a.as_book() == book_of(told)
        assert b.as_book() == book_of(others)
        assert a.verify().ok
        assert b.verify().ok


def test_the_order_within_a_round_decides_who_can_pay(ledger: Ledger) -> None:
    """The database sees a round at once; the book goes through it in order, and refuses to pay before being paid."""
    ledger.post(0, [grant(0, 10)])
    with pytest.raises(OverdraftError):
        ledger.post(1, [pay(1, 2, 10), pay(0, 1, 10)])
    ledger.post(1, [pay(0, 1, 10), pay(1, 2, 10)])
    assert ledger.balance(client(2)) == 10


def test_reading_only(url: str) -> None:
    with pytest.raises(LedgerError, match="there is no ledger here"):
        Ledger.open(url, read_only=True)
    with Ledger.open(url, book="run") as ledger:
        play(ledger, history(3, 3))
        with Ledger.open(url, book="run", read_only=True) as reader:
            assert reader.as_book() == ledger.as_book()
            assert reader.verify().ok
            with pytest.raises(LedgerError, match="open for reading only"):
                reader.post(9, [grant(9)])
            with pytest.raises(LedgerError), reader.begin() as connection:
                connection.execute(text("DELETE FROM postings"))
            ledger.post(9, [grant(9)])  # a reader does not stand in the way
            assert reader.balance(client(9)) == 100 * TOKEN
    with pytest.raises(LedgerError, match="has no book 'other'"):
        Ledger.open(url, book="other", read_only=True)


def test_a_history_that_is_being_read_stays_as_it_was(ledger: Ledger) -> None:
    with Ledger.open(ledger.url.render_as_string(hide_password=False), book="run", read_only=True) as reader:
        ledger.post(0, [grant(i) for i in range(4500)])  # more than one chunk
        reading = reader.history()
        next(reading)
        ledger.post(1, [grant(9999)])
        assert sum(1 for _ in reading) == 4499


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_a_commit_is_on_the_disk(ledger: Ledger) -> None:
    with ledger.begin() as connection:
        assert connection.execute(text("PRAGMA journal_mode")).scalar() == "wal"
        assert connection.execute(text("PRAGMA synchronous")).scalar() == 2  # FULL
        assert connection.execute(text("PRAGMA foreign_keys")).scalar() == 1


def test_urls(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="must be sqlite:///FILE or postgresql"):
        Ledger.open("mysql://localhost/x")
    with pytest.raises(UserError, match="is not a database URL"):
        Ledger.open("://")
    with pytest.raises(LedgerError, match="there is no such folder"):
        Ledger.open(tmp_path / "no" / "ledger.db")
    with Ledger.open(tmp_path / "ledger.db") as here:  # a path is an SQLite file
        here.post(0, [grant(0)])
    (tmp_path / "text.db").write_text("these are no books, this is a long text about ships" * 30)
    with pytest.raises(LedgerError, match="file is not a database"):
        Ledger.open(tmp_path / "text.db")
    with pytest.raises(UserError, match="must be a line of text"):
        Ledger.open(tmp_path / "ledger.db", book="")
    with Ledger.open("sqlite://") as memory:
        memory.post(0, [grant(0)])
        assert memory.verify().ok


# ---- what the database itself refuses, whoever writes to it

FORBIDDEN = {
    "change a posting": "UPDATE postings SET amount = amount + 1",
    "delete a posting": "DELETE FROM postings WHERE line = 1",
    "delete a transaction": "DELETE FROM transactions WHERE number = 2",
    "change a hash": "UPDATE transactions SET hash = previous",
    "unseal": "UPDATE transactions SET sealed = false",
    "rename an account": "UPDATE accounts SET name = 'client/8' WHERE name = 'client/0'",
    "lower a floor": "UPDATE accounts SET floor = -5 WHERE name = 'client/0'",
    "delete an account": "DELETE FROM accounts",
    "enter a sealed one": "INSERT INTO postings SELECT transaction_id, 9, account_id, 5 FROM postings WHERE line = 1",
    "begin sealed": "INSERT INTO transactions (book_id, number, round, step, kind, memo, previous, hash, sealed) "
    "SELECT book_id, 9, 9, 'x', 'x', '', hash, hash, true FROM transactions WHERE number = 2",
    "begin with money": "INSERT INTO accounts (book_id, name, balance) SELECT id, 'client/9', 5 FROM books",
    "a balance too large": "UPDATE accounts SET balance = 9223372036854775807 + balance WHERE balance > 0",
    "change a book": "UPDATE books SET floor = -100",
    "delete a book": "DELETE FROM books",
}  # fmt: skip


@pytest.mark.parametrize("case", FORBIDDEN)
def test_the_database_forbids(ledger: Ledger, case: str) -> None:
    ledger.post(0, [grant(0), grant(1)])
    before = ledger.as_book()
    with pytest.raises(DBAPIError), ledger._engine.begin() as connection:
        connection.execute(text(FORBIDDEN[case]))
    assert ledger.as_book() == before
    assert ledger.verify().ok


@pytest.mark.parametrize("amounts", [(-5, 4), (5,), (-500, 500)], ids=["unbalanced", "one", "overdraft"])
def test_the_database_checks_what_is_sealed(ledger: Ledger, amounts: tuple[int, ...]) -> None:
    """Around the code: postings go in, but their transaction cannot be sealed."""
    ledger.post(0, [grant(0, 100), grant(1, 100)])
    with pytest.raises(DBAPIError, match="ledger: "), ledger._engine.begin() as connection:
        _seal_by_hand(connection, ledger, amounts)
    assert ledger.verify().ok


def _seal_by_hand(connection: Connection, ledger: Ledger, amounts: tuple[int, ...]) -> None:
    row = {
        "book_id": ledger.id,
        "number": 3,
        "round": 1,
        "step": "x",
        "kind": "x",
        "memo": "",
        "previous": "",
        "hash": "",
    }
    connection.execute(insert(transactions).values(**row))
    mine = transactions.c.number == 3
    id_ = connection.execute(transactions.select().where(mine)).one().id
    names = connection.execute(accounts.select().where(accounts.c.name.like("client/%")).order_by(accounts.c.id)).all()
    connection.execute(
        insert(postings),
        [
            {"transaction_id": id_, "line": i, "account_id": names[i].id, "amount": amount}
            for i, amount in enumerate(amounts)
        ],
    )
    connection.execute(update(transactions).where(mine).values(sealed=True))


@pytest.mark.parametrize("url", ["postgresql"], indirect=True)
def test_postgresql_lets_nothing_open_be_committed(ledger: Ledger) -> None:
    row = {"book_id": ledger.id, "number": 1, "round": 1, "step": "x", "kind": "x", "memo": "", "previous": GENESIS}
    with pytest.raises(DBAPIError, match="is open or unbalanced"), ledger._engine.begin() as connection:
        connection.execute(insert(transactions).values(**row, hash="x"))
    with pytest.raises(DBAPIError, match="TRUNCATE is refused"), ledger._engine.begin() as connection:
        connection.execute(text("TRUNCATE postings"))
    ledger.post(0, [grant(0)])
    with pytest.raises(DBAPIError, match="only sealing moves a balance"), ledger._engine.begin() as connection:
        connection.execute(text("UPDATE accounts SET balance = balance + 1"))


def test_a_book_read_back_knows_what_its_last_round_has(ledger: Ledger) -> None:
    told = history(3, 3, seed=4)
    play(ledger, told)
    expected = book_of(told)
    assert expected.steps
    assert (ledger.as_book().round, ledger.as_book().steps) == (expected.round, expected.steps)
    ledger.transfer(MINT, client(0), 1, round=9, step="a unit")
    assert ledger.as_book().steps == {"a unit"}
