"""Leaves out blocks of samples, one at a time, to estimate the error that the random draw of samples causes.

:func:`sample_blocks` splits the samples, a scorer computes the figure without each block, and :func:`errors_without`
turns these into standard errors by the jackknife (:mod:`hanse.games.jackknife`).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hanse.base.streams import stream
from hanse.data.units import numbered
from hanse.games.jackknife import jackknife_errors, t_factor

if TYPE_CHECKING:
    from torch import Tensor

UNITS = "units"
"""The name of the number of units among the metrics of a test, where its samples have units."""
BLOCKS = 20
"""How many blocks the samples are cut into."""


def sample_blocks(n: int, units: Tensor | None = None) -> list[Tensor]:
    """Divide ``n`` samples into 20 blocks, or into n if there are fewer than 20 samples, and return their positions.

    Blocks are drawn at random, and in the same way for the same n. The order of the samples therefore does not matter.
    For fewer than two samples there are none.

    Args:
        n: how many samples there are.
        units: ``[n]``, the unit of each sample (:class:`hanse.data.samples.Samples`). Blocks are then of whole units,
            so the jackknife over them is that of a cluster sample.
    """
    import torch  # late: reports read this module, and read without torch

    if units is not None:
        number = numbered(units.numpy())
        whole = sample_blocks(count_units(units))
        return [torch.from_numpy(np.flatnonzero(np.isin(number, some.numpy()))) for some in whole]
    order = torch.from_numpy(stream(0, "validation blocks").permutation(n))
    count = min(BLOCKS, n) if n > 1 else 0
    return [order[b::count] for b in range(count)]


def count_units(units: Tensor) -> int:
    """Return how many different units there are."""
    return len(np.unique(units.numpy()))


def unit_error(values: NDArray[np.float64], units: Tensor) -> float:
    """Return the standard error of the mean of samples' values over draws of their units, by the linearised ratio of
    the units' totals and sizes; NaN for a single unit.

    It is enlarged so that 1.96 errors to either side are a 95 % interval by Student's t.

    Args:
        values: ``[n]``.
        units: ``[n]``, the unit of each.
    """
    off = np.bincount(numbered(units.numpy()), weights=values - values.mean())
    count = len(off)
    if count < 2:
        return math.nan
    return t_factor(count - 1) * math.sqrt(count / (count - 1) * float((off**2).sum())) / len(values)


def errors_without(without: NDArray[np.float64], count: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the standard errors of n figures, ``[n]``; NaN where they are not known.

    Args:
        without: ``[n, 20]``, each figure with one block of its samples left out. With m < 20 samples only the first m
            blocks count.
        count: int64 ``[n]``, how many samples, or units if samples have some, each figure has.
    """
    errors = np.full(len(without), np.nan)
    for place, (own, samples) in enumerate(zip(without, count.tolist(), strict=True)):
        errors[place] = jackknife_errors(own[: min(BLOCKS, samples)])
    return errors
