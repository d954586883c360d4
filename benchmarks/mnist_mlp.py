"""mnist-mlp: 100 clients x 600 samples, 10 seats a round, 5 epochs of batches of 50, MLP 784-50-25-10, SGD 0.01 / 0.5,
accuracy on 10,000 test images every round. Run: ``HANSE_DATA=folder python benchmarks/mnist_mlp.py``.
"""

from __future__ import annotations

import argparse
import time

import torch
from plain import PlainLoop, interleaved, load, mlp, table, with_threads
from torch import Tensor

from hanse.data.samples import Samples
from hanse.learning.job import Engine, Recipe, SeatJob
from hanse.learning.models import build_problem
from hanse.learning.stacked import StackedEngine

RECIPE = Recipe(epochs=5, batch_size=50, lr=0.01, momentum=0.5)


class Hanse:
    """The same rounds on one of our engines."""

    def __init__(self, engine: Engine, row: Tensor, train: Samples, test: Samples, clients: list[Tensor]) -> None:
        self.engine, self.row, self.pool, self.test, self.clients = engine, row, train, test, clients
        self.round, self.accuracy = 0, 0.0

    def run(self, seats: list[int]) -> None:
        jobs = [SeatJob(self.clients[c], self.row, (0, self.round, c, 0)) for c in seats]
        trained = self.engine.train(self.pool, jobs, RECIPE, RECIPE.lr)
        self.row = trained.rows.mean(0)
        self.accuracy = float(self.engine.score(self.row.unsqueeze(0), self.test).accuracy[0])
        self.round += 1


def seats_of(round: int, count: int) -> list[int]:
    draw = torch.Generator().manual_seed(round)
    return torch.randperm(100, generator=draw)[:count].tolist()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--seats", type=int, nargs="*", default=[1, 3, 10, 30, 100])
    parser.add_argument("--ragged", action="store_true", help="also sizes between 170 and 1345")
    options = parser.parse_args()
    train, test, source = load("mnist")
    order = torch.randperm(60_000, generator=torch.Generator().manual_seed(0))
    clients = list(order.split(600))
    print(f"mnist-mlp on {source}; PyTorch {torch.__version__}, {torch.get_num_threads()} threads at most")
    most = torch.get_num_threads()
    problem, row = build_problem("mlp", (1, 28, 28), 10, 0, hidden=[50, 25])

    for count in options.seats:
        repeats = max(3, options.repeats * 10 // max(10, count))
        plain = {t: PlainLoop(mlp(), train, test, clients) for t in sorted({1, most})}
        ours = {t: Hanse(StackedEngine(problem, threads=t), row, train, test, clients) for t in sorted({1, most})}
        state = {"round": 0}

        def plain_round(t: int, count: int = count, plain=plain, state=state) -> None:  # type: ignore[no-untyped-def]
            plain[t].train(seats_of(state["round"], count), 5, 50, 0.01, 0.5)
            plain[t].accuracy()
            state["round"] += 1

        runs = {f"plain loop, {t} threads": with_threads(t, lambda t=t: plain_round(t)) for t in plain}
        for t in ours:
            runs[f"stacked, {t} threads"] = with_threads(
                most, lambda t=t, count=count, ours=ours: ours[t].run(seats_of(ours[t].round, count))
            )
        table(
            f"{count} seats, a round with its test",
            interleaved(runs, repeats),
            [f"plain loop, {t} threads" for t in plain],
        )

    whole(problem, row, train, test, clients, most)


def whole(problem, row, train, test, clients, most: int, rounds: int = 20) -> None:  # type: ignore[no-untyped-def]
    """Time a run of 20 rounds from nothing, warm-up included."""
    times: dict[str, list[float]] = {}
    for _ in range(3):
        for t in sorted({1, most}):
            torch.set_num_threads(t)
            begin = time.perf_counter()
            loop = PlainLoop(mlp(), train, test, clients)
            for r in range(rounds):
                loop.train(seats_of(r, 10), 5, 50, 0.01, 0.5)
                accuracy = loop.accuracy()
            times.setdefault(f"plain loop, {t} threads ({accuracy:.3f})"[:23], []).append(time.perf_counter() - begin)
        torch.set_num_threads(most)
        begin = time.perf_counter()
        ours = Hanse(StackedEngine(problem, threads=most), row, train, test, clients)
        for r in range(rounds):
            ours.run(seats_of(r, 10))
        times.setdefault("stacked", []).append(time.perf_counter() - begin)
    table(f"{rounds} rounds of 10 seats, from nothing", times, [name for name in times if name.startswith("plain")])
    print(f"accuracy after {rounds} rounds: plain {accuracy:.4f}, stacked {ours.accuracy:.4f}")


if __name__ == "__main__":
    main()
