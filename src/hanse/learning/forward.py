"""Outputs of many stacked models at once, feature-major: ``[C, k, m]`` of C models on m samples.

The models share the first layer's product (one ``[C h, d] x [d, m]`` product), and what follows the layers, a
log-softmax or a maximum over classes, vectorises over samples.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hanse.learning.products import product
from hanse.learning.program import Spec

__all__ = ["forward", "through"]


def forward(specs: Sequence[Spec], blocks: dict[str, Tensor], x: Tensor) -> Tensor:
    """Return the outputs ``[C, k, m]`` of C models on samples ``x``, ``[m, d]`` for all or ``[C, m, d]`` for each.

    ``blocks`` are the models' tensors by name, each ``[C, *shape]``; batch norm uses its running statistics.
    """
    return through(specs, blocks, x.transpose(-1, -2))  # a view: the product reads the samples as they lie


def through(specs: Sequence[Spec], blocks: dict[str, Tensor], value: Tensor) -> Tensor:
    """Run layers on feature-major values, ``[d, m]`` for all models or ``[C, d, m]``, which may be overwritten."""
    for spec in specs:
        if spec.kind == "linear":
            value = _linear(spec, blocks, value)
        elif spec.kind == "batch_norm":
            value = _normalise(spec, blocks, value)
        else:
            value = value.relu_() if spec.kind == "relu" else value.tanh_()
    return value


def _linear(spec: Spec, blocks: dict[str, Tensor], value: Tensor) -> Tensor:
    weight = blocks[f"{spec.name}.weight"]
    bias = blocks[f"{spec.name}.bias"].unsqueeze(2) if spec.bias else None
    if value.ndim == 3:
        return torch.bmm(weight, value) if bias is None else torch.baddbmm(bias, weight, value)
    models, outputs = weight.shape[:2]
    if models == 1:  # the samples as the left factor split better over threads; the transposed view costs nothing
        flat = product(value.t(), weight[0]).t().unsqueeze(0)
    else:
        flat = product(weight.reshape(models * outputs, -1), value.t()).view(models, outputs, -1)
    return flat if bias is None else flat.add_(bias)


def _normalise(spec: Spec, blocks: dict[str, Tensor], value: Tensor) -> Tensor:
    name = spec.name
    scale = blocks[f"{name}.weight"] * torch.rsqrt(blocks[f"{name}.running_var"] + spec.eps)
    shift = blocks[f"{name}.bias"] - blocks[f"{name}.running_mean"] * scale
    return torch.addcmul(shift.unsqueeze(2), value, scale.unsqueeze(2))
