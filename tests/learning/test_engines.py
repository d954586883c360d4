import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from rotation import rotating

from hanse.core.recipe import Recipe
from hanse.learning.batches import SeatPlan, group_seats
from hanse.learning.job import Drawn, batch_plan
from hanse.learning.models import build_problem
from hanse.learning.sequential import SequentialEngine
from hanse.learning.stacked import StackedEngine

from .helpers import agree, jobs_of, made, oracle, put_out

MODELS = {
    "logistic": ("logistic", {}),
    "mlp": ("mlp", {"hidden": [9, 7]}),
    "tanh": ("mlp", {"hidden": [9, 7], "activation": "tanh"}),
    "batch_norm": ("mlp", {"hidden": [9, 7], "batch_norm": True}),
    "regression": ("mlp", {"hidden": [8]}),
}
RECIPES = {
    "epochs": Recipe(epochs=3, batch_size=10, lr=0.1),
    "momentum": Recipe(epochs=3, batch_size=10, lr=0.05, momentum=0.9),
    "decay": Recipe(epochs=2, batch_size=16, lr=0.05, momentum=0.5, weight_decay=0.01),
    "batches": Recipe(epochs=2, batch_size=None, batches_per_epoch=5, lr=0.05, momentum=0.5),
    "steps": Recipe(batch_size=8, steps=7, lr=0.05, momentum=0.5),
    "fresh": Recipe(batch_size=None, steps=7, batch_share=0.3, lr=0.05, momentum=0.5),
    "full": Recipe(epochs=4, batch_size=None, lr=0.05),
    "averaged": Recipe(epochs=2, batch_size=10, lr=0.05, statistics="averaged"),
}
SIZES = {"equal": [40, 40, 40], "ragged": [61, 27, 101, 40, 31], "one": [33]}
TERMS = {
    "plain": {},
    "prox": {"mu": 0.3, "tilt": 0.02, "same_start": False},
    "some": {"mu": [0.0, 0.5, 0.0, 1.0, 0.1], "epochs": [1, 2, 3, None, 1]},
}


TORCHS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=0.01),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.05, weight_decay=0.01),
    "adadelta": lambda p: torch.optim.Adadelta(p, lr=0.05, rho=0.8, eps=1e-4, weight_decay=0.01),
}


