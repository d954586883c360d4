"""cifar-cnn: 50 clients x 200 images, 5 seats a round, 2 epochs of batches of 50, CNN 32-64-64 + 128, SGD 0.01 / 0.5,
accuracy on 1,000 images every round; alone, and with one busy neighbour process.
Run: ``HANSE_DATA=folder python benchmarks/cifar_cnn.py [--model cnn_greedyfed]``.
"""

from __future__ import annotations

import argparse
import copy
import subprocess
import sys
from collections.abc import Callable
from functools import partial

import torch
from plain import PlainLoop, cnn, interleaved, load, table, with_threads
from torch import Tensor

from hanse.core.recipe import Recipe
from hanse.data.samples import Samples
from hanse.learning.engines import EngineChoice, choose, make_engine
from hanse.learning.job import Engine, SeatJob
from hanse.learning.models import build_problem

RECIPE = Recipe(epochs=2, batch_size=50, lr=0.01, momentum=0.5)


class Hanse:
    def __init__(self, engine: Engine, row: Tensor, train: Samples, test: Samples, clients: list[Tensor]) -> None:
        self.engine, self.row, self.pool, self.test, self.clients = engine, row, train, test, clients
        self.round, self.accuracy = 0, 0.0

    def run(self) -> None:
        jobs = [SeatJob(self.clients[c], self.row, (0, self.round, c, 0)) for c in seats_of(self.round)]
        self.row = self.engine.train(self.pool, jobs, RECIPE, RECIPE.lr).rows.mean(0)
        self.accuracy = float(self.engine.score(self.row.unsqueeze(0), self.test).accuracy[0])
        self.round += 1


def seats_of(round: int) -> list[int]:
    return torch.randperm(50, generator=torch.Generator().manual_seed(round))[:5].tolist()


def plain_round(loop: PlainLoop) -> float:
    loop.train(seats_of(loop.round), 2, 50, 0.01, 0.5)
    return loop.accuracy(1000)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--all", action="store_true", help="also the settings that are not chosen")
    parser.add_argument("--model", default="cnn", help="another of hanse's models, such as cnn_greedyfed")
    options = parser.parse_args()
    train, test, source = load("cifar10")
    test = Samples(test.x[:1000], test.y[:1000])
    clients = list(torch.randperm(10_000, generator=torch.Generator().manual_seed(0)).split(200))
    most = torch.get_num_threads()
    print(f"{options.model} on {source}; PyTorch {torch.__version__}, {most} threads at most")
    problem, row = build_problem(options.model, (3, 32, 32), 10, 0)
    chosen = choose(problem, row, RECIPE, train.take(clients[0][:4]), seats=5, batch=50)
    others = {EngineChoice("sequential", 1, most), EngineChoice("sequential", most, 1)} if options.all else set()
    runs: dict[str, Callable[[], object]] = {}
    for threads in sorted({1, most}):
        module = cnn() if options.model == "cnn" else copy.deepcopy(problem.module)
        loop = PlainLoop(module, train, test, clients)
        runs[f"plain loop ({threads} threads)"] = with_threads(threads, partial(plain_round, loop))
    baseline = list(runs)
    engines: list[Engine] = []
    for precision in ("float32", "bf16"):
        for choice in sorted({chosen} | others, key=lambda c: c.label):
            engines.append(make_engine(choice, problem, "cpu", precision))  # type: ignore[arg-type]
            ours = Hanse(engines[-1], row, train, test, clients)
            label = f"{precision}, {choice.label}{' <- chosen' if choice == chosen else ''}"
            runs[label] = with_threads(most, ours.run)
    alone = table("a round with its test", interleaved(runs, options.repeats), baseline)
    neighbour = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        beside = table("the same with one busy neighbour", interleaved(runs, max(3, options.repeats // 2)), baseline)
    finally:
        neighbour.kill()
        neighbour.wait()
    print("\ntimes slower with the neighbour")
    for label in runs:
        print(f"{label}: {beside[label] / alone[label]:.2f}")
    for engine in engines:
        engine.close()


if __name__ == "__main__":
    main()
