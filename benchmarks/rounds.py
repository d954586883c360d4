"""Times whole rounds of five mechanisms with 100 clients, side by side with another commit's.

    HANSE_DATA=folder python benchmarks/rounds.py --base COMMIT [--pairs 7] [--rounds 6] [--only NAME ...]

MNIST among 100 clients (Dirichlet 0.5), MLP 784-50-25-10, one thread. The two source trees run in turn, each run in a
process of its own; a run's figure is the median of the processor seconds from round to round, which busy neighbours
disturb less than the clock on the wall. Printed are the medians over the pairs, and the median of the ratios taken pair
by pair. Without MNIST the digits take its place.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from regression import ROOT, source_of

CHILD = """
import json, statistics, sys, time, hanse
class Clock:
    def __init__(self):
        self.moments = []
    def on_round(self, metrics, played):
        self.moments.append(time.process_time())
job, clock = json.loads(sys.argv[1]), Clock()
hanse.run(hanse.Experiment(**job), observers=[clock])
print(statistics.median(b - a for a, b in zip(clock.moments, clock.moments[1:])))
"""


def _jobs(source: str, rounds: int) -> Mapping[str, Mapping[str, Any]]:
    """Return the experiments by name."""
    common = {
        "data": {
            "source": source,
            "partition": {"name": "dirichlet", "alpha": 0.5},
            "clients": 100,
            "validation": 0.05,
        },
        "model": {"name": "mlp", "hidden": [50, 25]},
        "train": {"epochs": 5, "batch_size": 50, "lr": 0.01, "momentum": 0.5},
        "engine": {"train": "stacked", "threads": 1},
        "run": {"rounds": rounds, "seed": 1},
    }
    seated = {"clients_per_round": 10}
    return {
        "mnist-mlp (FedAvg)": common | {"mechanism": {"name": "fedavg", **seated}},
        "GreedyFed": common | {"mechanism": {"name": "greedyfed", **seated}},
        "Ditto": common | {"mechanism": {"name": "ditto", **seated}},
        "FedGen": common | {"mechanism": {"name": "fedgen", **seated}, "engine": {"train": "sequential", "threads": 1}},
        "iPFL": common
        | {
            "mechanism": {"name": "ipfl"},
            "clients": {"grant": 1000.0},
            "train": {"steps": 5, "batch_size": 50, "lr": 0.01},
        },
    }


def round_seconds(source: Path, job: Mapping[str, Any]) -> float:
    """Return the median processor seconds of a round with the package in ``source``. Raises RuntimeError."""
    environment = os.environ | {"PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"}
    line = [sys.executable, "-c", CHILD, json.dumps(job)]
    done = subprocess.run(line, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    return float(done.stdout.split()[-1])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", required=True, metavar="COMMIT")
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--only", nargs="*", metavar="NAME")
    given = parser.parse_args(arguments)
    there = (Path(os.environ.get("HANSE_DATA", "")) / "mnist.npz").exists()
    with source_of(given.base) as base:
        for name, job in _jobs("mnist" if there else "digits", given.rounds).items():
            if given.only and name not in given.only:
                continue
            pairs = [(round_seconds(base, job), round_seconds(ROOT / "src", job)) for _ in range(given.pairs)]
            old, new = (statistics.median(pair[i] for pair in pairs) for i in (0, 1))
            ratio = statistics.median(after / before for before, after in pairs)
            print(f"{name}: before {old * 1e3:.1f} ms, now {new * 1e3:.1f} ms, now/before {ratio:.3f}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
