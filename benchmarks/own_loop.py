"""What hanse costs over a user's own training loop: rounds of a run with ``train.loop`` beside the same loop outside.

Outside: for each client a copy of the model takes the global weights, the loop trains it on the client's tensors by a
plain ``DataLoader``-like pass, and the weights are averaged; with worker threads in a ``ThreadPoolExecutor``. Rounds
alternate, and ratios are of processor time (of wall time where threads work side by side, too).

Run: ``OMP_NUM_THREADS=1 python benchmarks/own_loop.py``
"""

from __future__ import annotations

import argparse
import copy
import os
import statistics
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import hanse
from hanse.data import build
from hanse.data.dataset import Dataset
from hanse.data.samples import Samples
from hanse.learning.loop import TrainingData, TrainingRound
from hanse.learning.models import build_module

CASES: dict[str, dict[str, Any]] = {
    # digits, an MLP: many small steps, where what lies between them would show
    "small MLP": {"model": {"name": "mlp", "hidden": [50, 25]}, "size": 8, "clients": 10, "samples": 600},
    "wide MLP": {"model": {"name": "mlp", "hidden": [512, 512]}, "size": 28, "clients": 6, "samples": 600},
    "CNN": {"model": {"name": "cnn_small"}, "size": 28, "clients": 6, "samples": 300},
}


def fit(model: nn.Module, data: TrainingData, round: TrainingRound) -> Mapping[str, float]:
    """Adam on batches; the loader is hanse's."""
    return steps(model, data.loader(), round.lr, round.epochs)


def plainly(model: nn.Module, data: TrainingData, round: TrainingRound) -> Mapping[str, float]:
    """The same with PyTorch's own loader, sample by sample, inside and outside."""
    draw = torch.Generator().manual_seed(round.seed)
    loader = DataLoader(TensorDataset(data.x, data.y), round.batch_size, shuffle=True, generator=draw)
    return steps(model, loader, round.lr, round.epochs)


def steps(model: nn.Module, loader: Any, lr: float, epochs: int) -> Mapping[str, float]:
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    loss = torch.zeros(())
    for _ in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
    return {"loss": loss.item()}


def source(size: int, samples: int, clients: int) -> Any:
    """Return generated images of ten classes, so many for each client."""
    n = samples * clients + 200
    draw = torch.Generator().manual_seed(0)
    y = torch.randint(0, 10, (n,), generator=draw)
    x = torch.randn(n, 1, size, size, generator=draw) + 0.1 * y.float().view(-1, 1, 1, 1)
    return Dataset("made", Samples(x[:-200], y[:-200]), Samples(x[-200:], y[-200:]), 10, (1, size, size))


@dataclass
class Outside:
    """The same loop without hanse; as an observer it plays a round after each of hanse's, and notes what both cost."""

    experiment: hanse.Experiment
    loop: Callable[..., Mapping[str, float]]
    workers: int
    pairs: list[tuple[tuple[float, float], tuple[float, float]]] = field(default_factory=list)

    def on_start(self, experiment: Any, first: int, said: Any) -> None:
        data = build(self.experiment.data)
        section = self.experiment.model
        self.model = build_module(section.name, data.input_shape, data.num_classes, 0, **section.options)
        pool, index = data.pool(range(data.num_clients))
        self.clients = [pool.take(i) for i in index]
        self.pool = ThreadPoolExecutor(self.workers, initializer=torch.set_num_threads, initargs=(1,))
        self.begun = now()

    def train(self, client: int, number: int) -> dict[str, torch.Tensor]:
        own, t = self.clients[client], self.experiment.train
        told = TrainingRound(
            number, client, "", 7 * number + client, torch.device("cpu"), t.epochs, t.batch_size or 32, None, t.lr,
            0.0, 0.0, t.recipe,
        )  # fmt: skip
        model = copy.deepcopy(self.model)
        self.loop(model.train(), TrainingData(own, torch.arange(len(own)), told), told)
        return model.state_dict()

    def on_round(self, metrics: Any, played: Any) -> None:
        inside, begun = since(self.begun), now()
        everybody = range(len(self.clients))
        if self.workers == 1:
            states = [self.train(c, metrics["round"]) for c in everybody]
        else:
            states = list(self.pool.map(lambda c: self.train(c, metrics["round"]), everybody))
        mean = {name: torch.stack([s[name] for s in states]).mean(0) for name in states[0]}
        self.model.load_state_dict(mean)
        self.pairs.append((inside, since(begun)))
        self.begun = now()


def now() -> tuple[float, float]:
    return time.process_time(), time.perf_counter()


def since(begun: tuple[float, float]) -> tuple[float, float]:
    return time.process_time() - begun[0], time.perf_counter() - begun[1]


def compare(name: str, loop: Callable[..., Any], workers: int, rounds: int) -> None:
    case = CASES[name]
    globals()["made"] = lambda **_: source(case["size"], case["samples"], case["clients"])
    experiment = hanse.Experiment(
        data={"source": f"{__name__}:made", "clients": case["clients"], "partition": "iid", "client_test": 0.0},
        model=case["model"],
        mechanism={"name": "fedavg", "clients_per_round": case["clients"]},
        train={"epochs": 2, "batch_size": 32, "lr": 0.001, "loop": loop},
        engine={"train": "sequential", "threads": 1, "workers": workers, "device": "cpu"},
        eval={"every": rounds + 1, "clients": 0},
        run={"rounds": rounds},
    )
    outside = Outside(experiment, loop, workers)
    hanse.run(experiment, observers=[outside])
    pairs = outside.pairs[2:-1]  # what is imported and made once; the last round is tested
    for kind, label in ((0, "processor"), (1, "wall")):
        ratio = statistics.median(a[kind] / b[kind] for a, b in pairs)
        ours, theirs = (1000 * statistics.median(pair[side][kind] for pair in pairs) for side in (0, 1))
        print(
            f"| {name} | {loop.__name__} | {workers} | {label} | {theirs:.1f} | {ours:.1f} | {ratio:.3f} |", flush=True
        )


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    words.add_argument("--rounds", type=int, default=25)
    words.add_argument("--workers", type=int, default=min(2, os.cpu_count() or 1))
    given = words.parse_args()
    print("| model | loop | workers | time | outside, ms a round | hanse, ms | ratio |\n|---|---|---|---|---|---|---|")
    for name in CASES:
        for loop in (fit, plainly):
            compare(name, loop, 1, given.rounds)
    for name in ("wide MLP", "CNN"):
        compare(name, fit, given.workers, given.rounds)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
