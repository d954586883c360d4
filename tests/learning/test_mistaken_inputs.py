"""What is wrong with a module is one line before round 0; what only looks odd is trained as it is."""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from mistaken import mistakes
from torch import Tensor, nn

import hanse
from hanse.data import Dataset, Samples
from hanse.data.build import build

FEATURES, CLASSES = 5, 3
EXPERIMENT: dict[str, Any] = {
    "data": {"clients": 3, "partition": "iid"},
    "mechanism": {"name": "fedavg", "select": "everyone", "value": "path"},
    "train": {"batch_size": 7, "lr": 0.05},
    "run": {"rounds": 2},
}


def blobs() -> Dataset:
    """Return a small data set."""
    x, y = np.random.default_rng(0).standard_normal((96, FEATURES)).astype("float32"), np.arange(96) % CLASSES
    return Dataset("blobs", Samples(x[:72], y[:72]), Samples(x[72:], y[72:]), CLASSES, (FEATURES,))


class Odd(nn.Module):
    """A small classifier with a habit: what is done when it is made, and what to its inputs and outputs."""

    def __init__(self, make: Callable[[Any], None], change: Callable[[Any, Tensor, Tensor], Any]) -> None:
        super().__init__()
        self.first, self.last, self.change = nn.Linear(FEATURES, 4), nn.Linear(4, CLASSES), change
        self.state: Any = 0.0
        make(self)

    def forward(self, x: Tensor) -> Any:
        return self.change(self, x, self.last(torch.tanh(self.first(x.float()))))


def nothing(module: Any) -> None:
    pass


def with_(**tensors: Tensor) -> Callable[[Any], None]:
    """Return what gives a module these parameters, or buffers if they do not begin with p."""

    def add(module: Any) -> None:
        for name, tensor in tensors.items():
            if name.startswith("p"):
                module.register_parameter(name, nn.Parameter(tensor.clone()))
            else:
                module.register_buffer(name, tensor.clone())

    return add


def keeps(what: Callable[[], Any]) -> Callable[[Any], None]:
    def keep(module: Any) -> None:
        module.kept = what()

    return keep


def remembers(module: Any, x: Tensor, out: Tensor) -> Tensor:
    if module.training:
        module.state = module.state + float(x.mean().abs())
    return out * (1 + module.state)


def fails(module: Any, x: Tensor, out: Tensor) -> Tensor:
    if module.training:
        raise NotImplementedError("aten::max\n\nCPU: registered at x.cpp:1")
    return out


def overlapping(module: Any) -> None:
    module.p, module.q = nn.Parameter(torch.ones(4, 3)), nn.Parameter(torch.ones(3, 4))
    module.q.data = module.p.data.t()


# each with a word of the line that refuses it
MISTAKES: dict[str, tuple[Callable[[Any], None], Callable[[Any, Tensor, Any], Any], str]] = {
    "weights in a list": (keeps(lambda: [nn.Linear(3, 3)]), lambda m, x, out: m.kept[0](out), "nn.ModuleList"),
    "a bare tensor": (keeps(lambda: torch.ones(3, requires_grad=True)), lambda m, x, out: out * m.kept, "[3]"),
    "state": (nothing, remembers, "'state'"),
    "complex buffer": (with_(b=torch.ones(3) + 1j), lambda m, x, out: out + m.b.abs(), "'b' is complex"),
    "gradient hook": (lambda m: m.last.weight.register_hook(lambda g: g * 0), lambda m, x, out: out, "'last.weight'"),
    "lazy": (keeps(lambda: nn.LazyLinear(CLASSES)), lambda m, x, out: m.kept(out), "'kept.weight'"),
    "the same memory": (overlapping, lambda m, x, out: out @ m.q @ m.p, "'p' and 'q'"),
    "all frozen": (lambda m: m.requires_grad_(False), lambda m, x, out: out, "nothing can train"),
    "no copy": (keeps(lambda: (one for one in ())), lambda m, x, out: out, "cannot be copied"),
    "fails in training": (nothing, fails, "cannot train"),
    "random": (nothing, lambda m, x, out: out + torch.rand(CLASSES), "mode differ"),
    "a pair": (nothing, lambda m, x, out: (out, out), "tuple"),
    "whole numbers": (nothing, lambda m, x, out: (10 * out).long(), "int64"),
    "too few outputs": (nothing, lambda m, x, out: out[:, :1], "[4, 1]"),
    "one number": (nothing, lambda m, x, out: out.sum(), "shape []"),
    "other inputs": (nothing, lambda m, x, out: out + m.first(x[:, :2]).sum(), "cannot take"),
}
ODD: dict[str, tuple[Callable[[Any], None], Callable[[Any, Tensor, Any], Any]]] = {
    "scalars": (with_(p=torch.tensor(1.5), b=torch.tensor(0.5)), lambda m, x, out: out * m.p + m.b),
    "empty": (with_(p=torch.zeros(0, 3)), lambda m, x, out: out),
    "double": (with_(p=torch.ones(3, dtype=torch.float64)), lambda m, x, out: out + m.p),
    "transposed": (with_(p=torch.randn(4, 3).t()), lambda m, x, out: out @ m.p @ m.p.t()),
    "boolean buffer": (with_(b=torch.tensor([True, False, True])), lambda m, x, out: out * m.b),
    "sparse gradient": (
        keeps(lambda: nn.Embedding(9, CLASSES, sparse=True)),
        lambda m, x, out: out + m.kept(x.abs().long().clamp(max=8)).mean(1),
    ),
    "batch norm": (keeps(lambda: nn.BatchNorm1d(CLASSES)), lambda m, x, out: m.kept(out)),
    "frozen, in a list": (keeps(lambda: [nn.Linear(3, 3).requires_grad_(False)]), lambda m, x, out: m.kept[0](out)),
    "half outputs": (nothing, lambda m, x, out: out.half()),
}


def played(make: Callable[[Any], None], change: Callable[[Any, Tensor, Tensor], Any], engine: str = "auto") -> Any:
    torch.manual_seed(0)
    return hanse.run(hanse.Experiment(**EXPERIMENT, engine={"train": engine}), data=blobs(), model=Odd(make, change))


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_in_a_module_is_one_line(name: str) -> None:
    make, change, word = MISTAKES[name]
    [line] = mistakes(played, make, change, random.Random(name).choice(["auto", "sequential"]))
    assert line.startswith("model")
    assert word in line


@pytest.mark.parametrize("name", ODD)
def test_what_only_looks_odd_is_scored_as_it_is(name: str) -> None:
    run = played(*ODD[name])
    model, test = run.model().eval(), build(run.experiment.data, blobs()).server_test
    with torch.no_grad():
        loss = float(F.cross_entropy(model(test.x).float(), test.y))
    assert run.metrics[-1]["test/loss"] == pytest.approx(loss, rel=1e-3, abs=1e-5)
