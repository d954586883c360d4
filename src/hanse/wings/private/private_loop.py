"""DP-SGD in the local loop (Abadi et al. 2016), with Opacus: each sample's gradient is clipped, and noise is added.

Each step includes every sample with the same probability, by a draw that only the client knows (Poisson sampling). The
account's subsampled Gaussian assumes this. :func:`dp_sgd` makes the loop that replaces hanse's own training if
``[federation] private`` says ``unit = "sample"``.
"""

from __future__ import annotations

import secrets
import warnings
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from hanse.base.errors import UserError
from hanse.learning.job import Problem
from hanse.learning.loop import Loop, TrainingData, TrainingRound
from hanse.learning.sequences import IGNORED


def dp_sgd(
    problem: Problem, clip: float, noise: float, *, fresh: bool = False, own: Mapping[int, float] = MappingProxyType({})
) -> Loop:
    """Return a training loop that is differentially private for each sample.

    Args:
        problem: the model and its loss.
        clip: the largest norm of a sample's gradient.
        noise: the standard deviation of the noise on a step's sum of gradients, in multiples of ``clip``.
        fresh: whether draws and noise come from the operating system. If not, they follow from the run's seed, and a
            simulation is repeatable.
        own: the noise of clients that add more.

    Raises:
        UserError: Opacus is not installed, or cannot train the model.
    """
    try:
        from opacus import GradSampleModule
        from opacus.optimizers import DPOptimizer
        from opacus.validators import ModuleValidator
    except ImportError:
        raise UserError("federation.private.unit: 'sample': needs Opacus; pip install '.[private]'") from None
    if wrong := ModuleValidator.validate(problem.module.train(), strict=False):
        raise UserError(f"federation.private.unit: 'sample': Opacus cannot train the model: {wrong[0]!s}")

    # the samples need no gradients of their own
    warnings.filterwarnings("ignore", message="Full backward hook is firing")

    def fit(model: nn.Module, data: TrainingData, round: TrainingRound) -> dict[str, Any]:
        draw = torch.Generator().manual_seed(secrets.randbits(63) if fresh else round.seed)
        batches, steps = round.recipe.sampling(len(data), round.epochs if round.steps is None else round.steps)
        before = [p.detach().clone() for p in model.parameters()]
        private = GradSampleModule(model)
        sgd = torch.optim.SGD(
            private.parameters(), lr=round.lr, momentum=round.momentum, weight_decay=round.weight_decay
        )
        optimizer = DPOptimizer(
            sgd, noise_multiplier=own.get(round.client, noise), max_grad_norm=clip,
            expected_batch_size=len(data) / batches, generator=draw,
        )  # fmt: skip
        for _ in range(steps):
            taken = torch.nonzero(torch.rand(len(data), generator=draw) * batches < 1).flatten().to(data.y.device)
            batch = data.samples.take(taken)
            optimizer.zero_grad()
            if len(taken):
                torch.autograd.backward(_mean_loss(problem, private(batch.x), batch.y))
                _only_finite([p for p in private.parameters() if p.requires_grad])
            else:  # nobody was drawn: the step is noise alone
                for parameter in private.parameters():
                    parameter.grad_sample = parameter.new_zeros((0, *parameter.shape))
            optimizer.step()
        private.to_standard_module()
        _only_finite_models(model, before)
        return {"steps": steps}

    return Loop(fit)


def _only_finite(parameters: list[Any]) -> None:
    """Set the gradient of each sample to zero that is not finite.

    No clip shortens it: one sample would make the whole update NaN, and a server that chose the model for that would
    see whether the sample is there.
    """
    each = [p.grad_sample for p in parameters]
    finite = torch.stack([g.flatten(1).sum(1) for g in each]).sum(0).isfinite()  # a sum has what is not finite in it
    if not bool(finite.all()):
        for parameter, g in zip(parameters, each, strict=True):
            parameter.grad_sample = torch.where(finite.view(-1, *[1] * (g.dim() - 1)), g, 0.0)


def _only_finite_models(model: nn.Module, before: list[Tensor]) -> None:
    """Put a model back that is not finite: a step of zero.

    It would be refused, and a server that chose the learning rate for that would see a bit of each round's gradients
    that no account has counted.
    """
    if all(bool(p.isfinite().all()) for p in model.parameters()):
        return
    with torch.no_grad():
        for parameter, old in zip(model.parameters(), before, strict=True):
            parameter.copy_(old)


def _mean_loss(problem: Problem, output: Tensor, y: Tensor) -> Tensor:
    """Return the mean of the samples' losses, each made of its sample alone."""
    if problem.objective is not None:
        return problem.objective(output, y).mean()
    if problem.regression:
        return F.mse_loss(output.reshape(y.shape), y)
    return F.cross_entropy(output, y, reduction="none", ignore_index=IGNORED).mean()
