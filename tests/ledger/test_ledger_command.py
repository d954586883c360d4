"""``hanse ledger`` on run directories: what it prints, and its exit codes."""

import csv
import hashlib
import json
import re
import shutil
import sqlite3
import struct
from collections import defaultdict
from collections.abc import Sequence
from contextlib import closing
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest
from commands import run_hanse
from ledger_cases import book_of, closed, flat, history, line_of, play

from hanse.core.book import Book
from hanse.core.entry import LOG, TOKEN, Transaction, tokens
from hanse.core.telling import describe, write_about
from hanse.ledger.index import follow
from hanse.ledger.log import heads_of
from hanse.ledger.receipts import write_receipts
from hanse.ledger.store import Issuer, Ledger

DIRECTIVE = "commodity 1000.000000 tok\n"
TOLD = closed(history(7, 4, seed=6))
GRANTED = TOLD[0][1][0].postings[1][1] / TOKEN


def checkpoint(folder: Path, book: Book, number: int, pending: Sequence[tuple[int, Transaction]] = ()) -> None:
    """Write what a checkpoint says of the books, in a safetensors file without tensors."""
    known = {
        "round": number,
        "lengths": {"metrics.jsonl": (folder / "metrics.jsonl").stat().st_size},
        "book": {"peaks": [peak.hex() for peak in book.peaks], "count": book.count, "floor": book.floor},
        "pending": [[r, t.step, t.kind, t.memo, t.postings] for r, t in pending],
    }
    notes = json.dumps(known)
    digest = hashlib.blake2b(notes.encode(), digest_size=20).hexdigest()
    header = json.dumps({"__metadata__": {"notes": notes, "digest": digest}}).encode()
    (folder / "checkpoints").mkdir(exist_ok=True)
    (folder / "checkpoints" / f"{number:05d}.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.toml").write_text(
        f'[data]\nclients = 4\n[mechanism]\nname = "fedavg"\nsettle = "mine:Rule"\n[clients]\ngrant = {GRANTED}\n'
    )
    write_about(run, describe({}, {}, None, None, 4, 0))
    (run / "rounds").mkdir()
    for n in range(7):
        np.savez(run / "rounds" / f"{n:05d}.npz")
    (run / "ledger.json").write_text('{"book": "b1"}\n')
    ledger = Ledger.open(run / LOG, book="b1")
    play(ledger, TOLD)
    follow(run / "ledger.db", ledger, anew=True)
    heads = [line_of(n, book_of([*TOLD[:n], (n, TOLD[n][1][:-1])]).head) for n in range(7)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in heads))
    checkpoint(run, book_of(TOLD), 7)
    return run


def test_balances(folder: Path) -> None:
    want = dict(book_of(TOLD).balances)
    code, out, _ = run_hanse("ledger", "balances", folder, "--json")
    assert (code, json.loads(out)) == (0, want)
    _, out, _ = run_hanse("ledger", "balances", folder)
    assert all(name in out and tokens(units) in out for name, units in want.items())
    assert len({len(line) for line in out.splitlines()}) == 1


def test_verify(folder: Path, tmp_path: Path) -> None:
    code, out, _ = run_hanse("ledger", "verify", folder)
    assert code == 0
    assert "The books add up: " in out  # its rule is not imported, so not all was checked
    assert book_of(TOLD).head in out
    write_receipts(tmp_path / "receipts", Issuer(Ledger.open(folder / LOG, book="b1", read_only=True), folder).new())
    code, out, _ = run_hanse("ledger", "verify", folder, "--receipts", tmp_path / "receipts", "--json")
    assert code == 0
    said = json.loads(out)
    assert said["ok"]
    assert said["receipts"] > 10
    with closing(sqlite3.connect(folder / "ledger.db")) as connection:
        connection.execute("UPDATE postings SET amount = amount + 1 WHERE number = 3 AND line = 0")
        connection.commit()
    code, out, err = run_hanse("ledger", "verify", folder)
    assert code == 1
    assert "The books themselves add up: " in out  # whatever is wrong with an index of them
    assert "index" in err.splitlines()[0]
    assert "not hold" not in err
    assert "transaction 3 (round 0, step 'grant/2')" in err
    code, out, _ = run_hanse("ledger", "balances", folder, "--json")  # the index is never believed
    assert (code, json.loads(out)) == (0, dict(book_of(TOLD).balances))
    code, out, _ = run_hanse("ledger", "verify", folder, "--json")
    assert (code, json.loads(out)["ok"]) == (1, False)


