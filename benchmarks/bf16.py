"""bfloat16 on processors with matrix units: accuracy with and without, side by side over seeds, and what it saves.

Fashion-MNIST with ``cnn_small`` and CIFAR-10 with ``cnn``, 20 clients of a Dirichlet(0.5) split, 5 a round, 2 epochs. A
seed is that of the split and of everything else; both precisions of a seed see the same clients and batches. bf16 is
recommended for a data set if the mean difference is within the seeds' standard deviation. Finished runs are kept in
``--out`` and not run again. Run: ``HANSE_DATA=folder python benchmarks/bf16.py``.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from rich.console import Console

from hanse.lab.job import Job, play, seeded
from hanse.lab.kept import Store
from hanse.lab.player import PlayedJobs, play_all

MODELS = {"fashion_mnist": "cnn_small", "cifar10": "cnn"}
PRECISIONS = ("float32", "bf16")


def job(source: str, precision: str, seed: int, rounds: int) -> Job:
    """Return one run: one worker and one thread, so that both precisions use the same engine."""
    sections = {
        "data": {"source": source, "partition": {"name": "dirichlet", "alpha": 0.5}, "clients": 20},
        "model": {"name": MODELS[source]},
        "mechanism": {"name": "fedavg", "clients_per_round": 5},
        "train": {"epochs": 2, "batch_size": 50, "lr": 0.05, "momentum": 0.5},
        "engine": {"train": "sequential", "threads": 1, "workers": 1, "device": "cpu", "precision": precision},
        "eval": {"every": max(1, rounds // 5), "clients": 0},
        "run": {"rounds": rounds},
    }
    return seeded(sections, seed, f"{source}, {precision}, seed {seed}")


def rows(done: PlayedJobs, jobs: Mapping[tuple[str, str, int], Job], sources: Sequence[str], seeds: int) -> list[str]:
    """Return the Markdown table of the finished pairs."""
    lines = [
        "| data | seeds | float32, accuracy % | bf16, accuracy % | difference, mean ± sd of the pairs "
        "| float32 ms/round | bf16 ms/round | within the seeds' deviation |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for source in sources:
        pairs = []
        for seed in range(seeds):
            pair = [done.results.get(jobs[source, precision, seed].key) for precision in PRECISIONS]
            if all(pair):
                pairs.append(pair)
        if len(pairs) < 2:
            lines.append(f"| {source} | {len(pairs)} | | | | | | |")
            continue
        wide, narrow = ([_last(pair[side]) for pair in pairs] for side in (0, 1))
        gaps = [b - a for a, b in zip(wide, narrow, strict=True)]
        times = [fmean(pair[side]["median_ms"] for pair in pairs) for side in (0, 1)]
        fine = abs(fmean(gaps)) <= stdev(wide)
        lines.append(
            f"| {source} | {len(pairs)} | {fmean(wide):.2f} ± {stdev(wide):.2f} "
            f"| {fmean(narrow):.2f} ± {stdev(narrow):.2f} | {fmean(gaps):+.2f} ± {stdev(gaps):.2f} "
            f"| {times[0]:.0f} | {times[1]:.0f} | {'yes' if fine else 'no'} |"
        )
    return lines


def _last(found: Any) -> float:
    return 100 * float(found["curves"]["test/accuracy"][-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--sources", nargs="*", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--workers", type=int, default=1, help="more than 1: times are then of busy cores")
    parser.add_argument("--out", type=Path, default=Path("runs/bf16"))
    given = parser.parse_args()
    jobs = {
        (source, precision, seed): job(source, precision, seed, given.rounds)
        for seed in range(given.seeds)  # whole pairs first, so that a run that was stopped can be read
        for source in given.sources
        for precision in PRECISIONS
    }
    done = play_all(
        list(jobs.values()),
        Store(given.out / "jobs"),
        play,
        workers=given.workers,
        label="bf16",
        console=Console(stderr=True),
    )
    print("\n".join(rows(done, jobs, given.sources, given.seeds)))
    for key, why in done.failures.items():
        print(f"failed: {key}: {why}")


if __name__ == "__main__":
    main()
