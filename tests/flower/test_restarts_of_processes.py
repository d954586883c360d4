"""Real processes are killed and started anew in each order, and certificates renewed meanwhile; no round is lost."""

import os
import signal
import ssl
import subprocess
import threading
from collections.abc import Iterator
from itertools import permutations
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs the extra 'flower'")

from deployed import clients, experiment, metrics, network, plan, revive, until
from rotation import rotating

from hanse.base.errors import RunFailedError, UserError
from hanse.ledger.run_ledger import open_ledger
from hanse.wings.operate.loopback import HOST

pytestmark = pytest.mark.slow
NODES, KILLED = 3, 1
ORDERS = list(permutations(("server", "superlink", "node")))


class Network:
    """A federation whose run is played in a thread, and played on by a new one when it was ended."""

    def __init__(self, folder: Path) -> None:
        self.run, self.net = folder / "run", network(folder / "net", NODES)
        seats = {"by_contribution": NODES, "at_random": 0}
        exp = experiment("tiff", nodes=NODES, rounds=1000, mechanism=seats, federation={"deadline_s": 60.0})
        self.config = {"plan": str(plan(folder, {"run": exp}))}
        self.net.up()
        self.serve()

    def serve(self) -> None:
        self.server = threading.Thread(target=self._play)
        self.server.start()

    def _play(self) -> None:
        try:
            self.net.play(self.config)
        except (UserError, RunFailedError):
            return  # it was killed

    def within_a_round(self) -> None:
        """Wait until a node has been sent something by the run that goes on."""
        log = self.net.processes.log
        seen = log("node0").count("Receiving:")
        until("a message", lambda: log("node0").count("Receiving:") > seen, 600.0)

    def restart(self, what: str) -> None:
        """Kill a process while a round is played, and bring it back."""
        self.within_a_round()
        if what == "node":
            self.net.processes.stop(f"node{KILLED}", kill=True)
            revive(self.net, KILLED)
            return
        if what == "server":
            for pid in self.servers():
                os.kill(pid, signal.SIGKILL)
        else:
            self.net.processes.stop("superlink", kill=True)
        self.server.join()
        self.net.start_superlink()
        self.serve()

    def servers(self) -> list[int]:
        """Return the processes of server apps of this network, which the SuperLink's executor has started."""
        shown = subprocess.run(["ps", "-eo", "pid=,ppid=,comm="], capture_output=True, text=True, check=True).stdout
        lines = [line.split(maxsplit=2) for line in shown.splitlines()]
        below = [pid for pid, parent, _ in lines if int(parent) == self.net.processes.pid("superlink")]
        return [int(pid) for pid, parent, name in lines if parent in below and "serverapp" in name]

    def rounds(self, more: int) -> list[dict[str, float]]:
        """Return the next rounds, from the one after that which is played now."""
        before = len(metrics(self.run)) + 1
        until("more rounds", lambda: len(metrics(self.run)) >= before + more, 900.0)
        return metrics(self.run)[before:]


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Network]:
    made = Network(tmp_path)
    try:
        yield made
    finally:
        made.net.down()
        made.server.join()


@pytest.mark.by_turns(5, 4)  # five and six have no divisor in common, so that every order has its turn
@pytest.mark.parametrize("order", rotating(ORDERS, len(ORDERS)), ids="-".join)
def test_after_restarts_in_any_order_all_nodes_take_part_in_the_next_round(
    order: tuple[str, ...], running: Network
) -> None:
    for what in order:
        running.restart(what)
    assert [(played["present"], played["answered"]) for played in running.rounds(2)] == [(NODES, NODES)] * 2
    assert {seat["client"] for seat in clients(running.run) if "refused" in seat} <= {KILLED}
    with open_ledger(running.run) as ledger:
        assert ledger.verify().ok


@pytest.mark.by_turns(5, 1)
def test_certificates_are_renewed_while_rounds_are_played_and_no_process_ends(running: Network) -> None:
    net = running.net

    def shown() -> str:
        return ssl.get_server_certificate((HOST, net.ports[0]))

    running.within_a_round()
    old, pids = shown(), {name: net.processes.pid(name) for name in net.processes.names()}
    assert net.renew() == (["server.crt"], [])
    until("the new certificate", lambda: shown() != old)
    assert all(played["answered"] == NODES for played in running.rounds(2))
    assert {name: net.processes.pid(name) for name in net.processes.names()} == pids
    running.restart("node")  # it connects anew
    assert [played["answered"] for played in running.rounds(1)] == [NODES]
    net.down()  # the run first, or it would play rounds with nobody
    assert min(played["present"] for played in metrics(running.run)) > 0
