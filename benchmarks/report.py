"""The report's speed and size: 500 rounds x 300 clients, all of them seated and paid in every round.

    python benchmarks/report.py [--rounds 500] [--clients 300]

Limits: 10 s and 15 MB. Processor seconds are told beside those of the wall, which other processes on the machine
stretch. The statement of one client of the same run is measured too.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from hanse.base import toml
from hanse.core.entry import MINT, TOKEN, Transaction, client, escrow, pool
from hanse.ledger.store import Ledger


def make_run(path: Path, rounds: int, clients: int) -> None:
    """Write a run directory as a tiered auction leaves it: values with errors, refusals, tests, books of tokens."""
    draw = np.random.default_rng(0)
    (path / "rounds").mkdir(parents=True)
    config = {
        "data": {"source": "digits", "partition": "iid", "clients": clients, "seed": 0},
        "model": {"name": "mlp", "hidden": [16]},
        "mechanism": {"name": "pifl"},
        "behaviour": {"free_rider": {"fraction": 0.2}},
        "run": {"rounds": rounds, "seed": 0},
    }
    (path / "config.toml").write_text(toml.dumps(config))
    (path / "ledger.json").write_text('{"book": "benchmark"}')
    worth = draw.normal(1, 1, clients)
    held = np.full(clients, 100 * TOKEN)
    ids = np.arange(clients)
    given = 100 * TOKEN
    grants = [Transaction(f"grant/{i}", "grant", ((MINT, -given), (client(i), given))) for i in range(clients)]
    with (
        Ledger.open(path / "transactions.jsonl", book="benchmark", floor=0) as ledger,
        (path / "metrics.jsonl").open("w") as metrics,
        (path / "clients.jsonl").open("w") as seats,
    ):
        ledger.post(0, grants)
        for r in range(rounds):
            values = worth * np.exp(-4 * r / rounds) * (1 + 0.2 * draw.normal(size=clients)) / clients
            accuracy = np.clip(0.9 - 0.8 * np.exp(-6 * r / rounds) + 0.05 * draw.normal(size=clients), 0, 1)
            ledger.post(r, _auction(held, draw))
            line = {
                "round": r, "present": clients, "seats": clients, "refused": 1, "train/loss": 2.0, "test/loss": 1.0,
                "test/accuracy": float(accuracy.mean()), "client/test_loss": 1.0, "tokens/bids": float(clients),
                "client/test_accuracy": float(accuracy.mean()), "bytes/down": 10**6, "bytes/up": 10**6,
                "time/train_s": 0.2, "time/value_s": 0.1, "time/round_s": 0.35,
            }  # fmt: skip
            metrics.write(json.dumps(line) + "\n")
            seats.writelines(
                json.dumps({"round": r, "client": c, "start": 0, "samples": 100.0, "loss": 0.5, "weight": 1 / clients,
                            "value": float(values[c]), "value_error": abs(float(values[c])) / 5,
                            "cumulative_value": float(worth[c])}) + "\n"
                for c in range(clients)
            )  # fmt: skip
            np.savez(
                path / "rounds" / f"{r:05d}.npz", client=ids, start=0 * ids, answered=ids, W_row=0 * ids, W_column=ids,
                W_weight=np.full(clients, 1 / clients), home=0 * ids, balances=held, bids=np.ones((clients, 1), bool),
                refused=np.array([r % clients]), reason=np.array(["no reply"]), tested=ids, test_accuracy=accuracy,
                test_loss=1 - accuracy, test_samples=np.full(clients, 30),
            )  # fmt: skip


def _auction(held: np.ndarray, draw: np.random.Generator) -> list[Transaction]:
    """Everyone bids a token and pays it; the pool is dealt out again at random."""
    n, purse = len(held), pool("tier 0")
    bids = tuple(p for c in range(n) for p in ((client(c), -TOKEN), (escrow(c), TOKEN)))
    pays = (*((escrow(c), -TOKEN) for c in range(n)), (purse, n * TOKEN))
    parts = np.floor(draw.dirichlet(np.full(n, 5.0)) * n * TOKEN).astype(np.int64)
    parts[0] += n * TOKEN - parts.sum()
    held += parts - TOKEN
    if held.min() < TOKEN:  # nobody goes bankrupt here
        held -= parts - TOKEN
        parts[:] = TOKEN
    rewards = (*((client(c), int(u)) for c, u in enumerate(parts) if u), (purse, -n * TOKEN))
    return [Transaction("bid/0", "bid", bids), Transaction("pay/0", "pay", pays), Transaction("r/0", "reward", rewards)]


_CHILD = """
import sys, time
begun, spent = time.perf_counter(), time.process_time()
from pathlib import Path
from hanse.reports.report import write_report
from hanse.reports.statement import render, statement
page = write_report([sys.argv[1]], sys.argv[2])
print(f"report: {time.perf_counter() - begun:.1f} s wall, {time.process_time() - spent:.1f} s processor, "
      f"{page.stat().st_size / 1e6:.1f} MB, {len(list((page.parent / 'figures').glob('*.png')))} figures")
begun, spent = time.perf_counter(), time.process_time()
text = render(statement(sys.argv[1], 7))
print(f"statement: {time.perf_counter() - begun:.1f} s wall, {time.process_time() - spent:.1f} s processor, "
      f"{len(text) / 1e6:.2f} MB")
"""


def main() -> None:
    given = argparse.ArgumentParser(description=__doc__)
    given.add_argument("--rounds", type=int, default=500)
    given.add_argument("--clients", type=int, default=300)
    args = given.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        begun = time.perf_counter()
        make_run(run, args.rounds, args.clients)
        print(f"made {args.rounds} rounds x {args.clients} clients in {time.perf_counter() - begun:.0f} s", flush=True)
        subprocess.run([sys.executable, "-c", _CHILD, str(run), str(Path(folder) / "out")], check=True)


if __name__ == "__main__":
    main()
