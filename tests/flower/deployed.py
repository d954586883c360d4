"""What the tests with real processes share: a federation on loopback, plans for its server app, what a run left."""

import json
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import hanse
from hanse.base.errors import RunFailedError, UserError
from hanse.ledger.run_ledger import open_ledger
from hanse.runs import checkpoint
from hanse.runs.checkpoint import LoopState
from hanse.runs.round_record import METRICS, SEATS
from hanse.runs.run_record import played_lines

APP = Path(__file__).parent / "app"
PAYMENTS = {"pifl": {"bid", "pay", "reimburse", "reward"}, "ipfl": {"market"}}  # what their books hold beside grants
AUCTION = {"by_contribution": 4, "at_random": 4}  # TIFF with a seat for everybody: books, and two exchanges a round


def experiment(name: str = "fedavg", nodes: int = 5, rounds: int = 5, **more: Any) -> hanse.Experiment:
    """One thread, one seat after another: the path that a node takes."""
    sections: dict[str, Any] = {
        "data": {"clients": nodes, "client_test": 0.2, "client_validation": 0.2},
        "model": {"name": "mlp", "hidden": [8]},
        "mechanism": {"name": name, **more.pop("mechanism", {})},
        "train": {"lr": 0.05},
        "engine": {"train": "sequential", "threads": 1, "workers": 1, "device": "cpu"},
        "eval": {"every": rounds},
        "run": {"rounds": rounds},
    }
    return hanse.Experiment(**{**sections, **more})


TAKEN = "SuperNode ID"  # what a node prints once the SuperLink knows it


def free_ports(number: int) -> tuple[int, ...]:
    """Return ports that nobody uses at this moment."""
    taken = [socket.socket() for _ in range(number)]
    try:
        for one in taken:
            one.bind(("127.0.0.1", 0))
        return tuple(one.getsockname()[1] for one in taken)
    finally:
        for one in taken:
            one.close()


def network(folder: Path, nodes: int, imports: tuple[str, ...] = ()) -> Any:
    from hanse.wings.operate.loopback import Loopback

    return Loopback(folder, APP, free_ports(nodes + 1), imports=imports)


def begin(net: Any, node: int, **more: str) -> None:
    """Start a node with further environment variables."""
    with pytest.MonkeyPatch.context() as around:
        for name, value in more.items():
            around.setenv(name, value)
        net.start_node(node)


def revive(net: Any, node: int, patience_s: float = 240.0) -> None:
    """Start a node that was killed, as often as it takes: the SuperLink does not take a node that it believes to be
    there, until it has missed its heartbeat for a minute.
    """
    name, end = f"node{node}", time.monotonic() + patience_s
    taken = net.processes.log(name).count(TAKEN)
    while net.processes.log(name).count(TAKEN) == taken:
        assert time.monotonic() < end, f"{name}: the SuperLink did not take it back within {patience_s:g} s"
        net.start_node(node)
        time.sleep(0.5)  # a process of Flower's comes up


def plan(folder: Path, steps: Mapping[str, hanse.Experiment], **options: Any) -> Path:
    """Write a plan that plays ``steps`` into folders of these names; return its path."""
    from hanse.wings.operate.loopback import app_hash

    same = {"options": options, "app": app_hash(APP)}
    lines: Sequence[dict[str, Any]] = [
        {"experiment": str(folder / f"{name}.toml"), "out": str(folder / name), **same} for name in steps
    ]
    folder.mkdir(parents=True, exist_ok=True)
    for name, exp in steps.items():
        (folder / f"{name}.toml").write_text(exp.to_toml())
    (folder / "plan.json").write_text(json.dumps(lines))
    return folder / "plan.json"


class Ongoing:
    """A federation whose run is played in a thread, and played on by a new one when it was ended: a process of it,
    ``server``, ``superlink`` or ``node3``, can be killed and brought back.
    """

    def __init__(self, folder: Path, exp: hanse.Experiment, **options: Any) -> None:
        self.run, self.net = folder / "run", network(folder / "net", exp.data.clients)
        self.config = {"plan": str(plan(folder, {"run": exp}, **options))}

    def begin(self) -> None:
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

    def kill(self, what: str) -> None:
        if what != "server":
            self.net.processes.stop(what, kill=True)
            return
        for pid in self._servers():
            os.kill(pid, signal.SIGKILL)

    def bring_back(self, what: str) -> None:
        if what.startswith("node"):
            revive(self.net, int(what.removeprefix("node")))
            return
        self.server.join()
        self.net.start_superlink()
        self.serve()

    def _servers(self) -> list[int]:
        """Return the processes of server apps of this network, which the SuperLink's executor has started."""
        shown = subprocess.run(["ps", "-eo", "pid=,ppid=,comm="], capture_output=True, text=True, check=True).stdout
        lines = [line.split(maxsplit=2) for line in shown.splitlines()]
        below = [pid for pid, parent, _ in lines if int(parent) == self.net.processes.pid("superlink")]
        return [int(pid) for pid, parent, name in lines if parent in below and "serverapp" in name]


def final(run: Path) -> LoopState:
    """Return the state after the last round of a run directory."""
    return checkpoint.load(max((run / "checkpoints").glob("*.safetensors")), torch.device("cpu")).state


def clients(run: Path) -> list[dict[str, Any]]:
    return played_lines(run, SEATS)


def metrics(run: Path) -> list[dict[str, Any]]:
    return played_lines(run, METRICS)


def kinds(run: Path) -> set[str]:
    """Return what kinds of transactions the books of a run hold; none if nobody pays in it."""
    if not (run / "ledger.json").exists():
        return set()
    return {record.transaction.kind for record in open_ledger(run).history()}


def until(said: str, holds: Callable[[], Any], patience_s: float = 240.0) -> None:
    """Wait for something that other processes do."""
    end = time.monotonic() + patience_s
    while not holds():
        assert time.monotonic() < end, f"waited {patience_s:g} s for: {said}"
        time.sleep(0.1)
