"""Section III-B of GreedyFed: a client's value falls the more often it has sat. MNIST at Table I's clamped setting
(N=300, M=3, T=400), GreedyFed with the mean of values. One JSON line a run goes to ``--out``.
Run: ``HANSE_DATA=folder OMP_NUM_THREADS=1 python benchmarks/values_fall.py --seeds 0 1 2 3 4``.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from resumable import play_missing
from scipy import stats
from set_aware import experiment

import hanse
from hanse.runs.run_record import load_run

SEATINGS = (1, 2, 3, 5, 10, 20)


def play(run: Mapping[str, Any]) -> dict[str, Any]:
    """Return mean values by how often a client sat so far, among the clients that sat at least 5 times (further seats
    have fewer clients: ``seated``), how values go with seats, with and without the first one, and how many clients sat
    after the round-robin.
    """
    place = {"data": "mnist", "column": "clamped", "conduct": "clean", "rounds": run["rounds"], "seed": run["seed"]}
    with tempfile.TemporaryDirectory() as folder:
        hanse.run(experiment({**place, "mechanism": {"name": "greedyfed"}}), out=Path(folder) / "run")
        seats = load_run(Path(folder) / "run").seats
    clients, values, rounds = seats.client, seats.value, seats.round
    own = {int(c): values[clients == c] for c in np.unique(clients)}
    often = [series for series in own.values() if len(series) >= 5]
    falls, later = (
        [float(stats.spearmanr(np.arange(len(series) - first), series[first:]).statistic) for series in often]
        for first in (0, 1)  # with the first seat, which is in the round-robin, and without it
    )
    by_seating = {
        str(k): fmean(float(s[k - 1]) for s in often if len(s) >= k)
        for k in SEATINGS
        if any(len(s) >= k for s in often)
    }
    return {
        **run, "clients": len(often), "by_seating": by_seating, "spearman": fmean(falls) if falls else 0.0,
        "seated": {str(k): sum(len(series) >= k for series in often) for k in SEATINGS},
        "falling": sum(f < 0 for f in falls), "falling_later": sum(f < 0 for f in later),
        "spearman_later": fmean(later) if later else 0.0, "seated_later": len(np.unique(clients[rounds >= 100])),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--rounds", type=int, default=400)
    parser.add_argument("--out", type=Path, default=Path("values_fall.jsonl"))
    given = parser.parse_args()
    runs = [{"seed": seed, "rounds": given.rounds} for seed in given.seeds]
    done = play_missing(given.out, runs, play)
    for line in done:
        means = ", ".join(f"{k}: {v:.4f}" for k, v in line["by_seating"].items())
        print(
            f"seed {line['seed']}: {line['clients']} clients sat 5 times or more, values fall for {line['falling']} "
            f"(mean rank correlation {line['spearman']:.2f}), without the first seat for {line['falling_later']} "
            f"({line['spearman_later']:.2f}); mean value at seating {means}; "
            f"{line['seated_later']} clients sat after the round-robin"
        )


if __name__ == "__main__":
    main()
