"""Modules drawn at random, of the kinds that users write: reached by import path, the draw is an option."""

import random
from collections.abc import Callable

import torch
from experiments import digits
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

import hanse
from hanse.data import Dataset, Samples

SHAPE, CLASSES, WIDTH = (1, 8, 8), 4, 6


def images(**_: object) -> Dataset:
    draw = torch.Generator().manual_seed(0)
    x, y = torch.randn(84, *SHAPE, generator=draw), torch.randint(0, CLASSES, (84,), generator=draw)
    return Dataset("images", Samples(x[:48], y[:48]), Samples(x[48:], y[48:]), CLASSES, SHAPE)


def run(number: int, engine: str, mechanism: dict[str, object], **more: object) -> hanse.Run:
    data = {"source": f"{__name__}:images", "partition": "iid", "validation": 0.25}
    train = {"lr": 0.1, "momentum": 0.5, "weight_decay": 0.01, "batch_size": 8}
    sections = {"data": data, "model": {"name": f"{__name__}:drawn", "which": number}, "train": train}
    return hanse.run(digits(mechanism, 3, 2, **sections, engine={"train": engine, "workers": 1}), **more)


class Residual(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.inner(x)
        return out


class Backwards(nn.Module):
    """Registers its layers in another order than it runs them, and one of them runs twice."""

    def __init__(self, act: nn.Module) -> None:
        super().__init__()
        self.last, self.act, self.first = nn.Linear(WIDTH, WIDTH), act, nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(self.act(self.first(self.act(x))))
        return out


class Listed(nn.Module):
    def __init__(self, layers: list[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.spare = nn.Linear(WIDTH, WIDTH)  # has parameters, and is not run

    def forward(self, x: Tensor) -> Tensor:
        for layer in reversed(self.layers):
            x = layer(x)
        return x


class Scaled(nn.Module):
    """A float buffer that training does not move, and one that it does."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.rand(WIDTH) + 0.5)
        self.register_buffer("seen", torch.zeros(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            with torch.no_grad():
                self.seen.lerp_(x.mean(0), 0.1)
        out: Tensor = (x - self.seen) * self.scale
        return out


class Doubling(nn.Sequential):
    """Looks like a list of layers, and is not."""

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = 2 * super().forward(x)
        return out


class Viewing(nn.Module):
    """Takes images to be laid out as PyTorch lays them out by default."""

    def forward(self, x: Tensor) -> Tensor:
        return x.view(len(x), -1)


def _hooked(layer: nn.Module) -> nn.Module:
    layer.register_forward_hook(lambda _module, _inputs, output: output * 1.5)
    return layer


def _block(draw: random.Random, act: nn.Module, tied: nn.Linear, stackable: bool) -> list[nn.Module]:
    """Return layers from WIDTH features to WIDTH features, perhaps of the kinds alone that can be stacked."""
    fresh = nn.Linear(WIDTH, WIDTH, bias=draw.random() < 0.7)
    shared = nn.Linear(WIDTH, WIDTH)
    shared.weight = tied.weight
    kinds: list[Callable[[], list[nn.Module]]] = [
        lambda: [fresh, act],
        lambda: [fresh, act, act],
        lambda: [tied, act],
        lambda: [tied, nn.Identity(), nn.Tanh()],
        lambda: [shared, nn.ReLU()],
        lambda: [fresh, nn.BatchNorm1d(WIDTH), act],
        lambda: [nn.Sequential(fresh, act)],
        lambda: [nn.Sequential(nn.Sequential(fresh), nn.LayerNorm(WIDTH)), act],
        lambda: [Residual(fresh), act],
        lambda: [Residual(nn.Sequential(tied, act))],
        lambda: [Backwards(act)],
        lambda: [Listed([fresh, act, tied])],
        lambda: [fresh, Scaled()],
        lambda: [Doubling(fresh, act)],
        lambda: [_hooked(fresh), act],
        lambda: [weight_norm(nn.Linear(WIDTH, WIDTH)), act],
        lambda: [fresh, nn.Dropout(0.2), act],
    ]
    return draw.choice(kinds if not stackable else [kinds[0], kinds[0], kinds[1], kinds[5]])()


def drawn(input_shape: tuple[int, ...], num_classes: int, which: int = 0) -> nn.Module:
    draw = random.Random(which)
    act, tied = draw.choice([nn.ReLU(), nn.Tanh(), nn.ReLU(inplace=True), nn.GELU()]), nn.Linear(WIDTH, WIDTH)
    stackable = draw.random() < 0.4
    layers: list[nn.Module]
    if draw.random() < 0.35:
        pool, relu = nn.MaxPool2d(2), nn.ReLU()
        second = [nn.Conv2d(3, 3, 3, padding=1), relu, pool] if draw.random() < 0.6 else []
        norm = [nn.BatchNorm2d(3)] if draw.random() < 0.3 else []
        flat = Viewing() if draw.random() < 0.3 else nn.Flatten()
        layers = [nn.Conv2d(1, 3, 3, padding=1), *norm, relu, pool, *second, flat]
        layers.append(nn.Linear(12 if second else 48, WIDTH))
    else:
        layers = [nn.Flatten(), nn.Linear(64, WIDTH)]
    for _ in range(draw.randint(1, 3)):
        layers += _block(draw, act, tied, stackable)
    layers.append(nn.Linear(WIDTH, num_classes))
    module = (Doubling if draw.random() < 0.1 else nn.Sequential)(*layers)
    if draw.random() < 0.35:
        for name, parameter in module.named_parameters():
            parameter.requires_grad = name.startswith(f"{len(layers) - 1}.") or draw.random() < 0.6
    return module
