"""What goes wrong on a real network, with real processes: the run ends, and the books verify."""

import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from deployed import AUCTION, begin, clients, experiment, final, metrics, network, plan, revive, until

from hanse.base.errors import UserError
from hanse.ledger.receipts import read_receipts
from hanse.ledger.run_ledger import open_ledger
from hanse.wings.operate.certificates import make_node_key
from hanse.wings.operate.loopback import Loopback

pytestmark = pytest.mark.slow


@pytest.fixture
def net(tmp_path: Path) -> Iterator[Loopback]:
    made = network(tmp_path / "net", 6)
    try:
        yield made
    finally:
        made.down()


@pytest.mark.by_turns(5, 3)
def test_nodes_and_the_server_die_and_the_run_goes_on(net: Loopback, tmp_path: Path) -> None:
    run = tmp_path / "run"
    exp = experiment("tiff", nodes=4, rounds=6, mechanism=AUCTION, federation={"deadline_s": 60.0})
    config = {"plan": str(plan(tmp_path, {"run": exp}, members=3))}
    with pytest.MonkeyPatch.context() as patch:  # the others are only registered
        start = Loopback.start_node
        patch.setattr(Loopback, "start_node", lambda own, node: start(own, node) if node < 2 else None)
        net.up()
    begin(net, 2, FAULT_PID=str(net.folder / "logs" / "node2.process"))

    make_node_key(net.folder / "keys" / "node5")  # another than the one that was admitted
    net.start_node(5)
    until("a node with a key that nobody admitted to give up", lambda: net.processes.pid("node5") is None)
    assert "activate" in net.processes.log("node5")

    first = threading.Thread(target=_ignoring_its_end, args=(net, config))
    first.start()
    until("the node to die in round 1", lambda: net.processes.pid("node2") is None)
    until("round 1 to end without it", lambda: len(metrics(run)) >= 2)
    revive(net, 2)  # it comes back with its key
    net.start_node(3)  # and a new one joins
    until("another round", lambda: len(metrics(run)) >= 3)
    net.processes.stop("superlink", kill=True)
    first.join()
    before = metrics(run)
    net.start_superlink()
    net.play(config)

    after = metrics(run)
    assert [m["round"] for m in after] == [0, 1, 2, 3, 4, 5]
    assert after[: len(before)] == before  # finished rounds stay as they were
    seats = {(line["round"], line["client"]): line.get("refused") for line in clients(run)}
    assert (seats[0, 2], seats[0, 0], seats[0, 1]) == (None, None, None)
    assert (seats[1, 0], seats[1, 1]) == (None, None)  # it costs its own seat only
    assert after[1]["refused"] >= 1
    assert any(line["client"] == 3 and "refused" not in line for line in clients(run))
    assert any(line["client"] == 2 and line["round"] > 1 and "refused" not in line for line in clients(run))
    book = final(run).book
    assert -book.balance("mint") == 4 * 100 * 1_000_000  # a grant for each key, although one came back
    ledger = open_ledger(run)
    assert ledger.as_book().head == book.head
    assert ledger.verify().ok
    for i in range(4):  # what the participants kept themselves
        [kept] = (net.folder / "participants" / f"node{i}").glob("*/client-*/receipts")
        found = list(read_receipts(kept))
        assert ledger.verify(found).ok
        assert found[-1].root == book.head


def _ignoring_its_end(net: Loopback, config: dict[str, str]) -> None:
    with suppress(UserError):  # the server was killed under it
        net.play(config)
