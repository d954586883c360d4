"""Augmentation: random small changes to images each time they are used in training.

``[data] augment`` chooses the kind. :class:`Augment` belongs to the data
(:attr:`hanse.data.federated.FederatedData.augment`), and :mod:`hanse.federation.local` applies it to the batches of
each training.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from hanse.base.pytorch import Tensor, torch

AugmentName = Literal["crop-flip"]
PADDING = 4  # pixels on each side


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
        """Return random crops of the padded images ``x [n, C, H, W]``, mirrored with probability 1/2.

        Padding is 4 black pixels on each side, and crops have the image's size, as in iPFL's public code for
        Fashion-MNIST. What is drawn from ``draw`` depends on the number of images and their size alone, not on what
        they show.
        """
        n, channels, height, width = x.shape
        black = torch.tensor(self.black or (0.0,) * channels, dtype=x.dtype)
        top, left = draw.integers(0, 2 * PADDING + 1, size=(2, n))
        columns = left[:, None] + np.where(draw.random(n)[:, None] < 0.5, np.arange(width)[::-1], np.arange(width))
        rows = top[:, None] + np.arange(height)
        padded = black.view(1, -1, 1, 1).repeat(n, 1, height + 2 * PADDING, width + 2 * PADDING)
        padded[:, :, PADDING:-PADDING, PADDING:-PADDING] = x
        image, channel = torch.arange(n).view(-1, 1, 1, 1), torch.arange(channels).view(1, -1, 1, 1)
        return padded[
            image, channel, torch.from_numpy(rows)[:, None, :, None], torch.from_numpy(columns)[:, None, None]
        ]
