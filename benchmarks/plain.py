"""The loop that others write, written well: one seat after another, tensors resident, foreach SGD, no DataLoader.

It is the baseline of every benchmark here, and runs with whatever number of threads is set when it is called.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from hanse.data.samples import Samples


@cache
def load(source: str) -> tuple[Samples, Samples, str]:
    """Return train and test samples of "mnist" or "cifar10" from HANSE_DATA, or random ones of the same shape."""
    shape = {"mnist": (1, 28, 28), "cifar10": (3, 32, 32)}[source]
    folder = os.environ.get("HANSE_DATA")
    path = Path(folder) / f"{source}.npz" if folder else None
    if path is None or not path.exists():
        draw = torch.Generator().manual_seed(0)
        parts = []
        for n in (60_000, 10_000):
            x = torch.rand((n, *shape), generator=draw)
            parts.append(Samples(x, torch.randint(0, 10, (n,), generator=draw)))
        return parts[0], parts[1], f"random numbers of {source}'s shape (set HANSE_DATA to a folder with {source}.npz)"
    with np.load(path, allow_pickle=False) as data:
        parts = []
        for part in ("train", "test"):
            x = torch.from_numpy(data[f"x_{part}"]).float().div_(255).sub_(0.5).div_(0.5)
            x = x.unsqueeze(1) if x.ndim == 3 else x.permute(0, 3, 1, 2)
            parts.append(Samples(x.contiguous(), torch.from_numpy(data[f"y_{part}"]).long()))
    return parts[0], parts[1], source


def mlp() -> nn.Module:
    """Return 784-50-25-10 as anybody would write it."""
    layers = [nn.Flatten(), nn.Linear(784, 50), nn.ReLU(), nn.Linear(50, 25), nn.ReLU(), nn.Linear(25, 10)]
    return nn.Sequential(*layers)


def cnn() -> nn.Module:
    """Return the CNN 32-64-64 + 128 as anybody would write it: ReLU, then pooling."""
    return nn.Sequential(
        nn.Conv2d(3, 32, 3), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(64, 64, 3), nn.ReLU(), nn.Flatten(),
        nn.Linear(1024, 128), nn.ReLU(), nn.Linear(128, 10),
    )  # fmt: skip


class PlainLoop:
    """FedAvg over clients of equal size: one module, loaded from the global weights for each client in turn."""

    def __init__(self, module: nn.Module, train: Samples, test: Samples, clients: Sequence[Tensor]) -> None:
        self.module, self.data, self.test, self.clients = module, train, test, clients
        self.weights = [p.detach().clone() for p in module.parameters()]
        self.round = 0

    def train(self, seats: Sequence[int], epochs: int, batch: int, lr: float, momentum: float) -> None:
        """Train the seats one after another and average them."""
        module, data = self.module.train(), self.data
        parameters = list(module.parameters())
        total = [torch.zeros_like(w) for w in self.weights]
        for seat in seats:
            with torch.no_grad():
                torch._foreach_copy_(parameters, self.weights)
            optimiser = torch.optim.SGD(parameters, lr=lr, momentum=momentum, foreach=True)
            index = self.clients[seat]
            for _ in range(epochs):
                for taken in index[torch.randperm(len(index), device=index.device)].split(batch):
                    optimiser.zero_grad(set_to_none=True)
                    F.cross_entropy(module(data.x[taken]), data.y[taken]).backward()
                    optimiser.step()
            with torch.no_grad():
                torch._foreach_add_(total, [p.detach() for p in parameters], alpha=1 / len(seats))
        self.weights = total
        self.round += 1

    def accuracy(self, batch: int = 10_000) -> float:
        """Return the share of right answers on the test samples."""
        with torch.no_grad():
            torch._foreach_copy_(list(self.module.parameters()), self.weights)
            self.module.eval()
            right = 0
            for x, y in zip(self.test.x.split(batch), self.test.y.split(batch), strict=True):
                right += int((self.module(x).argmax(1) == y).sum())
        return right / len(self.test)
