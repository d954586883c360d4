"""Gradients of the loss with respect to everything in a row, for each block of samples.

Training gradients exclude frozen parameters and the running statistics of batch norms. But an update may change these
and so change the loss. :class:`Slopes` therefore includes all parameters of a row and batch-norm statistics. Other
buffers have slope zero.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

from hanse.base.errors import UserError, first_line, gated
from hanse.base.pytorch import F, Tensor, nn, torch
from hanse.data.samples import Samples
from hanse.learning.job import Problem
from hanse.learning.local import gradients_of, in_channels_last
from hanse.learning.module_layers import forward
from hanse.learning.scoring import tally
from hanse.learning.sequences import sequence_losses

CHUNK = 1024
"""How many samples go through a model at once."""


@dataclass(frozen=True, eq=False)
class Slopes:
    """The mean loss gradient of a model on each of B blocks of samples, in evaluation mode.

    Attributes:
        problem: the model and its loss.
        samples: the samples. If all blocks are processed at once, a copy in the blocks' order is kept.
        blocks: the positions of each block's samples, none of them empty.

    Examples:
        >>> from hanse.core.table import Layout
        >>> module = nn.Linear(1, 1, bias=False)
        >>> samples = Samples(torch.tensor([[1.0], [2.0]]), torch.tensor([[3.0], [4.0]]))
        >>> slopes = Slopes(Problem(module, Layout.of(module), "mse"), samples, torch.arange(2).split(1))
        >>> slopes(torch.zeros(1)).flatten().tolist()  # of (w - 3)^2 and (2 w - 4)^2 at w = 0
        [-6.0, -16.0]
    """

    problem: Problem
    samples: Samples
    blocks: Sequence[Tensor]

    def __call__(self, row: Tensor) -> Tensor:
        """Return the gradients at ``row [P]``, ``[B, P]``."""
        rows = row.new_zeros(len(self.blocks), len(row))
        with torch.enable_grad(), gated("the model: has no gradient on held-out samples"):
            if len(self.blocks) > 1 and self.problem.stack is not None:
                self._add_all(row, rows)
            else:
                self._add_each(row, rows)
        return rows

    def _add_each(self, row: Tensor, rows: Tensor) -> None:
        """Add the gradients at ``row [P]`` on one block after another to ``rows [B, P]``, by the module itself."""
        layout = self.problem.layout
        module, summed = self._module.to(device=row.device, dtype=row.dtype), layout.unflatten(rows)
        layout.load(module, row)
        moved = {name: p for name, p in module.named_parameters() if name in summed}
        for b, block in enumerate(self.blocks):
            for some in torch.split(block, CHUNK):
                part = self.samples.take(some)
                if self._images and part.x.ndim == 4:
                    part = replace(part, x=part.x.contiguous(memory_format=torch.channels_last))
                loss = summed_loss(module, part, self.problem)
                gradients = gradients_of(loss, list(moved.values()))
                for name, slope in zip(moved, gradients, strict=True):
                    summed[name][b] += slope / len(block)

    def _add_all(self, row: Tensor, rows: Tensor) -> None:
        """Add the gradients at ``row [P]`` on all blocks to ``rows [B, P]``.

        One forward and one backward pass serve all blocks: each has a view of the row as a model of its own. The layers
        are known ones (:attr:`hanse.learning.job.Problem.stack`). ``torch.func`` would import PyTorch's compiler, which
        takes a second.
        """
        layout, specs = self.problem.layout, self.problem.stack
        assert specs is not None
        summed = layout.unflatten(rows)
        models = {
            name: t.expand(len(self.blocks), *t.shape).requires_grad_()
            for name, t in layout.unflatten(row.detach()).items()
        }
        for x, y, weight in self._pieces:
            outputs = forward(specs, models, x.flatten(2).mT)
            losses = tally(self.problem, outputs, y.flatten(0, 1), rights=False)[0]
            found = torch.autograd.grad((losses * weight).sum(), list(models.values()))
            for name, slope in zip(models, found, strict=True):
                summed[name].add_(slope)

    @cached_property
    def _module(self) -> nn.Module:
        """A copy of the module in evaluation mode, for this object alone; each call gives it a row's numbers."""
        module = _opened(self.problem)
        return module.to(memory_format=torch.channels_last) if self._images else module  # type: ignore[call-overload]

    @cached_property
    def _images(self) -> bool:
        """Whether images lie with their channels last, which halves the time of convolutions."""
        return in_channels_last(self.problem)

    @cached_property
    def _pieces(self) -> list[tuple[Tensor, Tensor, Tensor]]:
        """The samples ``[B, k, ...]``, their labels, and their weights ``[B, k]``, piece by piece."""
        place = torch.arange(max(map(len, self.blocks)))
        # a shorter block is filled up with samples of its own, which weigh nothing
        index = torch.stack([block.cpu()[place % len(block)] for block in self.blocks])
        weights = torch.stack([(place < len(block)) / len(block) for block in self.blocks])
        pieces = []
        for columns in torch.split(place, max(1, CHUNK // len(self.blocks))):
            part = self.samples.take(index[:, columns].flatten())
            x, y = (t.view(len(self.blocks), len(columns), *t.shape[1:]) for t in (part.x, part.y))
            pieces.append((x, y, weights[:, columns].to(part.x)))
        return pieces


def why_no_slope(problem: Problem, samples: Samples) -> str | None:
    """Return why the loss has no usable gradient, to continue "needs a loss with a gradient", or None if it has one.

    The model's first weights and at most 64 samples are tried.
    """
    few = torch.arange(min(64, len(samples)))
    try:
        slope = Slopes(problem, samples, [few])(problem.layout.flatten(problem.module))
    except UserError as wrong:  # mostly a forward pass that PyTorch cannot follow back
        if wrong.__cause__ is None:
            raise
        return f"that of the model has none in evaluation mode ({first_line(wrong.__cause__)})"
    return None if bool(slope.any()) else "that of the model is 0 in evaluation mode"


def summed_loss(module: nn.Module, part: Samples, problem: Problem) -> Tensor:
    """Return the sum of the losses of some samples."""
    outputs = module(part.x)
    if problem.objective is not None:
        return problem.objective(outputs, part.y).sum()
    if problem.loss == "cross_entropy" and part.y.ndim == 2:
        return sequence_losses(outputs, part.y).sum()
    if problem.loss == "cross_entropy":
        return F.cross_entropy(outputs, part.y, reduction="sum")
    return F.mse_loss(outputs.view_as(part.y), part.y, reduction="sum") * len(part) / part.y.numel()


def _opened(problem: Problem) -> nn.Module:
    """Return a copy of the module in evaluation mode, in which all that a row holds but other buffers are parameters
    that have a gradient.
    """
    module = copy.deepcopy(problem.module).eval()
    known = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
    for norm in module.modules():
        if type(norm) in known and isinstance(norm.running_mean, Tensor):
            for name in ("running_mean", "running_var"):
                statistic = norm.get_buffer(name)
                delattr(norm, name)
                norm.register_parameter(name, nn.Parameter(statistic))
            vars(norm)["forward"] = partial(_normalised, norm)  # PyTorch's own has no gradient in them
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(name in problem.layout.names)
    return module


def _normalised(norm: nn.Module, x: Tensor) -> Tensor:
    """Return what a batch norm puts out in evaluation mode."""
    entries: dict[str, Any] = dict(norm.named_parameters())
    scale = torch.rsqrt(entries["running_var"] + norm.eps)
    shift = -entries["running_mean"] * scale
    if "weight" in entries:
        scale, shift = scale * entries["weight"], shift * entries["weight"] + entries["bias"]
    shape = (1, -1, *[1] * (x.ndim - 2))
    whole: Tensor = x * scale.view(shape) + shift.view(shape)
    return whole
