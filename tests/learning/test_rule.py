"""The rule that chooses engines: the same question has the same answer, whatever the machine is busy with."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import hanse
from hanse.base.errors import UserError
from hanse.core.recipe import Recipe
from hanse.learning.engines import EngineChoice, choose, make_engine, pick_device, rule
from hanse.learning.job import Problem
from hanse.learning.models import build_problem
from hanse.learning.sequential import SequentialEngine

from .helpers import COMPILED, CONV, DENSE, jobs_of, made, oracle

USER = "tests.learning.usermodels:"
RECIPE = Recipe(epochs=2, batch_size=10, lr=0.05, momentum=0.5)
MNIST_MLP = 50 * 40_785  # multiplications of a seat's step: batch times P


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (("layers", 10, MNIST_MLP, 2), ("stacked", 2, 1)),
        (("layers", 100, MNIST_MLP, 64), ("stacked", 4, 1)),
        (("layers", 1, MNIST_MLP, 2), ("stacked", 2, 1)),
        (("layers", 10, 20 * 610, 2), ("stacked", 1, 1)),
        (("layers", 10, MNIST_MLP, 1), ("stacked", 1, 1)),
        (("images", 5, 50 * 188_810, 2), ("sequential", 1, 2)),
        (("images", 1, 50 * 188_810, 2), ("sequential", 2, 1)),
        (("texts", 10, 16 * 213_712, 4), ("sequential", 1, 4)),
        (("texts", 3, 16 * 213_712, 8), ("sequential", 1, 3)),
        (("batched", 10, MNIST_MLP, 2), ("vmapped", 2, 1)),
        (("batched", 2, MNIST_MLP, 2), ("sequential", 1, 1)),
        (("batched", 10, 50 * 669_706, 2), ("sequential", 1, 2)),
        (("other", 10, MNIST_MLP, 2), ("sequential", 1, 1)),
        (("other", 10, 50 * 669_706, 2), ("sequential", 1, 2)),
        (("layers", 10, MNIST_MLP, 16, "cuda"), ("stacked", 1, 1, (), True)),
        (("batched", 2, 50 * 188_810, 16, "cuda"), ("vmapped", 1, 1)),
        (("batched", 1, 50 * 188_810, 16, "cuda"), ("sequential", 1, 1)),
        (("dense", 10, MNIST_MLP, 2), ("native", 1, 2)),
        (("dense", 3, MNIST_MLP, 8), ("native", 1, 3)),
        (("dense", 1, MNIST_MLP, 2), ("native", 1, 1)),
        (("conv", 10, 50 * 3_424, 2), ("native", 1, 2)),
        (("conv", 1, 50 * 3_424, 2), ("native", 1, 1)),
        (("dense", 10, 20 * 610, 2), ("native", 1, 1)),
        (("dense", 10, MNIST_MLP, 2, "cpu", "stacked"), ("stacked", 2, 1)),
        (("images", 10, MNIST_MLP, 16, "cuda"), ("sequential", 1, 1)),
        (("layers", 10, MNIST_MLP, 2, "cpu", "sequential"), ("sequential", 1, 1)),
    ],
)
def test_the_rule(asked: tuple[Any, ...], expected: tuple[Any, ...]) -> None:
    assert rule(*asked) == EngineChoice(*expected)


def chosen(problem: Problem, row: torch.Tensor, seats: int = 10, **given: Any) -> EngineChoice:
    few = made((1, 28, 28), 10, 4)
    return choose(problem, row, given.pop("recipe", RECIPE), few, seats=seats, batch=50, **given)


def test_nothing_is_timed_and_nothing_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def never(*_: Any) -> float:
        raise AssertionError("a clock was read")

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(time, "perf_counter", never)
    monkeypatch.setattr(time, "monotonic", never)
    for name in ("mlp", "cnn_small", USER + "residual"):
        assert chosen(*build_problem(name, (1, 28, 28), 10, 1)).why
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "engine", "why"),
    [
        (
            "mlp",
            DENSE,
            f"for {'linear layers with ReLU or tanh' if COMPILED else 'layers that can be stacked'}, 10 seats a round",
        ),
        (USER + "normalised", "stacked", "for layers that can be stacked, 10 seats a round"),
        ("cnn_femnist", "sequential", "for convolutions, 10 seats a round"),
        ("cnn_small", CONV, f"convolutions{' that compiled code trains' * (CONV == 'native')}, 10 seats a round"),
        (USER + "residual", "vmapped", "for layers that torch.func can batch, 10 seats a round"),
        (USER + "dropping", "sequential", "vmapped: it draws random numbers"),
    ],
)
@pytest.mark.parametrize("recipe", [RECIPE, Recipe(epochs=1, batch_size=None, batches_per_epoch=3)])
def test_every_model_gets_an_engine_that_trains_it(name: str, engine: str, why: str, recipe: Recipe) -> None:
    problem, row = build_problem(name, (1, 28, 28), 10, 1)
    choice = chosen(problem, row, recipe=recipe)
    assert choice.engine == engine
    assert any(why in line for line in choice.why)
    pool, jobs = made((1, 28, 28), 10, 150), jobs_of(row, [30, 60, 20])
    made_engine = make_engine(choice, problem)
    trained = made_engine.train(pool, jobs, recipe, recipe.lr)
    made_engine.close()
    assert float((trained.rows - oracle(problem, pool, jobs, recipe).rows).abs().max()) < 1e-4


def test_an_engine_that_could_and_was_not_chosen_is_told_with_the_reason() -> None:
    few = chosen(*build_problem(USER + "residual", (1, 28, 28), 10, 1), seats=5)
    assert few.engine == "sequential"
    assert few.why[-2] == "vmapped: a round has 5 seats, fewer than the 8 from which it is chosen"
    if COMPILED:
        wide, row = build_problem("mlp", (1, 28, 28), 10, 1, hidden=[500])
        why = chosen(wide, row).why
        assert why[0] == "native: the model has 397,510 parameters, more than the 250,000 up to which it is chosen"
        assert not any(line.startswith("native:") for line in chosen(wide, row, train="stacked").why)


def test_models_that_do_not_fit_the_cache_are_stacked() -> None:
    small, large = (build_problem("mlp", (1, 28, 28), 10, 1, hidden=[width]) for width in (300, 350))
    assert [chosen(*model).engine for model in (small, large)] == [DENSE, "stacked"]
    if COMPILED:
        assert chosen(*large, train="native").engine == "native"


def test_what_is_asked_for_is_kept() -> None:
    cnn, mlp = (build_problem(name, (1, 28, 28), 10, 1) for name in ("cnn_femnist", "mlp"))
    assert chosen(*cnn, train="sequential", threads=1, workers=2) == EngineChoice("sequential", 1, 2)
    assert chosen(*cnn, threads=1) == EngineChoice("sequential", 1, 1)
    assert chosen(*cnn, workers=3) == EngineChoice("sequential", 1, 3)
    for threads, workers in ((2, 1), (1, 2), (1, 1)):
        asked = chosen(*mlp, seats=1, train="stacked", threads=threads, workers=workers)
        assert asked == EngineChoice("stacked", threads, workers)
    with pytest.raises(UserError, match="1 thread"):
        chosen(*mlp, train="stacked", threads=2, workers=2)
    with pytest.raises(UserError, match=r"engine\.train.*'stacked'"):
        chosen(*cnn, train="stacked")
    with pytest.raises(UserError, match=r"engine\.train is 'vmapped'.*random numbers"):
        chosen(*build_problem(USER + "dropping", (1, 28, 28), 10, 1), train="vmapped")


def test_engines_without_bf16_refuse_it() -> None:
    mlp, cnn = (build_problem(name, (1, 28, 28), 10, 1) for name in ("mlp", "cnn_femnist"))
    with pytest.raises(UserError, match=r"engine.precision.*'bf16'"):
        chosen(*mlp, precision="bf16")
    assert chosen(*mlp, precision="bf16", train="sequential").engine == "sequential"
    assert not any("bf16" in line for line in chosen(*cnn, precision="bf16").why)


EXPERIMENT: dict[str, Any] = {
    "data": {"clients": 4},
    "model": {"name": "mlp", "hidden": [8]},
    "mechanism": {"name": "fedavg", "clients_per_round": 3},
    "run": {"rounds": 2},
}


def test_the_choice_is_written_into_the_run(tmp_path: Path) -> None:
    run = hanse.run(hanse.Experiment(**EXPERIMENT), out=tmp_path / "r")
    engine = hanse.Experiment.read(tmp_path / "r" / "config.toml").engine
    assert engine == run.experiment.engine
    assert (engine.train, engine.threads, engine.workers) == (DENSE, 1, 1)


@pytest.mark.parametrize("name", ["mlp", "cnn_small"])
def test_seats_side_by_side_equal_one_thread_bit_for_bit(name: str) -> None:
    problem, row = build_problem(name, (1, 28, 28), 10, 1)
    pool, jobs = made((1, 28, 28), 10, 200), jobs_of(row, [30, 41, 22], mu=0.1, tilt=0.01, epochs=[1, None, 2])
    engine = SequentialEngine(problem, threads=1, workers=2)
    got, expected = engine.train(pool, jobs, RECIPE, 0.05), oracle(problem, pool, jobs, RECIPE)
    engine.close()
    assert torch.equal(got.rows, expected.rows)
    np.testing.assert_array_equal(got.loss, expected.loss)


def test_devices() -> None:
    assert pick_device("auto").type in ("cpu", "cuda")
    with pytest.raises(UserError, match="device is 'gpu'"):
        pick_device("gpu")
    if not torch.cuda.is_available():
        with pytest.raises(UserError, match="no CUDA"):
            pick_device("cuda")
