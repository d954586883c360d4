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
"""

from __future__ import annotations

from hanse.games.first_order import first_order
from hanse.games.game import BatchUtility, Coalition, Memo, Utility
from hanse.games.gtg import GTGEstimate, Running, gtg
from hanse.games.mixture import MixtureEstimate, mixture
from hanse.games.sampling import Estimate, monte_carlo, monte_carlo_result
from hanse.games.semivalues import (
    MAX_EXACT_PLAYERS,
    banzhaf,
    banzhaf_from_table,
    exact,
    leave_one_out,
    semivalue_from_table,
    shapley_from_table,
    table,
)

__all__ = [
    "MAX_EXACT_PLAYERS",
    "BatchUtility",
    "Coalition",
    "Estimate",
    "GTGEstimate",
    "Memo",
    "MixtureEstimate",
    "Running",
    "Utility",
    "banzhaf",
    "banzhaf_from_table",
    "exact",
    "first_order",
    "gtg",
    "leave_one_out",
    "mixture",
    "monte_carlo",
    "monte_carlo_result",
    "semivalue_from_table",
    "shapley_from_table",
    "table",
]
