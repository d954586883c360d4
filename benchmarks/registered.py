"""Does a round cost more when more clients are registered? 10 seats of 100 and of 10,000 synthetic clients,
alternately.

Each run is a process of its own, so that its peak memory is its own. Prints medians, and the ratios pair by pair.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from statistics import median

CHILD = """
import json, sys, time
begun = time.perf_counter()
import hanse
run = hanse.run(hanse.Experiment(
    data={"source": "synthetic", "clients": int(sys.argv[1]), "samples_per_client": 600},
    model={"name": "mlp"},
    mechanism={"name": "fedavg", "clients_per_round": int(sys.argv[2])},
    train={"epochs": 2, "batch_size": 50},
    engine={"train": "stacked", "threads": 1},
    run={"rounds": int(sys.argv[3])},
))
rounds = sorted(m["time/round_s"] for m in run.metrics[2:])
print(json.dumps({
    "ms": 1e3 * rounds[len(rounds) // 2],
    "mb": run.metrics[-1]["memory/peak_mb"],
    "start_s": time.perf_counter() - begun - sum(m["time/round_s"] for m in run.metrics),
}))
"""


def measure(clients: int, seats: int, rounds: int) -> dict[str, float]:
    command = [sys.executable, "-c", CHILD, str(clients), str(seats), str(rounds)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, nargs=2, default=[100, 10_000])
    parser.add_argument("--seats", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--runs", type=int, default=5)
    given = parser.parse_args()
    few, many = given.clients
    pairs = [tuple(measure(n, given.seats, given.rounds) for n in (few, many)) for _ in range(given.runs)]
    print(f"| registered clients, {given.seats} a round | ms a round | peak MB | start-up s |")
    print("|---|---|---|---|")
    for place, clients in enumerate((few, many)):
        row = [median(pair[place][key] for pair in pairs) for key in ("ms", "mb", "start_s")]
        print(f"| {clients:,} | {row[0]:.1f} | {row[1]:.0f} | {row[2]:.2f} |")
    ratios = [median(pair[1][key] / pair[0][key] for pair in pairs) for key in ("ms", "mb", "start_s")]
    print(f"| ratio, median of {given.runs} pairs | {ratios[0]:.2f} | {ratios[1]:.2f} | {ratios[2]:.2f} |")


if __name__ == "__main__":
    main()
