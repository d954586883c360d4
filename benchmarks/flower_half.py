"""What half precision on the wire costs: the same runs with 32-bit and 16-bit messages, Flower's records, one process.

``OMP_NUM_THREADS=1 python benchmarks/flower_half.py [--rounds 30] [--seeds 3]``
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "deployment"))

from flwr.supercore.task_identity import TaskIdentity
from inprocess import InProcessGrid, client_app, play

import hanse
from hanse.data import build
from hanse.flower import ClientData

N = 10


def experiment(mechanism: str, rounds: int, seed: int, half: bool) -> hanse.Experiment:
    return hanse.Experiment(
        data={"clients": N, "client_test": 0.2, "partition": {"name": "dirichlet", "alpha": 0.5}, "seed": seed},
        model={"name": "mlp", "hidden": [50, 25]},
        mechanism={"name": mechanism, "clients_per_round": 5},
        train={"lr": 0.05, "epochs": 2, "momentum": 0.5},
        federation={"half_precision": half},
        eval={"clients": 0, "every": rounds},
        run={"rounds": rounds, "seed": seed},
    )


def run(exp: hanse.Experiment, folder: Path) -> hanse.Run:
    data = build(exp.data)
    apps = {
        i: client_app(lambda c, i=i: ClientData.of(data, i), folder=folder / f"node{i}")
        for i in range(N)
        if data.sizes[i]
    }
    sets = (data.server_validation, data.server_test)
    return play(InProcessGrid(apps), exp, folder / "run", len(apps), lambda: sets, [], patience_s=5.0)


def main() -> None:
    words = argparse.ArgumentParser()
    words.add_argument("--rounds", type=int, default=30)
    words.add_argument("--seeds", type=int, default=3)
    given = words.parse_args()
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1  # Flower sets these inside an app
    print("mechanism   bits  test accuracy %  test loss  MB both ways")
    for mechanism in ("fedavg", "greedyfed", "gtfedavg"):
        for half in (False, True):
            found = []
            for seed in range(given.seeds):
                with tempfile.TemporaryDirectory() as folder:
                    found.append(run(experiment(mechanism, given.rounds, seed, half), Path(folder)).metrics)
            accuracy = [100 * m[-1]["test/accuracy"] for m in found]
            loss = [m[-1]["test/loss"] for m in found]
            moved = statistics.mean(sum(r["bytes/up"] + r["bytes/down"] for r in m) / 1e6 for m in found)
            right = f"{statistics.mean(accuracy):6.2f} ± {statistics.stdev(accuracy):.2f}"
            print(f"{mechanism:11} {16 if half else 32:4}  {right}    {statistics.mean(loss):.4f}     {moved:.2f}")


if __name__ == "__main__":
    main()
