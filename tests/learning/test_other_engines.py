import pytest
import torch

from hanse.core.recipe import Recipe
from hanse.learning.models import build_problem
from hanse.learning.sequential import SequentialEngine
from hanse.learning.vmapped import VmappedEngine, why_not_vmapped

from .helpers import agree, jobs_of, made, oracle

USER = "tests.learning.usermodels:"
RECIPE = Recipe(epochs=2, batch_size=10, lr=0.05, momentum=0.5)


@pytest.mark.parametrize("terms", [{}, {"mu": [0.0, 0.5, 0.3], "tilt": 0.1, "epochs": [1, None, 3]}])
@pytest.mark.parametrize("classes", [5, None])
@pytest.mark.parametrize(
    "recipe", [RECIPE, Recipe(epochs=2, batch_size=None, batches_per_epoch=3, lr=0.05, weight_decay=0.01, momentum=0.5)]
)
def test_vmapped_equals_the_oracle(terms: dict, classes: int | None, recipe: Recipe) -> None:
    problem, row = build_problem(USER + "residual", (3, 4), classes, 1, width=6)
    pool = made((3, 4), classes)
    jobs = jobs_of(row, [33, 61, 20], **terms)
    assert why_not_vmapped(problem, row, pool) is None
    agree(VmappedEngine(problem).train(pool, jobs, recipe, 0.05), oracle(problem, pool, jobs, recipe))


@pytest.mark.parametrize(("name", "why"), [("dropping", "random"), ("centred", "rest of the batch")])
def test_what_cannot_be_vmapped_says_why(name: str, why: str) -> None:
    problem, row = build_problem(USER + name, (3, 4), 5, 1)
    assert why in (why_not_vmapped(problem, row, made((3, 4), 5)) or "")


def test_batch_norm_is_not_vmapped() -> None:
    problem, row = build_problem("mlp", (4,), 5, 1, batch_norm=True)
    assert "statistics" in (why_not_vmapped(problem, row, made((4,), 5)) or "")
    with pytest.raises(ValueError, match="statistics"):
        VmappedEngine(problem)


def test_dropout_is_drawn_from_the_seats_own_stream() -> None:
    problem, row = build_problem(USER + "dropping", (3, 4), 5, 1)
    pool = made((3, 4), 5)
    jobs = jobs_of(row, [33, 61])
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = SequentialEngine(problem).train(pool, jobs, RECIPE, 0.05)
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(2)
    second = SequentialEngine(problem, workers=2).train(pool, jobs[::-1], RECIPE, 0.05)
    assert torch.equal(first.rows, second.rows.flip(0))


@pytest.mark.parametrize(("name", "workers"), [("cnn_small", 1), ("cnn_greedyfed", 2)])
def test_convolutions_stay_near_double_precision(name: str, workers: int) -> None:
    shape = (1, 28, 28) if name == "cnn_small" else (3, 32, 32)
    problem, row = build_problem(name, shape, 10, 1)
    pool = made(shape, 10, 200)
    jobs = jobs_of(row, [40, 50])
    double = SequentialEngine(problem, dtype=torch.float64)
    engine = SequentialEngine(problem, workers=workers)
    for recipe in (Recipe(steps=1, batch_size=20, lr=1.0), RECIPE):
        gap = engine.train(pool, jobs, recipe, recipe.lr).rows - double.train(pool, jobs, recipe, recipe.lr).rows
        assert float(gap.abs().max()) < 1e-6


def test_bf16_is_near() -> None:
    problem, row = build_problem("cnn_small", (1, 28, 28), 10, 1)
    pool = made((1, 28, 28), 10, 100)
    jobs = jobs_of(row, [40, 50])
    half = SequentialEngine(problem, precision="bf16").train(pool, jobs, RECIPE, 0.05)
    assert 1e-6 < float((half.rows - oracle(problem, pool, jobs, RECIPE).rows).abs().max()) < 0.05
