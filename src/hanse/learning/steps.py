"""Optimiser steps on lists of tensors: plain SGD with momentum, and AdamW."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from hanse.core.recipe import Recipe

__all__ = ["SGD", "AdamW", "Step", "stepper"]

Step = Callable[[list[Tensor], list[Tensor], float], None]
"""Called with parameters, gradients (which it may overwrite) and the learning rate; steps in place."""


@dataclass
class SGD:
    """``v = momentum v + g``, ``theta -= lr v``, as ``torch.optim.SGD`` has it."""

    momentum: float
    velocity: list[Tensor] | None = None

    def __call__(self, parameters: list[Tensor], gradients: list[Tensor], lr: float) -> None:
        """Take one step."""
        if self.momentum:
            if self.velocity is None:
                self.velocity = gradients
            else:
                torch._foreach_mul_(self.velocity, self.momentum)
                torch._foreach_add_(self.velocity, gradients)
            gradients = self.velocity
        torch._foreach_add_(parameters, gradients, alpha=-lr)


@dataclass
class AdamW:
    """AdamW (Loshchilov and Hutter 2019) as ``torch.optim.AdamW`` has it; moments start from zero in every round."""

    weight_decay: float
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    steps: int = 0
    first: list[Tensor] = field(default_factory=list)
    second: list[Tensor] = field(default_factory=list)

    def __call__(self, parameters: list[Tensor], gradients: list[Tensor], lr: float) -> None:
        """Take one step."""
        if not self.steps:
            self.first = [torch.zeros_like(p) for p in parameters]
            self.second = [torch.zeros_like(p) for p in parameters]
        self.steps += 1
        (b1, b2), t = self.betas, self.steps
        if self.weight_decay:
            torch._foreach_mul_(parameters, 1 - lr * self.weight_decay)
        torch._foreach_lerp_(self.first, gradients, 1 - b1)
        torch._foreach_mul_(self.second, b2)
        torch._foreach_addcmul_(self.second, gradients, gradients, 1 - b2)
        size = torch._foreach_sqrt(self.second)
        torch._foreach_div_(size, (1 - b2**t) ** 0.5)
        torch._foreach_add_(size, self.eps)
        torch._foreach_addcdiv_(parameters, self.first, size, -lr / (1 - b1**t))


def stepper(recipe: Recipe) -> Step:
    """Return a fresh optimiser of a recipe, for one seat's training."""
    if recipe.optimizer == "adamw":
        return AdamW(recipe.weight_decay)
    return SGD(recipe.momentum)
