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


class _Residual(nn.Module):
    """A block of ResNet-18: two 3x3 convolutions with batch norm, added to the input or to a 1x1 convolution of it."""

    def __init__(self, inputs: int, channels: int, stride: int) -> None:
        super().__init__()
        self.way = nn.Sequential(
            nn.Conv2d(inputs, channels, 3, stride, 1, bias=False), nn.BatchNorm2d(channels), nn.ReLU(),
            nn.Conv2d(channels, channels, 3, 1, 1, bias=False), nn.BatchNorm2d(channels),
        )  # fmt: skip
        changed = nn.Sequential(nn.Conv2d(inputs, channels, 1, stride, bias=False), nn.BatchNorm2d(channels))
        self.beside = nn.Identity() if stride == 1 and inputs == channels else changed

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.way(x) + self.beside(x))


def resnet18() -> nn.Module:
    """Return ResNet-18 for images of 32 x 32 (a 3x3 first convolution, no pooling after it), 11.2 million numbers."""
    widths = [(64, 64, 1), (64, 64, 1), (64, 128, 2), (128, 128, 1), (128, 256, 2), (256, 256, 1), (256, 512, 2)]
    return nn.Sequential(
        nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU(),
        *[_Residual(*width) for width in widths], _Residual(512, 512, 1),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10),
    )  # fmt: skip


def first_model(name: str) -> nn.Module:
    """Return "mlp", "cnn" or "resnet18" with the job's first weights."""
    torch.manual_seed(0)
    return {"mlp": mlp, "cnn": cnn, "resnet18": resnet18}[name]()
