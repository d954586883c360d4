"""Cumulative values: each client's worth over all rounds so far, as one number (GreedyFed Alg. 1).

A selector that prefers clients of large value calls :func:`update_cumulative` after each round.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hanse.games.game import Floats


def update_cumulative(
    cumulative: ArrayLike,
    counts: ArrayLike,
    clients: ArrayLike,
    values: ArrayLike,
    *,
    alpha: float | None = None,
    first_as_is: bool = True,
) -> tuple[Floats, NDArray[np.int64]]:
    """Include one round's values in every client's cumulative value: GreedyFed Alg. 1, lines 8, 12 and 13.

    The paper does not say what the exponential average of line 13 starts from. By default the average starts from a
    client's first value. With ``first_as_is=False`` the average starts from 0, which shrinks first values by ``1 -
    alpha``.

    Args:
        cumulative: ``[N]``, the values so far (0 for clients without one).
        counts: ``[N]``, the number of rounds in which each client was valued.
        clients: ``[S]``, the clients valued this round, each once.
        values: ``[S]``, the values of these clients.
        alpha: how the past counts. None: the mean over rounds (line 12). A number, at least 0 and below 1: its weight
            in the exponential average (line 13).
        first_as_is: whether the exponential average starts from the first value. No effect on the mean.

    Returns:
        The new ``cumulative [N]`` and ``counts [N]``; the inputs are not changed.

    Raises:
        ValueError: shapes are inconsistent, a client is outside ``0..N-1`` or given twice, a value is not finite, or
            ``alpha`` is invalid.

    Examples:
        >>> total, counts = update_cumulative([0.0, 0.0], [0, 0], clients=[1], values=[0.4])
        >>> total, counts = update_cumulative(total, counts, clients=[0, 1], values=[0.1, 0.2])
        >>> total.round(3).tolist(), counts.tolist()  # client 1: the mean of 0.4 and 0.2
        ([0.1, 0.3], [1, 2])
    """
    if alpha is not None and not 0 <= alpha < 1:
        raise ValueError(f"alpha is {alpha}; allowed: None (the mean) or 0 <= alpha < 1")
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
    first = seen[who] == 0  # before this round counts
    seen[who] += 1  # line 8
    if alpha is None:
        total[who] = ((seen[who] - 1) * total[who] + new) / seen[who]  # line 12
    else:
        averaged = alpha * total[who] + (1 - alpha) * new  # line 13
        total[who] = np.where(first & first_as_is, new, averaged)
    return total, seen
