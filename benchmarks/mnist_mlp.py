"""mnist-mlp: 100 clients x 600 samples, 10 seats a round, 5 epochs of batches of 50, MLP 784-50-25-10, SGD 0.01 / 0.5,
accuracy on 10,000 test images every round. Run: ``HANSE_DATA=folder python benchmarks/mnist_mlp.py``.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial

import torch
from plain import PlainLoop, interleaved, load, mlp, table, with_threads
from torch import Tensor

from hanse.core.recipe import Recipe
from hanse.data.samples import Samples
from hanse.learning.engines import EngineChoice, choose, make_engine
from hanse.learning.job import Engine, Problem, SeatJob
from hanse.learning.models import build_problem

RECIPE = Recipe(epochs=5, batch_size=50, lr=0.01, momentum=0.5)


class Hanse:
    """The same rounds on one of our engines."""

    def __init__(self, engine: Engine, row: Tensor, train: Samples, test: Samples, clients: list[Tensor]) -> None:
        self.engine, self.row, self.pool, self.test, self.clients = engine, row, train, test, clients
        self.round, self.accuracy = 0, 0.0

    def run(self, count: int) -> None:
        seats = seats_of(self.round, count)
        jobs = [SeatJob(self.clients[c], self.row, (0, self.round, c, 0)) for c in seats]
        trained = self.engine.train(self.pool, jobs, RECIPE, RECIPE.lr)
        self.row = trained.rows.mean(0)
        self.accuracy = float(self.engine.score(self.row.unsqueeze(0), self.test).accuracy[0])
        self.round += 1


def seats_of(round: int, count: int) -> list[int]:
    draw = torch.Generator().manual_seed(round)
    return torch.randperm(100, generator=draw)[:count].tolist()


def engines(count: int, problem: Problem, row: Tensor, train: Samples, clients: list[Tensor]) -> dict[str, Engine]:
    """Return the engine that the rule chooses for so many seats, and the other ways to stack."""
    chosen = choose(problem, row, RECIPE, train.take(clients[0][:4]), seats=count, batch=50)
    most = torch.get_num_threads()
    every = {
        EngineChoice("stacked", 1, 1),
        EngineChoice("stacked", most, 1),
        EngineChoice("stacked", 1, min(most, count)),
        chosen,
    }
    labels = {c.label + (" <- chosen" if c == chosen else ""): c for c in every}
    return {label: make_engine(labels[label], problem) for label in sorted(labels)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--seats", type=int, nargs="*", default=[1, 3, 10, 30, 100])
    options = parser.parse_args()
    train, test, source = load("mnist")
    clients = list(torch.randperm(60_000, generator=torch.Generator().manual_seed(0)).split(600))
    most = torch.get_num_threads()
    print(f"mnist-mlp on {source}; PyTorch {torch.__version__}, {most} threads at most")
    problem, row = build_problem("mlp", (1, 28, 28), 10, 0, hidden=[50, 25])
    for count in options.seats:
        repeats = max(3, options.repeats * 10 // max(10, count))
        runs: dict[str, Callable[[], object]] = {}
        for threads in sorted({1, most}):
            loop = PlainLoop(mlp(), train, test, clients)
            runs[f"plain loop ({threads} threads)"] = with_threads(threads, partial(plain_round, loop, count))
        baseline = list(runs)
        for label, engine in engines(count, problem, row, train, clients).items():
            ours = Hanse(engine, row, train, test, clients)
            runs[label] = with_threads(most, partial(ours.run, count))
        table(f"{count} seats, a round with its test", interleaved(runs, repeats), baseline)
    whole(train, test, clients, most)


def plain_round(loop: PlainLoop, count: int) -> float:
    loop.train(seats_of(loop.round, count), 5, 50, 0.01, 0.5)
    return loop.accuracy()


def whole(train: Samples, test: Samples, clients: list[Tensor], most: int, rounds: int = 20) -> None:
    """Time a run of 20 rounds from nothing, warm-up included."""
    times: dict[str, list[float]] = {}
    accuracy: dict[str, float] = {}
    for _ in range(3):
        for threads in sorted({1, most}):
            torch.set_num_threads(threads)
            begin = time.perf_counter()
            loop = PlainLoop(mlp(), train, test, clients)
            for _ in range(rounds):
                accuracy["plain"] = plain_round(loop, 10)
            times.setdefault(f"plain loop ({threads} threads)", []).append(time.perf_counter() - begin)
        torch.set_num_threads(most)
        begin = time.perf_counter()
        problem, row = build_problem("mlp", (1, 28, 28), 10, 0, hidden=[50, 25])
        choice = choose(problem, row, RECIPE, train.take(clients[0][:4]), seats=10, batch=50)
        ours = Hanse(make_engine(choice, problem), row, train, test, clients)
        for _ in range(rounds):
            ours.run(10)
        accuracy["hanse"] = ours.accuracy
        times.setdefault("hanse", []).append(time.perf_counter() - begin)
    table(f"{rounds} rounds of 10 seats, from nothing", times, [name for name in times if name.startswith("plain")])
    print(f"accuracy after {rounds} rounds: plain {accuracy['plain']:.4f}, hanse {accuracy['hanse']:.4f}")


if __name__ == "__main__":
    main()
