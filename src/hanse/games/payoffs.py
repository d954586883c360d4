"""Payoff matrices ``Phi [k, k]`` of GTFLAT's game among a round's updates.

``Phi[i, j]`` is player i's estimate of model j. Larger is better, and the diagonal is 0. GTFLAT uses minus the distance
between the models, eq. (10) (:func:`payoff_matrix`). It allows other estimates, such as :func:`cosine_payoff`,
:func:`layer_payoff` and :func:`loss_payoff`. :func:`scale_free` makes any of them independent of units. The game itself
is in :mod:`hanse.games.evolution`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hanse.games.gram import as_models, distances

Floats = NDArray[np.float64]


def payoff_matrix(params: Any, eps: float = 0.0) -> Floats:
    """Return GTFLAT's payoffs ``-|theta_i - theta_j|``, eq. (10), ``[k, k]``.

    Args:
        params: ``[k, P]``, one model per row. All columns count (docs/papers.md, T7), so leave buffers out.
        eps: a number added to each entry of a difference, as ``torch.nn.PairwiseDistance`` does with 1e-6.

    Raises:
        ValueError: a wrong shape, or a number that is not finite.
    """
    lengths = distances(params)
    if eps:
        # |d + eps 1|^2 = |d|^2 + 2 eps sum(d) + P eps^2
        rows = as_models(params)
        sums = (rows.double() - rows[:1].double()).sum(dim=1).cpu().numpy()
        shifted = lengths**2 + 2 * eps * (sums[:, None] - sums[None, :]) + rows.shape[1] * eps**2
        lengths = np.sqrt(np.maximum(shifted, 0.0))
        np.fill_diagonal(lengths, 0.0)
    return np.asarray(0.0 - lengths)


def loss_payoff(losses: Any) -> Floats:
    """Return ``-losses`` with a zero diagonal, ``[k, k]``.

    Args:
        losses: ``[k, k]``, where ``losses[i, j]`` is a validation loss of model j for player i, for example the loss of
            the mean of models i and j. The diagonal is not used.

    Raises:
        ValueError: a wrong shape, or a number off the diagonal that is not finite.
    """
    square = as_square(losses, "losses")
    off = ~np.eye(len(square), dtype=bool)
    if not np.isfinite(square[off]).all():
        raise ValueError("losses have numbers that are not finite; allowed: finite numbers")
    return np.where(off, -square, 0.0)


def mean_distance(payoff: Any) -> float:
    """Return the scale of the game: the mean size of the payoffs off the diagonal. It is 0 for one player.

    For :func:`payoff_matrix` this is the mean distance between models.
    """
    square = as_square(payoff, "payoff")
    k = len(square)
    if k < 2:
        return 0.0
    off = np.abs(square)[~np.eye(k, dtype=bool)]
    largest = float(off.max())
    return largest * float((off / largest).mean()) if largest > 0 else 0.0


def scale_free(payoff: Any) -> Floats:
    """Return payoffs ``[k, k]`` divided by their mean size, which makes the equilibrium independent of the unit of
    distance. If all are 0 (equal models), they stay 0.
    """
    square = as_square(payoff, "payoff")
    mean = mean_distance(square)
    return np.asarray(square / mean) if mean > 0 else square.copy()


def as_square(array: Any, name: str) -> Floats:
    """Return a square matrix ``[k, k]`` in float64. Raises ValueError, with its ``name``, for another shape."""
    square = np.asarray(array.detach().cpu() if isinstance(array, torch.Tensor) else array, dtype=np.float64)
    if square.ndim != 2 or square.shape[0] != square.shape[1] or square.shape[0] < 1:
        raise ValueError(f"{name} has shape {square.shape}; allowed: (k, k), k at least 1")
    return square
