"""iPFL's gain and threshold as numbers: stable for sizes and prices of any scale, for whole arrays at once."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]

_NEWTON = 8  # steps: quadratic from a start that is never below the root; 5 reach the last bit


def marginal(before: ArrayLike, added: ArrayLike, eagerness: ArrayLike) -> Floats:
    """Return ``sqrt(K / before) - sqrt(K / (before + added))``: what ``added`` samples bring to who has ``before``.

    Without the cancellation of the difference; 0 where K or ``added`` is 0, also where ``before`` is 0.
    """
    y, x, K = np.broadcast_arrays(*(np.asarray(a, np.float64) for a in (before, added, eagerness)))
    with np.errstate(divide="ignore", invalid="ignore"):
        low, high = np.sqrt(y), np.sqrt(y + x)
        found = np.sqrt(K) * (x / (low * high * (low + high)))
        found = np.where(np.isinf(x), np.sqrt(K / y), found)
    return np.where((K > 0) & (x > 0), found, 0.0)


def totals_without(own: Floats, held: Floats) -> Floats:
    """Return each buyer's samples without one import at a time, from ``own [b]`` and imported ``held [b, m]``."""
    without = np.asarray((own + held.sum(axis=1))[:, None] - held)
    # the largest import is left out by summing the others: subtracting it could leave nothing of them
    line, top = np.arange(len(held)), held.argmax(axis=1)
    rest = held.copy()
    rest[line, top] = 0.0
    without[line, top] = own + rest.sum(axis=1)
    return without


def gain(n_own: ArrayLike, n_imported: ArrayLike, eagerness: ArrayLike) -> Floats:
    """Return the collaboration gain ``g(x) = sqrt(K/n) - sqrt(K/(n+x))`` of ``n_imported`` samples, iPFL eq. (2).

    Arrays are broadcast against each other. Raises ValueError for negative numbers, NaN, or an eager client without
    samples (its gain would be infinite; papers.md I13).
    """
    own, imported, K = (np.asarray(a, np.float64) for a in (n_own, n_imported, eagerness))
    for name, values in (("n_own", own), ("n_imported", imported), ("eagerness", K)):
        if not (values >= 0).all():
            raise ValueError(f"{name}: {np.asarray(values).tolist()}: must be numbers, at least 0")
    if bool(((own == 0) & (K > 0)).any()):
        raise ValueError("n_own: 0 with eagerness above 0: the gain is not defined; at least 1 sample")
    return marginal(own, imported, K)  # iPFL eq. (2)


def threshold_total(n_other: ArrayLike, eagerness: ArrayLike, price: ArrayLike) -> Floats:
    """Return ``n_i + n^Th``, the total *with* the own samples that a buyer stops at (see :func:`threshold`).

    With ``y = n_j (1 + v^2)`` the equation ``sqrt(K/(y - n_j)) - sqrt(K/y) = r`` becomes ``v w (w + v) = b`` for
    ``w = sqrt(1 + v^2)`` and ``b = sqrt(K / n_j) / r``: one increasing convex function of one number, solved by Newton
    from above.
    """
    n, K, r = np.broadcast_arrays(*(np.asarray(a, np.float64) for a in (n_other, eagerness, price)))
    never = ~((K > 0) & (n > 0)) | (r == np.inf)
    solve = ~never & (r > 0) & np.isfinite(n)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        b = np.where(solve, np.sqrt(K) / np.sqrt(np.where(n > 0, n, 1.0)) / np.where(solve, r, 1.0), 1.0)
        b = np.minimum(b, 1e200)  # beyond it the threshold is larger than any sum of sizes
        v = np.minimum(b, np.cbrt(b / 2))
        for _ in range(_NEWTON):
            w = np.sqrt(1 + v * v)
            step = (v * w * (w + v) - b) / (w * (w + v) + v * v / w * (w + v) + v * (v + w))
            v = v - step
            if not (np.abs(step) > 4e-16 * v).any():
                break
        found = n * (1 + v * v)
    # papers.md I3: a price of 0 or less is always worth it; nobody buys at infinity, or without eagerness
    return np.where(never, 0.0, np.where(r <= 0, np.inf, np.where(np.isinf(n), np.inf, found)))


def threshold(n_own: ArrayLike, n_other: ArrayLike, eagerness: ArrayLike, price: ArrayLike) -> Floats:
    """Return the threshold ``T`` of iPFL's Algorithm 2: ``g(T) - g(T - n_j) = r``, the imports to stop at.

    ``price`` is ``r = c_j + lambda n_j/n_i d`` (papers.md I1); infinity where it is 0 or less, 0 where the model is
    never imported (I3). Arrays are broadcast. T may be negative: it is compared with totals (I4).
    Raises ValueError for negative sizes or eagerness, or NaN.
    """
    own, n, K, r = np.broadcast_arrays(*(np.asarray(a, np.float64) for a in (n_own, n_other, eagerness, price)))
    for name, values in (("n_own", own), ("n_other", n), ("eagerness", K)):
        if not (values >= 0).all():
            raise ValueError(f"{name}: {np.asarray(values).tolist()}: must be numbers, at least 0")
    if np.isnan(r).any():
        raise ValueError("price: nan: must be a number or infinity")
    total = threshold_total(n, K, r)
    return np.where(total == 0, 0.0, total - own)
