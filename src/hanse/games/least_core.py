"""The least core: payments from which every coalition gains least by leaving."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hanse.games.coalitions import Floats


@dataclass(frozen=True, eq=False)
class LeastCore:
    """Payments from which every coalition gains least by leaving, of all that share out ``v(N) - v({})``.

    Attributes:
        values: ``[n]``, the payments; where several have the least deficit, those with the least sum of squares.
        standard_errors: ``[n]``, by the jackknife over the surrogates' folds; 0 if exact, NaN without sampled pairs.
        deficit: what the coalition that gains most by leaving gains; not above 0 if the core is not empty.
    """

    values: Floats
    standard_errors: Floats
    deficit: float


def least_core(members: NDArray[np.bool_], worth: Floats, total: float) -> tuple[Floats, float]:
    """Return payments ``[n]`` that sum to ``total`` and the least deficit ``max(worth - members @ payments)``; of all
    such payments those with the least sum of squares.

    Args:
        members: ``[c, n]``, neither the empty coalition nor all players.
        worth: ``[c]``, over that of the empty coalition.
        total: over that of the empty coalition.
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
        raise RuntimeError(f"the least core's linear programme has no solution: {first.message}")
    deficit, ends = float(np.asarray(first.fun)), np.asarray(first.x)
    # min |z| with y = basis z: least distance programming (Lawson, Hanson 1974, ch. 23)
    basis = null_space(np.ones((1, n)))
    inner, bound = sums @ basis, apart - deficit - 1e-9
    dual, _ = nnls(np.vstack([inner.T, bound]), np.append(np.zeros(n - 1), 1.0))
    rest = np.append(inner.T @ dual, bound @ dual - 1.0)
    z = -rest[:-1] / rest[-1] if abs(rest[-1]) > 0 else basis.T @ ends[:n]
    return total / n + unit * (basis @ z), deficit * unit
