"""Books that somebody edits behind the ledger's back: verify finds it, and names the row."""

import os
import random
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from ledger_cases import book_of, grant, history, play
from sqlalchemy import text

from hanse.core.book import LedgerError
from hanse.core.entry import GENESIS, Transaction, digest
from hanse.ledger.receipts import make_receipts
from hanse.ledger.store import Ledger

TOLD = history(7, 4, seed=6)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("tamper") / "ledger.db"
    with Ledger.open(file, book="run") as ledger:
        play(ledger, TOLD)
    return file


@contextmanager
def unguarded(file: Path) -> Iterator[sqlite3.Connection]:
    """Yield a connection to the file without its triggers, which are put back afterwards."""
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        triggers = connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall()
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute("BEGIN")
        for name, _ in triggers:
            connection.execute(f"DROP TRIGGER {name}")
        yield connection
        for _, sql in triggers:
            connection.execute(sql)
        connection.execute("COMMIT")


def found(file: Path) -> str | None:
    try:
        with Ledger.open(file, book="run", read_only=True) as ledger:
            return ledger.verify().wrong
    except LedgerError as wrong:
        return str(wrong)


def edited(written: Path, tmp_path: Path, statement: str, *values: object) -> str | None:
    file = tmp_path / "edited.db"
    shutil.copy(written, file)
    with unguarded(file) as connection:
        assert connection.execute(statement, values).rowcount > 0
    return found(file)


EDITS = {
    "amount": ("UPDATE postings SET amount = amount + 1 WHERE transaction_id = 5 AND line = 0", "transaction 5 (id 5"),
    "both amounts": ("UPDATE postings SET amount = -amount WHERE transaction_id = 5", "transaction 5 (id 5"),
    "float": ("UPDATE postings SET amount = 0.5 WHERE transaction_id = 5 AND line = 1", "amount 0.5 is not an integer"),
    "text": ("UPDATE postings SET amount = 'much' WHERE transaction_id = 5 AND line = 1", "amount 'much' is not"),
    "account": ("UPDATE postings SET account_id = account_id % 4 + 2 WHERE transaction_id = 5", "transaction 5 (id 5"),
    "no account": ("UPDATE postings SET account_id = 99 WHERE transaction_id = 5", "account 99 is not one of"),
    "line": ("UPDATE postings SET line = line + 10 WHERE transaction_id = 5", "transaction 5 (id 5"),
    "a posting goes": ("DELETE FROM postings WHERE transaction_id = 5 AND line = 0", "posting 0 is missing"),
    "all postings go": ("DELETE FROM postings WHERE transaction_id = 5", "has no postings"),
    "a posting more": ("INSERT INTO postings VALUES (5, 9, 1, 7)", "transaction 5 (id 5"),
    "stray": ("INSERT INTO postings VALUES (999, 0, 1, 7)", "posting 0 of transaction id 999"),
    "kind": ("UPDATE transactions SET kind = 'gift' WHERE number = 4", "transaction 4 (id 4, round 0, step 'grant/3')"),
    "memo": ("UPDATE transactions SET memo = 'x' WHERE number = 3", "its content has the hash"),
    "step": ("UPDATE transactions SET step = 'x' WHERE number = 3", "transaction 3 (id 3, round 0, step 'x')"),
    "round": ("UPDATE transactions SET round = 1 WHERE number = 3", "transaction 3 (id 3, round 1"),
    "no text": ("UPDATE transactions SET memo = CAST(x'ff41' AS TEXT) WHERE number = 3", "transaction 3 (id 3"),
    "bytes": ("UPDATE transactions SET memo = x'ff41' WHERE number = 3", "transaction 3 (id 3"),
    "hash": ("UPDATE transactions SET hash = previous WHERE number = 3", "transaction 3 (id 3"),
    "previous": ("UPDATE transactions SET previous = hash WHERE number = 3", "transaction 3 (id 3"),
    "number": ("UPDATE transactions SET number = -3 WHERE number = 3", "transaction 3: is missing"),
    "open": ("UPDATE transactions SET sealed = 0 WHERE number = 3", "is not sealed"),
    "a transaction goes": ("DELETE FROM transactions WHERE number = 3", "transaction 3: is missing"),
    "the first goes": ("DELETE FROM transactions WHERE number = 1", "transaction 1: is missing"),
    "balance": ("UPDATE accounts SET balance = balance + 1 WHERE name = 'client/2'", "account 'client/2' (id "),
    "floor": ("UPDATE accounts SET floor = -9 WHERE name = 'client/2'", "floor -9: the book's is 0"),
    "name": ("UPDATE accounts SET name = 'client/9' WHERE name = 'client/2'", "transaction 3 (id 3"),
    "an account more": ("INSERT INTO accounts VALUES (99, 1, 'client/99', 0, 0)", "no posting opened it"),
}  # fmt: skip


