"""Where the time of a round goes: by PyTorch's kernels and by Python's functions, mnist-mlp through ``hanse.run``.

One thread, so that the profilers see everything; profiled times are longer than real ones, so the shares count. Both
tables are of the whole run with its start (reading data, its fingerprint): play many rounds. PyTorch's profiler does
not see the compiled engine: it is not among the kernels, and of the functions it is ``_run`` (training) and
``__call__`` (tests) of ``native/engine.py``. The same run is profiled once for each way to look.
Run: ``HANSE_DATA=folder python benchmarks/where.py [--engine stacked]``.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch
from torch.profiler import ProfilerActivity, profile
from whole_run import experiment, samples

import hanse


def played(engine: str, rounds: int) -> hanse.Run:
    """Play the job with its run directory, and return it."""
    with tempfile.TemporaryDirectory() as folder:
        return hanse.run(experiment({"train": engine, "threads": 1}, rounds), out=Path(folder) / "run")


def timed(run: hanse.Run) -> None:
    """Print the median of what the run itself measured of its rounds, the first left out."""
    names = sorted({name for line in run.metrics for name in line if name.startswith("time/")})
    for name in names:
        found = [float(line[name]) for line in run.metrics[1:] if name in line]
        print(f"| {name} | {1e3 * median(found):.2f} ms |")


def by_kernel(play: Callable[[], object], most: int) -> None:
    """Print the kernels that took longest by themselves."""
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        play()
    found = sorted(seen.key_averages(), key=lambda one: -one.self_cpu_time_total)
    whole = sum(one.self_cpu_time_total for one in found)
    for one in found[:most]:
        print(
            f"| {one.key} | {one.count} | {one.self_cpu_time_total / 1e3:.1f} | {one.self_cpu_time_total / whole:.1%} |"
        )


def by_function(play: Callable[[], object], most: int) -> None:
    """Print the Python functions that took longest by themselves, what they call in other languages included."""
    seen = cProfile.Profile()
    seen.runcall(play)
    stats = pstats.Stats(seen)
    rows = sorted(stats.stats.items(), key=lambda item: -item[1][2])  # type: ignore[attr-defined]
    whole = sum(row[2] for _, row in rows)
    for (file, line, name), (_, calls, own, _, _) in rows[:most]:
        where = f"{'/'.join(Path(file).parts[-2:])}:{line}" if line else ""
        print(f"| {name} | {where} | {calls} | {1e3 * own:.1f} | {own / whole:.1%} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--engine", default="auto", help="as engine.train: auto, native, stacked, sequential")
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--most", type=int, default=20, help="lines of each table")
    given = parser.parse_args()
    torch.set_num_threads(1)
    samples()
    played(given.engine, 2)
    run = played(given.engine, given.rounds)
    print(f"## {run.experiment.engine.train}, {given.rounds} rounds, one thread\n\n| of a round | median |\n|---|---|")
    timed(run)
    print("\n| kernel | calls | ms | share |\n|---|---|---|---|")
    by_kernel(lambda: played(given.engine, given.rounds), given.most)
    print("\n| function | where | calls | ms | share |\n|---|---|---|---|---|")
    by_function(lambda: played(given.engine, given.rounds), given.most)


if __name__ == "__main__":
    main()
