"""PI-FL's first-order estimate of every client's Shapley value, from one gradient of the test loss.

No coalition is evaluated: the loss around the aggregate is replaced by its tangent.

Where the players' own gradients stand in for the test loss, :func:`impartial_places` ranks them in such a way that
nobody's judgements affect its own place.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hanse.base.pytorch import torch
from hanse.games.game import Floats


def first_order(gradient: Any, params: Any, weights: Any, normalized: bool = True) -> Floats:
    """Return PI-FL's first-order Shapley values, ``[S]``: Alg. 2 with eq. (2) or, unless ``normalized``, eq. (1).

    Eq. (2) sums to 0. It ranks clients, but does not divide a gain among them. Eq. (1) depends on the origin of the
    parameters (it sums to ``-gradient . W_M``) and ranks worse. Arrays may be numpy, torch or lists; sums are made in
    float64.

    Args:
        gradient: ``[P]``, the mean gradient of the test loss at the aggregate ``W_M = sum_s weights[s] params[s]``.
        params: ``[S, P]``, the clients' models.
        weights: ``[S]``, the aggregation weights lambda, at least 0; for eq. (2) they must sum to 1.
        normalized: whether to use eq. (2) rather than eq. (1).

    Raises:
        ValueError: inconsistent shapes, numbers that are not finite, or invalid weights.

    Examples:
        >>> gradient = [-1.0, 0.0]  # the test loss falls in the direction of the first parameter
        >>> first_order(gradient, [[2.0, 5.0], [0.0, 9.0]], weights=[0.5, 0.5]).tolist()
        [0.5, -0.5]
    """
    grad, models, share = (_tensor(a) for a in (gradient, params, weights))
    if models.ndim != 2 or models.shape[0] < 1 or grad.shape != models.shape[1:]:
        raise ValueError(
            f"gradient has shape {tuple(grad.shape)}, params {tuple(models.shape)}; allowed: (P,) and (S, P)"
        )
    if share.shape != models.shape[:1]:
        raise ValueError(f"weights has shape {tuple(share.shape)}; allowed: ({models.shape[0]},), one a client")
    lam = share.double().cpu().numpy()
    if not (np.isfinite(lam).all() and (lam >= 0).all()):
        raise ValueError(f"weights are {lam.tolist()}; allowed: finite numbers, at least 0")
    if normalized and abs(lam.sum() - 1) > 1e-5:
        raise ValueError(f"weights sum to {lam.sum()}; allowed for the normalized form, PI-FL eq. (2): 1")
    slope = grad.double().to(models.device)
    # A row at a time, so that only one model is ever held in float64.
    dots = torch.stack([row.double() @ slope for row in models]).cpu().numpy()
    if not np.isfinite(dots).all():
        client = int(np.flatnonzero(~np.isfinite(dots))[0])
        raise ValueError(f"gradient . params[{client}] is {dots[client]}; allowed: finite numbers")
    if not normalized:
        return np.asarray(-lam * dots)  # PI-FL eq. (1)
    return np.asarray(-lam * (dots - lam @ dots / lam.sum()))  # PI-FL eq. (2), with W_M of eq. (15)


def _tensor(array: Any) -> torch.Tensor:
    """Return an array as a tensor; one that is a tensor already keeps its type, so that it is not copied whole."""
    return array.detach() if isinstance(array, torch.Tensor) else torch.as_tensor(np.asarray(array, dtype=np.float64))


def impartial_places(values: Any, half: Any, ahead: bool) -> Floats:
    """Return the places of players in two halves that judge each other: ``[m]``, from -1/2 to 1/2, with sum 0.

    Each half is ranked separately, and the two rankings are merged by relative rank. A player's place depends only on
    its rank in its own half (which the other half judged), the sizes of the halves, and ``ahead``. Its own judgements
    therefore do not affect it. The halves are those of the partition mechanism (Alon, Fischer, Procaccia, Tennenholtz
    2011, "Sum of us: strategyproof selection from the selectors").

    Args:
        values: ``[m]``, each player's value to its judges. If two are equal, the later player is ahead. Values of
            different halves are never compared.
        half: ``[m]`` bool, the half that each player is in.
        ahead: the half that is ahead at equal relative ranks.

    Examples:
        There are two halves of two players. The second players of both halves are behind both first players:

        >>> impartial_places([9.0, 8.0, 0.1, 0.2], [True, True, False, False], ahead=True).tolist()
        [0.375, -0.125, -0.375, 0.125]
    """
    worth, side = np.asarray(values, np.float64), np.asarray(half, bool)
    relative = np.zeros(len(worth))
    for one in (True, False):
        here = np.flatnonzero(side == one)
        relative[here[np.argsort(worth[here], kind="stable")]] = (np.arange(len(here)) + 0.5) / max(1, len(here))
    rank: NDArray[np.int64] = np.argsort(np.lexsort((side == ahead, relative)))
    return np.asarray((rank + 0.5) / max(1, len(worth)) - 0.5)
