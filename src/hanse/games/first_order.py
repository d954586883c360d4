"""PI-FL's first-order estimate of every client's Shapley value, from one gradient of the test loss.

No coalition is evaluated: the loss around the aggregate is replaced by its tangent.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

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
