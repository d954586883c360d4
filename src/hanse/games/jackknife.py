"""Estimates the error of values due to the draw of the validation samples.

The validation set is itself a sample. Another draw gives other values, however exactly the game is solved. The
delete-one-block jackknife (Tukey 1958; Efron, Stein 1981) leaves out one block of samples after another, and estimates
this error from the resulting values.
"""

from __future__ import annotations

import numpy as np

from hanse.games.game import Floats

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


FEW_SPLITS = 5
"""Splits from which on their spread says how much a mean over them would vary."""


def split_error(figures: Floats, test: float) -> float:
    """Return the standard error of the mean of a figure over random splits of one set of data, for other such data.

    The splits share most of their rows, so the variance over them is multiplied by 1 / J + test / (1 - test) instead of
    1 / J (Nadeau, Bengio 2003, the corrected resampled t test). The error is enlarged so that 1.96 of it to either side
    are a 95 % interval by Student's t with J - 1 degrees of freedom.

    Args:
        figures: ``[J]``, the figure of each split, at least two.
        test: the share of the rows on which each split tests.

    Examples:
        >>> round(split_error(np.array([0.1, 0.2, 0.3, 0.2, 0.2]), 0.5), 4)
        0.1097
    """
    count = len(figures)
    return t_factor(count - 1) * float(np.sqrt((1 / count + test / (1 - test)) * figures.var(ddof=1)))


# the .975 quantiles of Student's t with 1 to 30 degrees of freedom, as scipy.special.stdtrit has them
_QUANTILES = (
    12.706204736174694, 4.302652729749462, 3.1824463052837078, 2.7764451051977934, 2.5705818356363146,
    2.4469118511449786, 2.364624251592784, 2.306004135204166, 2.262157162798205, 2.228138851986274,
    2.200985160091639, 2.1788128296672284, 2.1603686564627913, 2.144786687917804, 2.131449545559776,
    2.1199052992212546, 2.1098155778333156, 2.1009220402410382, 2.0930240544083087, 2.085963447265864,
    2.0796138447276795, 2.0738730679040254, 2.0686576104190486, 2.0638985616280245, 2.0595385527532972,
    2.0555294386428735, 2.0518305164802846, 2.0484071417952454, 2.045229642132703, 2.0422724563012378,
)  # fmt: skip


def t_quantile(freedom: float) -> float:
    """Return the .975 quantile of Student's t with so many degrees of freedom, to 1e-6; NaN if there are none.

    Examples:
        >>> round(t_quantile(1), 2), round(t_quantile(19), 2)
        (12.71, 2.09)
    """
    if freedom in range(1, len(_QUANTILES) + 1):
        return _QUANTILES[int(freedom) - 1]
    if freedom > len(_QUANTILES):  # the quantile's series in 1 / freedom
        z, v = 1.959963984540054, 4 * freedom
        terms = z**3 + z, (5 * z**5 + 16 * z**3 + 3 * z) / 6, (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 6
        return z + sum(term / v**power for power, term in enumerate(terms, 1))
    from scipy.special import stdtrit  # late: it takes longer to import than a short run

    return float(stdtrit(freedom, 0.975))


def t_factor(freedom: float) -> float:
    """Return what a standard error with so many degrees of freedom is multiplied by, so that 1.96 of the product to
    either side are a 95 % interval by Student's t.

    Examples:
        >>> round(t_factor(1), 1), round(t_factor(19), 2)
        (6.5, 1.07)
    """
    return t_quantile(freedom) / SURE
