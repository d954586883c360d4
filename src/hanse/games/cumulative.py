"""Cumulative values: a client's values of all rounds so far as one (GreedyFed Alg. 1, lines 8, 12, 13)."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hanse.games.coalitions import Floats


def update_cumulative(
    cumulative: ArrayLike,
    counts: ArrayLike,
    clients: ArrayLike,
    values: ArrayLike,
    *,
    alpha: float | None = None,
    first_as_is: bool = True,
) -> tuple[Floats, NDArray[np.int64]]:
    """Fold one round's values into every client's cumulative value: GreedyFed Alg. 1, lines 8, 12 and 13.

    Line 13 leaves open what the exponential average starts from. By default a client's first value is taken
    as it is; with ``first_as_is=False`` the average starts from 0, as printed, which shrinks first values by
    ``1 - alpha``.

    Args:
        cumulative: ``[N]``, the values so far (0 where there is none).
        counts: ``[N]``, how many rounds each client was valued in.
        clients: ``[S]``, the different clients valued this round.
        values: ``[S]``, their values.
        alpha: None for the mean (line 12), or the weight of the past in the exponential average (line 13), in
            [0, 1).
        first_as_is: what the exponential average starts from; the mean needs no start.

    Returns:
        The new ``cumulative [N]`` and ``counts [N]``; the inputs are not changed.

    Raises:
        ValueError: shapes that do not fit, a client outside ``0..N-1`` or given twice, a value that is not
            finite, or ``alpha`` not allowed.
    """
    if alpha is not None and not 0 <= alpha < 1:
        raise ValueError(f"alpha is {alpha}; allowed: None (the mean) or 0 <= alpha < 1")
    total, seen, who, new = _checked(cumulative, counts, clients, values)
    first = seen[who] == 0
    seen[who] += 1  # line 8
    if alpha is None:
        total[who] = ((seen[who] - 1) * total[who] + new) / seen[who]  # line 12
    else:
        averaged = alpha * total[who] + (1 - alpha) * new  # line 13
        total[who] = np.where(first & first_as_is, new, averaged)
    return total, seen


def _checked(
    cumulative: ArrayLike, counts: ArrayLike, clients: ArrayLike, values: ArrayLike
) -> tuple[Floats, NDArray[np.int64], NDArray[np.int64], Floats]:
    total = np.array(cumulative, dtype=np.float64)
    seen = np.array(counts, dtype=np.int64)
    who = np.array(clients, dtype=np.int64)
    new = np.array(values, dtype=np.float64)
    if total.ndim != 1 or seen.shape != total.shape:
        raise ValueError(f"cumulative has shape {total.shape} and counts {seen.shape}; allowed: (N,) for both")
    if who.ndim != 1 or new.shape != who.shape:
        raise ValueError(f"clients has shape {who.shape} and values {new.shape}; allowed: (S,) for both")
    outside = who[(who < 0) | (who >= total.size)]
    if outside.size:
        raise ValueError(f"clients contains {outside[0]}; allowed: 0..{total.size - 1}")
    if np.unique(who).size != who.size:
        raise ValueError(f"clients are {who.tolist()}; allowed: each client once a round, its seats added up")
    if not np.isfinite(new).all():
        client = int(who[~np.isfinite(new)][0])
        raise ValueError(f"the value of client {client} is not finite; allowed: finite numbers")
    return total, seen, who, new
