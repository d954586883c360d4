"""Receipts: what they say, how they are signed, and what they give away when the books were cut or written anew."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from ledger_cases import history, play

from hanse.base.errors import UserError
from hanse.core.book import Book
from hanse.core.entry import Transaction, client, escrow
from hanse.ledger.receipts import Receipt, load_key, make_receipts, read_receipts, write_receipts
from hanse.ledger.store import Ledger
from hanse.ledger.verify import verify

TOLD = history(7, 4, seed=6)


def told_receipts(told: list[tuple[int, list[Transaction]]] = TOLD) -> list[Receipt]:
    """The receipts of all rounds, a round without postings included."""
    book, receipts = Book(), []
    for number, new in told:
        book = book.post(number, new)
        receipts += make_receipts("run", number, book, new, clients=range(4))
    return receipts


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    opened = Ledger.open(tmp_path / "ledger.db", book="run")
    play(opened, TOLD)
    return opened


def test_what_a_receipt_says() -> None:
    new = [
        Transaction("grant/3", "grant", (("mint", -9), ("client/3", 9))),
        Transaction("bid/3", "bid", (("client/3", -4), ("escrow/3", 4))),
    ]
    book = Book().post(2, new)
    (receipt,) = make_receipts("run", 2, book, new)
    lines = (("grant/3", "client/3", 9), ("bid/3", "client/3", -4), ("bid/3", "escrow/3", 4))
    assert receipt == Receipt("run", 2, 3, 2, book.head, 5, 4, lines)
    assert [r.client for r in make_receipts("run", 2, book, new, clients=[0, 3])] == [0, 3]


def test_true_receipts_agree(ledger: Ledger) -> None:
    assert verify(ledger, told_receipts()).ok
    assert ledger.verify(told_receipts()).ok


def test_receipts_of_a_round_in_which_nothing_was_posted(tmp_path: Path) -> None:
    told = [*TOLD[:3], (3, [])]
    with Ledger.open(tmp_path / "ledger.db", book="run") as ledger:
        play(ledger, told)
        assert verify(ledger, told_receipts(told)).ok


def test_a_cut_tail_is_found(tmp_path: Path) -> None:
    with Ledger.open(tmp_path / "cut.db", book="run") as cut:
        play(cut, TOLD[:-1])
        assert verify(cut).ok
        wrong = verify(cut, told_receipts()).wrong
    assert wrong is not None
    assert "receipt of client 0, round 6: saw" in wrong
    assert wrong.endswith("its tail is cut")


def test_a_book_written_anew_is_found(tmp_path: Path) -> None:
    forged = [(n, [replace(t, memo="forged") if (n, i) == (0, 2) else t for i, t in enumerate(new)]) for n, new in TOLD]
    with Ledger.open(tmp_path / "forged.db", book="run") as ledger:
        play(ledger, forged)
        assert verify(ledger).ok
        wrong = verify(ledger, told_receipts()).wrong
    assert wrong is not None
    assert wrong.startswith("receipt of client 0, round 0: head after transaction")


@pytest.mark.parametrize(
    "change",
    [{"balance": 1}, {"escrow": 1}, {"postings": (("x", "client/1", 5),)}, {"head": "f" * 64}, {"book": "other"}],
)
def test_a_receipt_that_says_something_else_is_named(ledger: Ledger, change: dict[str, object]) -> None:
    receipts = told_receipts()
    receipts[9] = replace(receipts[9], **change)  # type: ignore[arg-type]
    wrong = verify(ledger, receipts).wrong
    assert wrong is not None
    assert wrong.startswith("receipt of client 1, round 2: ")


def test_written_once_each_and_read_again(tmp_path: Path) -> None:
    receipts = told_receipts()
    for _ in range(2):  # the last round is told twice
        write_receipts(tmp_path / "receipts", receipts[-4:])
    assert list(read_receipts(tmp_path / "receipts")) == receipts[-4:]
    file = tmp_path / "receipts" / "client-1.jsonl"
    with file.open("ab") as torn:
        torn.write(b'{"book": "ru')
    assert len(list(read_receipts(tmp_path / "receipts"))) == 4
    file.write_text(json.dumps({"book": "run"}) + "\n")
    with pytest.raises(UserError, match=r"client-1\.jsonl: line 1: is not a receipt"):
        list(read_receipts(tmp_path / "receipts"))
    with pytest.raises(UserError, match="has no receipts"):
        list(read_receipts(tmp_path / "nothing"))


def test_signed_receipts(ledger: Ledger, tmp_path: Path) -> None:
    ed25519 = pytest.importorskip("cryptography.hazmat.primitives.asymmetric.ed25519")
    from cryptography.hazmat.primitives import serialization as form

    key = ed25519.Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
    pem = key.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption())
    (tmp_path / "key.pem").write_bytes(pem)
    write_receipts(tmp_path / "receipts", told_receipts(), {1: load_key(tmp_path / "key.pem")})
    receipts = list(read_receipts(tmp_path / "receipts"))
    assert {r.client for r in receipts if r.signature} == {1}
    assert {r.key for r in receipts if r.client == 1} == {key.public_key().public_bytes_raw().hex()}
    assert all(r.genuine() for r in receipts)
    assert verify(ledger, receipts).ok
    for change in ({"balance": 0}, {"round": 99}, {"head": "0" * 64}, {"signature": "00"}, {"key": "zz"}):
        mine = next(r for r in receipts if r.client == 1)
        assert not replace(mine, **change).genuine()
    wrong = verify(ledger, [replace(next(r for r in receipts if r.client == 1), round=99)]).wrong
    assert wrong == "receipt of client 1, round 99: its signature is wrong"
    (tmp_path / "no.pem").write_text("this is no key")
    with pytest.raises(UserError, match="is not a private key"):
        load_key(tmp_path / "no.pem")


def test_accounts_of_a_receipt() -> None:
    for receipt in told_receipts():
        assert {account for _, account, _ in receipt.postings} <= {client(receipt.client), escrow(receipt.client)}
