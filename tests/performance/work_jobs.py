"""The jobs that the gate watches: training of an MLP and of a CNN, whole rounds, coalitions. Each returns its work."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from typing import Any

import torch
from work_counter import Work, counting

import hanse
from hanse.core.recipe import Recipe
from hanse.data.samples import Samples
from hanse.games import shapley
from hanse.learning.coalitions import UpdateGame
from hanse.learning.job import Engine, SeatJob
from hanse.learning.models import build_problem
from hanse.learning.native.engine import NativeEngine
from hanse.learning.sequential import SequentialEngine
from hanse.learning.stacked import StackedEngine

MLP = ((784, 50), (50, 25), (25, 10))
BATCH, SAMPLES = 50, 200


def random_samples(shape: tuple[int, ...], count: int) -> Samples:
    draw = torch.Generator().manual_seed(0)
    return Samples(torch.rand((count, *shape), generator=draw), torch.randint(0, 10, (count,), generator=draw))


def a_step(engine: Engine, shape: tuple[int, ...], row: torch.Tensor, seats: int) -> Work:
    """Return the work of one optimiser step of all seats: what a second epoch adds, over its steps."""
    pool = random_samples(shape, seats * SAMPLES)
    jobs = [SeatJob(torch.arange(s * SAMPLES, (s + 1) * SAMPLES), row, (0, 0, s, 0)) for s in range(seats)]

    def train(epochs: int) -> Work:
        with counting() as work:
            engine.train(pool, jobs, Recipe(epochs=epochs, batch_size=BATCH, lr=0.01, momentum=0.5), 0.01)
        return work

    train(1)  # buffers are made
    return per_step(train(3), train(2), SAMPLES // BATCH)


def per_step(more: Work, less: Work, steps: int) -> Work:
    """Return what one of the additional steps took."""
    kernels = more.kernels.copy()
    kernels.subtract(less.kernels)
    for name in kernels:
        kernels[name] //= steps
    return Work(+kernels, (more.flops - less.flops) // steps, (more.bytes - less.bytes) // steps)


def mlp_step(seats: int) -> Work:
    problem, row = build_problem("mlp", (1, 28, 28), 10, 0, hidden=[50, 25])
    return a_step(StackedEngine(problem, threads=1), (1, 28, 28), row, seats)


def native_step(seats: int) -> Work:
    """The work that PyTorch does of a step of the compiled engine's."""
    problem, row = build_problem("mlp", (1, 28, 28), 10, 0, hidden=[50, 25])
    return a_step(NativeEngine(problem), (1, 28, 28), row, seats)


def cnn_step() -> Work:
    problem, row = build_problem("cnn", (3, 32, 32), 10, 0)
    return a_step(SequentialEngine(problem, threads=1), (3, 32, 32), row, 1)


def mlp_start(seats: int) -> Work:
    """Return the work of a round of training that does not grow with its steps."""
    problem, row = build_problem("mlp", (1, 28, 28), 10, 0, hidden=[50, 25])
    engine, pool = StackedEngine(problem, threads=1), random_samples((1, 28, 28), seats * BATCH)
    jobs = [SeatJob(torch.arange(s * BATCH, (s + 1) * BATCH), row, (0, 0, s, 0)) for s in range(seats)]
    engine.train(pool, jobs, Recipe(batch_size=BATCH), 0.01)
    with counting() as work:
        engine.train(pool, jobs, Recipe(batch_size=BATCH), 0.01)
    return work


def a_round(
    name: str = "fedavg", *, clients: int = 20, seats: int = 4, out: Path | None = None
) -> tuple[Work, hanse.Run]:
    """Return the work of one whole round of ``hanse.run`` with its test, and the run; which it leaves in ``out``.

    Synthetic clients of 20 samples each, 2 steps of 10; a round is what two more rounds add, halved.
    """
    given: dict[str, Any] = {
        "data": {"source": {"name": "synthetic", "samples_per_client": 20}, "clients": clients},
        "model": {"name": "mlp", "hidden": [16]},
        "mechanism": {"name": name, "clients_per_round": seats},
        "train": {"batch_size": 10},
        "engine": {"train": "stacked", "threads": 1, "workers": 1, "device": "cpu"},
    }

    def play(rounds: int) -> tuple[Work, hanse.Run]:
        with counting() as work:
            run = hanse.run(hanse.Experiment(**given, run={"rounds": rounds}), out=out, overwrite=True)
        return work, run

    hanse.run(hanse.Experiment(**given, run={"rounds": 1}))  # the first run on a machine compares the engine
    (more, run), (less, _) = play(5), play(3)
    return per_step(more, less, 2), run


def coalition_work(players: int, samples: int) -> tuple[Work, int]:
    """Return the work of valuing all coalitions of so many MLPs, and how many models it evaluated."""
    problem, row = build_problem("mlp", (1, 28, 28), 10, 0, hidden=[50, 25])
    updates = torch.stack([row + 0.01 * k for k in range(players)])
    game = UpdateGame(problem, updates, row, [1.0] * players, random_samples((1, 28, 28), samples), workers=1)
    everyone = [frozenset(c) for size in range(players + 1) for c in combinations(range(players), size)]
    with counting() as work:
        game.many(everyone)
    return work, game.evaluated


def gtg_models(players: int) -> tuple[int, int]:
    """Return how many models GTG-Shapley asks for and how many of them are different, in a game of so many players."""
    worth = [1.0 + 0.1 * i for i in range(players)]
    found = shapley.gtg(lambda c: sum(worth[i] for i in c) ** 0.5, players, seed=0)
    return found.evaluations, found.distinct
