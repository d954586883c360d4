"""What it saves that clients are told their values and leave on them: bytes, and accuracy, with and without.

MNIST, 30 clients at Dirichlet(1e-4) by the clamped sampler (about half of them uniform, half with one class), 40
rounds. Three ways to choose: 5 at random, everyone, and the 5 largest losses. A client leaves once its mean value over
at least 2 rounds is below zero (policy "quits"). Values are GTG-Shapley (with everyone: one sweep, 30 permutations).
Run: ``HANSE_DATA=folder OMP_NUM_THREADS=1 python benchmarks/leaving.py --out leaving.jsonl``.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
from resumable import play_missing

import hanse
from hanse.data import build as build_data

MECHANISMS: dict[str, dict[str, Any]] = {
    "FedAvg, 5 of 30": {"name": "fedavg", "clients_per_round": 5, "value": {"name": "gtg"}},
    "Power-of-Choice, 5 of those asked": {
        "name": "power_of_choice", "clients_per_round": 5, "select": {"name": "power_of_choice", "decay": 1.0},
        "value": {"name": "gtg"},
    },
    "FedAvg, everyone": {"name": "fedavg", "select": "everyone", "value": {"name": "gtg", "max_permutations": 30}},
}  # fmt: skip
POLICIES: dict[str, dict[str, Any]] = {
    "stays": {"policy": "loyal", "told": True},
    "may leave": {"policy": {"name": "quits", "below": 0.0, "rounds": 2}, "told": True},
}
TARGET = 85.0


def play(label: str, policy: str, seed: int, rounds: int) -> dict[str, Any]:
    experiment = hanse.Experiment(
        data={
            "source": {"name": "mnist", "scale": "unit"},
            "partition": {"name": "dirichlet", "alpha": 1e-4, "sampler": "float32-clamped", "samples_per_client": 200},
            "clients": 30,
            "validation": 0.5,
            "seed": seed,
        },
        model={"name": "mlp", "hidden": [50, 25]},
        mechanism=MECHANISMS[label],
        train={"epochs": 5, "batches_per_epoch": 5, "lr": 0.01, "momentum": 0.5},
        clients=POLICIES[policy],
        engine={"train": "stacked", "threads": 1, "workers": 1, "device": "cpu"},
        run={"rounds": rounds, "seed": seed},
    )
    counts = build_data(experiment.data).class_counts()
    assert counts is not None
    narrow = set(np.flatnonzero((counts > 0).sum(1) <= 1).tolist())
    left: set[int] = set()

    class Watch:
        def on_start(self, *_: Any) -> None: ...

        def on_round(self, metrics: dict[str, Any], played: Any) -> None:
            left.update(set(range(30)) - set(played.view.present.tolist()))

        def on_end(self, *_: Any) -> None: ...

    metrics = hanse.run(experiment, observers=[Watch()]).metrics
    spent, reached = 0.0, None
    for m in metrics:
        spent += (m["bytes/down"] + m["bytes/up"]) / 1e6
        if reached is None and 100 * m["test/accuracy"] >= TARGET:
            reached = spent
    return {
        "label": label, "policy": policy, "seed": seed, "rounds": rounds, "megabytes": spent, "reached": reached,
        "accuracy": 100 * fmean(m["test/accuracy"] for m in metrics[-5:]), "left": len(left),
        "narrow": len(left & narrow), "of": len(narrow),
    }  # fmt: skip


def cell(rows: list[dict[str, Any]], name: str) -> str:
    numbers = [row[name] for row in rows if row[name] is not None]
    text = f"{fmean(numbers):.1f} ± {stdev(numbers):.1f}" if len(numbers) > 1 else "".join(f"{n:.1f}" for n in numbers)
    return text + ("" if len(numbers) == len(rows) else f" ({len(numbers)} of {len(rows)} seeds)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--out", type=Path, default=Path("leaving.jsonl"))
    given = parser.parse_args()
    cases = [(label, policy) for label in MECHANISMS for policy in POLICIES]
    runs = [
        {"label": label, "policy": policy, "seed": seed, "rounds": given.rounds}
        for seed in given.seeds
        for label, policy in cases
    ]
    done = play_missing(given.out, runs, lambda run: play(**run))
    print(f"| | clients | MB in all | MB to {TARGET:g} % | accuracy %, last 5 rounds | left | of them one class | of |")
    print("|---|---|---|---|---|---|---|---|")
    names = ("megabytes", "reached", "accuracy", "left", "narrow", "of")
    for label, policy in cases:
        rows = [d for d in done if (d["label"], d["policy"], d["rounds"]) == (label, policy, given.rounds)]
        rows = [d for d in rows if d["seed"] in given.seeds]
        print(f"| {label} | {policy} | " + " | ".join(cell(rows, name) for name in names) + " |")


if __name__ == "__main__":
    main()
