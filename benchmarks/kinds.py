"""What a round of each kind of mechanism takes, and where the time goes: plain, valued, personalised, a language model.

On MNIST, 100 clients of 550 samples, the MLP 784-50-25-10, 5 epochs of batch 50: FedAvg with 10 seats; Shapley values
of 10 and of 20 updates on 5,000 server images, by GTG-Shapley and by the mixture; Ditto's row a client; PI-FL's tiers;
iPFL's market of 20. On Shakespeare, where it is: ten roles, a two-layer LSTM, 20 steps of batch 16. Each job is a
process of its own, the jobs in turns; medians over the rounds but the first, then over the processes.
Run: ``HANSE_DATA=folder python benchmarks/kinds.py``.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping
from statistics import median
from typing import Any

CHILD = """
import json, statistics, sys, time
begun = time.perf_counter()
import hanse
run = hanse.run(hanse.Experiment(**json.loads(sys.argv[1])))
whole = time.perf_counter() - begun
times = {k: statistics.median(m["time/" + k + "_s"] for m in run.metrics[1:])
         for k in ("round", "train", "value", "test") if "time/" + k + "_s" in run.metrics[-1]}
print(json.dumps({
    **times, "start": whole - sum(m["time/round_s"] for m in run.metrics), "peak": run.metrics[-1]["memory/peak_mb"],
    "models": statistics.median(m.get("value/models_evaluated", 0.0) for m in run.metrics[1:]),
}))
"""
MNIST: Mapping[str, Any] = {
    "data": {"source": "mnist", "partition": "iid", "clients": 100, "validation": 5_000 / 60_000},
    "model": {"name": "mlp", "hidden": [50, 25]},
    "train": {"epochs": 5, "batch_size": 50, "lr": 0.01, "momentum": 0.5},
}
SHAKESPEARE: Mapping[str, Any] = {
    "data": {
        "source": "shakespeare",
        "partition": {"name": "natural", "choose": "largest"},
        "clients": 10,
        "client_test": 0.2,
        "client_test_from": "server",
        "client_validation": 0.1,
        "validation": 0.0,
    },
    "model": {"name": "lstm", "embedding": 8, "hidden": 128, "layers": 2},
    "mechanism": {"name": "fedavg", "select": "everyone"},
    "train": {"steps": 20, "batch_size": 16, "lr": 2.0, "momentum": 0.9},
}
JOBS: Mapping[str, Mapping[str, Any]] = {
    "FedAvg, 10 seats": MNIST | {"mechanism": {"name": "fedavg", "clients_per_round": 10}},
    **{
        f"GreedyFed, {value} of M={seats}": MNIST
        | {"mechanism": {"name": "greedyfed", "clients_per_round": seats, "value": value}}
        for seats in (10, 20)
        for value in ("gtg", "mixture")
    },
    "Ditto, a row per client, 10 seats": MNIST | {"mechanism": {"name": "ditto", "clients_per_round": 10}},
    "PI-FL, 3 tiers of 4 seats": MNIST
    | {"mechanism": {"name": "pifl", "tiers": 3, "by_contribution": 3, "at_random": 1, "value": {"judges": "all"}}}
    | {"clients": {"grant": 100.0}},
    "iPFL, all of 20 clients": MNIST
    | {"data": {**MNIST["data"], "clients": 20}, "mechanism": {"name": "ipfl"}, "clients": {"grant": 1e6}},
    "Shakespeare, LSTM, FedAvg, 10 roles": SHAKESPEARE,
}


def measure(job: Mapping[str, Any], rounds: int) -> dict[str, float]:
    """Return what one process found. Raises RuntimeError with its last words if it fails."""
    sections = {**job, "run": {"rounds": rounds, "seed": 0}}
    done = subprocess.run(
        [sys.executable, "-c", CHILD, json.dumps(sections)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    found: dict[str, float] = json.loads(done.stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--jobs", nargs="*", default=list(JOBS), choices=list(JOBS), metavar="NAME")
    given = parser.parse_args()
    turns = [{name: measure(JOBS[name], given.rounds) for name in given.jobs} for _ in range(given.runs)]
    print("| job | s/round | training % | valuation % | models valued a round | test % | start-up s | peak MB |")
    print("|---|---|---|---|---|---|---|---|")
    for name in given.jobs:
        one = {key: median(turn[name].get(key, 0.0) for turn in turns) for key in turns[0][name]}
        shares = [f"{100 * one.get(key, 0.0) / one['round']:.0f}" for key in ("train", "value", "test")]
        cells = (f"{one['round']:.3f}", *shares[:2], f"{one['models']:,.0f}", shares[2])
        print(f"| {name} | {' | '.join(cells)} | {one['start']:.1f} | {one['peak']:.0f} |")


if __name__ == "__main__":
    main()
