"""The least core: payments from which every coalition gains as little as possible by leaving.

:meth:`hanse.games.mixture.MixtureFit.least_core` prepares the coalitions and calls :func:`least_core`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hanse.games.coalitions import Floats


@dataclass(frozen=True, eq=False)
class LeastCore:
    """The least core of a game: the payments that divide ``v(N) - v({})`` with the smallest deficit.

    Attributes:
        values: ``[n]``, the payments. If several payments have the smallest deficit, it is those with the smallest sum
            of squares.
        standard_errors: ``[n]``, by the jackknife over the surrogates' folds. 0: exact. NaN: there are no sampled
            pairs.
        deficit: the largest gain of any coalition from leaving. Above 0 only if the core is empty.
    """

    values: Floats
    standard_errors: Floats
    deficit: float


def least_core(members: NDArray[np.bool_], worth: Floats, total: float) -> tuple[Floats, float]:
    """Return the least core of a game with given coalitions, and its deficit.

    The payments sum to ``total`` and minimise the largest ``worth - members @ payments``. Among all such payments, they
    have the smallest sum of squares.

    Args:
        members: ``[c, n]`` bool, the coalitions, without the empty one and without all players.
        worth: ``[c]``, how much more each coalition is worth than the empty one.
        total: how much more all players are worth than the empty coalition.

    Returns:
        The payments ``[n]``, and the deficit.

    Raises:
        RuntimeError: the linear programme was not solved.
    """
    from scipy.linalg import null_space
    from scipy.optimize import linprog, nnls

    n = members.shape[1]
    if not len(members):
        return np.full(n, total / n), 0.0
    unit = float(max(np.abs(worth).max(), abs(total))) or 1.0
    sums, apart = members.astype(np.float64), (worth - members.sum(axis=1) * total / n) / unit
    # payments are total / n + unit y, where y sums to 0: min e with sums y + e >= apart
    first = linprog(
        np.append(np.zeros(n), 1.0),
        A_ub=-np.column_stack([sums, np.ones(len(sums))]),
        b_ub=-apart,
        A_eq=np.append(np.ones(n), 0.0)[None],
        b_eq=[0.0],
        bounds=[(None, None)] * (n + 1),
    )
    if first.status != 0:
        raise RuntimeError(f"the least core's linear programme was not solved: {first.message}")
    deficit, ends = float(np.asarray(first.fun)), np.asarray(first.x)
    # min |z| with y = basis z: least distance programming (Lawson, Hanson 1974, ch. 23)
    basis = null_space(np.ones((1, n)))
    inner, bound = sums @ basis, apart - deficit - 1e-9
    dual, _ = nnls(np.vstack([inner.T, bound]), np.append(np.zeros(n - 1), 1.0))
    rest = np.append(inner.T @ dual, bound @ dual - 1.0)
    z = -rest[:-1] / rest[-1] if abs(rest[-1]) > 0 else basis.T @ ends[:n]
    return total / n + unit * (basis @ z), deficit * unit
