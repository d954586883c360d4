from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from hanse.base.streams import stream
from hanse.core.recipe import Recipe
from hanse.core.table import Layout
from hanse.data.samples import Samples
from hanse.learning.job import Problem, SeatJob, TrainedRows
from hanse.learning.native.engine import library, vectors_are_wide
from hanse.learning.sequential import SequentialEngine

COMPILED = not isinstance(library(), str)  # whether this installation has the native engine
DENSE = "native" if COMPILED else "stacked"  # what the rule chooses for linear layers
CONV = "native" if vectors_are_wide() else "sequential"  # and for convolutions that it can train


def made(shape: tuple[int, ...], classes: int | None, n: int = 400, seed: int = 0) -> Samples:
    draw = stream(seed, "test-samples")
    x = torch.from_numpy(draw.standard_normal((n, *shape)).astype(np.float32))
    if classes is None:
        return Samples(x, x.reshape(n, -1).sum(1) * 0.3 + 1)
    return Samples(x, torch.from_numpy(draw.integers(0, classes, n)))


def jobs_of(
    row: torch.Tensor,
    sizes: list[int],
    *,
    mu: list[float] | float = 0.0,
    tilt: float = 0.0,
    epochs: list[int | None] | None = None,
    same_start: bool = True,
) -> list[SeatJob]:
    jobs, first = [], 0
    for s, n in enumerate(sizes):
        draw = stream(7, "jobs", client=s)
        noise = [torch.from_numpy(draw.standard_normal(len(row)).astype(np.float32)) for _ in range(3)]
        strength = mu[s] if isinstance(mu, list) else mu
        index, start = torch.arange(first, first + n), row if same_start else row + 0.01 * noise[0]
        job = SeatJob(index, start, (3, 1, s, 0), mu=strength, work=epochs[s] if epochs else None)
        job = replace(job, centre=row + 0.1 * noise[1]) if strength else job
        jobs.append(replace(job, tilt=tilt * noise[2]) if tilt else job)
        first += n
    return jobs


def problem_of(module: nn.Module) -> tuple[Problem, Tensor]:
    layout = Layout.of(module)
    return Problem(module, layout), layout.flatten(module)


def put_out(problem: Problem, row: Tensor, x: Tensor) -> Tensor:
    """Return what the module itself puts out with these numbers, in evaluation mode."""
    problem.layout.load(problem.module, row)
    with torch.no_grad():
        found: Tensor = problem.module.eval()(x)
    return found


def worth_of(problem: Problem, row: Tensor, samples: Samples, utility: str = "loss") -> float:
    """Return what a model is worth by plain PyTorch."""
    out = put_out(problem, row, samples.x).double()
    if problem.loss == "mse":
        return -float(F.mse_loss(out.squeeze(1), samples.y.double()))
    if utility == "accuracy":
        return float((out.argmax(1) == samples.y).double().mean())
    losses = F.cross_entropy(out, samples.y, reduction="none")
    if utility == "balanced":
        return -float(torch.stack([losses[samples.y == c].mean() for c in samples.y.unique()]).mean())
    return -float(losses.mean())


def oracle(problem: Problem, pool: Samples, jobs: list[SeatJob], recipe: Recipe) -> TrainedRows:
    return SequentialEngine(problem, threads=1).train(pool, jobs, recipe, recipe.lr)


def agree(a: TrainedRows, b: TrainedRows, tol: float = 1e-5) -> None:
    assert float((a.rows - b.rows).abs().max()) <= tol
    np.testing.assert_allclose(a.loss, b.loss, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(a.steps, b.steps)
