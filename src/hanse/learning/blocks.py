"""Leaves out blocks of samples, one at a time, to estimate the error that the random draw of samples causes.

:func:`sample_blocks` splits the samples, a scorer computes the figure without each block, and :func:`errors_without`
turns these into standard errors by the jackknife (:mod:`hanse.games.jackknife`).
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
    """Divide ``n`` samples into 20 blocks, or into n if there are fewer than 20 samples, and return their positions.

    Blocks are drawn at random, and in the same way for the same n. The order of the samples therefore does not matter.
    For fewer than two samples there are none.
    """
    order = torch.from_numpy(stream(0, "validation blocks").permutation(n))
    count = min(BLOCKS, n) if n > 1 else 0
    return [order[b::count] for b in range(count)]


def errors_without(without: NDArray[np.float64], count: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the standard errors of n figures, ``[n]``; NaN where they are not known.

    Args:
        without: ``[n, 20]``, each figure with one block of its samples left out. With m < 20 samples only the first m
            blocks count.
        count: int64 ``[n]``, how many samples each figure has.
    """
    errors = np.full(len(without), np.nan)
    for place, (own, samples) in enumerate(zip(without, count.tolist(), strict=True)):
        errors[place] = jackknife_errors(own[: min(BLOCKS, samples)])
    return errors