@pytest.mark.parametrize("name", TORCHS)
def test_the_oracle_takes_the_steps_of_torch_optim(name: str) -> None:
    problem, row = build_problem("mlp", (12,), 5, 1, hidden=[8], batch_norm=True)
    pool = made((12,), 5)
    recipe = Recipe(epochs=2, batch_size=16, lr=0.05, momentum=0.9, weight_decay=0.01, statistics="averaged")
    recipe = replace(recipe, optimizer=name, rho=0.8, eps=1e-4)
    job = jobs_of(row, [50])[0]
    got = oracle(problem, pool, [job], recipe)
    problem.layout.load(problem.module, row)
    optimiser = TORCHS[name](problem.module.train().parameters())
    plan = batch_plan(50, recipe, job.key)
    losses = []
    for batch in plan:
        taken = torch.from_numpy(batch[batch >= 0])
        optimiser.zero_grad()
        loss = F.cross_entropy(problem.module(pool.x[taken]), pool.y[taken])
        loss.backward()
        optimiser.step()
        losses.append((float(loss), len(taken)))
    torch.testing.assert_close(got.rows[0], problem.layout.flatten(problem.module), rtol=0, atol=1e-6)
    tail = losses[len(plan) // 2 :]
    assert got.loss[0] == pytest.approx(sum(a * n for a, n in tail) / sum(n for _, n in tail), rel=1e-5)


@pytest.mark.parametrize("engine", [StackedEngine, SequentialEngine])
def test_a_diverged_seat_spoils_nobody(engine: type) -> None:
    problem, row = build_problem("mlp", (12,), 5, 1, hidden=[8], batch_norm=True)
    pool = made((12,), 5)
    pool.x[45] = float("nan")  # belongs to the second seat
    recipe = Recipe(epochs=2, batch_size=16, lr=0.05)
    jobs = jobs_of(row, [40, 33, 20])
    trained = engine(problem).train(pool, jobs, recipe, 0.05)
    assert torch.isfinite(trained.rows).all(1).tolist() == [True, False, True]
    assert np.isfinite(trained.loss).tolist() == [True, False, True]
    alone = engine(problem).train(pool, [jobs[0], jobs[2]], recipe, 0.05)
    torch.testing.assert_close(trained.rows[[0, 2]], alone.rows, rtol=0, atol=1e-6)


def test_seats_on_threads_give_the_same_bits() -> None:
    problem, row = build_problem("cnn_small", (1, 28, 28), 10, 1)
    pool = made((1, 28, 28), 10, 120)
    recipe = Recipe(epochs=1, batch_size=10, lr=0.05, momentum=0.5)
    jobs = jobs_of(row, [40, 33, 20])
    two = SequentialEngine(problem, workers=2)
    got = two.train(pool, jobs, recipe, 0.05)
    two.close()
    expected = oracle(problem, pool, jobs, recipe)
    assert torch.equal(got.rows, expected.rows)
    np.testing.assert_array_equal(got.loss, expected.loss)


def test_seats_train_together_until_padding_costs_more_than_another_group() -> None:
    plans = [SeatPlan(s, np.zeros((9, w), np.int64), 0, 0) for s, w in enumerate([60, 10, 59, 11])]
    assert [[plan.seat for plan in group] for group in group_seats(plans, 10)] == [[0, 1, 2, 3]]
    assert [[plan.seat for plan in group] for group in group_seats(plans, 1_000_000)] == [[0, 2], [1, 3]]
    assert [len(group) for group in group_seats(plans, 40_000_000)] == [1] * 4  # the memory of one


@pytest.mark.parametrize(("name", "shape"), [("mlp", (12,)), ("cnn_small", (1, 28, 28))])
def test_some_models_have_the_scores_that_they_have_among_all(name: str, shape: tuple[int, ...]) -> None:
    options = {"hidden": [200]} if name == "mlp" else {}
    problem, row = build_problem(name, shape, 10, 1, **options)
    count = 900 if name == "mlp" else 30  # more than a chunk of twenty models of this width has
    pool = made(shape, 10, count)
    rows = row + 0.1 * torch.randn(24, len(row), generator=torch.Generator().manual_seed(0))
    engine = StackedEngine(problem) if name == "mlp" else SequentialEngine(problem)
    whole = engine.score(rows, pool)
    for some in ([3], [23], [0, 1], [2, 5, 11, 12, 13, 20, 22]):
        found = engine.score_some(rows, pool, np.array(some))
        np.testing.assert_allclose(found.loss[some], whole.loss[some], rtol=1e-6)  # last digits are the library's
        np.testing.assert_array_equal(found.accuracy[some], whole.accuracy[some])
        assert found.count.tolist() == [count] * 24


def test_batch_norm_needs_two_samples() -> None:
    problem, row = build_problem("mlp", (12,), 5, 1, hidden=[8], batch_norm=True)
    pool = made((12,), 5)
    recipe = Recipe(epochs=1, batch_size=10)
    with pytest.raises(ValueError, match="1 sample "):
        StackedEngine(problem).train(pool, jobs_of(row, [1]), recipe, 0.1)
    assert oracle(problem, pool, jobs_of(row, [21]), recipe).steps.tolist() == [2]  # the 21st sample is left out


@pytest.mark.parametrize("engine", [StackedEngine, SequentialEngine])
def test_statistics_anew_are_the_mean_over_the_batches_of_the_last_pass(engine: type) -> None:
    problem, row = build_problem("mlp", (12,), 5, 1, hidden=[8], batch_norm=True)
    pool, recipe = made((12,), 5), Recipe(epochs=2, batch_size=10, lr=0.05)
    jobs = jobs_of(row, [50, 27])
    norm = problem.module[2]
    for _ in range(2):  # nothing is left of one training for the next
        trained = engine(problem, dtype=torch.float64).train(pool, jobs, recipe, 0.05)
        for job, got in zip(jobs, trained.rows, strict=True):
            plan = batch_plan(len(job.index), recipe, job.key)
            means = []
            for until in range(len(plan) // 2, len(plan)):  # the weights before each step of the last pass
                some = replace(job, drawn=Drawn(plan[:until], 0))
                before = SequentialEngine(problem, dtype=torch.float64).train(pool, [some], recipe, 0.05).rows[0]
                views = problem.layout.unflatten(before)
                x = pool.x[job.index[plan[until][plan[until] >= 0]]].double()
                means.append((x @ views["1.weight"].T + views["1.bias"]).mean(0))
            found = problem.layout.unflatten(got)["2.running_mean"]
            torch.testing.assert_close(found, torch.stack(means).mean(0), rtol=0, atol=1e-10)
    assert norm.momentum == 0.1


def test_ragged_scores() -> None:
    problem, row = build_problem("mlp", (12,), 5, 1, hidden=[8], batch_norm=True)
    pool = made((12,), 5)
    rows = torch.stack([row, row * 1.1, row * 0.9, row])
    index = [torch.arange(0, 37), torch.arange(5, 10), torch.tensor([], dtype=torch.int64), torch.arange(100, 300)]
    scores = StackedEngine(problem).score(rows, pool, index)
    whole = StackedEngine(problem).score(rows, pool)
    for c, taken in enumerate(index):
        out = put_out(problem, rows[c], pool.x)
        assert whole.loss[c] == pytest.approx(float(F.cross_entropy(out, pool.y)), rel=1e-5)
        assert whole.accuracy[c] == pytest.approx(float((out.argmax(1) == pool.y).float().mean()))
        if len(taken):
            assert scores.loss[c] == pytest.approx(float(F.cross_entropy(out[taken], pool.y[taken])), rel=1e-5)
    assert scores.count.tolist() == [37, 5, 0, 200]
    assert np.isnan(scores.loss[2])


@pytest.mark.parametrize("case", rotating(list(itertools.product(MODELS, RECIPES, SIZES, TERMS)), 4), ids="-".join)
def test_stacked_equals_the_oracle(case: tuple[str, str, str, str]) -> None:
    model, recipe, sizes, terms = case
    name, options = MODELS[model]
    classes = None if model == "regression" else 5
    problem, row = build_problem(name, (3, 4), classes, 1, **options)
    pool, jobs, double = made((3, 4), classes), jobs_of(row, SIZES[sizes], **TERMS[terms]), torch.float64
    expected = SequentialEngine(problem, dtype=double).train(pool, jobs, RECIPES[recipe], 0.05)
    engine = StackedEngine(problem, dtype=double)
    for _ in range(2):  # buffers are used again
        agree(engine.train(pool, jobs, RECIPES[recipe], 0.05), expected, 1e-10)


@pytest.mark.parametrize(
    ("recipe", "work", "steps"),
    [
        (Recipe(epochs=3, batch_size=10), None, 9),
        (Recipe(epochs=3, batch_size=10), 2, 6),
        (Recipe(epochs=5, batch_size=None, batches_per_epoch=4), 2, 8),
        (Recipe(steps=20, batch_size=10), None, 20),
        (Recipe(steps=20, batch_size=10), 7, 7),
        (Recipe(steps=20, batch_size=10, epochs=5), 1, 1),
    ],
)
def test_work_replaces_epochs_or_steps(recipe: Recipe, work: int | None, steps: int) -> None:
    assert len(batch_plan(27, recipe, (0, 0, 0, 0), work)) == steps
