"""The book on disk: what it takes, what it refuses, what it gives back, and how it stands in its files."""

import base64
import hashlib
import json
from pathlib import Path

import pytest
from ledger_cases import book_of, fee, flat, grant, history, pay, play

from hanse.base.errors import UserError
from hanse.base.merkle import Tree
from hanse.core.book import DamagedError, LedgerError
from hanse.core.entry import MINT, TOKEN, client, pool
from hanse.ledger.log import LogHead, heads_of
from hanse.ledger.store import Ledger


def test_the_lines_are_the_leaves_of_the_tree(ledger: Ledger) -> None:
    """By RFC 9162, and by the C2SP's form of a checkpoint: origin, size, root in base64, an extension line, a blank."""
    ledger.post(3, [grant(0), fee(0, 5)])
    ledger.post(4, [fee(0, 7)])
    lines = ledger.file.read_bytes().splitlines()
    assert json.loads(lines[1]) == {
        "number": 2, "round": 3, "step": "fee/0", "kind": "fee", "memo": "",
        "postings": [["client/0", -5], ["pool/tier 0", 2], ["escrow/0", 3]],
    }  # fmt: skip
    first, second, third = (hashlib.sha256(b"\0" + line).digest() for line in lines)
    pair = hashlib.sha256(b"\1" + first + second).digest()
    root = hashlib.sha256(b"\1" + pair + third).digest()
    assert ledger.as_book().head == root.hex() == Tree(lines).root().hex()
    notes = [
        f"hanse/run\n2\n{base64.b64encode(pair).decode()}\nround 3\n\n",
        f"hanse/run\n3\n{base64.b64encode(root).decode()}\nround 4\n\n",
    ]
    assert heads_of(ledger.file).read_text() == "".join(notes)
    assert LogHead.read(notes[1]) == LogHead("run", 3, root, 4)
    for odd in ("", notes[1][:-1], notes[1] + "x", notes[1].replace("\n3\n", "\n03\n"), notes[1].replace("=", "!")):
        with pytest.raises(ValueError, match="is not a head of a log"):
            LogHead.read(odd)


def test_a_verdict_says_how_much_it_has_read(ledger: Ledger) -> None:
    told = history(8, 5)
    play(ledger, told)
    book, verdict = book_of(told), ledger.verify()
    assert (verdict.transactions, verdict.head, verdict.accounts) == (book.count, book.head, len(book.balances))
    assert verdict.postings == sum(len(t.postings) for _, t in flat(told))


def test_history_by_account_and_round(ledger: Ledger) -> None:
    told = history(6, 4, seed=1)
    play(ledger, told)
    for account in (client(1), pool("tier 0"), MINT):
        want = [(n, t) for n, t in flat(told) if account in dict(t.postings)]
        assert [(r.round, r.transaction) for r in ledger.history(account)] == want
    assert [r.transaction for r in ledger.history(round=2)] == told[2][1]
    for after in (0, 3, ledger.as_book().count - 1, ledger.as_book().count):
        assert [r.number for r in ledger.history(after=after)] == list(range(after + 1, ledger.as_book().count + 1))


def test_a_second_posting_returns_the_first(ledger: Ledger) -> None:
    first = ledger.post(0, [grant(0), grant(1)])
    again = ledger.post(0, [grant(1), grant(2), grant(0)])  # a round told again, with more in it
    assert again[0] == first[1]
    assert again[2] == first[0]
    assert again[1].number == 3
    ledger.post(1, [pay(0, 1, 5)])
    assert ledger.post(0, [grant(0)]) == [first[0]]  # later rounds do not matter
    assert ledger.as_book().balance(client(0)) == 100 * TOKEN - 5


def test_reading_only(file: Path) -> None:
    with pytest.raises(DamagedError, match=r"transactions\.heads"):
        Ledger.open(file, read_only=True).as_book()
    ledger = Ledger.open(file, book="run")
    play(ledger, history(3, 3))
    reader = Ledger.open(file, book="run", read_only=True)
    assert reader.as_book() == ledger.as_book()
    assert reader.verify().ok
    with pytest.raises(LedgerError, match="reading only"):
        reader.post(9, [grant(9)])
    ledger.post(9, [grant(9)])  # a reader does not stand in the way
    assert reader.as_book().balance(client(9)) == 100 * TOKEN
    with pytest.raises(DamagedError, match=r"'run'.*'other'"):
        Ledger.open(file, book="other", read_only=True).as_book()
    for name in ("", "a\nb", "x" * 101):
        with pytest.raises(UserError, match="must be a line of text"):
            Ledger.open(file, book=name)
    with pytest.raises(FileNotFoundError):
        Ledger.open(file.parent / "no" / "book.jsonl")
