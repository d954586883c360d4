"""Closed forms for the Shapley values of the games whose sum is the surrogate of :mod:`hanse.games.mixture`.

There is one such game for each evaluated coalition. The closed forms therefore give the surrogate's values without a
sum over all coalitions. In all of them the empty coalition is worth 0, and another coalition S

* ``(u . x_S)^4`` where coalitions are averages: the mixture ``x_S`` has the members' weights, normalised to sum to 1;
* ``(c + u . x_S)^4`` where coalitions are sums: ``x_S`` has the members' weights unchanged.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from hanse.games.game import Floats

DEGREE = 4  # 2 and 3 leave 3.8 % and .3 % of error however many coalitions are known; 6 does no better
_NODES = 512  # at a time
_STEP = 0.3  # of log t: relative error below 1e-9


def _nodes(n: int) -> tuple[Floats, Floats]:
    """Return quadrature nodes ``p [k]`` in (0, 1), with their masses ``[k]``, which sum to 1.

    The Shapley value of n players is the mean over ``p`` of a player's marginal contribution to a coalition that each
    other player joins with probability ``p``. The nodes are exact for polynomials of degree ``n - 1``.
    """
    # k nodes are exact up to degree 2 k - 1, and weights are polynomials of degree n - 1
    x, w = np.polynomial.legendre.leggauss(n // 2 + 1)
    return (x + 1) / 2, w / 2


def shapley_weights(n: int) -> Floats:
    """Return the weight in the Shapley value of one set of 0, 1, .., n - 1 of the other players, ``[n]``."""
    (nodes, masses), sizes = _nodes(n), np.arange(n)
    p = nodes[:, None]
    return np.asarray(masses @ (p**sizes * (1 - p) ** (n - 1 - sizes)))


def _quadrature(u: Floats, q: Floats) -> Iterator[tuple[Floats, Floats, Floats, list[Floats]]]:
    """Yield what the closed forms sum over, some quadrature nodes ``(p, t)`` at a time.

    A mixture sums to 1, so the kernel is ``(u . x_S)^4 = (sum_S u_i q_i)^4 / q(S)^4``, and ``1 / q(S)^4`` is the
    integral of ``t^3 exp(-t q(S)) / 3!`` over t. Given ``t`` and the chance ``p`` with which a player is there, players
    are independent. The kernel's mean is then ``prod d_i`` times the fourth moment of ``Y = sum b_i Bernoulli(r_i)``,
    where ``b_i = u_i q_i``, ``d_i = 1 - p + p exp(-t q_i)`` and ``r_i = p exp(-t q_i) / d_i``. What player i adds,
    given the others, has the moment generating function of Y times
    ``(exp(-t q_i + z b_i) - 1) / (1 - r_i + r_i exp(z b_i))``, whose j-th derivative at ``z = 0`` is ``H_j b_i^j``.

    Args:
        u: ``[T, n]``, T games.
        q: ``[n]``, the players' weights, positive, summing to 1.

    Yields:
        The nodes' masses ``[c]``, ``log d [c, n]``, ``H [5, c, n]`` and the moments 0 to 4 of Y, each ``[c, T]``.
    """
    # from where (t q(N))^4 vanishes to where the smallest player's exp(-t q_i) does
    log_t = np.arange(math.log(1e-4), math.log(40 / q.min()) + _STEP, _STEP)
    nodes, shares = _nodes(len(q))
    p, t = (grid.ravel() for grid in np.meshgrid(nodes, np.exp(log_t), indexing="ij"))
    masses = np.outer(shares, _STEP * np.exp(DEGREE * log_t) / math.factorial(DEGREE - 1)).ravel()
    b = (u * q).T
    powers = [b, b**2, b**3, b**4]
    for first in range(0, len(p), _NODES):
        some = slice(first, first + _NODES)
        there = np.exp(-t[some, None] * q)
        d = 1 - p[some, None] + p[some, None] * there
        r = p[some, None] * there / d
        moments = _from_cumulants(*(c @ power for c, power in zip(_cumulants(r), powers, strict=True)))
        # derivatives at z = 0 of 1 / (1 - r + r e^z), each from those before by Leibniz's rule
        inverse = [np.ones_like(r)]
        for k in range(1, DEGREE + 1):
            inverse.append(-r * sum(math.comb(k, j) * inverse[k - j] for j in range(1, k + 1)))
        h = [  # of (there e^z - 1) / (1 - r + r e^z), with z in units of 1 / b_i
            there * sum(math.comb(k, j) * inverse[k - j] for j in range(k + 1)) - inverse[k] for k in range(DEGREE + 1)
        ]
        yield masses[some], np.log(d), np.stack(h), moments


def kernel_values(u: Floats, q: Floats) -> Floats:
    """Return the Shapley values of the games ``(u_T . x_S)^4``, ``[n, T]``.

    Args:
        u: ``[T, n]``, T games.
        q: ``[n]``, the players' weights, positive, summing to 1.
    """
    b = (u * q).T
    total = np.zeros(b.shape)
    for masses, log_d, h, moments in _quadrature(u, q):
        # of the others: the product of d without player i
        chance = np.exp(log_d.sum(axis=1, keepdims=True) - log_d) * masses[:, None]
        for j in range(DEGREE + 1):
            total += math.comb(DEGREE, j) * b**j * ((chance * h[j]).T @ moments[DEGREE - j])
    return total


def sum_kernel_values(u: Floats, q: Floats, offset: float) -> Floats:
    """Return the Shapley values of the games ``(offset + u_T . x_S)^4`` where coalitions are sums, ``[n, T]``.

    Let every player be present independently with probability ``p``. Then the cumulants of the sum over the present
    players add up, and the moments of this sum follow from them.

    Args:
        u: ``[T, n]``, T games.
        q: ``[n]``, the players' weights.
        offset: the kernel's constant.
    """
    b = (u * q).T
    total = np.zeros(b.shape)
    for p, mass in np.transpose(_nodes(len(q))).tolist():
        of_all = [b**k for k in range(1, DEGREE + 1)]
        sums = [power.sum(axis=0) - power for power in of_all]  # without the player itself
        k1, *others = (c * power for c, power in zip(_cumulants(p), sums, strict=True))
        moments = _from_cumulants(offset + k1, *others)
        for j in range(1, DEGREE + 1):
            total += mass * math.comb(DEGREE, j) * b**j * moments[DEGREE - j]
    # the closed form takes the empty coalition to be worth offset^4, not 0
    return np.asarray(total + shapley_weights(len(q))[0] * offset**DEGREE)


def _cumulants(p: Any) -> tuple[Any, Any, Any, Any]:
    """Return the cumulants 1 to 4 of a draw that is 1 with probability ``p``, an array or a number, and else 0."""
    v = p * (1 - p)
    return p, v, v * (1 - 2 * p), v * (1 - 6 * v)


def _from_cumulants(k1: Floats, k2: Floats, k3: Floats, k4: Floats) -> list[Floats]:
    """Return the moments 0 to 4 of a distribution with these cumulants."""
    return [
        np.ones_like(k1),
        k1,
        k2 + k1**2,
        k3 + 3 * k1 * k2 + k1**3,
        k4 + 4 * k1 * k3 + 3 * k2**2 + 6 * k1**2 * k2 + k1**4,
    ]
