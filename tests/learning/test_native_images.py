"""Convolutions in compiled code: what the module itself does, with every width of vectors."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from hanse.core.recipe import Recipe
from hanse.core.table import Layout
from hanse.data.samples import Samples
from hanse.learning.engines import choose
from hanse.learning.job import Problem
from hanse.learning.native import engine as native
from hanse.learning.native.engine import NativeEngine, NativeOutputs

from .helpers import agree, jobs_of, made, oracle, put_out
from .test_engines import TERMS
from .test_native import HERE, shared, vectors

RECIPE = Recipe(epochs=2, batch_size=12, lr=0.05, momentum=0.5, weight_decay=0.01)


def pooled(channels: int, filters: int, kernel: int, pad: int = 0, bias: bool = True) -> list[nn.Module]:
    return [nn.Conv2d(channels, filters, kernel, padding=pad, bias=bias), nn.MaxPool2d(2), nn.ReLU()]


def rectified(channels: int, filters: int, kernel: int, bias: bool = True) -> list[nn.Module]:
    return [nn.Conv2d(channels, filters, kernel, bias=bias), nn.ReLU()]


# each with the shape of its images: kernels of 1 to 8, lines that are narrower, as wide as and wider than the vectors
MODELS: dict[str, tuple[Callable[[], list[nn.Module]], tuple[int, int, int]]] = {
    "two pooled": (lambda: [*pooled(3, 8, 4), *pooled(8, 8, 4), nn.Flatten(), nn.Linear(32, 5)], (3, 17, 17)),
    "padded, five": (lambda: [*pooled(1, 6, 5, 2), *pooled(6, 7, 5), nn.Flatten(), nn.Linear(28, 5)], (1, 16, 17)),
    "unpooled, without bias": (
        lambda: [*rectified(2, 5, 3, bias=False), *rectified(5, 3, 2), nn.Flatten(), nn.Linear(90, 5)],
        (2, 9, 8),
    ),
    "ReLU before pooling": (
        lambda: [nn.Conv2d(3, 11, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(11 * 80, 5)],
        (3, 8, 41),
    ),
    "pooling alone, kernel 1": (
        lambda: [nn.Conv2d(2, 1, 1), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16, 7), nn.Tanh(), nn.Linear(7, 5)],
        (2, 8, 9),
    ),
    "six": (lambda: [*pooled(1, 2, 6, 1), nn.Flatten(), nn.Linear(8, 5)], (1, 8, 8)),
    "seven": (lambda: [*pooled(1, 3, 7, 3), *pooled(3, 2, 7, 5), nn.Flatten(), nn.Linear(32, 5)], (1, 8, 8)),
    "nine": (lambda: [*pooled(2, 19, 9), *pooled(19, 33, 2), nn.Flatten(), nn.Linear(33, 5)], (2, 16, 14)),
    "eight": (lambda: [*pooled(2, 3, 8), *pooled(3, 2, 8, 7), nn.Flatten(), nn.Linear(50, 5)], (2, 16, 15)),
}


def problem_of(name: str) -> tuple[Problem, torch.Tensor, tuple[int, int, int]]:
    make, shape = MODELS[name]
    torch.manual_seed(1)
    module = nn.Sequential(*make())
    problem = Problem(module, Layout.of(module))
    return problem, problem.layout.flatten(module), shape


@HERE
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("terms", TERMS)
def test_convolutions_equal_the_oracle(model: str, terms: str) -> None:
    problem, row, shape = problem_of(model)
    pool, jobs = made(shape, 5, 90), jobs_of(row, [37, 24, 29], **TERMS[terms])  # type: ignore[arg-type]
    engine, expected = NativeEngine(problem), oracle(problem, pool, jobs, RECIPE)
    for _ in vectors():
        agree(engine.train(pool, jobs, RECIPE, RECIPE.lr), expected)


@HERE
def test_a_seats_bits_depend_on_neither_the_others_nor_the_threads() -> None:
    problem, row, shape = problem_of("padded, five")
    assert shared(problem, made(shape, 5, 120), jobs_of(row, [37, 24, 29, 30]), RECIPE, 3)


@HERE
def test_a_diverged_seat_is_found_and_spoils_nobody() -> None:
    problem, row, shape = problem_of("two pooled")
    pool = made(shape, 5, 90)
    jobs = jobs_of(row, [40, 40])
    for spoilt in (torch.full_like(row, float("nan")), torch.where(torch.arange(len(row)) == 5, float("inf"), row)):
        for _ in vectors():
            trained = NativeEngine(problem).train(pool, [replace(jobs[0], start=spoilt), jobs[1]], RECIPE, 0.05)
            assert np.isnan(trained.loss[0])
            agree(NativeEngine(problem).train(pool, jobs[1:], RECIPE, 0.05), oracle(problem, pool, jobs[1:], RECIPE))
            assert torch.isfinite(trained.rows[1]).all()
    x = pool.x.clone()
    x[3, 1, 4, 4] = float("nan")  # pooling must not lose it
    for _ in vectors():
        assert np.isnan(NativeEngine(problem).train(Samples(x, pool.y), jobs[:1], RECIPE, 0.05).loss[0])


@HERE
def test_images_of_another_size_are_not_read() -> None:
    problem, row, shape = problem_of("two pooled")
    pool, jobs = made(shape, 5, 90), jobs_of(row, [40])
    engine = NativeEngine(problem)
    engine.train(pool, jobs, RECIPE, 0.05)
    for x, said in [
        (pool.x[:, :2], r"samples \[2, 17, 17\] for a model that begins with Conv2d"),
        (pool.x[:, :, :3], r"samples \[3, 3, 17\] are too small for the model's convolutions"),
        (pool.x.repeat(1, 1, 2, 1), "samples of 96 numbers for a model of 32 inputs"),
        (pool.x[:, 0], r"samples \[17, 17\] for a model that begins with Conv2d"),
    ]:
        with pytest.raises(IndexError, match=said):
            engine.train(Samples(x, pool.y), jobs, RECIPE, 0.05)


@HERE
@pytest.mark.parametrize(
    "layers",
    [
        [nn.Conv2d(3, 8, 3)], [nn.Conv2d(3, 8, (3, 5)), nn.ReLU()], [nn.Conv2d(3, 8, 3, stride=2), nn.ReLU()],
        [nn.Conv2d(3, 8, 3, dilation=2), nn.ReLU()], [nn.Conv2d(3, 8, 3, padding=3), nn.ReLU()],
        [nn.Conv2d(3, 8, 3, padding="same"), nn.ReLU()], [nn.Conv2d(3, 8, 3), nn.MaxPool2d(3)],
        [nn.Conv2d(3, 8, 3), nn.MaxPool2d(2, stride=1)], [nn.Conv2d(3, 8, 3), nn.MaxPool2d(2, ceil_mode=True)],
        [nn.Conv2d(3, 8, 3), nn.MaxPool2d(2, padding=1)], [nn.Conv2d(3, 8, 3), nn.MaxPool2d(2), nn.MaxPool2d(2)],
        [nn.Conv2d(3, 8, 3), nn.AvgPool2d(2)], [nn.Conv2d(3, 8, 3), nn.Tanh()], [nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)],
    ],
)  # fmt: skip
def test_other_convolutions_are_left_to_the_module(layers: list[nn.Module]) -> None:
    module = nn.Sequential(*layers, nn.Flatten(), nn.LazyLinear(5))
    module(torch.zeros(2, 3, 16, 16))
    problem = Problem(module, Layout.of(module))
    assert native.read_native(problem) is None
    row, few = problem.layout.flatten(module), made((3, 16, 16), 5, 4)
    assert choose(problem, row, RECIPE, few, seats=3, batch=12).engine == "sequential"


@HERE
@pytest.mark.parametrize("model", MODELS)
def test_mixtures_put_out_what_the_mixed_module_does(model: str) -> None:
    problem, row, shape = problem_of(model)
    outputs = NativeOutputs(native.read_native(problem), native.library())  # type: ignore[arg-type]
    draw = torch.Generator().manual_seed(3)
    rows, x = row + 0.1 * torch.randn(21, len(row), generator=draw), torch.randn(18, *shape, generator=draw)
    shares = torch.rand(40, 21, generator=draw) * (torch.rand(40, 21, generator=draw) < 0.5)
    shares[:, 20] += 0.1
    shares[:, 7] = 0.0  # a row that nobody mixes may hold anything
    shares /= shares.sum(1, keepdim=True)
    expected = torch.stack([put_out(problem, mixed, x).T for mixed in shares @ rows])
    rows[7] = float("nan")
    for _ in vectors():
        found = outputs.mixed(rows, shares, x)
        torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-4)
        # a sample's bits depend on no other sample
        assert torch.equal(outputs.mixed(rows, shares, x[3:5]), found[:, :, 3:5])
        rows[7] = 0.0
        torch.testing.assert_close(outputs(shares @ rows, x), expected, atol=2e-5, rtol=1e-4)
