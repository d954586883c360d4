"""GTFLAT's game: distances from one Gram product, then the populations' closed form; how both grow, and what share of a
round's training that is. ``python benchmarks/equilibrium.py``: one thread, medians in ms.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from collections.abc import Callable
from statistics import median

import numpy as np
import torch

import hanse
from hanse.games import replicator


def milliseconds(work: Callable[[], object], repeats: int) -> float:
    work()
    times = []
    for _ in range(repeats):
        begun = time.perf_counter()
        work()
        times.append(time.perf_counter() - begun)
    return 1e3 * median(times)


def models(k: int, size: int, spread: float = 0.01) -> torch.Tensor:
    """Return models as a round leaves them: near each other, far from zero."""
    draw = torch.Generator().manual_seed(k + size)
    return torch.randn(1, size, generator=draw) + spread * torch.randn(k, size, generator=draw)


def growth(repeats: int) -> None:
    print("| k | P | distances | populations | both |\n|---|---|---|---|---|")
    for k, size in ((10, 10**5), (10, 10**6), (100, 10**4), (100, 10**5), (1000, 10**4)):
        rows = models(k, size)
        phi = replicator.payoff_matrix(rows)
        first = milliseconds(lambda rows=rows: replicator.payoff_matrix(rows), repeats)
        second = milliseconds(lambda phi=phi: replicator.equilibrium(phi), repeats)
        print(f"| {k} | {size:,} | {first:.1f} | {second:.2f} | {first + second:.1f} |", flush=True)


def reported(phi: np.ndarray) -> tuple[float, float, float]:
    """Return what the last generation moved, what a player could still gain, and how far the rest point is."""
    state, before = replicator.equilibrium(phi), replicator.equilibrium(phi, 49)
    moved, left = (float(np.abs(state - other).max()) for other in (before, replicator.nearest(phi)))
    return moved, replicator.nash_gap(phi, state), left


def populations(repeats: int) -> None:
    print("\n| k | closed form | with its report | 100 individuals each | the state, MB |\n|---|---|---|---|---|")
    for k in (10, 100, 300, 1000, 3000):
        phi = replicator.payoff_matrix(np.random.default_rng(k).normal(size=(k, 50)))
        closed = milliseconds(lambda phi=phi: replicator.equilibrium(phi), repeats)
        report = milliseconds(lambda phi=phi: reported(phi), repeats)
        whole = milliseconds(lambda phi=phi: replicator.equilibrium(phi, population=100), repeats)
        print(f"| {k} | {closed:.2f} | {report:.2f} | {whole:.1f} | {8e-6 * k * k:.1f} |", flush=True)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20 if sys.platform == "darwin" else 1024)
    print(f"\npeak memory of the process: {peak:.0f} MB")


def share(repeats: int) -> None:
    """Rounds of 10 clients with 20 steps of batch 32, with a model of a million parameters and with FedGen's CNN."""
    print("\n| model | P | train | weigh | share |\n|---|---|---|---|---|")
    wide = {"name": "mlp", "hidden": [4000, 175]}
    for model, engine in ((wide, "stacked"), ({"name": "cnn_fedgen"}, "sequential")):
        run = hanse.run(
            hanse.Experiment(
                data={"source": "digits", "clients": 10, "partition": {"alpha": 1.0}},
                model=model,
                mechanism={"name": "gtfedavg", "clients_per_round": 10},
                train={"steps": 20, "batch_size": 32},
                engine={"train": engine, "threads": 1, "workers": 1, "device": "cpu"},
                eval={"every": 1000},
                run={"rounds": repeats + 1},
            )
        )
        train, weigh = (1e3 * median([m[f"time/{s}_s"] for m in run.metrics[1:]]) for s in ("train", "weigh"))
        size = run.table.rows.shape[1]
        print(f"| {model['name']} | {size:,} | {train:.0f} | {weigh:.1f} | {weigh / train:.2%} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    torch.set_num_threads(1)
    growth(options.repeats)
    populations(options.repeats)
    share(options.repeats)


if __name__ == "__main__":
    main()
