"""Ranks players who judge one another, in such a way that nobody's judgements affect its own place."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hanse.games.game import Floats


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
