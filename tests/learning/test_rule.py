"""The rule that chooses engines: the same question has the same answer, whatever the machine is busy with."""

from typing import Any

import pytest
import torch

from hanse.base.errors import UserError
from hanse.core.recipe import Recipe
from hanse.learning.engines import EngineChoice, choose, make_engine, rule
from hanse.learning.job import Problem
from hanse.learning.models import build_problem

from .helpers import COMPILED, CONV, DENSE, jobs_of, made, oracle

USER = "tests.learning.usermodels:"
RECIPE = Recipe(epochs=2, batch_size=10, lr=0.05, momentum=0.5)
MNIST_MLP = 50 * 40_785  # multiplications of a seat's step: batch times P


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (("layers", 10, MNIST_MLP, 2), ("stacked", 2, 1)),
        (("layers", 1, MNIST_MLP, 2), ("stacked", 2, 1)),
        (("images", 5, 50 * 188_810, 2), ("sequential", 1, 2)),
        (("images", 1, 50 * 188_810, 2), ("sequential", 2, 1)),
        (("texts", 10, 16 * 213_712, 4), ("sequential", 1, 4)),
        (("batched", 10, MNIST_MLP, 2), ("vmapped", 2, 1)),
        (("batched", 2, MNIST_MLP, 2), ("sequential", 1, 1)),
        (("other", 10, MNIST_MLP, 2), ("sequential", 1, 1)),
        (("layers", 10, MNIST_MLP, 16, "cuda"), ("stacked", 1, 1, (), True)),
        (("batched", 2, 50 * 188_810, 16, "cuda"), ("vmapped", 1, 1)),
        (("batched", 1, 50 * 188_810, 16, "cuda"), ("sequential", 1, 1)),
        (("dense", 10, MNIST_MLP, 2), ("native", 1, 2)),
        (("conv", 10, 50 * 3_424, 2), ("native", 1, 2)),
        (("dense", 10, 20 * 610, 2), ("native", 1, 1)),
        (("layers", 10, MNIST_MLP, 2, "cpu", "sequential"), ("sequential", 1, 1)),
    ],
)
def test_the_rule(asked: tuple[Any, ...], expected: tuple[Any, ...]) -> None:
    assert rule(*asked) == EngineChoice(*expected)


def chosen(problem: Problem, row: torch.Tensor, seats: int = 10, **given: Any) -> EngineChoice:
    return choose(problem, row, given.pop("recipe", RECIPE), made((1, 28, 28), 10, 4), seats=seats, batch=50, **given)


@pytest.mark.parametrize(
    ("name", "engine"),
    [("mlp", DENSE), (USER + "normalised", "stacked"), ("cnn_femnist", "sequential"), ("cnn_small", CONV),
     (USER + "residual", "vmapped"), (USER + "dropping", "sequential")],
)  # fmt: skip
@pytest.mark.parametrize("recipe", [RECIPE, Recipe(epochs=1, batch_size=None, batches_per_epoch=3)])
def test_every_model_gets_an_engine_that_trains_it(name: str, engine: str, recipe: Recipe) -> None:
    problem, row = build_problem(name, (1, 28, 28), 10, 1)
    choice = chosen(problem, row, recipe=recipe)
    assert choice.engine == engine
    assert choice.why
    pool, jobs = made((1, 28, 28), 10, 150), jobs_of(row, [30, 60, 20])
    made_engine = make_engine(choice, problem)
    trained = made_engine.train(pool, jobs, recipe, recipe.lr)
    made_engine.close()
    assert float((trained.rows - oracle(problem, pool, jobs, recipe).rows).abs().max()) < 1e-4


def test_an_engine_that_could_and_was_not_chosen_is_told_with_the_reason() -> None:
    few = chosen(*build_problem(USER + "residual", (1, 28, 28), 10, 1), seats=5)
    assert few.engine == "sequential"
    assert few.why[-2].startswith("vmapped: ")
    small, large = (build_problem("mlp", (1, 28, 28), 10, 1, hidden=[width]) for width in (300, 350))
    assert [chosen(*model).engine for model in (small, large)] == [DENSE, "stacked"]  # it does not fit the cache
    if COMPILED:
        assert chosen(*large).why[0].startswith("native: ")
        assert chosen(*large, train="native").engine == "native"
    cnn = build_problem("cnn_femnist", (1, 28, 28), 10, 1)
    assert chosen(*cnn, train="sequential", threads=1, workers=2) == EngineChoice("sequential", 1, 2)
    for train, model in (("stacked", cnn), ("vmapped", build_problem(USER + "dropping", (1, 28, 28), 10, 1))):
        with pytest.raises(UserError, match=rf"engine\.train.*'{train}'"):
            chosen(*model, train=train)
