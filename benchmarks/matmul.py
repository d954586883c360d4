"""The share of a round that is spent in matrix products and convolutions, against the machine's measured peak.

For each job: the arithmetic of a round's products by the standard count, the time inside the kernels that do it
(PyTorch's profiler), the rate reached there, and how far the whole round is from the arithmetic limit: that arithmetic
at the peak rate of a large float32 product. One thread, so that the profiler sees all of it.
Run: ``HANSE_DATA=folder python benchmarks/matmul.py``.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from statistics import median

import torch
from cifar_cnn import RECIPE as CNN_RECIPE
from cifar_cnn import seats_of as cnn_seats
from mnist_mlp import RECIPE as MLP_RECIPE
from mnist_mlp import seats_of as mlp_seats
from plain import load, seconds
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from hanse.core.recipe import Recipe
from hanse.data.samples import Samples
from hanse.learning.coalitions import Coalitions
from hanse.learning.job import Problem, SeatJob
from hanse.learning.models import build_problem
from hanse.learning.sequential import SequentialEngine
from hanse.learning.stacked import StackedEngine

# the innermost operators that multiply; whatever calls them is not counted again
PRODUCTS = (
    *("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::baddbmm_", "aten::mv", "aten::addmv"),
    *("mkldnn::_linear_pointwise", "aten::mkldnn_convolution", "aten::convolution_backward"),
)


def peak(size: int = 2048, repeats: int = 10) -> float:
    """Return the rate of the better of the two libraries on one large product, operations a second."""
    a, b = torch.randn(size, size), torch.randn(size, size)
    ways: list[Callable[[], object]] = [lambda: torch.mm(a, b)]
    if hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        ways.append(lambda: torch.ops.mkldnn._linear_pointwise(a, b, None, "none", [], ""))
    best = min(min(seconds(way) for _ in range(repeats)) for way in ways)
    return 2.0 * size**3 / best


def measure(run: Callable[[], object], repeats: int) -> tuple[float, float]:
    """Return the median seconds of a call, and the share of its time that lies in products."""
    run()
    whole = median(seconds(run) for _ in range(repeats))
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        profiled = seconds(run)
    inside = sum(e.self_cpu_time_total for e in seen.key_averages() if e.key in PRODUCTS) / 1e6
    return whole, min(1.0, inside / profiled)


def training_flops(forward: float, first: float, samples: int) -> float:
    """Return the operations of training on so many samples: no gradient for the images."""
    return 2.0 * samples * (3 * forward - first)


def jobs(threads: int) -> dict[str, tuple[Callable[[], object], float]]:
    """Return each job's round as a call, with the operations that it cannot do without."""
    found: dict[str, tuple[Callable[[], object], float]] = {}
    for name, source in (("mnist-mlp", "mnist"), ("cifar-cnn", "cifar10")):
        train, test, _ = load(source)
        if name == "mnist-mlp":
            problem, row = build_problem("mlp", (1, 28, 28), 10, 0, hidden=[50, 25])
            clients = list(torch.randperm(60_000, generator=torch.Generator().manual_seed(0)).split(600))
            engine, recipe, seats = StackedEngine(problem, threads=threads), MLP_RECIPE, mlp_seats(0, 10)
            forward, first = 784 * 50 + 50 * 25 + 25 * 10, 784 * 50
        else:
            test = Samples(test.x[:1000], test.y[:1000])
            problem, row = build_problem("cnn", (3, 32, 32), 10, 0)
            clients = list(torch.randperm(10_000, generator=torch.Generator().manual_seed(0)).split(200))
            # the profiler sees one thread's kernels: seats one after another
            engine, recipe, seats = SequentialEngine(problem, threads=threads), CNN_RECIPE, cnn_seats(0)
            first = 30 * 30 * 32 * 27
            forward = first + 13 * 13 * 64 * 288 + 4 * 4 * 64 * 576 + 1024 * 128 + 128 * 10
        samples = sum(len(clients[s]) for s in seats) * recipe.epochs
        flops = training_flops(forward, first, samples) + 2.0 * len(test) * forward
        found[name] = (_round(engine, train, test, row, clients, seats, recipe), flops)
        if name == "mnist-mlp":
            found |= valuation(problem, row, test, threads)
    return found


def _round(
    engine: StackedEngine | SequentialEngine,
    train: Samples,
    test: Samples,
    row: Tensor,
    clients: list[Tensor],
    seats: list[int],
    recipe: Recipe,
) -> Callable[[], object]:
    def play() -> None:
        given = [SeatJob(clients[c], row, (0, 0, c, 0)) for c in seats]
        trained = engine.train(train, given, recipe, recipe.lr)
        engine.score(trained.rows.mean(0, keepdim=True), test)

    return play


def valuation(
    problem: Problem, row: Tensor, test: Samples, threads: int
) -> dict[str, tuple[Callable[[], object], float]]:
    """Return the valuation of 256 random coalitions of 10 and of 20 updates on 5,000 images."""
    found: dict[str, tuple[Callable[[], object], float]] = {}
    half = Samples(test.x[:5000], test.y[:5000])
    for players in (10, 20):
        draw = torch.Generator().manual_seed(0)
        updates = row + 0.01 * torch.randn((players, len(row)), generator=draw)
        chosen = torch.rand((256, players), generator=draw) < 0.5
        asked = [frozenset(torch.nonzero(c).view(-1).tolist()) for c in chosen]

        def value(updates: Tensor = updates, asked: list[frozenset[int]] = asked) -> None:
            Coalitions(problem, updates, row, [1.0] * len(updates), half, workers=threads).many(asked)

        n, tail = len(half), 50 * 25 + 25 * 10
        flops = 2.0 * ((players + 1) * n * 784 * 50 + len(asked) * n * (50 * (players + 1) + tail))
        found[f"GTG, M={players}: 256 coalitions"] = (value, flops)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--threads", type=int, nargs="*", default=[1])
    given = parser.parse_args()
    print("| job | threads | ms a round | in products | GFLOP/s there | peak GFLOP/s | times the arithmetic limit |")
    print("|---|---|---|---|---|---|---|")
    for threads in given.threads:
        torch.set_num_threads(threads)
        most = peak()
        for name, (run, flops) in jobs(threads).items():
            torch.set_num_threads(threads)
            whole, share = measure(run, given.repeats)
            rate = flops / (whole * share) / 1e9 if share else float("nan")
            limit = flops / most
            print(
                f"| {name} | {threads} | {whole * 1e3:.1f} | {100 * share:.0f}% | {rate:.0f} | {most / 1e9:.0f} "
                f"| {whole / limit:.1f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
