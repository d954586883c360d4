"""iPFL's gain and threshold as numbers, for whole arrays at once and for sizes and prices of any scale.

A client with n samples and eagerness K gains ``g(x) = sqrt(K/n) - sqrt(K/(n+x))`` from x imported samples (eq. 2).
Computed as they are written, such differences lose all digits if x is small compared with n. The functions here do not.
:mod:`hanse.games.market` builds the market on them.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]

_NEWTON = 8  # steps: quadratic from a start that is never below the root; 5 reach the last bit


def marginal(before: ArrayLike, added: ArrayLike, eagerness: ArrayLike) -> Floats:
    """Return the gain from ``added`` samples for a client that already has ``before`` samples.

    This is ``sqrt(K / before) - sqrt(K / (before + added))``, computed without cancellation. It is 0 where K or
    ``added`` is 0, even if ``before`` is also 0. Arrays are broadcast.
    """
    y, x, K = np.broadcast_arrays(*(np.asarray(a, np.float64) for a in (before, added, eagerness)))
    with np.errstate(divide="ignore", invalid="ignore"):
        # 1/low - 1/high = (high - low) / (low high) = x / (low high (low + high)): no difference is left
        low, high = np.sqrt(y), np.sqrt(y + x)
        found = np.sqrt(K) * (x / (low * high * (low + high)))
        found = np.where(np.isinf(x), np.sqrt(K / y), found)
    return np.where((K > 0) & (x > 0), found, 0.0)


def totals_without(own: Floats, held: Floats) -> Floats:
    """Return each buyer's number of samples without one of its imports at a time, ``[b, m]``.

    Args:
        own: ``[b]``, each buyer's own samples.
        held: ``[b, m]``, how many samples each buyer imports from each seller; 0 for none.
    """
    without = np.asarray((own + held.sum(axis=1))[:, None] - held)
    # the largest import is left out by summing the others: subtracting it could leave nothing of them
    line, top = np.arange(len(held)), held.argmax(axis=1)
    rest = held.copy()
    rest[line, top] = 0.0
    without[line, top] = own + rest.sum(axis=1)
    return without


def gain(n_own: ArrayLike, n_imported: ArrayLike, eagerness: ArrayLike) -> Floats:
    """Return the collaboration gain ``g(x) = sqrt(K/n) - sqrt(K/(n+x))``, iPFL eq. (2). Arrays are broadcast.

    Args:
        n_own: n, the samples that a client has.
        n_imported: x, the samples that the client imports.
        eagerness: K, how much more data are worth to the client, in samples.

    Raises:
        ValueError: a number is negative or NaN, or a client has eagerness but no samples, so that its gain would be
            infinite (docs/papers.md, I13).

    Examples:
        >>> float(gain(n_own=100, n_imported=300, eagerness=1e4))  # 10 - 5
        5.0
    """
    own, imported, K = (np.asarray(a, np.float64) for a in (n_own, n_imported, eagerness))
    for name, values in (("n_own", own), ("n_imported", imported), ("eagerness", K)):
        if not (values >= 0).all():
            raise ValueError(f"{name}: {np.asarray(values).tolist()}: must be numbers, at least 0")
    if bool(((own == 0) & (K > 0)).any()):
        raise ValueError("n_own: 0 with eagerness above 0: the gain is not defined; at least 1 sample")
    return marginal(own, imported, K)  # iPFL eq. (2)


def threshold_total(n_other: ArrayLike, eagerness: ArrayLike, price: ArrayLike) -> Floats:
    """Return ``n_i + n^Th``: the total, including the buyer's own samples, above which a model no longer pays off.

    See :func:`threshold`. With ``y = n_j (1 + v^2)`` the equation ``sqrt(K/(y - n_j)) - sqrt(K/y) = r`` becomes
    ``v w (w + v) = b``, where ``w = sqrt(1 + v^2)`` and ``b = sqrt(K / n_j) / r``. The left side is an increasing
    convex function of v alone, and is solved by Newton's method from above.

    Args:
        n_other: n_j, the samples behind the offered model.
        eagerness: K of the buyer.
        price: r, what the model must gain. Arrays are broadcast.
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
    """Return the threshold T of iPFL's Algorithm 2 for a model, in samples.

    The model is imported while the total of imports, including this model, is below T, which solves ``g(T) - g(T - n_j)
    = r``. T is infinite if the price is 0 or less, and 0 if the model is never imported (docs/papers.md, I3). T may be
    negative, since it is only compared with totals (I4). Arrays are broadcast.

    Args:
        n_own: n_i, the buyer's own samples.
        n_other: n_j, the samples behind the offered model.
        eagerness: K of the buyer.
        price: ``r = c_j + lambda n_j/n_i d_ij``, what the model must bring (I1).

    Raises:
        ValueError: negative sizes or eagerness, or NaN.
    """
    own, n, K, r = np.broadcast_arrays(*(np.asarray(a, np.float64) for a in (n_own, n_other, eagerness, price)))
    for name, values in (("n_own", own), ("n_other", n), ("eagerness", K)):
        if not (values >= 0).all():
            raise ValueError(f"{name}: {np.asarray(values).tolist()}: must be numbers, at least 0")
    if np.isnan(r).any():
        raise ValueError("price: nan: must be a number or infinity")
    total = threshold_total(n, K, r)
    return np.where(total == 0, 0.0, total - own)
