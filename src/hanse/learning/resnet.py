"""The residual network for small images (He et al. 2016, section 4.2): 6n + 2 layers, here 20. The model "resnet20"."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from hanse.base.errors import UserError


def image_size(name: str, input_shape: tuple[int, ...]) -> tuple[int, int, int]:
    """Return the channels, height and width of the input images of model ``name``.

    Raises:
        UserError: samples of this shape are not images.
    """
    if len(input_shape) != 3:
        raise UserError(f"model.name: {name!r}: takes images [channels, height, width]; samples have {input_shape}")
    channels, height, width = input_shape
    return channels, height, width


class Block(nn.Module):
    """Two 3x3 convolutions with batch norm, added to their input.

    Some blocks halve the image and add channels. There, the shortcut takes every second pixel and pads channels with
    zeros on both sides (option A of the paper, without parameters).
    """

    def __init__(self, inputs: int, channels: int) -> None:
        super().__init__()
        self.stride, self.added = (1 if inputs == channels else 2), channels - inputs
        self.conv1 = nn.Conv2d(inputs, channels, 3, self.stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        """Take images ``[n, inputs, h, w]`` to ``[n, channels, h / stride, w / stride]``."""
        out = self.norm2(self.conv2(torch.relu(self.norm1(self.conv1(x)))))
        if self.added:
            x = F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.added // 2, self.added // 2))
        return torch.relu(out + x)


def resnet20(input_shape: tuple[int, ...], num_classes: int | None) -> nn.Module:
    """Return the residual network of 20 layers, which iPFL's public code trains on PACS.

    It has a 3x3 convolution of 16 channels, three stages of three blocks with 16, 32 and 64 channels, the mean over the
    image, and one linear layer. Weights are Kaiming-normal. For ten classes of RGB images these are 269,722 parameters.

    Args:
        input_shape: ``(channels, height, width)``.
        num_classes: the number of outputs. None: one.

    Raises:
        UserError: samples of this shape are not images.
    """
    depth, _, _ = image_size("resnet20", input_shape)
    stages = [Block(i, o) for i, o in ((16, 16), (16, 16), (16, 16), (16, 32), (32, 32), (32, 32), (32, 64))]
    module = nn.Sequential(
        nn.Conv2d(depth, 16, 3, 1, 1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        *stages,
        Block(64, 64),
        Block(64, 64),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, num_classes or 1),
    )
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(layer.weight)
    return module
