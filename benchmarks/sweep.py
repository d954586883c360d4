"""A sweep as people run it, 3 mechanisms x 3 alphas x 5 seeds, and a short ``hanse run``: from the process's start to
its end.

    HANSE_DATA=folder python benchmarks/sweep.py [--base COMMIT] [--pairs 3] [--source mnist|digits] [--rounds 3]

With ``--base`` each pair plays both with that commit's source tree, too, in turn, and the tables must say the same.
Processor seconds are user and system time of the process and of all that it started: they count where a machine is
busy, and wall seconds only where it is not.
"""

from __future__ import annotations

import argparse
import csv
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median

from regression import ROOT, source_of

EXPERIMENT = """
[data]
source = "{source}"
clients = {clients}
partition = "dirichlet"
partition.alpha = 0.3
[model]
name = "mlp"
hidden = [50, 25]
[train]
epochs = 5
batch_size = 50
momentum = 0.5
[mechanism]
name = "fedavg"
clients_per_round = 10
[run]
rounds = {rounds}
"""
GRID = ("--grid", "mechanism.name=fedavg,fedprox,scaffold", "--grid", "data.partition.alpha=0.1,0.3,1.0")
HANSE = (sys.executable, "-c", "import sys; sys.argv[0] = 'hanse'; from hanse.cli import main; main()")
TORCH = (sys.executable, "-c", "import torch")


def seconds(command: Sequence[str], source: Path, folder: Path) -> tuple[float, float]:
    """Run a command in a folder with the packages of a source tree; return its processor and wall seconds."""
    before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    one = {"PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"}  # threads that wait for each other count as busy
    subprocess.run(command, cwd=folder, env=os.environ | one, check=True, capture_output=True)
    wall, now = time.perf_counter() - begun, resource.getrusage(resource.RUSAGE_CHILDREN)
    return now.ru_utime + now.ru_stime - before.ru_utime - before.ru_stime, wall


def figures(table: Path) -> list[Mapping[str, str]]:
    """Return the rows of a sweep's table without what is measured in seconds, and without the run's folder."""
    timed = ("ms_per_round", "seconds", "folder")
    with table.open() as file:
        return [{name: value for name, value in row.items() if name not in timed} for row in csv.DictReader(file)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", help="a commit to compare with")
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--source", default="mnist", choices=("mnist", "digits"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    sweep = (*HANSE, "sweep", "exp.toml", *GRID, "--seeds", str(options.seeds), "--workers", str(options.workers))
    jobs = {"import torch": TORCH, "run": (*HANSE, "run", "exp.toml"), "sweep": sweep}
    spent: dict[tuple[str, str], list[tuple[float, float]]] = {}
    with ExitStack() as stack:
        trees = {"now": ROOT / "src"}
        if options.base is not None:
            trees["base"] = stack.enter_context(source_of(options.base))
        for source in trees.values():  # a new tree would be compiled in every process, where none may write
            subprocess.run([sys.executable, "-m", "compileall", "-q", str(source)], check=True)
        for pair in range(options.pairs):
            tables = []
            for name, source in list(trees.items())[:: 1 if pair % 2 else -1]:
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
                clients = 100 if options.source == "mnist" else 20
                text = EXPERIMENT.format(source=options.source, clients=clients, rounds=options.rounds)
                (folder / "exp.toml").write_text(text)
                for job, command in jobs.items():
                    spent.setdefault((job, name), []).append(seconds(command, source, folder))
                tables.append(figures(folder / "runs" / "sweep-exp" / "table.csv"))
            for first, other in zip(tables[0], tables[-1], strict=True):
                if first != other:
                    sys.exit(f"the two trees' tables differ: {first} and {other}")
    print("| | processor s | wall s |\n|---|---|---|")
    for (job, name), times in sorted(spent.items()):
        cpu, wall = (median(column) for column in zip(*times, strict=True))
        print(f"| {job}, {name} | {cpu:.2f} | {wall:.1f} |")
        if name == "base":
            ours = spent[job, "now"]
            ratios = [a[0] / b[0] for a, b in zip(ours, times, strict=True)]
            print(f"| {job}, processor time now / base, pair by pair | {', '.join(f'{r:.2f}' for r in ratios)} | |")


if __name__ == "__main__":
    main()
