"""GreedyFed with its clients valued exactly, by GTG-Shapley, and by the mixture: accuracy, models scored, seconds.

Section IV's settings (five epochs of five batches, lr 0.01, momentum 0.5, Dirichlet 1e-4 as the authors' code draws it,
half of the test set for validation), seeds 0 to 4:

* ``M=3``: MNIST, 300 clients, 3 a round, 400 rounds, the paper's own (Table I);
* ``M=10``: MNIST, 60 clients, 10 a round, 60 rounds, where exact values are in reach;
* ``cifar``: CIFAR-10, 200 clients, 20 a round, 100 rounds, seed 0, by the mixture alone (GTG: 440 s a round).

Run: ``HANSE_DATA=folder OMP_NUM_THREADS=1 python benchmarks/greedyfed_values.py --games M=3 M=10``. Runs are written to
``--out`` one by one, and the same command goes on with what is left.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from resumable import play_missing

import hanse

DATA: Mapping[str, Any] = {
    "partition": {"name": "dirichlet", "alpha": 1e-4, "sampler": "float32-clamped"},
    "source": {"scale": "unit"},
    "validation": 0.5,
}
MLP: Mapping[str, Any] = {"name": "mlp", "hidden": [50, 25]}
GAMES: Mapping[str, Mapping[str, Any]] = {
    "M=3": {"clients": 300, "seats": 3, "rounds": 400, "source": "mnist", "model": MLP, "train": "stacked"},
    "M=10": {"clients": 60, "seats": 10, "rounds": 60, "source": "mnist", "model": MLP, "train": "stacked"},
    "cifar": {
        "clients": 200, "seats": 20, "rounds": 100, "source": "cifar10", "model": {"name": "cnn_greedyfed"},
        "train": "sequential",
    },
}  # fmt: skip
VALUES: Mapping[str, tuple[str, ...]] = {
    "M=3": ("exact", "gtg", "mixture"), "M=10": ("exact", "gtg", "mixture"), "cifar": ("mixture",),
}  # fmt: skip


def play(game: str, value: str, seed: int) -> dict[str, Any]:
    """Return one run's final accuracy in per cent, models scored a round, and seconds."""
    setting, begun = GAMES[game], time.perf_counter()
    run = hanse.run(
        hanse.Experiment(
            data={**DATA, "source": setting["source"], "clients": setting["clients"]},
            model=dict(setting["model"]),
            mechanism={"name": "greedyfed", "clients_per_round": setting["seats"], "value": value},
            train={"epochs": 5, "batches_per_epoch": 5, "lr": 0.01, "momentum": 0.5},
            engine={"train": setting["train"], "threads": 1, "device": "cpu"},
            eval={"every": 10},
            run={"rounds": setting["rounds"], "seed": seed},
        )
    )
    metrics = run.metrics
    tested = [m for m in metrics if "test/accuracy" in m]
    return {
        "game": game, "value": value, "seed": seed,
        "accuracy": 100 * tested[-1]["test/accuracy"],
        "models": fmean(m["value/models_evaluated"] for m in metrics),
        "value_s": fmean(m["time/value_s"] for m in metrics),
        "round_s": fmean(m["time/round_s"] for m in metrics),
        "seconds": time.perf_counter() - begun,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--games", nargs="+", default=["M=3", "M=10"], choices=list(GAMES))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--out", type=Path, default=Path("greedyfed_values.jsonl"))
    given = parser.parse_args()
    runs = [
        {"game": game, "value": value, "seed": seed}
        for game in given.games
        for seed in (given.seeds if game != "cifar" else given.seeds[:1])
        for value in VALUES[game]
    ]
    done = play_missing(given.out, runs, lambda run: play(**run))
    print("| game | values | accuracy % | models a round | s of valuation a round | s a round | seeds |")
    print("|---|---|---|---|---|---|---|")
    for game in given.games:
        for value in VALUES[game]:
            rows = [d for d in done if (d["game"], d["value"]) == (game, value)]
            accuracies = [d["accuracy"] for d in rows]
            spread = stdev(accuracies) if len(rows) > 1 else 0.0
            numbers = " | ".join(f"{fmean(d[k] for d in rows):.3g}" for k in ("models", "value_s", "round_s"))
            print(f"| {game} | {value} | {fmean(accuracies):.2f} ± {spread:.2f} | {numbers} | {len(rows)} |")


if __name__ == "__main__":
    main()
