"""Selectors on CIFAR-10 at GreedyFed's setting (N=200, M=20, CNN, E=5, B=5), at a scale that a small machine affords.

Two things are cut, both said with the result: rounds, and the permutations that GTG-Shapley may use a round (the limit
for M=20 is 1,000, which is reached: about 14,000 models a round). Values stay unbiased, with larger standard
errors. ``--validation`` cuts the validation images too (0.5: 4,000 to 5,000).
Run: ``HANSE_DATA=folder OMP_NUM_THREADS=1 python benchmarks/cifar_selectors.py --rounds 50 --out cifar.jsonl``.
"""

from __future__ import annotations

import argparse
import time
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
VALUED = ("greedyfed", "ucb", "s_fedavg", "set_aware")
ALGORITHMS = (*VALUED, "fedavg", "power_of_choice")


def play(algorithm: str, column: str, seed: int, given: argparse.Namespace) -> dict[str, Any]:
    value = {"value": {"name": "gtg", "max_permutations": given.permutations}} if algorithm in VALUED else {}
    begun = time.perf_counter()
    metrics = hanse.run(
        hanse.Experiment(
            data={
                "source": {"name": "cifar10", "scale": "unit"}, "partition": {"name": "dirichlet", **COLUMNS[column]},
                "clients": 200, "validation": given.validation, "seed": seed,
            },
            model={"name": "cnn_greedyfed"},
            mechanism={"name": algorithm, "clients_per_round": 20, **value},
            train={"epochs": 5, "batches_per_epoch": 5, "lr": 0.01, "momentum": 0.5},
            engine={"train": "sequential", "threads": 1, "workers": 1, "device": "cpu"},
            eval={"every": 5},
            run={"rounds": given.rounds, "seed": seed},
        )
    ).metrics  # fmt: skip
    accuracy = [100 * m["test/accuracy"] for m in metrics if m.get("test/accuracy") is not None]
    return {
        "algorithm": algorithm, "column": column, "seed": seed, "rounds": given.rounds,
        "permutations": given.permutations, "validation": given.validation, "accuracy": accuracy[-1],
        "curve": [round(a, 2) for a in accuracy], "seconds": time.perf_counter() - begun,
        "value_share": sum(m.get("time/value_s", 0.0) for m in metrics) / sum(m["time/round_s"] for m in metrics),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--permutations", type=int, default=100)
    parser.add_argument("--validation", type=float, default=0.125)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--columns", nargs="+", choices=list(COLUMNS), default=["clamped", "0.1"])
    parser.add_argument("--algorithms", nargs="+", choices=ALGORITHMS, default=list(ALGORITHMS))
    parser.add_argument("--out", type=Path, default=Path("cifar_selectors.jsonl"))
    given = parser.parse_args()
    scale = {name: getattr(given, name) for name in ("rounds", "permutations", "validation")}
    runs = [
        {"algorithm": algorithm, "column": column, "seed": seed, **scale}
        for seed in given.seeds
        for column in given.columns
        for algorithm in given.algorithms
    ]
    done = play_missing(given.out, runs, lambda run: play(run["algorithm"], run["column"], run["seed"], given))
    print(f"T={given.rounds}, at most {given.permutations} permutations a round, validation share {given.validation}")
    print("| accuracy % | " + " | ".join(given.columns) + " | seconds a run |")
    print("|---|" + "---|" * (len(given.columns) + 1))
    for algorithm in given.algorithms:
        mine = [d for d in done if d["algorithm"] == algorithm and all(d[k] == v for k, v in scale.items())]
        cells = []
        for column in given.columns:
            found = [d["accuracy"] for d in mine if d["column"] == column and d["seed"] in given.seeds]
            cells.append(f"{fmean(found):.2f} ± {stdev(found):.2f}" if len(found) > 1 else f"{found[0]:.2f}")
        print(f"| {algorithm} | " + " | ".join(cells) + f" | {fmean(d['seconds'] for d in mine):.0f} |")


if __name__ == "__main__":
    main()
