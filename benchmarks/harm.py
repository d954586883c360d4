"""Who is called harmful by training anew without each (``hanse report --retrain``), where the truth is known, and how
well the path value foretells what the others lose.

    python benchmarks/harm.py --seeds 12 [--out FOLDER]

Eight clients with 1/36 to 8/36 of the digits, logistic, five rounds. In "labels" half of the labels of the largest are
random (newcomer's W1); in "rare" the smallest owns a class alone; in "plain" all are honest. Five starts for each; the
loss is the utility.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from scipy.stats import spearmanr
from sklearn.datasets import load_digits

import hanse
from hanse.data import Dataset
from hanse.data.samples import Samples
from hanse.reports.facts import facts
from hanse.reports.harm import retrain

CLIENTS = 8
ASKED = {"labels": (7, 3), "rare": (0, 3), "plain": (7, 3)}  # the one that the case is about, and an honest one


def labels(seed: int = 0) -> Dataset:
    """Return digits of which the largest client has half of its labels at random."""
    return _digits(seed, "labels")


def rare(seed: int = 0) -> Dataset:
    """Return digits of which the smallest client has all nines, and the others none."""
    return _digits(seed, "rare")


def plain(seed: int = 0) -> Dataset:
    """Return digits as they are."""
    return _digits(seed, "plain")


def _digits(seed: int, case: str) -> Dataset:
    draw = np.random.default_rng(seed)
    x, y = load_digits(return_X_y=True)
    order = draw.permutation(len(y))
    x, y = (x[order] / 16).astype(np.float32), y[order].astype(np.int64)
    train, test = slice(500, None), slice(500)
    owner = draw.choice(CLIENTS, len(y[train]), p=np.arange(1, CLIENTS + 1) / 36)
    told = y[train].copy()
    if case == "labels":
        wrong = np.flatnonzero(owner == CLIENTS - 1)
        wrong = wrong[draw.random(len(wrong)) < 0.5]
        told[wrong] = draw.integers(0, 10, len(wrong))
    elif case == "rare":
        nine = told == 9
        owner[nine], owner[~nine & (owner == 0)] = 0, 1
    given = Samples(x[train], told), Samples(x[test], y[test])
    return Dataset(case, *given, num_classes=10, input_shape=(64,), client_of=owner)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=12)
    parser.add_argument("--out", type=Path, default=Path("harm"))
    options = parser.parse_args()
    folder: Path = options.out
    for case, (one, other) in ASKED.items():
        called, foretold = {one: 0, other: 0}, list[tuple[float, ...]]()
        for seed in range(options.seeds):
            place = folder / f"{case}-{seed}"
            experiment = hanse.Experiment(
                data={"source": f"harm:{case}", "partition": "natural", "seed": seed},
                model="logistic",
                mechanism={"name": "fedavg", "clients_per_round": CLIENTS, "value": "path"},
                train={"lr": 0.1, "epochs": 2},
                run={"rounds": 5, "seed": seed},
            )
            if not (place / "config.toml").exists():
                hanse.run(experiment, out=place)
            retrain([place], [str(one), str(other)])
            rows = facts(place).clients
            for client in called:
                row = rows[client]
                called[client] += row.harmful
                foretold.append((row.value, row.value_low, row.value_high, -row.without))
                told = f"{row.without:+.4f} ({row.without_low:+.4f} to {row.without_high:+.4f})"
                print(f"{case}, seed {seed}, client {client}: {told}, value {row.value:+.3f}", flush=True)
        for client, times in called.items():
            print(f"{case}: client {client} called harmful in {times} of {options.seeds}", flush=True)
        value, low, high, lost = np.array(foretold).T
        within, alike = (low <= lost) & (lost <= high), np.sign(value) == np.sign(lost)
        print(
            f"{case}: path value {value.mean():+.4f}, the others lose {lost.mean():+.4f}, mean error "
            f"{np.abs(value - lost).mean():.4f}; of {len(lost)} within the value's 95 % interval {within.sum()}, of "
            f"its sign {alike.sum()}; rank correlation {spearmanr(value, lost).statistic:.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
