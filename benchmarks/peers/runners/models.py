"""The models as anybody would write them; it needs PyTorch only: each runner has an environment of its own."""

from __future__ import annotations

import torch
from torch import nn


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


def first_model(name: str) -> nn.Module:
    """Return "mlp" or "cnn" with the job's first weights."""
    torch.manual_seed(0)
    return {"mlp": mlp, "cnn": cnn}[name]()
