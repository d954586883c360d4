"""The index of a book in a database: made from the log, compared with it, never believed, and never in the way."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from ledger_cases import book_of, history, play
from rotation import rotating
from sqlalchemy import create_engine, text

from hanse.core.book import LedgerError
from hanse.ledger.index import UnfitError, as_url, difference, follow
from hanse.ledger.store import Ledger

TOLD = history(7, 4, seed=6)


def rows(url: str, statement: str) -> list[tuple[object, ...]]:
    engine = create_engine(as_url(url))
    with engine.begin() as connection:
        done = connection.execute(text(statement))
        found = [tuple(row) for row in done] if done.returns_rows else []
    engine.dispose()
    return found


def test_the_index_says_what_the_log_says(ledger: Ledger, url: str, tmp_path: Path) -> None:
    other = Ledger.open(tmp_path / "other.jsonl", book="other")
    play(other, history(3, 3, seed=1))
    written = 0
    for number in range(len(TOLD)):  # round by round, as a run does
        play(ledger, TOLD[number : number + 1])
        written += follow(url, ledger)
    assert follow(url, other) == other.as_book().count
    book = book_of(TOLD)
    assert written == book.count
    assert follow(url, ledger) == 0
    assert dict(rows(url, "SELECT name, balance FROM accounts WHERE book = 'run'")) == book.balances
    total = "SELECT count(*), count(DISTINCT book || number), sum(amount) FROM postings"
    every = [record for one in (ledger, other) for record in one.history()]
    assert rows(url, total) == [(sum(len(r.transaction.postings) for r in every), len(every), 0)]
    assert difference(url, ledger) is None
    assert difference(url, other) is None
    assert follow(url, ledger, anew=True) == book.count
    assert difference(url, ledger) is None
    assert difference(url, other) is None


EDITS = {
    "amount": ("UPDATE postings SET amount = amount + 1 WHERE number = 5 AND line = 0", "transaction 5 (round"),
    "account": ("UPDATE postings SET account = 'client/' || account WHERE number = 5", "transaction 5 (round"),
    "line": ("UPDATE postings SET line = line + 10 WHERE number = 5", "transaction 5 (round"),
    "a posting goes": ("DELETE FROM postings WHERE number = 5 AND line = 0", "transaction 5 (round"),
    "all postings go": ("DELETE FROM postings WHERE number = 5", "transaction 5 (round"),
    "a posting more": ("INSERT INTO postings VALUES ('run', 5, 9, 'mint', 7)", "transaction 5 (round"),
    "kind": ("UPDATE transactions SET kind = 'gift' WHERE number = 4", "transaction 4 (round 0, step 'grant/3')"),
    "memo": ("UPDATE transactions SET memo = 'x' WHERE number = 3", "transaction 3 (round 0, step 'grant/2')"),
    "round": ("UPDATE transactions SET round = 1 WHERE number = 3", "transaction 3 (round 0"),
    "a number below 1": ("INSERT INTO transactions VALUES ('run', -3, 0, 'x', 'x', '')", "transaction 1 (round 0"),
    "floor": ("UPDATE books SET floor = -7", "the floor is 0 units, and -7 by the index"),
    "balance": ("UPDATE accounts SET balance = balance + 1 WHERE name = 'client/2'", "account 'client/2': holds "),
    "name": ("UPDATE accounts SET name = 'client/9' WHERE name = 'client/2'", "account 'client/2': holds "),
    "an account more": ("INSERT INTO accounts VALUES ('run', 'client/99', 0)", "'client/99': holds None units by the"),
    "a transaction more": ("INSERT INTO transactions VALUES ('run', 99, 9, 'x', 'x', '')", "the log ends before it"),
}


@pytest.mark.parametrize("case", rotating([*EDITS], 3))
def test_an_edit_is_named_and_made_good_and_the_book_stays_what_it_is(ledger: Ledger, url: str, case: str) -> None:
    statement, said = EDITS[case]
    play(ledger, TOLD)
    follow(url, ledger)
    rows(url, statement)
    apart = difference(url, ledger)
    assert said in apart
    assert apart.endswith("; 'hanse ledger rebuild' writes it anew")
    assert ledger.as_book() == book_of(TOLD)
    assert ledger.verify().ok
    follow(url, ledger, anew=True)
    assert difference(url, ledger) is None


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("INSERT INTO postings VALUES ('run', 999, 0, 'mint', 7)", "a posting that belongs to no transaction"),
        ("UPDATE postings SET amount = 0.5 WHERE number = 5 AND line = 1", "transaction 5 (round"),
        ("UPDATE transactions SET memo = x'ff41' WHERE number = 3", "transaction 3 (round"),
        ("DROP TABLE postings", "'postings'"),
        ("ALTER TABLE books ADD COLUMN more", "'books'"),
        ("CREATE VIEW v AS SELECT 1", "is not an index: it has 'v', which is no plain table"),
        ("CREATE TRIGGER t AFTER INSERT ON books BEGIN SELECT 1; END", "it has 't', which is no plain table"),
    ],
)
def test_what_only_sqlite_allows_is_named_too(ledger: Ledger, tmp_path: Path, statement: str, said: str) -> None:
    place = tmp_path / "ledger.db"
    play(ledger, TOLD)
    follow(place, ledger)
    with closing(sqlite3.connect(place)) as connection:
        connection.execute(statement)
        connection.commit()
    assert said in (difference(place, ledger) or "")


def test_an_index_behind_the_log_is_completed_and_one_ahead_of_it_is_written_anew(
    ledger: Ledger, url: str, tmp_path: Path
) -> None:
    play(ledger, TOLD[:3])
    follow(url, ledger)
    play(ledger, TOLD[3:])
    assert difference(url, ledger) is None  # it lags behind, which is no contradiction
    assert follow(url, ledger) == book_of(TOLD).count - book_of(TOLD[:3]).count
    shorter = Ledger.open(tmp_path / "shorter.jsonl", book="run")
    play(shorter, TOLD[:2])
    assert follow(url, shorter) == book_of(TOLD[:2]).count
    assert difference(url, shorter) is None


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:5000])


def text_instead(file: Path) -> None:
    file.write_text("these are no books, this is a long text about ships" * 30)


@pytest.mark.parametrize("harm", [cut, text_instead])
def test_a_damaged_file_is_said_so_and_made_anew_where_it_is_the_runs_own(
    ledger: Ledger, tmp_path: Path, harm: Callable[[Path], None]
) -> None:
    place = tmp_path / "ledger.db"
    play(ledger, TOLD)
    follow(place, ledger)
    harm(place)
    assert f"sqlite:///{place}" in (difference(place, ledger) or "")
    with pytest.raises(UnfitError):
        follow(str(place), ledger)
    assert follow(place, ledger) == book_of(TOLD).count
    assert difference(place, ledger) is None


def test_a_lock_is_no_damage(ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "ledger.db"
    follow(place, ledger)
    monkeypatch.setattr("hanse.ledger.index.WAIT_S", 0)
    with closing(sqlite3.connect(place)) as other:
        other.execute("CREATE TABLE theirs (x)")
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(LedgerError, match="locked"):
            follow(place, ledger, anew=True)
    assert rows(str(place), "SELECT * FROM theirs") == []
