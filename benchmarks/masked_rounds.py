"""What masked sums cost: the time of a round and the bytes to and from the server, beside plain updates.

    OMP_NUM_THREADS=1 python benchmarks/masked_rounds.py [--clients 20] [--rounds 5]

20 nodes in this process, which answer one after another as on a network (signed messages, Flower's records); digits
and an MLP. Plain and masked rounds with the same data and seed, by the width of the hidden layer and the epochs.
Median of rounds 1 to the last, without round 0; and the model of both, which differ by the whole numbers alone.
"""

from __future__ import annotations

import argparse
import logging
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

import hanse
from hanse.data import build
from hanse.federation.node import ClientData
from hanse.flower.agreed import agree
from hanse.flower.client import client_app
from hanse.flower.rehearsal import InProcessGrid
from hanse.flower.server import play
from hanse.ledger.witness import Witness
from hanse.wings.private.masker import Trusted


class Clock:
    """Notes when each round was done."""

    def __init__(self) -> None:
        self.at: list[tuple[float, float]] = []

    def on_start(self, *_: Any) -> None: ...

    def on_round(self, *_: Any) -> None:
        self.at.append((time.perf_counter(), time.process_time()))

    def on_end(self, *_: Any) -> None: ...


def played(
    masked: bool, clients: int, rounds: int, hidden: int, epochs: int, folder: Path
) -> tuple[float, float, hanse.Run]:
    """Return the median seconds of a round and of the processor in it, and the run."""
    exp = hanse.Experiment(
        data={"clients": clients, "client_test": 0.2}, model={"name": "mlp", "hidden": [hidden]},
        mechanism={"name": "fedavg", "select": "everyone"}, train={"lr": 0.05, "epochs": epochs},
        engine={"train": "sequential", "threads": 1, "workers": 1, "device": "cpu"}, run={"rounds": rounds},
        eval={"every": rounds}, federation={"secure": {"group": 3}} if masked else {},
    )  # fmt: skip
    key, data, clock = Ed25519PrivateKey.generate(), build(exp.data), Clock()
    homes = [folder / f"node{i}" for i in range(clients)]
    trusted = Trusted(frozenset(Witness(home).public for home in homes)) if masked else None

    def own(i: int, context: Any) -> ClientData:
        return ClientData.of(data, i)

    pinned = key.public_key().public_bytes_raw()
    apps = {
        100 + i: client_app(partial(own, i), folder=home, operator=pinned, trusted=trusted)
        for i, home in enumerate(homes)
    }
    sets = (data.server_validation, data.server_test)
    run = play(
        InProcessGrid(apps), exp, folder / "run", clients, lambda: sets, [clock], patience_s=60.0, key=key,
        agreement=agree(exp, key, "run", "benchmark", homes),
    )  # fmt: skip
    wall, processor = np.median(np.diff(clock.at, axis=0), axis=0)
    return float(wall), float(processor), run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    logging.disable(logging.WARNING)
    print("| hidden, epochs | plain: s, of a core | masked: s, of a core | more a node | MB up | largest difference |")
    print("|---" * 6 + "|")
    for hidden, epochs in ((32, 1), (32, 20), (2048, 1), (2048, 5)):
        with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as two:
            plain, plain_cpu, a = played(False, asked.clients, asked.rounds, hidden, epochs, Path(one))
            masked, masked_cpu, b = played(True, asked.clients, asked.rounds, hidden, epochs, Path(two))
        up = ", ".join(f"{run.metrics[1]['bytes/up'] / 1e6:.2f}" for run in (a, b))
        apart = float((a.table.rows - b.table.rows).abs().max())
        more = 1e3 * (masked_cpu - plain_cpu) / asked.clients
        print(
            f"| {hidden}, {epochs} | {plain:.2f}, {plain_cpu:.2f} | {masked:.2f}, {masked_cpu:.2f} | {more:.0f} ms "
            f"| {up} | {apart:.1e} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
