"""Samples in blocks that are left out one at a time: what a figure owes to the draw of its samples."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hanse.base.streams import stream
from hanse.games.jackknife import jackknife_errors

BLOCKS = 20  # of samples, for the error that comes from their draw


def sample_blocks(n: int) -> list[Tensor]:
    """Return the positions of ``n`` samples in 20 blocks, or one a sample if there are fewer; the blocks are drawn, so
    that the order of the samples plays no role. None of fewer than two samples.
    """
    order = torch.from_numpy(stream(0, "validation blocks").permutation(n))
    count = min(BLOCKS, n) if n > 1 else 0
    return [order[b::count] for b in range(count)]


def errors_without(without: NDArray[np.float64], count: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the standard errors ``[n]`` of figures from what they are ``without`` each block ``[n, 20]`` of their
    ``count [n]`` samples; of fewer than 20 samples the first that many blocks count. NaN: not known.
    """
    found = np.full(len(without), np.nan)
    for place, (own, samples) in enumerate(zip(without, count.tolist(), strict=True)):
        found[place] = jackknife_errors(own[: min(BLOCKS, samples)])
    return found
