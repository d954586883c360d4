"""One experiment file, two engines: this process, and five SuperNodes with TLS and keys of their own."""

import os
from pathlib import Path

import pytest
import torch

pytest.importorskip("flwr", reason="needs the extra 'flower'")

from deployed import MECHANISMS, clients, experiment, final, network, plan

import hanse
from hanse.ledger.place import open_ledger

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All mechanisms, one after another, on one deployment; their run directories by name."""
    folder = tmp_path_factory.mktemp("deployed")
    net = network(folder / "net", 5)
    try:
        net.up()
        server = os.environ.get("HANSE_TEST_POSTGRES")  # books in PostgreSQL where there is one, else in SQLite
        books = {"ledger": {"url": server}} if server else {}
        net.play({"plan": str(plan(folder, {name: experiment(name, **books) for name in MECHANISMS}))})
    finally:
        net.down()
    return folder


@pytest.mark.parametrize("name", MECHANISMS)
def test_engines_agree_local_and_deployment(name: str, played: Path, tmp_path: Path) -> None:
    local = hanse.run(experiment(name), out=tmp_path / "local")
    state = final(played / name)
    assert torch.equal(local.table.rows, state.table.rows)
    assert local.clients == clients(played / name)  # seats, weights, losses, values
    assert local.book == state.book  # balances, and the head of the chain over all postings
    if local.book.count:
        with open_ledger(played / name) as ledger:
            assert ledger.head() == local.book.head
            assert ledger.verify().ok


@pytest.mark.parametrize("name", MECHANISMS)
def test_engines_agree_stacked_after_a_round(name: str) -> None:
    one = hanse.run(experiment(name, rounds=1))
    stacked = experiment(name, rounds=1, engine={"train": "stacked", "threads": 1, "workers": 1, "device": "cpu"})
    assert torch.allclose(hanse.run(stacked).table.rows, one.table.rows, rtol=0, atol=1e-5)
