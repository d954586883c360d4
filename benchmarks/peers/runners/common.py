"""What every runner shares: the job's files, the model as anybody would write it, and the events that it prints.

It needs numpy and PyTorch only: each runner has an environment of its own.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from torch import Tensor, nn


def mlp() -> nn.Module:
    """Return 784-50-25-10."""
    layers = [nn.Flatten(), nn.Linear(784, 50), nn.ReLU(), nn.Linear(50, 25), nn.ReLU(), nn.Linear(25, 10)]
    return nn.Sequential(*layers)


def cnn() -> nn.Module:
    """Return the CNN 32-64-64 + 128."""
    return nn.Sequential(
        nn.Conv2d(3, 32, 3), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(64, 64, 3), nn.ReLU(), nn.Flatten(),
        nn.Linear(1024, 128), nn.ReLU(), nn.Linear(128, 10),
    )  # fmt: skip


class Job:
    """A job's settings as attributes, and its data."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.given = SimpleNamespace(**json.loads((self.folder / "job.json").read_text()))
        self.clients = np.load(self.folder / "clients.npy")
        self.seats = np.load(self.folder / "seats.npy")

    def load(self, part: str) -> tuple[Tensor, Tensor]:
        """Return all samples of a part."""
        x, y = np.load(self.folder / f"x_{part}.npy"), np.load(self.folder / f"y_{part}.npy")
        return torch.from_numpy(x), torch.from_numpy(y)

    def client(self, number: int) -> tuple[Tensor, Tensor]:
        """Return one client's samples without reading the others'."""
        x = np.load(self.folder / "x_train.npy", mmap_mode="r")
        y = np.load(self.folder / "y_train.npy", mmap_mode="r")
        taken = self.clients[number]
        return torch.from_numpy(x[taken]), torch.from_numpy(y[taken])

    def model(self) -> nn.Module:
        """Return the model with its first weights."""
        torch.manual_seed(0)
        return {"mlp": mlp, "cnn": cnn}[self.given.model]()


def accuracy(model: nn.Module, x: Tensor, y: Tensor, batch: int = 1_000) -> float:
    """Return the share of right answers."""
    model.eval()
    with torch.no_grad():
        right = sum(int((model(a).argmax(1) == b).sum()) for a, b in zip(x.split(batch), y.split(batch), strict=True))
    model.train()
    return right / len(y)


class Clock:
    """Prints an event a line: ``ready`` when the first round begins, ``round`` with its seconds when one is tested."""

    def __init__(self) -> None:
        self.round = 0
        self.last = 0.0

    def ready(self) -> None:
        self.last = time.perf_counter()
        _say({"event": "ready"})

    def done(self, accuracy: float) -> None:
        now = time.perf_counter()
        _say({"event": "round", "round": self.round, "seconds": now - self.last, "accuracy": accuracy})
        self.round, self.last = self.round + 1, now


def _say(event: dict[str, object]) -> None:
    sys.stdout.write("\n" + json.dumps(event) + "\n")  # some systems leave the cursor within a line
    sys.stdout.flush()


def given_job() -> Job:
    """Return the job of the command line's last argument."""
    return Job(sys.argv[-1])
