"""Local training of one seat with PyTorch's autograd: the reference for every faster engine.

:class:`Trainer` holds a copy of a problem's module, trains one seat at a time, and runs the module on samples.
:func:`stepper` chooses the steps: those of SGD, AdamW or Adadelta. A seat's proximal pull and its
tilt are added to the gradient, not to the loss.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hanse.base.pytorch import F, Tensor, nn, torch
from hanse.base.streams import drawn_so_far, torch_seed
from hanse.core.recipe import Recipe
from hanse.data.samples import Samples
from hanse.learning.generator import term_of
from hanse.learning.job import Problem, SeatJob, plan_of, smallest_batch


def stepper(recipe: Recipe, parameters: list[Tensor], lr: float) -> Callable[[list[Tensor]], None]:
    """Return what takes one step of the recipe's optimiser in place, called with the gradients of the parameters.

    SGD is ``v = momentum v + g`` and ``theta -= lr v``, without what ``torch.optim.SGD`` does beside it in each step.
    The others are PyTorch's own. Their running means start from zero at every call of this function.

    Args:
        recipe: says which optimiser.
        parameters: what is moved.
        lr: the learning rate.
    """
    if recipe.optimizer == "sgd":
        velocity: list[Tensor] = []

        def descend(gradients: list[Tensor]) -> None:
            if recipe.momentum and velocity:
                torch._foreach_mul_(velocity, recipe.momentum)
                torch._foreach_add_(velocity, gradients)
            elif recipe.momentum:
                velocity.extend(gradients)  # as in PyTorch: the first velocity is the gradient itself
            torch._foreach_add_(parameters, velocity or gradients, alpha=-lr)

        return descend
    optimizer: torch.optim.Optimizer
    if recipe.optimizer == "adamw":
        optimizer = torch.optim.AdamW(parameters, lr, weight_decay=recipe.weight_decay, foreach=True)
    else:
        optimizer = torch.optim.Adadelta(parameters, lr, recipe.rho, recipe.eps, foreach=True)

    def step(gradients: list[Tensor]) -> None:
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        optimizer.step()
        optimizer.zero_grad()

    return step


Precision = Literal["float32", "bf16"]


def has_convolutions(module: nn.Module) -> bool:
    """Return whether a module holds 2-d convolutions, which run best one model at a time."""
    return any(isinstance(m, nn.Conv2d | nn.ConvTranspose2d) for m in module.modules())


def in_channels_last(problem: Problem) -> bool:
    """Return whether a module's images should be channels-last in memory. With max-pooling this is up to three times
    faster, and with many channels no slower. But testing narrow networks without pooling (FedGen's) would take twice as
    long.
    """
    if problem.plain:
        return False
    module = problem.module
    convolutions = [m for m in module.modules() if isinstance(m, nn.Conv2d | nn.ConvTranspose2d)]
    pooled = any(isinstance(m, nn.MaxPool2d) for m in module.modules())
    return any(pooled or m.in_channels >= 16 for m in convolutions)


def loss_of(problem: Problem, output: Tensor, y: Tensor) -> Tensor:
    """Return the mean loss of a batch, a scalar.

    Args:
        problem: the problem, whose loss is used.
        output: logits ``[n, k]``; for texts logits ``[n, k, T]``; or predictions with as many numbers as ``y``.
        y: labels int64 ``[n]`` or ``[n, T]``, of which positions marked ``IGNORED`` do not count; or regression
            targets.
    """
    if problem.objective is not None:
        return problem.objective(output, y).mean()
    if problem.loss == "cross_entropy":
        return F.cross_entropy(output, y)
    return F.mse_loss(output.reshape(y.shape), y)


def gradients_of(loss: Tensor, parameters: Sequence[Tensor]) -> list[Tensor]:
    """Return the gradient of a loss at each parameter, dense also where PyTorch's is sparse (``nn.Embedding``)."""
    found = torch.autograd.grad(loss, list(parameters), materialize_grads=True)
    return [one if one.layout == torch.strided else one.to_dense() for one in found]


class Trainer:
    """One copy of a problem's module that trains one seat at a time. Threads must not share a trainer.

    Args:
        problem: the model and its loss (:class:`hanse.learning.job.Problem`).
        device: where the copy lies.
        dtype: the type of weights, gradients and steps. None: float32.
        precision: "bf16" runs the forward pass under autocast to bfloat16. Everything else stays in ``dtype``.

    Examples:
        >>> from hanse.core.table import Layout
        >>> module = nn.Linear(3, 2)
        >>> problem = Problem(module, Layout.of(module))
        >>> pool = Samples(torch.randn(4, 3), torch.tensor([0, 1, 0, 1]))
        >>> job = SeatJob(torch.arange(4), problem.layout.flatten(module), (0, 0, 1, 0))
        >>> row, loss, steps = Trainer(problem, torch.device("cpu")).train(pool, job, Recipe(epochs=2), lr=0.1)
        >>> row.shape, steps
        (torch.Size([8]), 2)
    """

    def __init__(
        self, problem: Problem, device: torch.device, dtype: torch.dtype | None = None, precision: Precision = "float32"
    ) -> None:
        self.problem, self.device, self.precision = problem, device, precision
        self.dtype = dtype or torch.float32
        self.layout = problem.layout
        self.module = copy.deepcopy(problem.module).to(device=device, dtype=self.dtype)
        self.images = in_channels_last(problem)
        if self.images:
            self.module = self.module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.counters = {n: b.clone() for n, b in self.module.named_buffers() if not b.is_floating_point()}
        self.norms = [
            m
            for m in self.module.modules()
            if isinstance(m, nn.modules.batchnorm._BatchNorm) and m.running_mean is not None
        ]
        self.momenta = [norm.momentum for norm in self.norms]
        self.smallest = smallest_batch(problem)
        self._random: bool | None = None
        self._cards = [device] if device.type == "cuda" else []  # whose generators are put back

    def draws(self, pool: Samples) -> bool:
        """Return whether the module draws random numbers while it trains (dropout).

        This is found by one forward pass on a few samples of ``pool``, and cached.
        """
        if self._random is None:
            probe = copy.deepcopy(self.module).train()
            with torch.no_grad(), torch.random.fork_rng(devices=self._cards):
                before = drawn_so_far(self.device)
                probe(self._inputs(pool.x[: max(2, self.smallest)]))
                self._random = drawn_so_far(self.device) != before
        return self._random

    def train(self, pool: Samples, job: SeatJob, recipe: Recipe, lr: float) -> tuple[Tensor, float, int]:
        """Train one seat.

        Args:
            pool: all samples; the job's ``index`` points into them.
            job: the seat.
            recipe: the recipe: how much training, and which optimiser.
            lr: the learning rate.

        Returns:
            Three results: the seat's row ``[P]``; the mean loss over the samples of the last epoch (NaN if the row or
                the loss is not finite); and the number of steps.

        Raises:
            ValueError: there are fewer samples than the model can train on.
        """
        key, drawn = job.key, plan_of(job, recipe, self.smallest)
        plan, reported = drawn.batches, drawn.reported
        counted = int((plan[reported:] >= 0).sum())
        self.load(job.start)
        if not self.draws(pool):  # then no generator needs to be seeded and put back
            total = self._run(pool, job, recipe, lr, plan, reported)
        else:
            with torch.random.fork_rng(devices=self._cards):
                torch.manual_seed(torch_seed(key[0], "dropout", round=key[1], client=key[2], start=key[3]))
                total = self._run(pool, job, recipe, lr, plan, reported)
        row = self.row()
        loss = float(total) / counted
        finite = math.isfinite(loss) and math.isfinite(float(row.sum()))  # a sum is finite only if all its terms are
        return row, loss if finite else float("nan"), len(plan)

    def _run(
        self, pool: Samples, job: SeatJob, recipe: Recipe, lr: float, plan: NDArray[np.int64], reported: int
    ) -> Tensor:
        """Take the steps of a plan; return the sum of the reported samples' losses as a float64 scalar."""
        module, index = self.module.train(), job.index.to(pool.x.device)
        parameters: list[Tensor] = [p for p in module.parameters() if p.requires_grad]
        pull = self._parts(job.centre) if job.centre is not None and job.mu else None
        tilt = self._parts(job.tilt) if job.tilt is not None else None
        sent = job.payload
        term = None if sent is None else term_of(sent, job.key, self.module, self.layout)
        take = stepper(recipe, parameters, lr)
        decay = recipe.weight_decay if recipe.optimizer != "adamw" else 0.0  # AdamW's step decays weights itself
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        valid = plan >= 0
        # all steps' positions go to the card at once: it would wait for each copy
        every = torch.split(index[torch.from_numpy(plan[valid]).to(index.device)], valid.sum(1).tolist())
        for step, taken in enumerate(every):
            if step == reported and recipe.statistics == "anew":
                for norm in self.norms:
                    if norm.training:  # a module may keep some in evaluation mode
                        norm.reset_running_stats()
                        norm.momentum = None  # the mean over all batches from here on
            y = self._targets(pool.y.index_select(0, taken))
            output = self.run(pool.x.index_select(0, taken)).to(self.dtype)
            loss = loss_of(self.problem, output, y)
            # a payload's term is trained on but not reported: losses stay comparable with those of other mechanisms
            aim = loss if term is None else loss + term(output, y)
            gradients = gradients_of(aim, parameters)
            with torch.no_grad():
                if decay:
                    torch._foreach_add_(gradients, parameters, alpha=decay)
                if pull is not None:
                    torch._foreach_add_(gradients, parameters, alpha=job.mu)
                    torch._foreach_add_(gradients, pull, alpha=-job.mu)
                if tilt is not None:
                    torch._foreach_add_(gradients, tilt)
                take(gradients)
                if step >= reported:
                    total += loss.detach() * len(taken)
        return total

    def load(self, row: Tensor) -> nn.Module:
        """Load a row ``[P]`` into the module and return it in evaluation mode.

        The integer buffers, which a row does not hold, are reset to those of the template.
        """
        self.layout.load(self.module, row.to(self.device))
        for norm, momentum in zip(self.norms, self.momenta, strict=True):
            norm.momentum = momentum
        for name, counter in self.counters.items():
            self.module.get_buffer(name).copy_(counter)
        return self.module.eval()

    def row(self) -> Tensor:
        """Return the module's parameters and float buffers as one new row ``[P]``."""
        tensors = dict(self.module.named_parameters()) | dict(self.module.named_buffers())
        with torch.no_grad():
            return torch.cat([tensors[name].reshape(-1) for name in self.layout.names])

    def run(self, x: Tensor) -> Tensor:
        """Return what the loaded module puts out on inputs ``x [n, ...]`` from a pool, in whatever type it has."""
        x = self._inputs(x)
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.precision == "bf16"):
            output: Tensor = self.module(x)
        return output

    def outputs(self, x: Tensor) -> Tensor:
        """Return the loaded module's outputs on inputs ``x [n, ...]`` from a pool, without gradients."""
        with torch.no_grad():
            return self.run(x).to(self.dtype)

    def _parts(self, row: Tensor) -> list[Tensor]:
        """Cut a row's trained parameters into tensors shaped as the module's."""
        views = self.layout.unflatten(row.to(device=self.device, dtype=self.dtype))
        return [views[name] for name, p in self.module.named_parameters() if p.requires_grad]

    def _inputs(self, x: Tensor) -> Tensor:
        """Return inputs on the trainer's device; whole numbers (tokens) keep their type."""
        x = x.to(device=self.device, dtype=self.dtype if x.is_floating_point() else None)
        return x.contiguous(memory_format=torch.channels_last) if self.images and x.ndim == 4 else x

    def _targets(self, y: Tensor) -> Tensor:
        return y.to(device=self.device, dtype=self.dtype if y.is_floating_point() else None)
