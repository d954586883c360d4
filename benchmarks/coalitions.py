"""How many coalitions' models a second are scored, against averaging each one's model and evaluating it.

256 random coalitions of 20 clients, MLP 784-50-25-10 on 5,000 images, and 200 of GreedyFed's CNN (what ``mixture`` asks
for) on 4,000; the naive way with all images at once or (the CNN) in blocks of 250, channels last, which is the best
that we know for one model at a time.
Run: ``HANSE_DATA=folder python benchmarks/coalitions.py``. With ``--rounds 2`` also whole rounds of GreedyFed at the
paper's setting for CIFAR-10 (N=200, M=20): how many coalitions, how fast, and their share of the round's time.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from common import interleaved, print_times, with_threads
from plain import load, mlp
from torch import Tensor, nn

import hanse
from hanse.data.samples import Samples
from hanse.learning.coalitions import UpdateGame
from hanse.learning.models import build_problem


def naive(module: nn.Module, updates: Tensor, weights: Tensor, samples: Samples, coalition: frozenset[int]) -> float:
    """Average the members' parameters, load them, evaluate: what everybody writes."""
    members = sorted(coalition)
    row = (weights[members] / weights[members].sum()) @ updates[members]
    offset = 0
    with torch.no_grad():
        for p in module.parameters():
            p.copy_(row[offset : offset + p.numel()].view_as(p))
            offset += p.numel()
        return -float(F.cross_entropy(module(samples.x), samples.y))


def in_blocks(
    module: nn.Module, updates: Tensor, weights: Tensor, samples: Samples, coalition: frozenset[int]
) -> float:
    """The same with images that lie channels last, 250 at a time."""
    members = sorted(coalition)
    row = (weights[members] / weights[members].sum()) @ updates[members]
    torch.nn.utils.vector_to_parameters(row, module.parameters())
    module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    total = 0.0
    with torch.no_grad():
        for x, y in zip(samples.x.split(250), samples.y.split(250), strict=True):
            output = module(x.contiguous(memory_format=torch.channels_last))
            total -= float(F.cross_entropy(output, y, reduction="sum"))
    return total / len(samples)


def naive_greedyfed() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 4), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 8, 4), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(200, 10),
    )  # fmt: skip


def compare(
    title: str, model: str, module: nn.Module, samples: Samples, clients: int, count: int, repeats: int
) -> None:
    problem, row = build_problem(model, tuple(samples.x.shape[1:]), 10, 0)
    draw = torch.Generator().manual_seed(0)
    updates = row + 0.05 * torch.randn((clients, len(row)), generator=draw)
    weights = torch.rand(clients, generator=draw) + 0.5
    pick = np.random.default_rng(0)
    coalitions = [
        frozenset(np.flatnonzero(pick.random(clients) < 0.5).tolist()) or frozenset({0}) for _ in range(count)
    ]
    few = coalitions[:8]
    most = torch.get_num_threads()
    game = UpdateGame(problem, updates, row, weights.double().numpy(), samples)
    gap = max(abs(a - naive(module, updates, weights, samples, c)) for a, c in zip(game.many(few), few, strict=True))

    def ours() -> None:  # a new game each time: what is computed once a round is paid for
        UpdateGame(problem, updates, row, weights.double().numpy(), samples).many(coalitions)

    def theirs() -> None:
        for coalition in few:
            naive(module, updates, weights, samples, coalition)

    def better() -> None:
        for coalition in few:
            in_blocks(module, updates, weights, samples, coalition)

    runs = {f"naive, {t} threads": with_threads(t, theirs) for t in sorted({1, most})}
    if model.startswith("cnn"):
        runs |= {f"naive in blocks, {t} threads": with_threads(t, better) for t in sorted({1, most})}
    runs |= {f"hanse, {t} threads": with_threads(t, ours) for t in sorted({1, most})}
    times = interleaved(runs, repeats)
    each = {n: [v / (len(few) if n.startswith("naive") else count) for v in values] for n, values in times.items()}
    medians = print_times(f"{title}: a coalition", each, [n for n in runs if n.startswith("naive")])
    for name, value in medians.items():
        print(f"{name}: {1000 / value:.0f} subsets per second")
    print(f"largest difference of a value: {gap:.1e}")


def whole_rounds(rounds: int, threads: int) -> None:
    """GreedyFed on CIFAR-10 as in the paper; the first rounds are those in which everyone is met."""
    metrics = hanse.run(
        hanse.Experiment(
            data={
                "source": {"name": "cifar10", "scale": "unit"},
                "partition": {"name": "dirichlet", "alpha": 1e-4, "sampler": "float32-clamped"},
                "clients": 200,
                "validation": 0.5,
            },
            model={"name": "cnn_greedyfed"},
            mechanism={"name": "greedyfed", "clients_per_round": 20},
            train={"epochs": 5, "batches_per_epoch": 5, "lr": 0.01, "momentum": 0.5},
            engine={"train": "sequential", "threads": threads, "workers": 1, "device": "cpu"},
            run={"rounds": rounds},
        )
    ).metrics
    print(f"\nwhole rounds on CIFAR-10, {threads} threads")
    print("| round | permutations | requests | distinct | distinct a second | seconds to value | share of the round |")
    print("|---|---|---|---|---|---|---|")
    for m in metrics:
        spent, distinct = m["time/value_s"], m["value/models_evaluated"]
        counts = f"{m['value/permutations']:.0f} | {m['value/requests']:.0f} | {distinct:.0f} | {distinct / spent:.1f}"
        print(f"| {m['round']} | {counts} | {spent:.1f} | {spent / m['time/round_s']:.1%} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--rounds", type=int, default=0, help="whole rounds of GreedyFed on CIFAR-10")
    options = parser.parse_args()
    most = torch.get_num_threads()
    train, _, source = load("mnist")
    part = Samples(train.x[:5000], train.y[:5000])
    compare(f"MLP, 20 clients, 5,000 images ({source})", "mlp", mlp(), part, 20, 256, options.repeats)
    train, _, source = load("cifar10")
    part = Samples(train.x[:4000], train.y[:4000])
    title = f"GreedyFed's CNN, 20 clients, 4,000 images ({source})"
    compare(title, "cnn_greedyfed", naive_greedyfed(), part, 20, 200, options.repeats)
    if options.rounds:
        whole_rounds(options.rounds, most)


if __name__ == "__main__":
    main()
