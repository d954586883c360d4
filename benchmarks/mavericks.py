"""Mavericks: two of 50 clients have a class each that nobody else has. What are they worth, and what does the model
learn, when values come from the validation loss, the accuracy, or the loss balanced over classes?

MNIST (HANSE_DATA) or random clusters of its shape: 100 samples a client, 48 clients with classes 0 to 7, one with
class 8, one with class 9. The server's validation set is drawn as the clients' samples are, so that classes 8 and 9
make up 2 % of it each; accuracy is on 5,000 other images in which classes are equally frequent.
Run: ``HANSE_DATA=folder OMP_NUM_THREADS=1 python benchmarks/mavericks.py --out mavericks.jsonl``.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
import torch
from plain import load
from resumable import play_missing

import hanse
from hanse.base.streams import stream
from hanse.core.table import Layout
from hanse.data import Dataset, Samples

CLIENTS, EACH, PER_ROUND, MAVERICKS = 50, 100, 5, {48: 8, 49: 9}
MECHANISMS: dict[str, dict[str, Any]] = {
    "FedAvg": {"name": "fedavg"},
    "GreedyFed, loss": {"name": "greedyfed", "value": {"name": "gtg", "utility": "loss"}},
    "GreedyFed, accuracy": {"name": "greedyfed", "value": {"name": "gtg", "utility": "accuracy"}},
    "GreedyFed, balanced": {"name": "greedyfed", "value": {"name": "gtg", "utility": "balanced"}},
    "Set-aware, balanced": {"name": "set_aware", "value": {"name": "gtg", "utility": "balanced"}},
}


def source(*, root: Path | None, seed: int, download: bool) -> Dataset:
    """Return the clients' samples and, as the test set, what the server validates on (and as much again)."""
    train, test, name = load("mnist")
    draw = stream(seed, "mavericks")
    taken, owner = [], []
    common = draw.permutation(np.flatnonzero(train.y.numpy() < 8))
    for client in range(CLIENTS):
        if client in MAVERICKS:
            own = draw.permutation(np.flatnonzero(train.y.numpy() == MAVERICKS[client]))[:EACH]
        else:
            own = common[client * EACH : (client + 1) * EACH]
        taken.append(own)
        owner.append(np.full(EACH, client))
    rare = np.isin(test.y.numpy(), list(MAVERICKS.values()))
    rare[5000:] = False
    kept = np.flatnonzero(~rare[:5000])
    few = round(2 * len(kept) * len(MAVERICKS) / (CLIENTS - len(MAVERICKS)) / 2)
    kept = np.concatenate([kept, draw.permutation(np.flatnonzero(rare))[:few]])
    index, held = torch.from_numpy(np.concatenate(taken)), torch.from_numpy(draw.permutation(kept))
    return Dataset(
        f"{name} with mavericks", train.take(index), test.take(held), 10, (1, 28, 28), client_of=np.concatenate(owner)
    )


def by_class(run: hanse.Run) -> np.ndarray:
    """Return the final model's accuracy on each class of the last 5,000 test images."""
    assert run.table is not None
    test = Samples(*(part[5000:] for part in (load("mnist")[1].x, load("mnist")[1].y)))
    module = run.problem.module.eval()
    Layout.of(module).load(module, run.table.rows[0])
    with torch.no_grad():
        right = (module(test.x).argmax(1) == test.y).double()
    return np.array([float(right[test.y == c].mean()) for c in range(10)])


def play(label: str, seed: int, rounds: int) -> dict[str, Any]:
    run = hanse.run(
        hanse.Experiment(
            data={"source": "mavericks:source", "partition": "natural", "clients": CLIENTS, "seed": seed},
            model={"name": "mlp", "hidden": [50, 25]},
            mechanism={"clients_per_round": PER_ROUND, **MECHANISMS[label]},
            train={"epochs": 5, "batches_per_epoch": 5, "lr": 0.01, "momentum": 0.5},
            engine={"train": "stacked", "threads": 1, "workers": 1, "device": "cpu"},
            eval={"every": rounds},
            run={"rounds": rounds, "seed": seed},
        )
    )
    met = CLIENTS // PER_ROUND
    seats = np.zeros(CLIENTS)
    first, last = np.full(CLIENTS, np.nan), np.full(CLIENTS, np.nan)
    for seat in run.clients:
        c = seat["client"]
        seats[c] += seat["round"] >= met
        if "value" in seat and np.isnan(first[c]):
            first[c] = seat["value"]
        if "cumulative_value" in seat:
            last[c] = seat["cumulative_value"]
    mavericks = np.isin(np.arange(CLIENTS), list(MAVERICKS))
    ranks = (-last).argsort().argsort() + 1.0
    accuracy = by_class(run)
    return {
        "label": label, "seed": seed, "rounds": rounds,
        "rank": float(ranks[mavericks].mean()) if not np.isnan(last).any() else None,
        "value": float(last[mavericks].mean()), "others": float(last[~mavericks].mean()),
        "seats": float(seats[mavericks].mean()), "other_seats": float(seats[~mavericks].mean()),
        "accuracy": 100 * float(accuracy.mean()), "rare": 100 * float(accuracy[list(MAVERICKS.values())].mean()),
    }  # fmt: skip


def cell(rows: list[dict[str, Any]], name: str, digits: int) -> str:
    numbers = [row[name] for row in rows]
    if any(n is None or np.isnan(n) for n in numbers):
        return "–"
    return f"{fmean(numbers):.{digits}f} ± {stdev(numbers) if len(numbers) > 1 else 0:.{digits}f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--out", type=Path, default=Path("mavericks.jsonl"))
    given = parser.parse_args()
    runs = [{"label": label, "seed": seed, "rounds": given.rounds} for seed in given.seeds for label in MECHANISMS]
    done = play_missing(given.out, runs, lambda run: play(**run))
    print("| | a maverick's rank of 50 | its value | another's | its seats | another's | accuracy % | on 8 and 9 |")
    print("|---|---|---|---|---|---|---|---|")
    columns = (("rank", 1), ("value", 4), ("others", 4), ("seats", 1), ("other_seats", 1), ("accuracy", 1), ("rare", 1))
    for label in MECHANISMS:
        rows = [d for d in done if (d["label"], d["rounds"]) == (label, given.rounds) and d["seed"] in given.seeds]
        print(f"| {label} | " + " | ".join(cell(rows, name, digits) for name, digits in columns) + " |")


if __name__ == "__main__":
    main()
