"""Several convolutional models at once: their first convolutions as one wide one, the later ones grouped.

This pays where a first convolution is too narrow to fill the vector units (GreedyFed's has 8 channels), since
the samples are then read and unfolded once for all models. Wide models gain nothing and are run one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from hanse.learning.job import Problem
from hanse.learning.program import Spec, read_layers
from hanse.learning.scoring import forward

__all__ = ["ConvStack", "read_convolutions"]

_NARROW = 16  # output channels of the first convolution up to which several models together are faster


@dataclass(frozen=True)
class ConvStack:
    """A module of convolutions, pooling and ReLU up to a Flatten, and stackable layers after it."""

    convolutions: Sequence[tuple[str, nn.Module]]
    dense: Sequence[Spec]

    def forward(self, blocks: dict[str, Tensor], x: Tensor) -> Tensor:
        """Return the outputs ``[C, k, m]`` of C models, tensors ``[C, *shape]`` by name, on images ``[m, c, h, w]``."""
        value, first, models = x.contiguous(memory_format=torch.channels_last), True, 0
        for name, layer in self.convolutions:
            if isinstance(layer, nn.Conv2d):
                weight = blocks[f"{name}.weight"]
                models = weight.shape[0]
                bias = blocks[f"{name}.bias"].reshape(-1) if layer.bias is not None else None
                flat = weight.reshape(-1, *weight.shape[2:]).contiguous(memory_format=torch.channels_last)
                groups = 1 if first else models
                value = F.conv2d(value, flat, bias, layer.stride, layer.padding, layer.dilation, groups)
                first = False
            elif isinstance(layer, nn.ReLU):
                value = value.relu_()
            else:
                value = layer(value)
        # [m, C channels, h, w] -> [C, m, features]
        value = value.reshape(len(x), models, -1).transpose(0, 1)
        return forward(self.dense, blocks, value)


def read_convolutions(problem: Problem) -> ConvStack | None:
    """Return the stack of an ``nn.Sequential`` that begins with a narrow convolution, or None if it is not one."""
    module = problem.module
    if not isinstance(module, nn.Sequential):
        return None
    layers = list(module.named_children())
    flattens = [i for i, (_, layer) in enumerate(layers) if type(layer) is nn.Flatten]
    if len(flattens) != 1 or not layers or type(layers[0][1]) is not nn.Conv2d:
        return None
    if layers[0][1].out_channels > _NARROW:
        return None
    for _, layer in layers[: flattens[0]]:
        if type(layer) is nn.Conv2d:
            if layer.groups != 1 or layer.padding_mode != "zeros":
                return None
        elif type(layer) not in (nn.ReLU, nn.MaxPool2d, nn.AvgPool2d):
            return None
    dense = read_layers(layers[flattens[0] + 1 :])
    if not dense or dense[0].kind != "linear":
        return None
    return ConvStack(layers[: flattens[0]], dense)
