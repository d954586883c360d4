"""Samples in blocks that are left out one at a time: how much a figure owes to the draw of its samples.

:func:`sample_blocks` cuts the samples, whoever scores finds the figure without each block, and :func:`errors_without`
makes standard errors of these by the jackknife (:mod:`hanse.games.jackknife`).
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hanse.base.streams import stream
from hanse.games.jackknife import jackknife_errors

BLOCKS = 20
"""How many blocks the samples are cut into."""


def sample_blocks(n: int) -> list[Tensor]:
    """Return the positions of ``n`` samples in 20 blocks, or in n blocks of one sample if there are fewer than 20.

    Blocks are drawn, always the same ones for the same n, so that the order of the samples plays no role. Of fewer than
    two samples there are none.
    """
    order = torch.from_numpy(stream(0, "validation blocks").permutation(n))
    count = min(BLOCKS, n) if n > 1 else 0
    return [order[b::count] for b in range(count)]


def errors_without(without: NDArray[np.float64], count: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the standard errors of n figures, ``[n]``; NaN where it is not known.

    Args:
        without: ``[n, 20]``, each figure with one block of its samples left out at a time. Of fewer than 20 samples
            only the first that many blocks count.
        count: int64 ``[n]``, how many samples each figure has.
    """
    found = np.full(len(without), np.nan)
    for place, (own, samples) in enumerate(zip(without, count.tolist(), strict=True)):
        found[place] = jackknife_errors(own[: min(BLOCKS, samples)])
    return found
