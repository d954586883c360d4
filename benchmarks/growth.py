"""How time a round, start-up and memory grow with registered clients, seats, parameters and rounds: fitted exponents.

Synthetic clients of 600 samples that are generated when they sit, MLP 60-h-10, FedAvg; each point is a process of its
own, the points in turns; medians. An exponent is the slope of the line through the logarithms: 0 is flat, 1 is
proportional. Run: ``python benchmarks/growth.py``.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np

CHILD = """
import json, resource, sys, time
begun = time.perf_counter()
import hanse
clients, seats, hidden, rounds = map(int, sys.argv[1:])
run = hanse.run(hanse.Experiment(
    data={"source": {"name": "synthetic", "samples_per_client": 600}, "clients": clients},
    model={"name": "mlp", "hidden": [hidden]},
    mechanism={"name": "fedavg", "clients_per_round": seats},
    train={"epochs": 2, "batch_size": 50},
    engine={"train": "stacked", "threads": 1, "workers": 1, "device": "cpu"},
    eval={"clients": 0},
    run={"rounds": rounds},
))
whole = time.perf_counter() - begun
times = [m["time/round_s"] for m in run.metrics]
print(json.dumps({
    "ms a round": 1e3 * sorted(times[1:])[len(times[1:]) // 2],
    "start-up s": whole - sum(times),
    "peak MB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
}))
"""
FIGURES = ("ms a round", "start-up s", "peak MB")


@dataclass(frozen=True)
class Point:
    clients: int = 1_000
    seats: int = 10
    hidden: int = 50
    rounds: int = 12

    @property
    def parameters(self) -> int:
        return 60 * self.hidden + self.hidden + self.hidden * 10 + 10


AXES: Mapping[str, tuple[Point, ...]] = {
    "clients": tuple(Point(clients=n, seats=100, rounds=8) for n in (100, 1_000, 10_000, 100_000)),
    "seats": tuple(Point(seats=s) for s in (1, 3, 10, 30, 100, 300)),
    "parameters": tuple(Point(hidden=h) for h in (25, 100, 400, 1_600, 6_400)),
    "rounds": tuple(Point(rounds=r) for r in (5, 20, 80, 320)),
}


def measure(point: Point) -> dict[str, float]:
    """Return what one process found."""
    values = (point.clients, point.seats, point.hidden, point.rounds)
    done = subprocess.run([sys.executable, "-c", CHILD, *map(str, values)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{point}: {done.stderr[-2000:]}")
    found: dict[str, float] = json.loads(done.stdout)
    return found


def exponent(x: Sequence[float], y: Sequence[float]) -> float:
    """Return the slope of the least-squares line through the logarithms."""
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def figures(axis: str, points: Sequence[Point], runs: Sequence[Sequence[dict[str, float]]]) -> list[str]:
    """Return an axis's Markdown table: a row a point, then the exponents, over all points and of the last step."""
    sizes = [float(getattr(point, axis)) for point in points]
    columns = {name: [median(run[p][name] for run in runs) for p in range(len(points))] for name in FIGURES}
    lines = [f"| {axis} | {' | '.join(FIGURES)} |", "|---" * (len(FIGURES) + 1) + "|"]
    for p, size in enumerate(sizes):
        lines.append(f"| {size:,.0f} | {' | '.join(f'{columns[name][p]:.4g}' for name in FIGURES)} |")
    every = " | ".join(f"{exponent(sizes, columns[name]):.2f}" for name in FIGURES)
    last = " | ".join(f"{exponent(sizes[-2:], columns[name][-2:]):.2f}" for name in FIGURES)
    return [*lines, f"| exponent | {every} |", f"| exponent of the last step | {last} |"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--axes", nargs="*", default=list(AXES), choices=list(AXES))
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--rounds", type=int, help="of every point but those of the axis of rounds")
    given = parser.parse_args()
    for axis in given.axes:
        points = AXES[axis]
        if given.rounds is not None and axis != "rounds":
            points = tuple(replace(point, rounds=given.rounds) for point in points)
        runs = [[measure(point) for point in points] for _ in range(given.runs)]
        print("\n".join([*figures(axis, points, runs), ""]), flush=True)


if __name__ == "__main__":
    main()
