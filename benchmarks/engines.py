"""Does the rule that chooses engines choose well on this machine? Every setting of every engine, timed in turn.

For a handful of shapes (seeded random samples: nothing is downloaded) it plays rounds with their test on each engine
that can train the model, with every number of threads and of seats side by side, and prints what the rule says, what
was fastest, and how many times longer a round takes by the rule. Settings that are three times slower than the best in
two turns are not timed again. The exit code is 1 if the rule is off by more than ``--margin`` on any shape. Beside
other busy processes medians wander, and operators that are split over threads collapse: the load is printed, the lowest
times tell more there, and a verdict needs a quiet machine. Run: ``python benchmarks/engines.py``.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from hanse.base.errors import UserError
from hanse.core.recipe import Recipe
from hanse.data.samples import Samples
from hanse.learning.engines import EngineChoice, choose, make_engine
from hanse.learning.job import Engine, Problem, SeatJob
from hanse.learning.models import build_problem


class Residual(nn.Module):
    """A network that is no sequence of layers."""

    def __init__(self, inputs: int, width: int, classes: int) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(inputs, width), nn.Linear(width, classes)
        self.between = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.enter(x.flatten(1)))
        out: Tensor = self.leave(h + torch.relu(self.between(h)))
        return out


def residual(input_shape: tuple[int, ...], num_classes: int | None, width: int = 50) -> nn.Module:
    """Return a residual network, as a user might."""
    return Residual(torch.Size(input_shape).numel(), width, num_classes or 1)


def dropping(input_shape: tuple[int, ...], num_classes: int | None) -> nn.Module:
    """Return a perceptron with dropout, which engines that batch seats cannot train."""
    layers = [nn.Linear(torch.Size(input_shape).numel(), 50), nn.ReLU(), nn.Dropout(0.2)]
    return nn.Sequential(nn.Flatten(), *layers, nn.Linear(50, num_classes or 1))


@dataclass(frozen=True)
class Shape:
    """A job: its model, the shape of samples, seats of ``sizes`` samples in turn, how they train, and ``tested``
    samples after each round.
    """

    model: str
    samples: tuple[int, ...]
    seats: int
    sizes: Sequence[int]
    recipe: Recipe
    tested: int
    options: Mapping[str, Any] = field(default_factory=dict)


MNIST, CIFAR, TEXT = (1, 28, 28), (3, 32, 32), (80,)
ONE, FIVE = (Recipe(epochs=epochs, batch_size=50, lr=0.01, momentum=0.5) for epochs in (1, 5))
ADAMW = Recipe(batch_size=50, optimizer="adamw")
SHORT = Recipe(steps=2, batch_size=16, lr=0.1)
MLP, LSTM = {"hidden": [50, 25]}, {"hidden": 128}
SHAPES: Mapping[str, Shape] = {
    "mnist-mlp, 1 seat": Shape("mlp", MNIST, 1, [600], FIVE, 10_000, MLP),
    "mnist-mlp, 10 seats": Shape("mlp", MNIST, 10, [600], FIVE, 10_000, MLP),
    "mnist-mlp, 100 seats": Shape("mlp", MNIST, 100, [600], ONE, 10_000, MLP),
    "mnist-mlp, 20 seats of 60 to 1,200": Shape("mlp", MNIST, 20, [60, 200, 600, 1200], ONE, 10_000, MLP),
    "mlp 60-16-10, 100 seats": Shape("mlp", (60,), 100, [100], ONE, 1000, {"hidden": [16]}),
    "logistic 60-10, 10 seats": Shape("logistic", (60,), 10, [200], FIVE, 1000),
    "mlp 784-1024-10, 10 seats": Shape("mlp", MNIST, 10, [200], ONE, 1000, {"hidden": [1024]}),
    "mnist-mlp, adamw, 10 seats": Shape("mlp", MNIST, 10, [600], ADAMW, 10_000, MLP),
    "mlp with dropout, 10 seats": Shape("engines:dropping", MNIST, 10, [600], ONE, 10_000),
    "residual, 10 seats": Shape("engines:residual", MNIST, 10, [600], ONE, 10_000),
    "residual, 1 seat": Shape("engines:residual", MNIST, 1, [600], ONE, 10_000),
    "residual of 512, 10 seats": Shape("engines:residual", MNIST, 10, [200], ONE, 1000, {"width": 512}),
    "cifar-cnn, 5 seats": Shape("cnn", CIFAR, 5, [100], ONE, 500),
    "cifar-cnn, 1 seat": Shape("cnn", CIFAR, 1, [200], ONE, 500),
    "cnn_fedgen, 10 seats": Shape("cnn_fedgen", MNIST, 10, [200], ONE, 1000),
    "lstm, 10 seats": Shape("lstm", TEXT, 10, [64], SHORT, 32, LSTM),
}


@dataclass(frozen=True)
class Job:
    """A shape made real; ``chosen`` is what the rule says."""

    problem: Problem
    pool: Samples
    jobs: list[SeatJob]
    recipe: Recipe
    test: Samples

    def choice(self, train: str = "auto", threads: int | None = None, workers: int | None = None) -> EngineChoice:
        """Return the rule's choice, or what is given. Raises UserError if that cannot train the model."""
        few, size = Samples(self.pool.x[:4], self.pool.y[:4]), self.recipe.batch_size or len(self.pool)
        given = {"train": train, "threads": threads, "workers": workers}
        start, seats = self.jobs[0].start, len(self.jobs)
        return choose(self.problem, start, self.recipe, few, seats=seats, batch=size, **given)  # type: ignore[arg-type]

    def round(self, engine: Engine) -> float:
        """Play a round with its test; return its seconds."""
        begun = time.perf_counter()
        trained = engine.train(self.pool, self.jobs, self.recipe, self.recipe.lr)
        engine.score(trained.rows.mean(0, keepdim=True), self.test)
        return time.perf_counter() - begun


