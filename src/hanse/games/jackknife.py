"""Estimates the error of values due to the draw of the validation samples.

The validation set is itself a sample. Another draw gives other values, however exactly the game is solved. The
delete-one-block jackknife (Tukey 1958; Efron, Stein 1981) leaves out one block of samples after another, and estimates
this error from the resulting values.
"""

from __future__ import annotations

import numpy as np

from hanse.games.coalitions import Floats

SURE = 1.96
"""Standard errors to each side of a 95 % interval, here and wherever one is drawn, printed or paid by."""


def jackknife_errors(without_block: Floats) -> Floats:
    """Return the standard errors ``[...]`` of values, from the values without each block of samples.

    Args:
        without_block: ``[..., B]``, the values with each of B blocks of about equal size left out.

    Returns:
        ``[...]``; NaN if there are fewer than two blocks, or if a value is NaN.
    """
    blocks = without_block.shape[-1]
    if blocks < 2:
        return np.full(without_block.shape[:-1], np.nan)
    apart = without_block - without_block.mean(axis=-1, keepdims=True)
    return np.asarray(np.sqrt((blocks - 1) / blocks * (apart**2).sum(axis=-1)))


def interval_errors(without_block: Floats) -> Floats:
    """Return :func:`jackknife_errors`, scaled so that 1.96 errors to either side are a 95 % interval.

    With B blocks the factor comes from Student's t with B - 1 degrees of freedom. For 20 blocks, this makes the
    interval 2.09 plain errors to either side.
    """
    blocks = without_block.shape[-1]
    return (t_factor(blocks - 1) if blocks > 1 else 1.0) * jackknife_errors(without_block)


def t_factor(freedom: float) -> float:
    """Return what a standard error with so many degrees of freedom is multiplied by, so that 1.96 of the product to
    either side are a 95 % interval by Student's t.

    Examples:
        >>> round(t_factor(1), 1), round(t_factor(19), 2)
        (6.5, 1.07)
    """
    from scipy.special import stdtrit  # late: it takes longer to import than a short run

    return float(stdtrit(freedom, 0.975)) / SURE
