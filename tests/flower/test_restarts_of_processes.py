"""Real processes are killed and started anew in each order; no round is lost."""

from collections.abc import Iterator
from itertools import permutations
from pathlib import Path

import pytest
from deployed import Ongoing, clients, experiment, metrics, until
from rotation import rotating

from hanse.ledger.receipts import read_receipts
from hanse.ledger.run_ledger import open_ledger

pytestmark = pytest.mark.slow
NODES, KILLED = 3, "node1"
ORDERS = list(permutations(("server", "superlink", KILLED)))


class Restarts(Ongoing):
    """A federation of three, of which processes are killed while a round is played."""

    def within_a_round(self) -> None:
        """Wait until a node has been sent something by the run that goes on."""
        log = self.net.processes.log
        seen = log("node0").count("Receiving:")
        until("a message", lambda: log("node0").count("Receiving:") > seen, 600.0)

    def restart(self, what: str) -> None:
        """Kill a process while a round is played, and bring it back."""
        self.within_a_round()
        self.kill(what)
        self.bring_back(what)

    def rounds(self, more: int) -> list[dict[str, float]]:
        """Return the next rounds, from the one after that which is played now."""
        before = len(metrics(self.run)) + 1
        until("more rounds", lambda: len(metrics(self.run)) >= before + more, 900.0)
        return metrics(self.run)[before:]


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Restarts]:
    seats = {"by_contribution": NODES, "at_random": 0}
    made = Restarts(
        tmp_path, experiment("tiff", nodes=NODES, rounds=1000, mechanism=seats, federation={"deadline_s": 60.0})
    )
    try:
        made.begin()
        yield made
    finally:
        made.net.down()
        made.server.join()


@pytest.mark.by_turns(5, 4)  # five and six have no divisor in common, so that every order has its turn
@pytest.mark.parametrize("order", rotating(ORDERS, len(ORDERS)), ids="-".join)
def test_after_restarts_in_any_order_all_nodes_take_part_in_the_next_round(
    order: tuple[str, ...], running: Restarts
) -> None:
    for what in order:
        running.restart(what)
    assert [(played["present"], played["answered"]) for played in running.rounds(2)] == [(NODES, NODES)] * 2
    assert {seat["client"] for seat in clients(running.run) if "refused" in seat} <= {int(KILLED.removeprefix("node"))}
    homes = running.net.folder / "participants"
    receipts = [one for path in homes.glob("node*/*/client-*/receipts") for one in read_receipts(path)]
    assert {receipt.client for receipt in receipts} == set(range(NODES))
    with open_ledger(running.run) as ledger:
        assert ledger.verify(receipts).ok
