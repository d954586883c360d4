"""Rounds on loopback while nodes and the SuperLink are killed and come back: no round is lost, the books verify."""

import threading
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs the extra 'flower'")

from deployed import experiment, final, metrics, network, plan, revive, until

from hanse.base.errors import UserError
from hanse.federation.node import EVIDENCE
from hanse.flower.node_log import NodeLog
from hanse.ledger.receipts import read_receipts
from hanse.ledger.run_ledger import open_ledger
from hanse.ledger.witness import ALARM


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
