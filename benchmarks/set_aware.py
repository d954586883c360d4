"""Set-aware selection on MNIST at Table I's setting of GreedyFed: N=300, M=3, T=400, pixels from 0 to 1, at three
partitions; any other mechanism can be run beside it. One JSON line a run goes to ``--out`` and is not run again.
Run: ``HANSE_DATA=folder OMP_NUM_THREADS=1 python benchmarks/set_aware.py --seeds 0 1 2 3 4 --out set_aware.jsonl``.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from resumable import play_missing

import hanse

COLUMNS: dict[str, dict[str, Any]] = {
    "clamped": {"alpha": 1e-4, "sampler": "float32-clamped"},
    "true": {"alpha": 1e-4},
    "0.1": {"alpha": 0.1},
    "100": {"alpha": 100.0},
}


def experiment(mechanism: dict[str, Any], column: str, seed: int, rounds: int) -> hanse.Experiment:
    return hanse.Experiment(
        data={
            "source": "mnist", "partition": "dirichlet", "clients": 300, "scale": "unit", "validation": 0.5,
            "seed": seed, **COLUMNS[column],
        },
        model={"name": "mlp", "hidden": [50, 25]},
        mechanism={"clients_per_round": 3, **mechanism},
        train={"epochs": 5, "batches_per_epoch": 5, "lr": 0.01, "momentum": 0.5},
        engine={"train": "stacked", "threads": 1, "workers": 1, "device": "cpu"},
        eval={"every": 10},
        run={"rounds": rounds, "seed": seed},
    )  # fmt: skip


def play(mechanism: dict[str, Any], column: str, seed: int, rounds: int) -> dict[str, Any]:
    begun = time.perf_counter()
    metrics = hanse.run(experiment(mechanism, column, seed, rounds)).metrics
    accuracy = [100 * m["test/accuracy"] for m in metrics if m.get("test/accuracy") is not None]
    distances = [m["select/distance"] for m in metrics if "select/distance" in m]
    return {
        "mechanism": mechanism, "column": column, "seed": seed, "rounds": rounds, "accuracy": accuracy[-1],
        "curve": [round(a, 2) for a in accuracy], "distance": fmean(distances) if distances else None,
        "seconds": time.perf_counter() - begun,
    }  # fmt: skip


def line(numbers: Sequence[float]) -> str:
    return f"{fmean(numbers):.2f} ± {stdev(numbers) if len(numbers) > 1 else 0.0:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--columns", nargs="+", choices=list(COLUMNS), default=["clamped", "true", "0.1"])
    parser.add_argument("--rounds", type=int, default=400)
    parser.add_argument("--mechanism", type=json.loads, nargs="+", default=[{"name": "set_aware"}], help="JSON tables")
    parser.add_argument("--out", type=Path, default=Path("set_aware.jsonl"))
    given = parser.parse_args()
    runs = [
        {"mechanism": mechanism, "column": column, "seed": seed, "rounds": given.rounds}
        for seed in given.seeds
        for column in given.columns
        for mechanism in given.mechanism
    ]
    done = play_missing(given.out, runs, lambda run: play(**run))
    print("| accuracy %, mean ± deviation over seeds | " + " | ".join(given.columns) + " |")
    print("|---|" + "---|" * len(given.columns))
    for mechanism in given.mechanism:
        cells = []
        for column in given.columns:
            found = {
                d["seed"]: d["accuracy"]
                for d in done
                if (d["mechanism"], d["column"], d["rounds"]) == (mechanism, column, given.rounds)
            }
            cells.append(line([found[seed] for seed in given.seeds]))
        print(f"| {json.dumps(mechanism)} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
