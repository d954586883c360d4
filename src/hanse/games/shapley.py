"""All estimators of players' values in a cooperative game.

A game is a utility: a function from a coalition, a ``frozenset`` of players ``0..n-1``, to its worth. If it also has a
method ``many(coalitions)``, coalitions are evaluated in batches. Results are numpy float64, ``[n]``.

=========================  =====================================  ======================================
:func:`exact`              Shapley value                          all ``2**n`` coalitions
:func:`banzhaf`            Banzhaf value                          all ``2**n`` coalitions
:func:`leave_one_out`      ``v(N) - v(N without i)``              ``n + 1`` coalitions
:func:`monte_carlo`        Shapley value, sampled                 ``n`` per permutation
:func:`gtg`                GTG-Shapley (GreedyFed Alg. 2)         ``n`` per permutation, or fewer
:func:`mixture`            Shapley value of a game of averages    10 per player, or a given number
:func:`first_order`        PI-FL eqs (1) and (2)                  one gradient
=========================  =====================================  ======================================

Use :func:`exact` for up to about ten players. For more, use :func:`mixture` if a coalition's model is the weighted mean
of its members' updates, else :func:`gtg` or :func:`monte_carlo`.

Semivalues, such as the Shapley and the Banzhaf value, are sums of a player's marginal contributions ``v(S + i) -
v(S)``, and differ only in the weight of a coalition of ``|S|`` others. :func:`table` evaluates a utility for all
coalitions, and the functions ``..._from_table`` compute values from the result. Tables are indexed by bit mask:
``v[mask]`` is the worth of ``{i : bit i of mask is set}``.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hanse.games.first_order import first_order
from hanse.games.game import Coalition, Floats, Memo, Utility, evaluate, subsets, whole_number
from hanse.games.gtg import gtg
from hanse.games.mixture import mixture
from hanse.games.sampling import Estimate, monte_carlo, monte_carlo_result

__all__ = ["banzhaf", "exact", "first_order", "gtg", "leave_one_out", "mixture", "monte_carlo", "monte_carlo_result"]
__all__ += ["banzhaf_from_table", "semivalue_from_table", "shapley_from_table", "table"]
__all__ += ["Coalition", "Estimate", "Memo", "Utility"]  # what these take and return

MAX_EXACT_PLAYERS = 20


def table(value: Utility, n: int) -> Floats:
    """Return the worth of all ``2**n`` coalitions by bit mask, ``[2**n]``.

    Args:
        value: the utility. Its ``many``, if it has one, is called with up to 4096 coalitions at a time.
        n: number of players, at most ``MAX_EXACT_PLAYERS``.

    Raises:
        ValueError: ``n`` is out of range, or a worth is not finite.
    """
    n = whole_number("n", n)
    if n > MAX_EXACT_PLAYERS:
        raise ValueError(
            f"n is {n}: exact values would take 2**{n} = {2**n:,} evaluations; "
            f"allowed: at most {MAX_EXACT_PLAYERS} players, beyond that use monte_carlo or gtg"
        )
    return np.concatenate([evaluate(value, chunk) for chunk in subsets(n)])


def semivalue_from_table(v: ArrayLike, weights: ArrayLike) -> Floats:
    """Return ``sum over S without i of weights[|S|] * (v(S + i) - v(S))`` for every player ``i``, ``[n]``.

    Args:
        v: ``[2**n]``, the worths by bit mask.
        weights: ``[n]``, the weight of one coalition of 0, 1, .., n-1 others.

    Raises:
        ValueError: the table's length is not a power of two of at least 2, the table is not finite, or ``weights`` is
            not ``[n]``.
    """
    worth = _checked(v)
    n = worth.size.bit_length() - 1
    by_size = np.asarray(weights, dtype=np.float64)
    if by_size.shape != (n,):
        raise ValueError(f"weights has shape {by_size.shape}; allowed: ({n},), one for each number of others")
    others = np.zeros(1, dtype=np.int64)
    for _ in range(n - 1):
        others = np.concatenate([others, others + 1])  # the number of bits set in 0..2**(n-1)-1
    coefficient: NDArray[np.float64] = by_size[others]
    result = np.empty(n)
    for i in range(n):
        # Axis 1 is bit i; deleting it leaves the masks of the other players in order.
        pairs = worth.reshape(-1, 2, 2**i)
        result[i] = np.sum(coefficient * (pairs[:, 1] - pairs[:, 0]).ravel())
    return result


def shapley_from_table(v: ArrayLike) -> Floats:
    """Return the Shapley value ``[n]`` of the table ``v [2**n]``. Raises ValueError as :func:`semivalue_from_table`."""
    n = _checked(v).size.bit_length() - 1
    # GreedyFed sec. II, PI-FL eq. (18): |S|! (n-1-|S|)! / n! = 1 / (n C(n-1, |S|))
    return semivalue_from_table(v, [1 / (n * math.comb(n - 1, size)) for size in range(n)])


def banzhaf_from_table(v: ArrayLike) -> Floats:
    """Return the Banzhaf value ``[n]`` of the table ``v [2**n]``.

    Raises:
        ValueError: the length is not ``2**n`` with n at least 1, or a worth is not finite.
    """
    n = _checked(v).size.bit_length() - 1
    return semivalue_from_table(v, np.full(n, 0.5 ** (n - 1)))


def exact(value: Utility, n: int) -> Floats:
    """Return the exact Shapley value of a game of ``n`` players, ``[n]`` (GreedyFed sec. II; PI-FL eq. 18).

    All ``2**n`` coalitions are evaluated, including the empty one. The values sum to ``v(N) - v({})``.

    Args:
        value: the utility: a function from a ``frozenset`` of players ``0..n-1`` to its worth.
        n: number of players, at most ``MAX_EXACT_PLAYERS``.

    Raises:
        ValueError: ``n`` is out of range, or a worth is not finite.

    Examples:
        >>> def pairs(coalition):  # player 0 has a left glove, players 1 and 2 have a right one each
        ...     return float(0 in coalition and len(coalition) > 1)  # only a pair is worth something
        >>> exact(pairs, 3).round(3).tolist()
        [0.667, 0.167, 0.167]
    """
    return shapley_from_table(table(value, n))


def banzhaf(value: Utility, n: int) -> Floats:
    """Return the exact Banzhaf value, ``[n]``: the plain mean of a player's marginal contributions.

    All ``2**n`` coalitions are evaluated. The values do not sum to ``v(N) - v({})`` in general. Arguments and errors
    are those of :func:`exact`.

    Examples:
        >>> def pairs(coalition):  # player 0 has a left glove, players 1 and 2 have a right one each
        ...     return float(0 in coalition and len(coalition) > 1)
        >>> banzhaf(pairs, 3).tolist()  # sums to 1.25, though there is only 1 to share out
        [0.75, 0.25, 0.25]
    """
    return banzhaf_from_table(table(value, n))


def leave_one_out(value: Utility, n: int) -> Floats:
    """Return how much is lost without each player, ``v(N) - v(N without i)``, ``[n]``.

    This needs only ``n + 1`` evaluations, but undervalues players that can replace each other.

    Args:
        value: the utility, as for :func:`exact`.
        n: number of players; any number.

    Raises:
        ValueError: ``n < 1``, or a worth is not finite.

    Examples:
        >>> def pairs(coalition):  # player 0 has a left glove, players 1 and 2 have a right one each
        ...     return float(0 in coalition and len(coalition) > 1)
        >>> leave_one_out(pairs, 3).tolist()  # without player 1 there is still player 2
        [1.0, 0.0, 0.0]
    """
    n = whole_number("n", n)
    everyone: Coalition = frozenset(range(n))
    worth = evaluate(value, [everyone, *(everyone - {i} for i in range(n))])
    return np.asarray(worth[0] - worth[1:])


def _checked(v: ArrayLike) -> Floats:
    """Return a table as float64. Raises ValueError unless it has ``2**n`` entries, all finite."""
    worth = np.asarray(v, dtype=np.float64)
    if worth.ndim != 1 or worth.size < 2 or worth.size & (worth.size - 1):
        raise ValueError(f"the table has shape {worth.shape}; allowed: (2**n,) for n players, n at least 1")
    if not np.isfinite(worth).all():
        mask = int(np.flatnonzero(~np.isfinite(worth))[0])
        raise ValueError(f"the table's entry {mask} is {worth[mask]}; allowed: finite numbers")
    return worth