def real(shape: Shape) -> Job:
    """Draw a shape's samples and build its model."""
    draw = torch.Generator().manual_seed(0)
    classes = 80 if shape.model == "lstm" else 10

    def some(n: int) -> Samples:
        if shape.model == "lstm":
            tokens = torch.randint(0, classes, (n, shape.samples[0] + 1), generator=draw)
            return Samples(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())
        x = torch.rand((n, *shape.samples), generator=draw)
        return Samples(x, torch.randint(0, classes, (n,), generator=draw))

    problem, row = build_problem(shape.model, shape.samples, classes, 0, **shape.options)
    sizes = [shape.sizes[seat % len(shape.sizes)] for seat in range(shape.seats)]
    parts = torch.arange(sum(sizes)).split(sizes)
    jobs = [SeatJob(part, row, (0, 0, seat, 0)) for seat, part in enumerate(parts)]
    return Job(problem, some(sum(sizes)), jobs, shape.recipe, some(shape.tested))


def settings(job: Job, most: int) -> list[EngineChoice]:
    """Return the rule's choice and every other setting that can train the job here."""
    found = {job.choice(): None}
    counts = sorted({1, min(2, most), min(4, most), most})
    for name in ("stacked", "vmapped", "sequential"):
        pairs = [(threads, 1) for threads in counts]
        if name == "sequential":
            pairs += [(1, side) for side in sorted({min(side, len(job.jobs)) for side in counts} - {1})]
        try:
            found |= {job.choice(name, threads, workers): None for threads, workers in pairs}
        except UserError:
            continue  # this engine cannot train the model
    return list(found)


def measure(job: Job, choices: Sequence[EngineChoice], repeats: int) -> dict[EngineChoice, list[float]]:
    """Return the seconds of each setting's rounds, timed in turn, the slow ones twice only."""
    engines = {choice: make_engine(choice, job.problem) for choice in choices}
    times: dict[EngineChoice, list[float]] = {choice: [] for choice in choices}
    try:
        for turn in range(-1, repeats):
            limit = 3 * min(min(found, default=float("inf")) for found in times.values())
            for choice, engine in engines.items():
                if turn < 2 or min(times[choice]) <= limit or choice == choices[0]:
                    taken = job.round(engine)
                    times[choice] += [taken] if turn >= 0 else []  # the first is to warm up
    finally:
        for engine in engines.values():
            engine.close()
    return times


def judge(name: str, job: Job, repeats: int) -> tuple[float, float]:
    """Print a shape's table; return how many times longer the rule's takes: by medians, and by lowest times."""
    load, choices = os.getloadavg()[0], settings(job, torch.get_num_threads())
    times = measure(job, choices, repeats)
    medians, lowest = ({c: 1e3 * of(found) for c, found in times.items()} for of in (median, min))
    print(f"\n{name} (P {job.problem.layout.size:,}; load {load:.1f})\n{'':50} median ms   lowest", flush=True)
    for choice in sorted(choices, key=lambda c: medians[c]):
        mark = "  <- the rule" if choice == choices[0] else ""
        print(f"  {choice.label:48} {medians[choice]:9.1f} {lowest[choice]:8.1f}{mark}", flush=True)
    return tuple(found[choices[0]] / min(found.values()) for found in (medians, lowest))  # type: ignore[return-value]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--margin", type=float, default=0.1)
    parser.add_argument(
        "--only", nargs="*", default=[""], metavar="PART", help="shapes whose names contain one of these"
    )
    options = parser.parse_args()
    print(f"PyTorch {torch.__version__}, {torch.get_num_threads()} threads, {os.cpu_count()} cores")
    wanted = {name: shape for name, shape in SHAPES.items() if any(part in name for part in options.only)}
    found = {name: judge(name, real(shape), options.repeats) for name, shape in wanted.items()}
    print(f"\n{'times the best that can be set by hand':50}   medians   lowest")
    for name, (by_median, by_lowest) in found.items():
        verdict = "" if by_median <= 1 + options.margin else "  OFF"
        print(f"  {name:48} {by_median:9.2f} {by_lowest:8.2f}{verdict}")
    return int(any(by_median > 1 + options.margin for by_median, _ in found.values()))


if __name__ == "__main__":
    sys.exit(main())
