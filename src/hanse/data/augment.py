"""Augmentation: random small changes to images each time they are used in training.

``[data] augment`` chooses the kind. :class:`Augment` belongs to the data
(:attr:`hanse.data.federated.FederatedData.augment`), and :mod:`hanse.federation.local` applies it to the batches of
each training.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from numpy.typing import NDArray
from torch import Tensor

AugmentName = Literal["crop-flip", "resized-crop-flip"]
PADDING = 4  # pixels on each side
AREA, RATIO, TRIES = (0.75, 1.0), (3 / 4, 4 / 3), 10


@dataclass(frozen=True)
class Augment:
    """Changes images ``[n, C, H, W]``.

    Attributes:
        name: the kind of change, one of the names of ``[data] augment``.
        black: ``[C]``, the value of a black pixel in each channel, which padding uses. Empty: 0.
    """

    name: AugmentName
    black: tuple[float, ...] = ()

    def __call__(self, x: Tensor, draw: np.random.Generator) -> Tensor:
        """Return changed copies of images ``x [n, C, H, W]``.

        What is drawn from ``draw`` depends on the number of images and their size alone, not on what they show.
        """
        black = torch.tensor(self.black or (0.0,) * x.shape[1], dtype=x.dtype)
        return _AUGMENTS[self.name](x, black, draw)


def crop_flip(x: Tensor, black: Tensor, draw: np.random.Generator) -> Tensor:
    """Return random crops of the padded images, mirrored with probability 1/2.

    Padding is 4 black pixels on each side, and crops have the image's size, as in iPFL's public code for Fashion-MNIST.

    Args:
        x: the images, ``[n, C, H, W]``.
        black: the value of a black pixel, ``[C]``.
        draw: the random generator.
    """
    n, channels, height, width = x.shape
    top, left = draw.integers(0, 2 * PADDING + 1, size=(2, n))
    columns = left[:, None] + np.where(draw.random(n)[:, None] < 0.5, np.arange(width)[::-1], np.arange(width))
    rows = top[:, None] + np.arange(height)
    padded = black.view(1, -1, 1, 1).repeat(n, 1, height + 2 * PADDING, width + 2 * PADDING)
    padded[:, :, PADDING:-PADDING, PADDING:-PADDING] = x
    image, channel = torch.arange(n).view(-1, 1, 1, 1), torch.arange(channels).view(1, -1, 1, 1)
    return padded[image, channel, torch.from_numpy(rows)[:, None, :, None], torch.from_numpy(columns)[:, None, None]]


def resized_crop_flip(x: Tensor, black: Tensor, draw: np.random.Generator) -> Tensor:
    """Return a random box of each image, enlarged to the image's size (bilinear) and mirrored with probability 1/2.

    A box has at least 3/4 of the image's area and an aspect ratio of 3:4 to 4:3. A box that does not fit is redrawn up
    to ten times; after that, the whole image is used. iPFL's public code does the same on PACS, with pictures of the
    original size; here the pictures are already smaller.

    Args:
        x: images, ``[n, channels, size, size]``.
        black: not used here; other kinds of augmentation pad images with it.
        draw: a numpy generator.
    """
    n, _, height, width = x.shape
    tall, wide = _boxes(n, height, width, draw)
    top, left = (np.floor(draw.random(n) * (room + 1)) for room in (height - tall, width - wide))
    mirrored = np.where(draw.random(n) < 0.5, -1.0, 1.0)
    # from [-1, 1] of the box to [-1, 1] of the image: scale and middle, in each direction
    theta = np.zeros((n, 2, 3))
    theta[:, 0, 0], theta[:, 0, 2] = mirrored * wide / width, (2 * left + wide) / width - 1
    theta[:, 1, 1], theta[:, 1, 2] = tall / height, (2 * top + tall) / height - 1
    grid = F.affine_grid(torch.from_numpy(theta).to(x.dtype), list(x.shape), align_corners=False)
    return F.grid_sample(x, grid, mode="bilinear", padding_mode="border", align_corners=False)


def _boxes(
    n: int, height: int, width: int, draw: np.random.Generator
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return heights and widths ``[n]`` of boxes that fit into the image."""
    area = height * width * draw.uniform(*AREA, size=(TRIES, n))
    ratio = np.exp(draw.uniform(math.log(RATIO[0]), math.log(RATIO[1]), size=(TRIES, n)))
    tall, wide = np.round(np.sqrt(area / ratio)), np.round(np.sqrt(area * ratio))
    fits = (tall <= height) & (wide <= width)
    first, some = (fits.argmax(0), np.arange(n)), fits.any(0)
    return np.where(some, tall[first], height), np.where(some, wide[first], width)


_AUGMENTS: Mapping[str, Callable[[Tensor, Tensor, np.random.Generator], Tensor]] = {
    "crop-flip": crop_flip,
    "resized-crop-flip": resized_crop_flip,
}
