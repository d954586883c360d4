"""mnist-mlp through the front door: `hanse.run` with its run directory, checkpoints and records, against the plain
loop.

Both start with the samples in memory and end with 20 rounds played, each tested on 10,000 images.
Run: ``HANSE_DATA=folder python benchmarks/whole_run.py``.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Mapping
from functools import cache
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import torch
from plain import PlainLoop, load, mlp, table

import hanse
from hanse.data.dataset import Dataset

ROUNDS = 20


@cache
def samples() -> Dataset:
    train, test, source = load("mnist")
    return Dataset(source, train, test, 10, (1, 28, 28))


def in_memory(**_: Any) -> Dataset:
    """The data source of the experiment below: nothing is read from the disk."""
    return samples()


def plain(threads: int) -> list[float]:
    torch.set_num_threads(threads)
    data = samples()
    order = torch.randperm(60_000, generator=torch.Generator().manual_seed(0))
    loop = PlainLoop(mlp(), data.train, data.test, [order[c * 600 : (c + 1) * 600] for c in range(100)])
    times = []
    for round in range(ROUNDS):
        begun = time.perf_counter()
        draw = torch.Generator().manual_seed(round)
        loop.train(torch.randperm(100, generator=draw)[:10].tolist(), 5, 50, 0.01, 0.5)
        loop.accuracy()
        times.append(time.perf_counter() - begun)
    return times


def experiment(engine: Mapping[str, Any] | None = None, rounds: int = ROUNDS) -> hanse.Experiment:
    """Return the job, on the engine that the rule chooses if none is given."""
    return hanse.Experiment(
        data={
            "source": f"{__name__ if __name__ != '__main__' else 'whole_run'}:in_memory",
            "partition": {"name": "iid", "samples_per_client": 600},
            "clients": 100,
            "validation": 0.0,
        },
        model={"name": "mlp", "hidden": [50, 25]},
        mechanism={"name": "fedavg", "clients_per_round": 10},
        train={"epochs": 5, "batch_size": 50, "lr": 0.01, "momentum": 0.5},
        engine=dict(engine or {}),
        run={"rounds": rounds},
    )


class Told:
    """When each round was told: what lies between is a round with its record on the disk."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def on_round(self, metrics: Mapping[str, Any], played: Any) -> None:
        self.times.append(time.perf_counter())


def ours(threads: int, folder: Path | None) -> tuple[float, list[float]]:
    """Return the seconds of a whole run, and of its rounds but the first and the last, which nothing follows."""
    torch.set_num_threads(threads)
    begun, told = time.perf_counter(), Told()
    hanse.run(experiment(), out=folder, observers=[told])
    whole = time.perf_counter() - begun
    return whole, [after - before for before, after in pairwise(told.times[:-1])]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    import whole_run  # the experiment names its source by import path: fill that module's cache, too

    print(f"mnist-mlp through hanse.run on {whole_run.samples().name}; PyTorch {torch.__version__}")
    samples()
    most = torch.get_num_threads()
    whole: dict[str, list[float]] = {}
    steady: dict[str, list[float]] = {}
    for repeat in range(options.repeats):
        for threads in sorted({1, most}):
            name = f"plain, {threads} thread{'s' if threads > 1 else ''}"
            times = plain(threads)
            whole.setdefault(name, []).append(sum(times))
            steady.setdefault(name, []).append(median(times[1:]))
        with tempfile.TemporaryDirectory() as place:
            for name, folder in (("hanse.run", Path(place) / "a"), ("hanse.run, without a run directory", None)):
                total, rounds = ours(most, folder)
                whole.setdefault(name, []).append(total)
                steady.setdefault(name, []).append(median(rounds))
        print(f"repeat {repeat + 1} of {options.repeats} done", flush=True)
    baseline = [name for name in whole if name.startswith("plain")]
    table("a round in steady state", steady, baseline)
    table(f"the whole of {ROUNDS} rounds", whole, baseline)


if __name__ == "__main__":
    main()
