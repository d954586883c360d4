"""How time a round, start-up and memory grow with registered clients, seats, parameters and rounds: fitted exponents;
and what a round of systems takes whose work grows faster.

Synthetic clients that are generated when they sit, MLP 60-h-10, FedAvg; each point is a process of its own, the points
in turns; medians. Time is the process's own (user and system), which a busy machine changes little. An exponent is the
slope of the line through the logarithms: 0 is flat, 1 is proportional. Run: ``python benchmarks/growth.py``.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import numpy as np
from common import markdown

CHILD = """
import json, resource, statistics, sys, time
import hanse

class Clock:
    def __init__(self):
        self.at = []
    def on_start(self, experiment, first_round, said):
        self.at.append(time.process_time())
    def on_round(self, metrics, played):
        self.at.append(time.process_time())
    def on_end(self, result):
        pass

clock = Clock()
run = hanse.run(hanse.Experiment(**json.loads(sys.argv[1])), observers=[clock])
print(json.dumps({
    "CPU ms a round": 1e3 * statistics.median(b - a for a, b in zip(clock.at[1:], clock.at[2:])),
    "start-up CPU s": clock.at[0],
    "peak MB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
}))
"""
FIGURES = ("CPU ms a round", "start-up CPU s", "peak MB")


def sections(mechanism: Mapping[str, Any], clients: int, hidden: int, rounds: int, samples: int) -> dict[str, Any]:
    """Return an experiment whose clients generate their samples when they sit."""
    return {
        "data": {"source": {"name": "synthetic", "samples_per_client": samples}, "clients": clients},
        "model": {"name": "mlp", "hidden": [hidden]},
        "mechanism": mechanism,
        "train": {"epochs": 2, "batch_size": 50},
        "engine": {"threads": 1, "device": "cpu"},
        "clients": {"grant": 1e6},
        "eval": {"clients": 0},
        "run": {"rounds": rounds},
    }


@dataclass(frozen=True)
class Point:
    clients: int = 1_000
    seats: int = 10
    hidden: int = 50
    rounds: int = 12
    samples: int = 600

    @property
    def parameters(self) -> int:
        return 60 * self.hidden + self.hidden + self.hidden * 10 + 10

    @property
    def sections(self) -> dict[str, Any]:
        mechanism = {"name": "fedavg", "clients_per_round": self.seats}
        return sections(mechanism, self.clients, self.hidden, self.rounds, self.samples)


AXES: Mapping[str, tuple[Point, ...]] = {
    "clients": tuple(Point(clients=n, seats=100, rounds=8) for n in (100, 1_000, 10_000, 100_000)),
    "seats": tuple(Point(seats=s, rounds=4) for s in (10, 100, 1_000)),
    "parameters": tuple(Point(hidden=h, rounds=4, samples=60) for h in (1_600, 16_000, 160_000, 700_000)),
    "rounds": tuple(Point(rounds=r) for r in (5, 20, 80, 320)),
}


# what grows with the square of something, or might: values of many seats, auctions and markets of many clients
GREEDY = {"name": "greedyfed", "clients_per_round": 100}
SYSTEMS: Mapping[str, dict[str, Any]] = {
    "GreedyFed, 100 seats, mixture": sections({**GREEDY, "value": "mixture"}, 1_000, 50, 3, 60),
    "GreedyFed, 100 seats, path": sections({**GREEDY, "value": "path"}, 1_000, 50, 3, 60),
    "PI-FL, 2,000 clients": sections({"name": "pifl"}, 2_000, 50, 3, 60),
    "iPFL, 200 clients": sections({"name": "ipfl"}, 200, 50, 3, 60),
    "iPFL, 1,000 clients": sections({"name": "ipfl"}, 1_000, 50, 3, 60),
}


def measure(experiment: Mapping[str, Any]) -> dict[str, float]:
    """Return what one process found. Raises RuntimeError with its last words if it fails."""
    words = [sys.executable, "-c", CHILD, json.dumps(experiment)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    found: dict[str, float] = json.loads(done.stdout)
    return found


def exponent(x: Sequence[float], y: Sequence[float]) -> float:
    """Return the slope of the least-squares line through the logarithms."""
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def figures(axis: str, points: Sequence[Point], runs: Sequence[Sequence[dict[str, float]]]) -> str:
    """Return an axis's Markdown table: a row a point, then the exponents, over all points and of the last step."""
    sizes = [float(getattr(point, axis)) for point in points]
    columns = {name: [median(run[p][name] for run in runs) for p in range(len(points))] for name in FIGURES}
    rows = [[f"{size:,.0f}", *(f"{columns[name][p]:.4g}" for name in FIGURES)] for p, size in enumerate(sizes)]
    rows.append(["exponent", *(f"{exponent(sizes, columns[name]):.2f}" for name in FIGURES)])
    last = [f"{exponent(sizes[-2:], columns[name][-2:]):.2f}" for name in FIGURES]
    return markdown([axis, *FIGURES], [*rows, ["exponent of the last step", *last]])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--axes", nargs="*", default=list(AXES), choices=list(AXES))
    parser.add_argument("--systems", nargs="*", default=list(SYSTEMS), choices=list(SYSTEMS), metavar="NAME")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--rounds", type=int, help="of every point but those of the axis of rounds")
    given = parser.parse_args()
    for axis in given.axes:
        points = AXES[axis]
        if given.rounds is not None and axis != "rounds":
            points = tuple(replace(point, rounds=given.rounds) for point in points)
        runs = [[measure(point.sections) for point in points] for _ in range(given.runs)]
        print(f"{figures(axis, points, runs)}\n", flush=True)
    if given.systems:
        print(markdown(["system", *FIGURES], []))
    for name in given.systems:
        turns = [measure(SYSTEMS[name]) for _ in range(given.runs)]
        print(f"| {name} | {' | '.join(f'{median(one[key] for one in turns):.4g}' for key in FIGURES)} |", flush=True)


if __name__ == "__main__":
    main()
