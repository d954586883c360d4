"""How a client answers questions about its own data: gradients, confusion counts, which model fits a sample best."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from hanse.base.streams import stream
from hanse.core.port import Confused, Confusion, Counted, Derived, Gradient, Nearest
from hanse.data.samples import Samples
from hanse.learning.job import Engine, Problem
from hanse.learning.sequences import IGNORED, sequence_losses

__all__ = ["Share", "confusion", "gradient", "nearest"]

_CHUNK = 1024  # samples at a time


@dataclass(frozen=True)
class Share:
    """One client's samples of one share: ``index [n]`` into ``pool``."""

    pool: Samples
    index: Tensor

    def limited(self, limit: int | None, seed: int, round: int, client: int) -> Share:
        """Return at most ``limit`` of them: the first of a random order keyed by round and client."""
        if limit is None or len(self.index) <= limit:
            return self
        order = stream(seed, "score", round=round, client=client).permutation(len(self.index))
        keep = torch.from_numpy(np.sort(order[:limit])).to(self.index.device)
        return Share(self.pool, self.index[keep])

    def chunks(self) -> Sequence[Samples]:
        """Return the samples in chunks."""
        return [self.pool.take(part) for part in torch.split(self.index, _CHUNK)]


def _copied(problem: Problem, models: Tensor) -> nn.Module:
    """Return a copy of the module, in evaluation mode, where ``models`` are."""
    return copy.deepcopy(problem.module).to(device=models.device, dtype=models.dtype).eval()


def gradient(task: Gradient, share: Share, problem: Problem) -> Derived:
    """Return the mean loss gradient ``[C, P]`` of each model on a share, in evaluation mode; zero for buffers and for
    frozen parameters.
    """
    rows = torch.zeros_like(task.models)
    module = _copied(problem, task.models)
    trained = {name: p for name, p in module.named_parameters() if p.requires_grad}
    for c, model in enumerate(task.models):
        problem.layout.load(module, model)
        summed = problem.layout.unflatten(rows[c])
        for part in share.chunks():
            outputs = module(part.x)
            if problem.loss == "cross_entropy" and part.y.ndim == 2:
                loss = sequence_losses(outputs, part.y).sum()
            elif problem.loss == "cross_entropy":
                loss = functional.cross_entropy(outputs, part.y, reduction="sum")
            else:
                loss = (
                    functional.mse_loss(outputs.view_as(part.y), part.y, reduction="sum") * len(part) / part.y.numel()
                )
            found = torch.autograd.grad(loss, list(trained.values()), materialize_grads=True)
            for name, slope in zip(trained, found, strict=True):
                summed[name] += slope / max(1, len(share.index))
    return Derived(task.name, rows, len(share.index))


def confusion(task: Confusion, share: Share, problem: Problem, num_classes: int) -> Confused:
    """Return how often each class (row) was taken for each class (column), ``[C, classes, classes]`` int64."""
    counts = torch.zeros((task.models.shape[0], num_classes, num_classes), dtype=torch.int64)
    module = _copied(problem, task.models)
    with torch.no_grad():
        for c, model in enumerate(task.models):
            problem.layout.load(module, model)
            for part in share.chunks():
                guess = module(part.x).argmax(dim=1)
                counted = part.y != IGNORED  # at every position of a text
                flat = torch.bincount((part.y * num_classes + guess)[counted], minlength=num_classes**2)
                counts[c] += flat.view(num_classes, num_classes).cpu()
    return Confused(task.name, counts)


def nearest(task: Nearest, share: Share, engine: Engine) -> Counted:
    """Return on how many samples of a share each model of the task has the lowest loss, ``[C]`` int64.

    Ties go to the first model; a loss that is not a number is the highest.
    """
    models = task.models.shape[0]
    if not len(share.index):
        return Counted(task.name, torch.zeros(models, dtype=torch.int64))
    # each sample is a list of its own, so that all of them go through the models in one pass
    found = engine.score_each(task.models, share.pool, torch.split(share.index, 1))
    losses = np.nan_to_num(np.stack([s.loss for s in found]), nan=np.inf, posinf=np.inf)
    counts = np.bincount(losses.argmin(axis=1), minlength=models)
    return Counted(task.name, torch.from_numpy(counts.astype(np.int64)))
