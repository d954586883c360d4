"""Many rounds on loopback while nodes are killed and come back: no round is lost, nothing grows, the books verify."""

import subprocess
import threading
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs the extra 'flower'")

from deployed import clients, experiment, final, metrics, network, plan, revive, until

from hanse.base.errors import UserError
from hanse.federation.node import EVIDENCE
from hanse.flower.node_log import NodeLog
from hanse.ledger.receipts import read_receipts
from hanse.ledger.run_ledger import open_ledger
from hanse.ledger.witness import ALARM


def resident(pid: int) -> float:
    """Return a process's memory in MB."""
    shown = subprocess.run(["ps", "-o", "rss=", "-p", str(pid)], capture_output=True, text=True, check=True)
    return int(shown.stdout) / 1024


@pytest.mark.soak
@pytest.mark.parametrize(
    ("nodes", "rounds", "every", "deadline_s"),
    [
        pytest.param(4, 10, 5, 60.0, id="ten rounds"),
        pytest.param(10, 200, 8, 60.0, id="two hundred rounds"),
    ],
)
def test_soak(nodes: int, rounds: int, every: int, deadline_s: float, tmp_path: Path) -> None:
    run, net = tmp_path / "run", network(tmp_path / "net", nodes)
    seats = {"by_contribution": nodes, "at_random": 0}
    exp = experiment("tiff", nodes=nodes, rounds=rounds, mechanism=seats, federation={"deadline_s": deadline_s})
    config = {"plan": str(plan(tmp_path, {"run": exp}))}
    draw, link = np.random.default_rng(0), []
    try:
        net.up()
        server = threading.Thread(target=net.play, args=(config,))
        server.start()
        for done in range(1, rounds + 1):
            until(f"round {done - 1}", lambda done=done: len(metrics(run)) >= done or not server.is_alive(), 600.0)
            pid = net.processes.pid("superlink")
            assert pid is not None
            link.append(resident(pid))
            if done % every == 0 and done < rounds:
                victim = int(draw.integers(nodes))
                net.processes.stop(f"node{victim}", kill=True)
                revive(net, victim)
        server.join()
    finally:
        net.down()
    lines = metrics(run)
    assert [m["round"] for m in lines] == list(range(rounds))
    assert lines[-1]["present"] == nodes  # who was killed came back
    lost = [line for line in clients(run) if "refused" in line]
    assert len(lost) <= 2 * (rounds // every)  # a kill costs seats of its own node only
    with open_ledger(run) as ledger:
        assert ledger.head() == final(run).book.head
        assert ledger.verify().ok
    print(f"SuperLink MB: {link[0]:.0f} at first, {max(link):.0f} at most, {link[-1]:.0f} at last")
    print(f"seats lost {len(lost)}; seconds a round (median) {np.median([m['time/round_s'] for m in lines]):.1f}")
    if rounds > 50:
        served = [m["memory/peak_mb"] for m in lines]
        print(f"SuperLink MB after round 50: {link[50]:.0f}")
        print(f"server MB (peak): {served[50]:.0f} after round 50, {served[-1]:.0f} at last")
        assert served[-1] <= 1.05 * served[50]


@pytest.mark.soak
def test_twenty_random_kills_of_nodes_and_of_the_superlink(tmp_path: Path) -> None:
    """Kill whoever is drawn as soon as a round has ended, until 20 kills are done: no node refuses anything, and the
    receipts that nodes keep agree with the books.
    """
    nodes, rounds = 3, 30
    run, net = tmp_path / "run", network(tmp_path / "net", nodes)
    seats = {"by_contribution": nodes, "at_random": 0}
    exp = experiment("tiff", nodes=nodes, rounds=rounds, mechanism=seats, federation={"deadline_s": 60.0})
    config = {"plan": str(plan(tmp_path, {"run": exp}, members=1))}
    victims = np.random.default_rng(60).permutation(["superlink"] * 4 + [f"node{i % nodes}" for i in range(16)])
    back: list[threading.Thread] = []

    def played() -> None:
        with suppress(UserError):  # the SuperLink was killed under it
            net.play(config)

    def serving() -> threading.Thread:
        made = threading.Thread(target=played)
        made.start()
        return made

    try:
        net.up()
        server = serving()
        for number, victim in enumerate(victims.tolist(), 1):
            done = len(metrics(run))
            until(f"a round before kill {number}", lambda done=done: len(metrics(run)) > done, 600.0)
            if victim != "superlink":
                for one in (one for one in back if one.name == victim):
                    one.join()
            print(f"kill {number}: {victim} after {len(metrics(run))} rounds", flush=True)
            net.processes.stop(victim, kill=True)
            if victim == "superlink":
                server.join()
                net.start_superlink()
                server = serving()
            else:
                back.append(threading.Thread(target=revive, args=(net, int(victim[-1])), name=victim))
                back[-1].start()
        for one in back:
            one.join()
        server.join()
        net.play(config, log="again")
    finally:
        net.down()
    assert [m["round"] for m in metrics(run)] == list(range(rounds))
    assert min(m["answered"] for m in metrics(run)) >= 1  # whoever is away: the others play
    homes = [net.folder / "participants" / f"node{i}" for i in range(nodes)]
    assert [one for home in homes for one in (home / EVIDENCE, home / ALARM) if one.exists()] == []
    receipts = [one for home in homes for path in home.glob("*/client-*/receipts") for one in read_receipts(path)]
    print(f"{len(receipts)} receipts, {sum(len(NodeLog(home).verified()) for home in homes)} lines of the nodes' logs")
    with open_ledger(run) as ledger:
        assert ledger.head() == final(run).book.head
        assert ledger.verify(receipts).ok
