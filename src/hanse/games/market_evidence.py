"""Estimates from others' losses how many samples a model was trained on.

This is evidence against sizes that were inflated by noisy copies.

Slightly noisy copies of a member's samples pass every count (:mod:`hanse.data.commitment`), but a model that was
trained on them is no better for others. Each member scores the other members' models of their first round, which were
trained alone. A robust line through the claimed sizes relates loss to size. For each member, the line is fitted to all
other members. Nobody's claim is therefore evidence for itself. The fit also shows how closely sizes follow losses, and
the cap allows for that error.
"""

from __future__ import annotations

import warnings

import numpy as np
from numpy.typing import ArrayLike

from hanse.games.market import Floats

__all__ = ["LEAST", "MOST", "evidence", "size_caps"]

LEAST, MOST = 4, 500  # fewer others than these say nothing; of more clients each would have too many models to score
ALIKE = 0.1  # where the others' log-sizes deviate by less, their losses cannot show what more samples would do


def evidence(losses: ArrayLike, sizes: ArrayLike) -> tuple[Floats, Floats]:
    """Return the numbers of samples ``[m]`` that members' losses suggest, and the errors ``[m]`` of their logarithms.

    Losses are compared within each judge, because a judge's samples may be hard or easy. A model's score is the median,
    over judges, of its log-loss minus the judge's own median. The line of log-sizes over these scores is that of Theil
    and Sen (1968), made to never rise. It is right if fewer than 29 % of the others lie. Its error is the median
    absolute residual.

    Args:
        losses: ``[judges, m]``, the loss of each member's model on a judge's samples, above 0; NaN where it is not
            known. A model whose loss is infinite for most judges counts as having no samples.
        sizes: ``[m]``, the numbers of samples that members claim. 0 or less: no claim.

    Returns:
        Estimates, and the standard deviations of their logarithms. They are NaN for three kinds of members: those whose
            loss is not known, those that have fewer than four others to compare with, and those whose others all have
            about the same size.

    Examples:
        >>> sizes = np.array([100.0, 200.0, 400.0, 800.0, 1600.0, 300.0, 100.0])
        >>> losses = np.tile(sizes**-0.5, (3, 1)) * [[1.0], [2.0], [5.0]]  # harder and easier judges
        >>> claimed = np.r_[sizes[:6], 1000.0]  # the last says ten times what it has
        >>> np.round(evidence(losses, claimed)[0], 6).tolist()
        [100.0, 200.0, 400.0, 800.0, 1600.0, 300.0, 100.0]
    """
    place, claimed = _places(np.asarray(losses, np.float64)), np.asarray(sizes, np.float64)
    m = len(claimed)
    log = np.log(np.where(claimed > 0, claimed, np.nan))
    known = np.isfinite(place) & np.isfinite(log)
    with np.errstate(divide="ignore", invalid="ignore"):
        slopes = (log[:, None] - log[None, :]) / (place[:, None] - place[None, :])
    slopes[~np.isfinite(slopes)] = np.nan
    found, error = np.full((2, m), np.nan)
    for i in np.flatnonzero(~np.isnan(place)).tolist():
        others = np.flatnonzero(known & (np.arange(m) != i))
        if len(others) < LEAST or _deviation(log[others]) < ALIKE:
            continue
        between = slopes[np.ix_(others, others)]
        between = between[np.isfinite(between)]
        slope = min(0.0, float(np.median(between))) if len(between) else 0.0
        level = float(np.median(log[others] - slope * place[others]))
        found[i] = np.exp(level + slope * place[i]) if np.isfinite(place[i]) else 0.0
        # residuals of few from a fitted line are too small
        error[i] = _deviation(log[others] - slope * place[others]) * len(others) / (len(others) - 2)
    return found, error


def size_caps(losses: ArrayLike, sizes: ArrayLike, z: float) -> Floats:
    """Return the most samples of each member that count, ``[m]``.

    This is the evidence times ``e^(z sigma)``, or infinite without evidence.

    Args:
        losses: as for :func:`evidence`.
        sizes: as for :func:`evidence`.
        z: the leeway in standard errors.
    """
    found, error = evidence(losses, sizes)
    return np.where(np.isfinite(found), found * np.exp(z * error), np.inf)


def _deviation(values: Floats) -> float:
    """Return the standard deviation of a normal with the median absolute deviation of these values."""
    return 1.4826 * float(np.median(np.abs(values - np.median(values))))


def _places(losses: Floats) -> Floats:
    """Return the median over judges of each model's log-loss, less the judge's own median, ``[m]``; NaN: no judge."""
    with warnings.catch_warnings(), np.errstate(invalid="ignore"):
        warnings.simplefilter("ignore", RuntimeWarning)  # of judges who have scored nobody
        logs = np.log(np.where(losses > 0, losses, np.nan))
        own = np.nanmedian(np.where(np.isfinite(logs), logs, np.nan), axis=1, keepdims=True)
        return np.asarray(np.nanmedian(logs - own, axis=0))
