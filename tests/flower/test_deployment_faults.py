"""What goes wrong on a real network, with real processes: the run ends, and the books verify."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

pytest.importorskip("flwr", reason="needs the extra 'flower'")

from deployed import AUCTION, begin, clients, experiment, final, metrics, network, plan, revive, until

from hanse.base.errors import UserError
from hanse.cli import app
from hanse.ledger.receipts import read_receipts
from hanse.ledger.run_ledger import open_ledger
from hanse.runs.run_record import STILL
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


@pytest.mark.nightly
def test_wrong_updates_are_refused_and_the_books_verify(net: Loopback, tmp_path: Path) -> None:
    faults = {2: "nan", 3: "shape", 4: "huge", 5: "round"}
    net.up(only=[0, 1])
    for node, fault in faults.items():
        begin(net, node, FAULT=fault)
    exp = experiment("tiff", nodes=6, rounds=2, mechanism=AUCTION, federation={"deadline_s": 120.0})
    net.play({"plan": str(plan(tmp_path, {"run": exp}, largest=5_000_000))})
    run = tmp_path / "run"
    lines = clients(run)
    said = {node: {line.get("refused") for line in lines if line["client"] == node} for node in range(6)}
    assert said[0] == said[1] == {None}
    assert said[2] == {"update has NaN or infinite entries"}
    assert all("not of shape" in reason for reason in said[3])
    assert all(" are allowed" in reason for reason in said[4])
    assert said[5] == {"answer for round 99"}
    assert [m["answered"] for m in metrics(run)] == [2, 2]
    with open_ledger(run) as ledger:
        assert ledger.verify(read_receipts(tmp_path / "run" / "receipts")).ok


@pytest.mark.by_turns(5, 2)
def test_the_worst_messages_of_a_member_cost_it_its_seats_and_it_is_named_and_expelled(
    net: Loopback, tmp_path: Path
) -> None:
    run, sent = tmp_path / "run", tmp_path / "sent"
    net.up(only=[0, 1])
    begin(net, 2, FAULT="worst", FAULT_COUNT=str(sent))
    exp = experiment("tiff", nodes=3, rounds=7, mechanism=AUCTION, federation={"deadline_s": 120.0}, eval={"every": 1})
    config = {"plan": str(plan(tmp_path, {"run": exp}))}
    played = threading.Thread(target=net.play, args=(config,))
    played.start()
    until("8 messages", lambda: sent.exists() and len(sent.read_text()) >= 8, 1200.0)
    order = ["network", "expel", str(run), "--client", "2", "--reason", "sends rubbish"]
    assert CliRunner().invoke(app, order).exit_code == 0
    played.join()

    lines, rounds = clients(run), metrics(run)
    assert len(rounds) == 7
    assert rounds[-1]["present"] == 2
    assert [line for line in lines if line["client"] != 2 and "refused" in line] == []
    assert [line for line in lines if line["client"] == 2 and "refused" not in line] == []
    refused = [np.load(file) for file in sorted((run / "rounds").glob("*.npz"))]
    found = [int(c) for r in refused for c in [*r["refused"], *r.get("test_refused", [])]]
    assert set(found) == {2}
    assert len(found) >= 8, f"{len(found)} of {len(sent.read_text())}"
    [member] = [m for m in json.loads((run / "members.json").read_text()) if m["id"] == 2]
    assert member["expelled"] == "sends rubbish"
    log = (net.folder / "logs" / "run.log").read_text()  # as Flower streams it, which may cut a line in two
    assert log.count(f"client 2 ({member['name']}, key {member['key']}): refused: ") >= 6
    assert "client 0" not in log
    with open_ledger(run) as ledger:
        assert ledger.verify(read_receipts(run / "receipts")).ok


@pytest.mark.by_turns(5, 3)
def test_nodes_and_the_server_die_and_the_run_goes_on(net: Loopback, tmp_path: Path) -> None:
    run = tmp_path / "run"
    exp = experiment("tiff", nodes=4, rounds=6, mechanism=AUCTION, federation={"deadline_s": 60.0})
    config = {"plan": str(plan(tmp_path, {"run": exp}, members=3))}
    net.up(only=[0, 1])
    begin(net, 2, FAULT="dies", FAULT_PID=str(net.folder / "logs" / "node2.pid"))

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
    net.play(config, log="again")

    after = metrics(run)
    assert [m["round"] for m in after] == [0, 1, 2, 3, 4, 5]
    assert after[: len(before)] == before  # finished rounds stay as they were
    seats = {(line["round"], line["client"]): line.get("refused") for line in clients(run)}
    assert (seats[0, 2], seats[0, 0], seats[0, 1]) == (None, None, None)
    assert seats[1, 0] is None  # it costs its own seat only
    assert seats[1, 1] is None
    assert after[1]["refused"] >= 1
    assert any(line["client"] == 3 and "refused" not in line for line in clients(run))
    assert any(line["client"] == 2 and line["round"] > 1 and "refused" not in line for line in clients(run))
    book = final(run).book
    assert -book.balance("mint") == 4 * 100 * 1_000_000  # a grant for each key, although one came back
    with open_ledger(run) as ledger:
        assert ledger.head() == book.head
        assert ledger.verify().ok
        for i in range(4):  # what the participants kept themselves
            [kept] = (net.folder / "participants" / f"node{i}").glob("*/client-*/receipts")
            found = list(read_receipts(kept))
            assert ledger.verify(found).ok
            assert found[-1].root == book.head


@pytest.mark.by_turns(5, 4)
def test_no_round_waits_for_a_node_that_died_and_it_comes_back(net: Loopback, tmp_path: Path) -> None:
    run = tmp_path / "run"
    waits = {"enough": 3, "late": "next", "deadline_s": 3600.0}  # who waited for the deadline would not come to an end
    exp = experiment("fedavg", nodes=4, rounds=1000, mechanism={"clients_per_round": 4}, federation=waits)
    net.up(only=[0, 1, 3])
    begin(net, 2, FAULT="dies", FAULT_PID=str(net.folder / "logs" / "node2.pid"))
    played = threading.Thread(target=_ignoring_its_end, args=(net, {"plan": str(plan(tmp_path, {"run": exp}))}))
    played.start()
    until("the node to die", lambda: net.processes.pid("node2") is None)
    gone = len(metrics(run))
    until("more rounds to end without it", lambda: len(metrics(run)) >= gone + 3)
    revive(net, 2)
    until("it to be back", lambda: any(s["client"] == 2 and s["round"] > gone + 1 for s in clients(run)))
    net.processes.stop("superlink", kill=True)
    played.join()

    lines = metrics(run)
    mine = {line["round"]: line.get("refused") for line in clients(run) if line["client"] == 2}
    away = sorted(set(range(max(mine))) - set(mine))  # whoever is only late has a line in each round
    died, back = away[0] - 1, away[-1] + 1
    assert away == list(range(died + 1, back))
    assert mine[died] == STILL
    assert all(m["answered"] >= 3 for m in lines[died:back])
    assert [m["present"] for m in lines[died + 2 : back]] == [3] * (back - died - 2)
    found = [np.load(run / "rounds" / f"{r:05d}.npz") for r in range(died, back)]
    said = [str(why) for record in found for c, why in zip(record["refused"], record["reason"], strict=True) if c == 2]
    assert said[0] == STILL
    assert len(said) == 2  # and once more when it was given up
    assert said[1].startswith(f"its update of round {died}: its node")
    took = [m["time/round_s"] for m in lines]
    print(f"rounds of {np.median(took):.1f} s (median); that in which it died took {took[died]:.1f} s; back in {back}")


@pytest.mark.nightly
def test_nodes_that_cannot_take_part_are_named_and_the_others_play(net: Loopback, tmp_path: Path) -> None:
    net.up(only=[2, 3])
    begin(net, 0, FAULT="plain")
    begin(net, 1, FAULT="stranger")
    exp = experiment("fedavg", nodes=4, rounds=2, federation={"deadline_s": 120.0}, eval={"every": 1})
    shown: list[str] = []
    net.play({"plan": str(plan(tmp_path, {"run": exp}))}, show=shown.append)
    played = metrics(tmp_path / "run")
    assert [m["present"] for m in played] == [2, 2]
    out = [line for line in shown if "is kept out" in line]
    assert len(out) == 2
    for name, why in (("node0", "its client app is not hanse's"), ("node1", "of shape [9] with 10 classes; the")):
        [line] = [line for line in out if f"registered as '{name}'" in line]
        assert why in line
    for m in played:
        figure = f"round {m['round']}: own accuracy {m['client/test_accuracy']:.3f}, 2 of 2 seats answered"
        assert any(line.startswith(figure) for line in shown)


def _ignoring_its_end(net: Loopback, config: dict[str, str]) -> None:
    try:
        net.play(config)
    except UserError:
        return  # the server was killed under it
