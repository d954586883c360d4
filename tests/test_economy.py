"""Grants, payments and the closing exchange in the loop, and books that agree with the run after any crash."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from killed_runs import child

import hanse
from hanse.core.entry import MINT, TOKEN, client, escrow, pool
from hanse.ledger.receipts import read_receipts
from hanse.ledger.run_ledger import open_ledger
from hanse.runs.rehearsal import small_experiment

HERE = Path(__file__).parent
FEE = 3 * TOKEN // 2


def experiment(name: str = "paying", grant: float = 7.0, **more: object) -> hanse.Experiment:
    given = {"clients": {"grant": grant}, "run": {"rounds": 4, "seed": 1}, **more}
    return small_experiment(f"paying:{name}", data={"clients": 5}, **given)


def test_grants_fees_refunds_and_the_last_word(tmp_path: Path) -> None:
    run = hanse.run(experiment(), out=tmp_path / "run")
    book = run.book
    assert book.balance(MINT) == -5 * 7 * TOKEN
    assert sum(book.balances.values()) == 0
    assert book.balance(pool("fees")) == 0  # dealt at the end
    assert all(book.balance(escrow(c)) == 0 for c in range(5))
    sat = np.bincount([line["client"] for line in run.clients], minlength=5)
    fees = 2 * 4 * FEE
    shares = [fees // 5 + (i < fees % 5) for i in range(5)]
    assert [book.balance(client(c)) for c in range(5)] == [7 * TOKEN - int(sat[c]) * FEE + shares[c] for c in range(5)]
    ledger = open_ledger(tmp_path / "run")
    assert ledger.as_book().balances == dict(book.balances)
    assert (
        ledger.as_book().head == book.head != run.metrics[-1]["ledger/head"]
    )  # the closing exchange came after the last round
    receipts = list(read_receipts(tmp_path / "run" / "receipts"))
    assert [(r.client, r.said["balance"]) for r in receipts] == [(c, book.balance(client(c))) for c in range(5)]
    assert ledger.verify(receipts).ok
    assert not ledger.verify([replace(receipts[0], record=receipts[0].record[::-1])]).ok
    with np.load(tmp_path / "run" / "rounds" / "00002.npz") as record:
        assert record["bidders"].tolist() == [0, 1, 2, 3, 4]


def test_who_cannot_pay_does_not_bid_and_nobody_goes_below_the_floor(tmp_path: Path) -> None:
    assert min(v for k, v in hanse.run(experiment(grant=2.0)).book.balances.items() if k != MINT) >= 0
    assert hanse.run(experiment(grant=0.0)).book.balances == {}  # nobody can bid, nothing moves


def test_a_run_without_payments_has_no_ledger(tmp_path: Path) -> None:
    run = hanse.run(
        hanse.Experiment(data={"clients": 3}, mechanism={"name": "fedavg", "clients_per_round": 2}, run={"rounds": 1}),
        out=tmp_path / "run",
    )
    assert run.book.balances == {}
    assert not list((tmp_path / "run").glob("transactions.*"))
    assert "ledger/head" not in run.metrics[0]


def test_personal_models_are_weights_of_the_table() -> None:
    whole, half = hanse.run(experiment()), hanse.run(experiment("paying_half"))
    assert torch.equal(whole.table.rows, half.table.rows)
    assert whole.metrics[-1]["test/accuracy"] == half.metrics[-1]["test/accuracy"]
    mine, theirs = half.model(0), half.model(1)
    for a, b in zip(mine.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b / 2)
    # logits of half a linear model are half: same guesses, another loss
    assert half.metrics[-1]["client/test_loss"] != whole.metrics[-1]["client/test_loss"]


def killed_and_resumed(moments: list[float], tmp_path: Path) -> None:
    source = tmp_path / "exp.toml"
    source.write_text(experiment().to_toml())
    whole = child(-1, source, tmp_path / "whole", HERE)
    assert whole.returncode == 0, whole.stderr
    want = open_ledger(tmp_path / "whole")
    for i, moment in enumerate(moments):
        out = tmp_path / f"killed{i}"
        killed = child(max(1, int(moment * int(whole.stdout))), source, out, HERE)
        assert killed.returncode == -9, killed.stderr
        resumed = hanse.resume(out)
        got = open_ledger(out)
        assert list(got.history()) == list(want.history())
        assert got.as_book().head == want.as_book().head == resumed.book.head
        assert got.verify().ok


EIGHT = pytest.param([(i + 0.5) / 8 for i in range(8)], marks=pytest.mark.nightly)


@pytest.mark.slow
@pytest.mark.parametrize("moments", [[0.05, 0.5, 0.8, 0.97], EIGHT])
def test_killed_anywhere_the_books_are_the_same(moments: list[float], tmp_path: Path) -> None:
    killed_and_resumed(moments, tmp_path)
