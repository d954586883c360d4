"""What users give, drawn at random with something odd about it: modules, exceptions, data sets, functions, paths."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

FEATURES, CLASSES, WORDS = 5, 3, 12


class SilentError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("this error cannot even say what it is")


ERRORS: list[Callable[[], BaseException]] = [
    lambda: ValueError("a value"),
    lambda: KeyError("missing"),
    lambda: OSError(5, "input/output error", "scan.png"),
    lambda: RuntimeError("first line\nsecond line\n  third"),
    lambda: AssertionError(),
    lambda: StopIteration("no more"),
    lambda: SystemExit(0),
    lambda: ZeroDivisionError("by nought"),
    lambda: RecursionError("too deep"),
    lambda: NotImplementedError("aten::max on SparseCPU\n\nCPU: registered at x.cpp:1"),
    lambda: UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
    lambda: SilentError(),
    lambda: TypeError("\x1b[31mred\x00"),
]


def an_error(draw: random.Random) -> BaseException:
    return draw.choice(ERRORS)()


class Odd(nn.Module):
    """A small classifier with one or two odd habits."""

    def __init__(self, number: int) -> None:
        super().__init__()
        draw = random.Random(number)
        self.habits = tuple(sorted(draw.sample(sorted(HABITS), draw.choice([1, 1, 2]))))
        torch.manual_seed(number)
        self.first, self.last = nn.Linear(FEATURES, 4), nn.Linear(4, CLASSES)
        self.wrong = an_error(draw)
        self.calls, self.limit = 0, draw.randint(1, 60)
        self.state: Any = None
        for habit in self.habits:
            HABITS[habit][0](self)

    def forward(self, x: Tensor) -> Any:
        out: Any = self.last(torch.tanh(self.first(x.float())))
        for habit in self.habits:
            out = HABITS[habit][1](self, x, out)
        return out

    def fail(self) -> None:
        raise self.wrong


def nothing(module: Any) -> None:
    pass


def as_it_is(module: Any, x: Tensor, out: Any) -> Any:
    return out


def _parameter(value: Tensor) -> Callable[[Any], None]:
    def add(module: Any) -> None:
        module.extra = nn.Parameter(value.clone())

    return add


def _buffer(value: Tensor) -> Callable[[Any], None]:
    def add(module: Any) -> None:
        module.register_buffer("kept", value.clone())

    return add


def _sparse(module: Any) -> None:
    module.words = nn.Embedding(WORDS, CLASSES, sparse=True)


def _words(module: Any, x: Tensor, out: Tensor) -> Tensor:
    given: Tensor = module.words((x.abs() * 3).long().clamp(max=WORDS - 1)).mean(1)
    return out + given


def _remember(module: Any, x: Tensor, out: Tensor) -> Tensor:
    if module.training:
        module.state = x.detach().float().mean() + (0 if module.state is None else module.state)
    return out if module.state is None else out * (1 + module.state)


def _count(module: Any, x: Tensor, out: Tensor) -> Tensor:
    module.calls += module.training
    return out * (1 + module.calls)


def _after(module: Any, x: Tensor, out: Tensor) -> Tensor:
    module.calls += 1
    if module.calls > module.limit:
        module.fail()
    return out


def _raises(when: Callable[[Any, Tensor], bool]) -> Callable[[Any, Tensor, Any], Any]:
    def habit(module: Any, x: Tensor, out: Any) -> Any:
        if when(module, x):
            module.fail()
        return out

    return habit


def _gives(made: Callable[[Tensor], Any]) -> Callable[[Any, Tensor, Any], Any]:
    return lambda module, x, out: made(out) if isinstance(out, Tensor) else out


def _no_copy(module: Any) -> None:
    module.handle = (one for one in ())  # a generator cannot be copied


class Unspeakable(nn.Module):
    def extra_repr(self) -> str:
        raise ValueError("no words")


def _lazy(module: Any) -> None:
    module.lazy = nn.LazyLinear(CLASSES)


# what is done when the module is made, and what to its outputs
HABITS: dict[str, tuple[Callable[[Any], None], Callable[[Any, Tensor, Any], Any]]] = {
    "scalar parameter": (_parameter(torch.tensor(1.5)), lambda m, x, out: out * m.extra),
    "scalar buffer": (_buffer(torch.tensor(0.5)), lambda m, x, out: out + m.kept),
    "empty parameter": (_parameter(torch.zeros(0, 3)), as_it_is),
    "double parameter": (_parameter(torch.ones(CLASSES, dtype=torch.float64)), lambda m, x, out: out + m.extra),
    "unused parameter": (_parameter(torch.ones(2)), as_it_is),
    "transposed parameter": (_parameter(torch.ones(CLASSES, CLASSES).t()), lambda m, x, out: out @ m.extra),
    "complex buffer": (_buffer(torch.ones(CLASSES, dtype=torch.complex64)), lambda m, x, out: out + m.kept.abs()),
    "complex parameter": (
        _parameter(torch.ones(CLASSES, dtype=torch.complex64)),
        lambda m, x, out: out + m.extra.abs(),
    ),
    "counting buffer": (_buffer(torch.zeros((), dtype=torch.int64)), lambda m, x, out: out + m.kept.add_(m.training)),
    "boolean buffer": (_buffer(torch.tensor([True, False, True])), lambda m, x, out: out * m.kept),
    "sparse gradient": (_sparse, _words),
    "state": (nothing, _remember),
    "counter": (nothing, _count),
    "lazy": (_lazy, lambda m, x, out: m.lazy(out)),
    "no copy": (_no_copy, as_it_is),
    "no words": (lambda m: m.add_module("mute", Unspeakable()), as_it_is),
    "batch norm": (lambda m: m.add_module("norm", nn.BatchNorm1d(CLASSES)), lambda m, x, out: m.norm(out)),
    "complex outputs": (nothing, _gives(lambda out: out + 0j)),
    "whole outputs": (nothing, _gives(lambda out: (10 * out).long())),
    "half outputs": (nothing, _gives(lambda out: out.half())),
    "double outputs": (nothing, _gives(lambda out: out.double())),
    "detached outputs": (nothing, _gives(lambda out: out.detach())),
    "NaN": (nothing, _gives(lambda out: out * float("nan"))),
    "a pair": (nothing, _gives(lambda out: (out, out))),
    "a dictionary": (nothing, _gives(lambda out: {"logits": out})),
    "nothing": (nothing, _gives(lambda out: None)),
    "too few": (nothing, _gives(lambda out: out[:, :1])),
    "the sum": (nothing, _gives(lambda out: out.sum())),
    "flat": (nothing, _gives(lambda out: out.reshape(-1))),
    "raises": (nothing, _raises(lambda m, x: True)),
    "raises in training": (nothing, _raises(lambda m, x: m.training)),
    "raises in evaluation": (nothing, _raises(lambda m, x: not m.training)),
    "raises on one sample": (nothing, _raises(lambda m, x: len(x) == 1)),
    "raises on some sample": (nothing, _raises(lambda m, x: bool((x > 2.2).any()))),
    "raises after a while": (nothing, _after),
    "random": (nothing, lambda m, x, out: out + torch.rand(CLASSES) if isinstance(out, Tensor) else out),
}


class OddSet(Dataset[Any]):
    """A data set of which one item, its length, or the form of an item is odd."""

    def __init__(self, number: int, n: int = 24) -> None:
        draw = random.Random(number)
        self.n, self.item, self.wrong = n, draw.randrange(n), an_error(draw)
        self.habit = draw.choice(["item", "item", "length", "shape", "kind", "none", "target", "fine"])
        maker = torch.Generator().manual_seed(number)
        self.x, self.y = torch.randn(n, FEATURES, generator=maker), torch.arange(n) % CLASSES

    def __len__(self) -> int:
        if self.habit == "length":
            raise self.wrong
        return self.n

    def __getitem__(self, i: int) -> Any:
        if i >= self.n:
            raise IndexError(i)
        if i == self.item:
            if self.habit == "item":
                raise self.wrong
            if self.habit == "shape":
                return self.x[i][:-1], self.y[i]
            if self.habit == "kind":
                return "text", self.y[i]
            if self.habit == "none":
                return None
            if self.habit == "target":
                return self.x[i], None
        return self.x[i], self.y[i]
