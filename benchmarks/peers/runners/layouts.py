"""PyTorch's weights in the layouts of other libraries; NumPy only."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def turned(weights: Sequence[np.ndarray], shapes: Sequence[tuple[int, ...]]) -> list[np.ndarray]:
    """Return PyTorch's weights and biases in haiku's layouts, of these ``shapes``: matrices ``[in, out]``, kernels
    ``[height, width, in, out]``, and the first matrix after them for images ``[height, width, channels]``.
    """
    found = []
    channels = 0  # of the last convolution, whose pixels a linear layer after it reads in another order
    for weight, shape in zip(weights, shapes, strict=True):
        if weight.ndim == 4:
            channels, weight = weight.shape[0], weight.transpose(2, 3, 1, 0)
        elif weight.ndim == 2:
            if channels:
                side = round((weight.shape[1] / channels) ** 0.5)
                weight = weight.reshape(-1, channels, side, side).transpose(0, 2, 3, 1).reshape(len(weight), -1)
                channels = 0
            weight = weight.T
        assert weight.shape == shape
        found.append(np.ascontiguousarray(weight))
    return found
