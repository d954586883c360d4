"""The vmapped engine: trains seats of any module that ``torch.func`` can batch.

:func:`why_not_vmapped` tries a model and says why it cannot be batched. The rule of :mod:`hanse.learning.engines`
chooses this engine for many seats with a small model.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from hanse.base.errors import RAISED, first_line
from hanse.core.recipe import Recipe
from hanse.data.samples import Samples
from hanse.learning.batches import Batches, GroupEngine, SeatPlan
from hanse.learning.job import Problem, SeatJob, constant_of, has_buffers, pull_of
from hanse.learning.sequences import IGNORED, is_text


class VmappedEngine(GroupEngine):
    """Trains seats as one batched program, ``vmap(grad(...))`` of the module.

    Args:
        problem: the model and its loss (:class:`hanse.learning.job.Problem`).
        device: where the work is done.
        threads: intra-op threads. None: PyTorch's setting is kept.
        dtype: the type of weights, gradients and steps.

    Raises:
        ValueError: the model keeps statistics in training, like batch norm.
    """

    name = "vmapped"

    def __init__(
        self,
        problem: Problem,
        device: torch.device | str = "cpu",
        threads: int | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        if has_buffers(problem):
            raise ValueError("the model keeps statistics as it trains (batch norm), which cannot be vmapped")
        super().__init__(problem, torch.device(device), dtype, threads=threads)
        self.module = copy.deepcopy(problem.module).to(device=self.device, dtype=dtype).train()
        self.places = _places(self.module)
        self._step = vmap(grad(self._loss, has_aux=True))

    def _loss(self, parameters: dict[str, Tensor], x: Tensor, y: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Return one seat's loss, its samples weighted by ``weights [B]``, and its samples' own losses ``[B]``."""
        placed = {place: p for name, p in parameters.items() for place in self.places[name]}
        output: Tensor = functional_call(self.module, placed, (x,), tie_weights=False)
        if self.problem.objective is not None:
            losses = self.problem.objective(output, y)
        elif self.problem.loss == "mse":
            losses = (output.reshape(y.shape) - y).square()
        else:
            losses = F.cross_entropy(output, y, reduction="none")
        losses = losses.reshape(len(x), -1).mean(1)  # of texts all positions count, or they are not vmapped
        return (losses * weights).sum(), losses

    def train_group(
        self, pool: Samples, plans: Sequence[SeatPlan], jobs: Sequence[SeatJob], recipe: Recipe, lr: float
    ) -> tuple[Iterable[tuple[slice, Tensor]], NDArray[np.float64]]:
        """Train one group of seats; the rows come in one piece."""
        rows = torch.stack([job.start for job in jobs]).to(device=self.device, dtype=self.dtype)
        velocity = torch.zeros_like(rows)
        total = rows.new_zeros(len(jobs))
        pulls, given = [pull_of(job, recipe) for job in jobs], [constant_of(job, self.dtype) for job in jobs]
        pull = rows.new_tensor(pulls).unsqueeze(1) if any(pulls) else None
        none, shifted = torch.zeros_like(rows[0]), any(one is not None for one in given)
        constant = torch.stack([none if one is None else one.to(rows) for one in given]) if shifted else None
        held = None if self.problem.frozen_columns is None else self.problem.frozen_columns.to(self.device)
        batches = Batches.of(plans, self.device, self.dtype)
        for begin, end, a, b in batches.segments:
            for t in range(begin, end):
                taken = batches.samples[t, :a, :b].reshape(-1).to(pool.x.device)
                x, y = self._batch(pool.x, taken, a, b), self._batch(pool.y, taken, a, b)
                active = rows[:a]
                parts, each = self._step(self.problem.layout.unflatten(active), x, y, batches.weights[t, :a, :b])
                gradient = torch.cat([parts[name].reshape(a, -1) for name in self.problem.layout.names], 1)
                total[:a] += (each * batches.tally[t, :a, :b]).sum(1) if batches.reports[t] else 0.0
                if pull is not None:
                    gradient.addcmul_(pull[:a], active)
                if constant is not None:
                    gradient.add_(constant[:a])
                if held is not None:  # weight decay and pulls, too, must leave frozen parameters as they are
                    gradient.masked_fill_(held, 0.0)
                moving = velocity[:a].mul_(recipe.momentum).add_(gradient)
                active.add_(moving, alpha=-lr)
        return [(slice(None), rows)], total.double().cpu().numpy()

    def _batch(self, source: Tensor, taken: Tensor, seats: int, width: int) -> Tensor:
        """Return a step's samples or targets, ``[seats, width, ...]``."""
        part = source.index_select(0, taken).to(self.device)
        part = part.to(self.dtype) if part.is_floating_point() else part
        return part.view(seats, width, *source.shape[1:])


def _places(module: nn.Module) -> dict[str, list[str]]:
    """Return under which names each parameter stands in a module, by its name in a row.

    Tied parameters stand in several places. Each place is named once, even if a layer is reached by two names. The way
    in which ``functional_call`` itself handles ties would swap such a parameter twice and leave the wrong tensor
    behind.
    """
    places: dict[int, list[str]] = {}
    for prefix, layer in module.named_modules():
        for name, parameter in layer.named_parameters(recurse=False, remove_duplicate=False):
            places.setdefault(id(parameter), []).append(f"{prefix}.{name}" if prefix else name)
    return {name: places[id(parameter)] for name, parameter in module.named_parameters()}


def why_not_vmapped(problem: Problem, row: Tensor, pool: Samples) -> str | None:
    """Return why a model cannot be vmapped, or None if two seats can take a step.

    Whether it is the step of autograd, the comparison before round 0 says (:mod:`hanse.learning.agreement`).

    Args:
        problem: the model and its loss (:class:`hanse.learning.job.Problem`).
        row: a row ``[P]`` to try the model with.
        pool: some samples; the first four are used.
    """
    if has_buffers(problem):
        return "it keeps statistics as it trains"
    if is_text(pool) and bool((pool.y == IGNORED).any()):
        return "some positions of its texts do not count"
    x, y = pool.x[:4].float() if pool.x.is_floating_point() else pool.x[:4], pool.y[:4]
    module = copy.deepcopy(problem.module).train()
    problem.layout.load(module, row.to(next(module.parameters()).device))
    before = torch.get_rng_state()
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            whole, half = module(x), module(x[:2])
            if not torch.equal(before, torch.get_rng_state()):
                return "it draws random numbers as it trains"
        if not torch.allclose(whole[:2], half, rtol=1e-4, atol=1e-5):
            return "its outputs for a sample depend on the rest of the batch"
        recipe = Recipe(steps=1, batch_size=2, lr=0.1)
        jobs = [SeatJob(torch.arange(len(y)), row, (0, 0, seat, 0)) for seat in range(2)]
        VmappedEngine(problem).train(Samples(x, y), jobs, recipe, 0.1)
    except RAISED as error:  # a user's module may raise anything under vmap, and that is the reason
        return f"torch.func cannot batch it ({first_line(error)})"
    return None
