"""Many rounds on loopback while nodes are killed and come back: no round is lost, nothing grows, the books verify."""

import subprocess
import threading
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs the extra 'flower'")

from deployed import clients, experiment, final, metrics, network, plan, revive, until

from hanse.ledger.run_ledger import open_ledger


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
