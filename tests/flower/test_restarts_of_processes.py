"""Real processes are killed and started anew in each order; no round is lost."""

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


@pytest.mark.by_turns(5, 4)  # five and six have no divisor in common, so that every order has its turn
@pytest.mark.parametrize("order", rotating(ORDERS, len(ORDERS)), ids="-".join)
def test_after_restarts_in_any_order_all_nodes_take_part_in_the_next_round(
    order: tuple[str, ...], tmp_path: Path
) -> None:
    seats = {"by_contribution": NODES, "at_random": 0}
    given = experiment("tiff", nodes=NODES, rounds=1000, mechanism=seats, federation={"deadline_s": 60.0})
    running = Ongoing(tmp_path, given)
    log = running.net.processes.log
    try:
        running.begin()
        for what in order:  # while a round is played: a node has been sent something by the run that goes on
            seen = log("node0").count("Receiving:")
            until("a message", lambda seen=seen: log("node0").count("Receiving:") > seen, 600.0)
            running.kill(what)
            running.bring_back(what)
        before = len(metrics(running.run)) + 1  # from the round after that which is played now
        until("more rounds", lambda: len(metrics(running.run)) >= before + 2, 900.0)
    finally:
        running.net.down()
        running.server.join()
    played = metrics(running.run)[before : before + 2]
    assert [(one["present"], one["answered"]) for one in played] == [(NODES, NODES)] * 2
    assert {seat["client"] for seat in clients(running.run) if "refused" in seat} <= {int(KILLED.removeprefix("node"))}
    homes = running.net.folder / "participants"
    receipts = [one for path in homes.glob("node*/*/client-*/receipts") for one in read_receipts(path)]
    assert {receipt.client for receipt in receipts} == set(range(NODES))
    with open_ledger(running.run) as ledger:
        assert ledger.verify(receipts).ok
