"""One experiment file, two engines: this process, and five SuperNodes with TLS and keys of their own."""

import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from deployed import PAYMENTS, clients, experiment, final, kinds, network, plan
from rotation import rotating

import hanse
from hanse.ledger.index import difference
from hanse.ledger.run_ledger import open_ledger

pytestmark = pytest.mark.slow


# fedavg and pifl are what other tests play on a network; one of five that start one has its turn
@pytest.mark.by_turns(5, 2)
@pytest.mark.parametrize("name", rotating(["greedyfed", "gtfedavg", "ipfl"], 3))
def test_engines_agree_local_and_deployment(name: str, tmp_path: Path) -> None:
    net, played = network(tmp_path / "net", 5), tmp_path / name
    server = os.environ.get("HANSE_TEST_POSTGRES")  # books in PostgreSQL where there is one, else in SQLite
    exp = experiment(name, rounds=3, **({"ledger": {"url": server}} if server else {}))
    try:
        net.up()
        net.play({"plan": str(plan(tmp_path, {name: exp}))})
    finally:
        net.down()
    local, state = hanse.run(experiment(name, rounds=3), out=tmp_path / "here"), final(played)
    assert torch.equal(local.table.rows, state.table.rows)
    assert local.clients == clients(played)  # seats, weights, losses, values
    # postings; closes have hashes of records, in which tests' means are summed in another order
    assert replace(local.book, peaks=()) == replace(state.book, peaks=())
    assert kinds(played) == (PAYMENTS[name] | {"grant", "close"} if name in PAYMENTS else set())
    if name in PAYMENTS:
        ledger = open_ledger(played)
        assert ledger.as_book().head == state.book.head
        assert ledger.verify().ok
        assert difference(server or played / "ledger.db", ledger) is None