def test_it_holds_as_it_was_written(written: Path) -> None:
    assert found(written) is None


@pytest.mark.parametrize("case", EDITS)
def test_an_edit_is_named(written: Path, tmp_path: Path, case: str) -> None:
    statement, said = EDITS[case]
    wrong = edited(written, tmp_path, statement)
    assert wrong is not None
    assert said in wrong


def test_a_trigger_that_was_taken_away_is_named(written: Path, tmp_path: Path) -> None:
    file = tmp_path / "edited.db"
    shutil.copy(written, file)
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("DROP TRIGGER postings_last")
    assert found(file) == "trigger postings_last: is missing or was changed; the rows themselves hold"


def test_every_bit_of_every_posting(written: Path, tmp_path: Path) -> None:
    """Flip each bit of each number in random postings: all are found."""
    draw = random.Random(2)
    file = tmp_path / "edited.db"
    shutil.copy(written, file)
    with closing(sqlite3.connect(written)) as connection:
        rows = connection.execute("SELECT transaction_id, line, account_id, amount FROM postings").fetchall()
    columns = ("transaction_id", "line", "account_id", "amount")
    for row in draw.sample(rows, 12):
        for column, name in enumerate(columns):
            for bit in draw.sample(range(63), 3):
                changed = list(row)
                changed[column] ^= 1 << bit
                if column < 2 and any(tuple(changed[:2]) == other[:2] for other in rows):
                    continue  # the database has such a key already
                change = f"UPDATE postings SET {name} = ? WHERE transaction_id = ? AND line = ?"
                with unguarded(file) as connection:
                    connection.execute(change, (changed[column], *row[:2]))
                assert found(file) is not None, (row, name, bit)
                with unguarded(file) as connection:
                    connection.execute(change, (row[column], *changed[:2]))
    assert found(file) is None


def bytes_flipped(written: Path, file: Path, number: int, seed: int) -> int:
    """Flip random bytes of the database file; return how many were found. The others must not have changed the book."""
    draw = random.Random(seed)
    blob, count = bytearray(written.read_bytes()), 0
    for _ in range(number):
        place, mask = draw.randrange(len(blob)), draw.randrange(1, 256)
        blob[place] ^= mask
        file.write_bytes(blob)
        blob[place] ^= mask
        if found(file) is not None:
            count += 1
            continue
        with Ledger.open(file, book="run", read_only=True) as ledger:  # free space: nothing was changed
            assert ledger.as_book() == book_of(TOLD), place
            assert [(r.round, r.transaction) for r in ledger.history()] == [(n, t) for n, new in TOLD for t in new], (
                place
            )
    return count


def test_random_bytes_of_the_file(written: Path, tmp_path: Path) -> None:
    assert bytes_flipped(written, tmp_path / "flipped.db", 60, seed=1) > 5


