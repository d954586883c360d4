"""The module itself, run as PyTorch runs it: what every engine and scorer is compared with."""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from hanse.base.streams import torch_seed
from hanse.core.recipe import Recipe
from hanse.data.samples import Samples
from hanse.learning.job import Problem, SeatJob, batch_plan
from hanse.learning.local import Precision, in_channels_last, loss_of
from hanse.learning.scoring import outcomes_of

__all__ = ["Plain", "untouched"]


@contextmanager
def untouched(device: torch.device) -> Iterator[None]:
    """Give a block the generators that there are, and put them back: a user's module may draw from any of them."""
    states = random.getstate(), np.random.get_state()  # noqa: NPY002
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        yield
    random.setstate(states[0])
    np.random.set_state(states[1])  # noqa: NPY002


@dataclass(frozen=True)
class Plain:
    """The module itself: a copy on a device, run as PyTorch runs it.

    ``images`` lie channels-last for bf16, as engines have them, since in bfloat16 another order of sums is far off.
    """

    problem: Problem
    module: nn.Module
    device: torch.device
    precision: Precision
    images: bool = False

    @staticmethod
    def of(problem: Problem, device: torch.device, precision: Precision) -> Plain:
        """Copy a problem's module to a device."""
        module = copy.deepcopy(problem.module).to(device=device, dtype=torch.float32)
        images = precision == "bf16" and in_channels_last(problem)
        if images:
            module = module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return Plain(problem, module, device, precision, images)

    def outputs(self, x: Tensor) -> Tensor:
        """Return the module's outputs as float32."""
        around: AbstractContextManager[None] = nullcontext()
        if self.precision == "bf16":
            around = torch.autocast(self.device.type, dtype=torch.bfloat16)
        x = x.to(device=self.device, dtype=torch.float32 if x.is_floating_point() else None)
        if self.images and x.ndim == 4:
            x = x.contiguous(memory_format=torch.channels_last)
        with around:
            output: Tensor = self.module(x)
        return output.float() if isinstance(output, Tensor) else output

    def losses(self, row: Tensor, samples: Samples, precision: Precision) -> Tensor:
        """Return a row's loss on each sample ``[n]``, in evaluation mode."""
        self.problem.layout.load(self.module, row.to(self.device))
        self.module.eval()
        with torch.no_grad():
            y = samples.y.to(self.device)
            outputs = replace(self, precision=precision).outputs
            return outcomes_of(self.problem, outputs, samples.x, y)[0][0].cpu().double()

    def loss(self, samples: Samples) -> Tensor:
        """Return the mean loss of a batch, as the module stands."""
        return loss_of(self.problem, self.outputs(samples.x), samples.y.to(self.device))

    def gentle(self, samples: Samples, row: Tensor) -> float:
        """Return a learning rate by which no parameter moves far, whatever the scale of the samples."""
        self.problem.layout.load(self.module, row.to(self.device))
        trained = [p for p in self.module.train().parameters() if p.requires_grad]
        gradients = torch.autograd.grad(self.loss(samples), trained, materialize_grads=True)
        steepest = max(float(g.abs().max()) for g in gradients if g.numel())
        return 0.1 / max(1.0, steepest) if math.isfinite(steepest) else 0.1

    def train(self, samples: Samples, job: SeatJob, recipe: Recipe, lr: float) -> Tensor:
        """Return the row after a seat's training: SGD on the gradients of autograd, with all that pulls added to them.

        ``torch.optim.SGD`` takes the same steps, and seconds to be imported.
        """
        layout = self.problem.layout
        layout.load(self.module, job.start.to(self.device))
        self.module.train()
        zero = torch.zeros_like(job.start)
        centre, tilt = (zero if part is None else part for part in (job.centre, job.tilt))
        still, constant = (layout.unflatten(row.to(self.device)) for row in (centre, tilt))
        trained = {name: p for name, p in self.module.named_parameters() if p.requires_grad}
        velocity = {name: torch.zeros_like(p) for name, p in trained.items()}
        seed, round, client, start = job.key
        torch.manual_seed(torch_seed(seed, "dropout", round=round, client=client, start=start))  # as engines drop
        for batch in batch_plan(len(job.index), recipe, job.key).tolist():
            positions = torch.tensor([p for p in batch if p >= 0])
            loss = self.loss(samples.take(job.index[positions]))
            gradients = torch.autograd.grad(loss, list(trained.values()), materialize_grads=True)
            with torch.no_grad():
                for (name, p), gradient in zip(trained.items(), gradients, strict=True):
                    pulled = recipe.weight_decay * p + job.mu * (p - still[name]) + constant[name]
                    velocity[name] = recipe.momentum * velocity[name] + gradient + pulled
                    p.sub_(velocity[name], alpha=lr)
        return layout.flatten(self.module).cpu()
