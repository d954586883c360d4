"""DP-SGD in the local loop: each step against one that is worked out by hand."""

import math

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from experiments import digits

import hanse
from hanse.core.port import Train
from hanse.core.recipe import Recipe
from hanse.core.table import Layout
from hanse.data.samples import Samples
from hanse.learning.job import Problem, SeatJob
from hanse.learning.loop import LoopEngine
from hanse.learning.sequential import SequentialEngine
from hanse.wings.private.account import Release, spent
from hanse.wings.private.privacy import LEAST_CLIP, Privacy
from hanse.wings.private.private_loop import dp_sgd

pytest.importorskip("opacus")
pytest.importorskip("dp_accounting")

POOL = Samples(torch.randn(12, 5, generator=torch.Generator().manual_seed(0)), torch.arange(12) % 3)


def trained(
    clip: float, noise: float, recipe: Recipe, *, fresh: bool = False, pool: Samples = POOL, start: float = 0.0
) -> torch.Tensor:
    """The row after one seat's training."""
    module = torch.nn.Linear(5, 3)
    problem = Problem(module, Layout.of(module))
    engine = LoopEngine(SequentialEngine(problem, threads=1), dp_sgd(problem, clip, noise, fresh=fresh))
    job = SeatJob(torch.arange(len(pool.y)), torch.full((18,), start), (3, 0, 0, 0))
    return engine.train(pool, [job], recipe, recipe.lr).rows[0]


def by_hand(clip: float, lr: float, steps: int) -> torch.Tensor:
    """Full batches without noise: the mean of the samples' gradients, each shortened to the clip."""
    weight, bias = torch.zeros(3, 5), torch.zeros(3)
    for _ in range(steps):
        total = [torch.zeros(3, 5), torch.zeros(3)]
        for x, y in zip(POOL.x, POOL.y, strict=True):
            w, b = weight.clone().requires_grad_(), bias.clone().requires_grad_()
            grads = torch.autograd.grad(F.cross_entropy((w @ x + b)[None], y[None]), [w, b])
            length = math.sqrt(sum(float(g.square().sum()) for g in grads))
            total = [t + g * min(1.0, clip / length) for t, g in zip(total, grads, strict=True)]
        weight, bias = weight - lr * total[0] / 12, bias - lr * total[1] / 12
    return torch.cat([weight.flatten(), bias])


@pytest.mark.parametrize("clip", [0.3, 100.0])
def test_steps_are_means_of_gradients_that_are_clipped_sample_by_sample(clip: float) -> None:
    row = trained(clip, 1e-9, Recipe(epochs=3, batch_size=12, lr=0.2))
    torch.testing.assert_close(row, by_hand(clip, 0.2, 3), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("size", [1.0, 1e8, 3e18, 1e30])
def test_no_gradient_is_longer_than_the_least_clip(size: float) -> None:
    pool = Samples(torch.full((1, 5), size), torch.zeros(1, dtype=torch.int64))
    row = trained(LEAST_CLIP, 1e-9, Recipe(steps=1, batch_size=1, lr=1 / LEAST_CLIP), pool=pool)
    assert float(row.norm()) <= 1 + 1e-5


def test_an_update_says_the_noise_of_all_its_steps() -> None:
    recipe = Recipe(epochs=2, batch_size=3, lr=0.5, momentum=0.5)
    pool = Samples(torch.zeros(12, 5), POOL.y)
    moved = torch.cat([trained(2.0, 1.5, recipe, fresh=True, pool=pool)[:15] for _ in range(60)])
    rule = Privacy(clip=2.0, epsilon=8.0, delta=1e-3, noise=1.5, unit="sample")
    said = rule.level(12, recipe, recipe.lr, Train(0, 0, torch.zeros(18)))
    assert float(moved.std()) == pytest.approx(said, rel=5 / math.sqrt(2 * len(moved)))
    # eight steps; the noise of the k-th from the end moves the model 1 + 1/2 + ... + 1/2^(k-1) times
    assert said == pytest.approx(0.5 * 1.5 * 2.0 / 3 * math.sqrt(sum((2 - 0.5**k) ** 2 for k in range(8))))


def test_no_more_steps_are_taken_than_a_request_is_charged_for() -> None:
    recipe = Recipe(steps=50, epochs=1000, batch_size=3, lr=0.1)
    rule = Privacy(clip=1.0, epsilon=8.0, delta=1e-3, noise=1.0, unit="sample")
    module = torch.nn.Linear(5, 3)
    problem = Problem(module, Layout.of(module))
    engine = LoopEngine(SequentialEngine(problem, threads=1), dp_sgd(problem, 1.0, 1.0))
    for work in (0, 1, 7, None):  # a server may ask for any
        job = SeatJob(torch.arange(12), torch.zeros(18), (3, 0, 0, 0), work=work)
        assert int(engine.train(POOL, [job], recipe, 0.1).steps[0]) <= rule.release(12, recipe, work).steps
        assert rule.release(12, recipe, work).rate == 0.25


def test_no_model_tells_by_an_overflow_whether_a_sample_is_there() -> None:
    """With these weights the loss of the one sample that is not zero is NaN, and the update was refused, uncharged."""
    there = torch.zeros(12, 5)
    there[4] = 100.0
    for x in (there, torch.zeros(12, 5)):
        row = trained(1.0, 1.0, Recipe(steps=2, batch_size=12, lr=0.1), pool=Samples(x, POOL.y), start=1e37)
        assert bool(row.isfinite().all())


def test_batch_norm_is_refused_with_the_reason_of_opacus() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 3))
    with pytest.raises(hanse.UserError, match=r"Opacus.*BatchNorm"):
        dp_sgd(Problem(module, Layout.of(module)), 1.0, 1.0)


def test_a_run_charges_the_subsampled_gaussian_of_its_steps() -> None:
    private = {"clip": 1.0, "epsilon": 8.0, "delta": 1e-3, "unit": "sample", "noise": 1.2}
    run = hanse.run(digits("fedavg", 3, 2, train={"batch_size": 100, "lr": 0.5}, federation={"private": private}))
    for line in run.clients:
        batches = math.ceil(line["samples"] / 100)
        one = Release(1.2, 1 / batches, batches)
        assert line["steps"] == batches
        assert line["fit/epsilon"] == pytest.approx(spent(((one, line["round"] + 1),), 1e-3))