@pytest.mark.soak
def test_many_random_bytes_of_the_file(written: Path, tmp_path: Path) -> None:
    number = int(os.environ.get("HANSE_SOAK_BYTES", "5000"))
    assert bytes_flipped(written, tmp_path / "flipped.db", number, seed=2) > number / 10


@pytest.mark.parametrize("url", ["postgresql"], indirect=True)
@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("UPDATE postings SET amount = amount + 1 WHERE line = 0", "transaction 1 (id "),
        ("UPDATE transactions SET memo = 'x' WHERE number = 3", "transaction 3 (id "),
        ("DELETE FROM postings WHERE line = 1", "transaction 1 (id "),
        ("UPDATE accounts SET balance = balance + 1 WHERE name = 'client/1'", "account 'client/1' (id "),
        ("ALTER TABLE postings DISABLE TRIGGER postings_last", "trigger postings_last"),
    ],
)
def test_an_edit_in_postgresql_is_named(ledger: Ledger, statement: str, said: str) -> None:
    play(ledger, TOLD)
    with ledger._engine.begin() as connection:
        if statement.startswith(("UPDATE", "DELETE")):
            connection.execute(text("SET LOCAL session_replication_role = replica"))
        connection.execute(text(statement))
    wrong = ledger.verify().wrong
    assert wrong is not None
    assert wrong.startswith(said)


def test_a_book_that_is_forged_whole_needs_receipts(tmp_path: Path) -> None:
    """Who keeps the books can write others that hold; only what is kept elsewhere tells."""
    with Ledger.open(tmp_path / "forged.db", book="run") as forged:
        forged.post(0, [grant(0, 5)])
        honest = {book_of(TOLD).head: "checkpoint of round 7"}
        from hanse.ledger.verify import verify

        assert verify(forged).ok
        wrong = verify(forged, heads=honest).wrong
    assert wrong is not None
    assert wrong.startswith("checkpoint of round 7: head")


def test_a_round_that_goes_back_and_an_overdraft_are_named(tmp_path: Path) -> None:
    """Chained anew, so that every hash is right: neither the guards nor the loop would have let them in."""
    grants, late = [(0, grant(0, 5)), (1, grant(1, 5))], (0, grant(2, 5))
    overdraft = (1, Transaction("pay", "pay", (("client/0", -9), ("client/1", 9))))
    for number, (forged, said) in enumerate(
        ((late, "comes after one of round 1"), (overdraft, "client/0 pays and holds -4, below 0"))
    ):
        file, head = tmp_path / f"{number}.db", GENESIS
        with Ledger.open(file, book="run") as ledger:
            ledger.post(0, [grants[0][1]])
            ledger.post(1, [grants[1][1], replace(forged[1], postings=(("client/0", -1), ("client/1", 1)))])
        with unguarded(file) as connection:
            for place, (round_, transaction) in enumerate([*grants, forged], 1):
                following = digest(head, round_, transaction)
                connection.execute(
                    "UPDATE transactions SET round = ?, previous = ?, hash = ? WHERE number = ?",
                    (round_, head, following, place),
                )
                names = dict(connection.execute("SELECT name, id FROM accounts").fetchall())
                for line, (name, units) in enumerate(transaction.postings):
                    connection.execute("INSERT OR IGNORE INTO accounts VALUES (9, 1, 'client/2', 0, 0)")
                    names.setdefault(name, 9)
                    connection.execute(
                        "UPDATE postings SET account_id = ?, amount = ? WHERE transaction_id = ? AND line = ?",
                        (names[name], units, place, line),
                    )
                head = following
        assert said in (found(file) or "")


def test_a_receipt_of_another_book_is_named(tmp_path: Path) -> None:
    with Ledger.open(tmp_path / "ledger.db", book="run") as ledger:
        play(ledger, TOLD)
        [receipt] = make_receipts("another", 6, ledger.as_book(), [], [1])
        wrong = ledger.verify([receipt]).wrong
    assert wrong == "receipt of client 1, round 6: is of another book, 'another'"