def test_a_tail_that_was_cut_is_found_by_the_checkpoint_and_the_metrics(folder: Path) -> None:
    for file in (folder / "ledger.db", folder / LOG, heads_of(folder / LOG)):
        file.unlink()
    ledger = Ledger.open(folder / LOG, book="b1")
    play(ledger, TOLD[:-2])
    code, _, err = run_hanse("ledger", "verify", folder)
    assert code == 1
    assert "checkpoint of round 7: head" in err
    # but a run killed between its checkpoint and its ledger is only behind
    checkpoint(folder, book_of(TOLD), 7, pending=[*flat([TOLD[-2]]), *flat([TOLD[-1]])])
    assert run_hanse("ledger", "verify", folder)[0] == 0
    # and lines of rounds after the checkpoint are not part of the run
    checkpoint(folder, book_of(TOLD), 7)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(line_of(7, "f" * 64)) + "\n")
    np.savez(folder / "rounds" / "00007.npz")
    assert run_hanse("ledger", "verify", folder)[0] == 1  # they are still cut off
    for file in (folder / LOG, heads_of(folder / LOG)):
        file.unlink()
    ledger = Ledger.open(folder / LOG, book="b1")
    play(ledger, TOLD)
    follow(folder / "ledger.db", ledger, anew=True)
    assert run_hanse("ledger", "verify", folder)[0] == 0


def test_a_book_without_a_checkpoint_to_compare_it_with_is_told(folder: Path) -> None:
    assert "No checkpoint is left" not in run_hanse("ledger", "verify", folder)[1]
    shutil.rmtree(folder / "checkpoints")
    code, out, _ = run_hanse("ledger", "verify", folder)
    assert (code, "No checkpoint is left to compare the book with" in out) == (0, True)


def test_a_round_without_a_close_is_found(folder: Path) -> None:
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"round": 7}) + "\n")
    np.savez(folder / "rounds" / "00007.npz")
    checkpoint(folder, book_of(TOLD), 8)
    code, _, err = run_hanse("ledger", "verify", folder)
    assert (code, err) == (1, "The books do not hold: round 7: the book has no close of it\n")


def balances_in(journal: str) -> dict[str, Decimal]:
    """The balances of accounts in a journal, read by hledger's rules: two blanks end an account's name, a semicolon
    begins a comment, and a transaction sums to 0.
    """
    found: dict[str, Decimal] = defaultdict(Decimal)
    for block in re.sub(r"^ *;.*\n", "", journal, flags=re.MULTILINE).replace(DIRECTIVE, "").strip().split("\n\n"):
        first, *lines = block.splitlines()
        assert re.fullmatch(r"\d{4}-\d\d-\d\d \* \(\d+\) [^;]+", first), first
        postings = [re.fullmatch(r" +(\S+(?: \S+)*)  +(-?[\d.]+) tok", line).groups() for line in lines]
        assert sum(Decimal(amount) for _, amount in postings) == 0, block
        for account, amount in postings:
            found[account] += Decimal(amount)
    return dict(found)


def test_exports(folder: Path, tmp_path: Path) -> None:
    assert run_hanse("ledger", "export", folder, "-f", "csv", "-o", tmp_path / "all.csv")[0] == 0
    assert len(list(csv.DictReader((tmp_path / "all.csv").open()))) == sum(len(t.postings) for _, t in flat(TOLD))
    code, out, _ = run_hanse("ledger", "export", folder)
    assert code == 0
    assert "2000-01-01 * (1) grant\n    ; step: grant/0\n" in out
    tops = {"mint": "equity", "client": "assets", "escrow": "assets", "pool": "liabilities"}
    assert balances_in(out) == {
        f"{tops[name.partition('/')[0]]}:{name.replace('/', ':')}": Decimal(n) / TOKEN
        for name, n in book_of(TOLD).balances.items()
    }
    code, _, err = run_hanse("ledger", "export", folder, "-f", "hledgr")
    assert (code, err) == (2, "hanse: --format: 'hledgr': no such format; did you mean 'hledger'?\n")
