"""GTFLAT's game among a round's updates, and the resulting aggregation weights.

*GTFLAT: Game Theory Based Add-On For Empowering Federated Learning Aggregation Techniques* (Mahini, Mousavi,
Daneshtalab). Each client that trained is a population, which chooses among the others' models and prefers near ones.
The steps are ``weights(equilibrium(payoff_matrix(models)))``.

=========================  =====================================================================
:func:`payoff_matrix`      ``Phi [k, k]``, minus the distances, eq. (10)
:func:`scale_free`         payoffs divided by their mean size
:func:`equilibrium`        ``X [k, k]``, the populations after 50 generations, eqs (6)-(7)
:func:`drawn`              a random start of whole individuals
:func:`weights`            ``omega [k]``, eq. (11)
:func:`nash_gap`           the most that somebody gains by another choice, eq. (5)
:func:`printed`            eq. (6) as it is printed, which goes the wrong way
=========================  =====================================================================

Arrays may be numpy, torch or lists; results are numpy float64.
"""

from __future__ import annotations

from hanse.games.evolution import (
    Time,
    drawn,
    equilibrium,
    expected_payoffs,
    nash_gap,
    nearest,
    printed,
    weights,
)
from hanse.games.gram import distances, distances_to_mean
from hanse.games.payoffs import (
    loss_payoff,
    mean_distance,
    payoff_matrix,
    scale_free,
)

__all__ = [
    "Time",
    "distances",
    "distances_to_mean",
    "drawn",
    "equilibrium",
    "expected_payoffs",
    "loss_payoff",
    "mean_distance",
    "nash_gap",
    "nearest",
    "payoff_matrix",
    "printed",
    "scale_free",
    "weights",
]
