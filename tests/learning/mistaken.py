"""Mistakes that users make in modules and data, reached by import path."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hanse.data import Dataset, Samples


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x: Tensor, other: Tensor) -> Tensor:
        out: Tensor = self.layer(x + other)
        return out


class Pair(nn.Linear):
    def forward(self, x: Tensor) -> Any:
        return super().forward(x), x


def _shared() -> nn.Module:
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)
    second.weight = nn.Parameter(first.weight.detach().t())
    return nn.Sequential(first, second, nn.Linear(4, 2))


MODELS = {
    "sound": lambda: nn.Linear(4, 2),
    "wide": lambda: nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 2)),
    "one": lambda: nn.Linear(4, 1),
    "none": lambda: nn.Sequential(nn.Linear(4, 1), nn.Flatten(0)),
    "two inputs": TwoInputs,
    "pair": lambda: Pair(4, 2),
    "frozen": lambda: nn.Linear(4, 2).requires_grad_(False),
    "shared": _shared,
    "tokens": lambda: nn.Sequential(nn.Embedding(9, 3), nn.Flatten(), nn.Linear(12, 2)),
}


def model(input_shape: tuple[int, ...], num_classes: int | None, kind: str = "sound") -> nn.Module:
    return MODELS[kind]()


def _samples() -> tuple[Any, Any]:
    draw = np.random.default_rng(0)
    return draw.standard_normal((60, 4)), draw.integers(0, 2, 60)


def _changed(kind: str) -> Dataset:
    x, y = _samples()
    classes: int | None = 2
    match kind:
        case "uint8":
            x = np.abs(x).astype("uint8")
        case "object":
            x = x.astype(object)
        case "frame":
            x = x.tolist()
        case "words":
            y = np.array(["no", "yes"])[y]
        case "floats":
            y = y.astype("float64")
        case "range":
            y[7] = 2
        case "nan":
            x[13, 2] = np.nan
        case "inf":
            x[59, 0] = np.inf
        case "huge":
            x[13, 2] = 1e300
        case "target":
            y, classes = x[:, 0] * 1.0, None
            y[3] = np.nan
        case "tokens":
            x = np.abs(x).astype("int64")
        case "three":
            classes, y[:3] = 3, [0, 1, 2]
    owner = np.arange(48) % 3
    names = ("A", "B", "C")
    return Dataset(
        "own", Samples(x[:48], y[:48]), Samples(x[48:], y[48:]), classes, (4,), client_of=owner, client_names=names
    )


def _loader(kind: str) -> Any:
    return lambda **_: _changed(kind)


sound, uint8, object_, frame, words = (_loader(k) for k in ("sound", "uint8", "object", "frame", "words"))
floats, range_, nan, inf, huge = (_loader(k) for k in ("floats", "range", "nan", "inf", "huge"))
target, tokens, three = (_loader(k) for k in ("target", "tokens", "three"))


def narrow(**_: Any) -> Dataset:
    """What a data set is after numpy: 64-bit floats, short integers, the other byte order; all sound."""
    x, y = _samples()
    x, y = x.astype(">f8"), y.astype("uint16")
    return Dataset("own", Samples(x[:48], y[:48]), Samples(torch.from_numpy(x[48:].astype("f4")), y[48:]), 2, (4,))


class Hooked(nn.Module):
    """Half of its weights are masked by a hook, which a copy would not have."""

    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        self.layer = nn.Linear(64, num_classes)
        self.layer.weight.register_hook(lambda gradient: gradient * 0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x.flatten(1))


class Complex(nn.Module):
    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(64, num_classes, dtype=torch.complex64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.flatten(1) @ self.w.abs()
