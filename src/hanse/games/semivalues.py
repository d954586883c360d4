"""Semivalues, and the exact values of small games from the table of all coalitions.

The Shapley and the Banzhaf value are semivalues: sums of a player's marginal contributions ``v(S + i) -
v(S)`` that differ in one thing only, the weight of a coalition of ``|S|`` others. Tables are indexed by bit
mask: ``v[mask]`` is the worth of ``{i : bit i of mask is set}``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hanse.games.coalitions import Coalition, Floats, Utility, evaluate, players, subsets

MAX_EXACT_PLAYERS = 20


@dataclass(frozen=True, eq=False)
class Semivalue:
    """A semivalue as the distribution of the chance ``p`` with which each other player is there.

    A player's value is ``sum_S w(|S|) (v(S + i) - v(S))`` with ``w(s)`` the mean of ``p^s (1 - p)^(n - 1 - s)``.

    Attributes:
        name: what it is called.
        nodes: ``[k]``, quadrature nodes in (0, 1), exact for polynomials of degree ``n - 1``.
        masses: ``[k]``, their weights, which sum to 1.
        players: for how many players it is; None: for any number.
    """

    name: str
    nodes: Floats
    masses: Floats
    players: int | None = None

    @classmethod
    def shapley(cls, n: int) -> Semivalue:
        """Return the Shapley value for ``n`` players: ``p`` is uniform on (0, 1)."""
        x, w = np.polynomial.legendre.leggauss(n // 2 + 1)
        return cls("shapley", (x + 1) / 2, w / 2, n)

    @classmethod
    def banzhaf(cls) -> Semivalue:
        """Return the Banzhaf value: every other player is there with chance 1/2."""
        return cls("banzhaf", np.array([0.5]), np.array([1.0]))

    @classmethod
    def beta_shapley(cls, n: int, alpha: float, beta: float) -> Semivalue:
        """Return beta-Shapley for ``n`` players (Kwon, Zou 2022): ``p`` has the distribution ``Beta(beta, alpha)``, so
        that ``alpha > beta`` stresses small coalitions; (1, 1) is Shapley.

        Raises:
            ValueError: ``alpha`` or ``beta`` not between 0.01 and 100, where its weights can be computed.
        """
        for name, number in (("alpha", alpha), ("beta", beta)):
            if not 0.01 <= number <= 100:
                raise ValueError(f"{name} is {number}; allowed: a number from 0.01 to 100")
        from scipy.special import beta as beta_function  # late: it takes longer to import than a short run
        from scipy.special import roots_sh_jacobi

        # scipy's weight function is (1 - x)^(p - q) x^(q - 1)
        x, w = roots_sh_jacobi(n // 2 + 1, alpha + beta - 1, beta)
        masses = np.asarray(w) / float(beta_function(beta, alpha))
        return cls(f"beta-shapley({alpha:g}, {beta:g})", np.asarray(x), masses, n)

    def weights(self, others: int) -> Floats:
        """Return ``w(0), .., w(others)`` ``[others + 1]``: the weight of one set of so many of the ``others``."""
        p, sizes = self.nodes[:, None], np.arange(others + 1)
        return np.asarray(self.masses @ (p**sizes * (1 - p) ** (others - sizes)))


def table(value: Utility, n: int) -> Floats:
    """Return ``v[mask]`` of all ``2**n`` coalitions, ``[2**n]``.

    The utility's ``many``, if it has one, is called with up to 4096 coalitions at a time.

    Raises:
        ValueError: ``n < 1``, ``n`` above ``MAX_EXACT_PLAYERS``, or a utility that is not finite.
    """
    n = players(n)
    if n > MAX_EXACT_PLAYERS:
        raise ValueError(
            f"n is {n}: exact values would take 2**{n} = {2**n:,} evaluations; "
            f"allowed: at most {MAX_EXACT_PLAYERS} players, beyond that use monte_carlo or gtg"
        )
    return np.concatenate([evaluate(value, chunk) for chunk in subsets(n)])


def semivalue_from_table(v: ArrayLike, weights: ArrayLike) -> Floats:
    """Return ``sum over S without i of weights[|S|] * (v(S + i) - v(S))`` for every player ``i``, ``[n]``.

    Args:
        v: the table ``[2**n]``, indexed by bit mask.
        weights: ``[n]``, the weight of one coalition of 0, 1, .., n-1 others.

    Raises:
        ValueError: the table's length is not a power of two of at least 2, it is not finite, or ``weights``
            is not [n].
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
    """Return the Shapley value ``[n]`` of the table ``v [2**n]``; errors as :func:`semivalue_from_table`."""
    n = _checked(v).size.bit_length() - 1
    # GreedyFed sec. II, PI-FL eq. (18): |S|! (n-1-|S|)! / n! = 1 / (n C(n-1, |S|))
    return semivalue_from_table(v, [1 / (n * math.comb(n - 1, size)) for size in range(n)])


def banzhaf_from_table(v: ArrayLike) -> Floats:
    """Return the Banzhaf value ``[n]`` of the table ``v [2**n]``; errors as :func:`semivalue_from_table`."""
    n = _checked(v).size.bit_length() - 1
    return semivalue_from_table(v, np.full(n, 0.5 ** (n - 1)))


def exact(value: Utility, n: int) -> Floats:
    """Return the exact Shapley value of a game of ``n`` players, ``[n]``.

    Evaluates all ``2**n`` coalitions, the empty one included; the values sum to ``v(N) - v({})``.
    GreedyFed sec. II; PI-FL eq. (18).

    Raises:
        ValueError: ``n < 1``, ``n`` above ``MAX_EXACT_PLAYERS``, or a utility that is not finite.
    """
    return shapley_from_table(table(value, n))


def banzhaf(value: Utility, n: int) -> Floats:
    """Return the exact Banzhaf value, the plain mean of a player's marginal contributions, ``[n]``.

    Evaluates all ``2**n`` coalitions. It does not sum to ``v(N) - v({})`` in general. Errors as
    :func:`exact`.
    """
    return banzhaf_from_table(table(value, n))


def leave_one_out(value: Utility, n: int) -> Floats:
    """Return ``v(N) - v(N without i)`` for every player, ``[n]``, from ``n + 1`` evaluations.

    Raises:
        ValueError: ``n < 1``, or a utility that is not finite.
    """
    n = players(n)
    everyone: Coalition = frozenset(range(n))
    worth = evaluate(value, [everyone, *(everyone - {i} for i in range(n))])
    return np.asarray(worth[0] - worth[1:])


def _checked(v: ArrayLike) -> Floats:
    worth = np.asarray(v, dtype=np.float64)
    if worth.ndim != 1 or worth.size < 2 or worth.size & (worth.size - 1):
        raise ValueError(f"the table has shape {worth.shape}; allowed: (2**n,) for n players, n at least 1")
    if not np.isfinite(worth).all():
        mask = int(np.flatnonzero(~np.isfinite(worth))[0])
        raise ValueError(f"the table's entry {mask} is {worth[mask]}; allowed: finite numbers")
    return worth
