"""Populations that revise their choice of a model: GTFLAT's replicator dynamics, eqs (6) and (7), over k players.

Player i's population chooses among the k - 1 models of the others; ``X[i, a]`` is the share that chose a. By eq. (12)
the payoff of a is ``u(i, a) = (Phi[a, i] + sum_{j != i} sum_b X[j, b] Phi[b, i]) / k``: the second term does not depend
on a. So ``u(i, a) - u(i, b) = (Phi[a, i] - Phi[b, i]) / k`` in every state, each population evolves by itself, and t
generations have a closed form (papers.md T10). The nearest model is a dominant strategy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from hanse.games.payoffs import as_square

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Time = Literal["discrete", "continuous"]


@dataclass(frozen=True)
class Evolution:
    """Where the populations came to, ``state [k, k]``, and how far that is from rest.

    ``change``: the largest share that the last generation moved (0: nothing moves any more); ``gap``: the most that a
    player could still gain by another choice, eq. (5); ``to_limit``: the largest difference to the rest point, where
    everybody chose the nearest model.
    """

    state: Floats
    change: float
    gap: float
    to_limit: float

    @property
    def weights(self) -> Floats:
        """The aggregation weights, eq. (11)."""
        return weights(self.state)


def equilibrium(
    payoff: Any,
    generations: int = 50,
    strength: float = 0.8,
    population: int | None = None,
    *,
    time: Time = "discrete",
    start: Any = None,
) -> Floats:
    """Return the state ``X [k, k]`` after ``generations`` from equal shares: zero diagonal, rows that sum to 1.

    A generation multiplies the share of action a by ``1 + strength (u_a - mean_b u_b)``, at least 0 (papers.md T1-T4;
    "continuous": by the exponential of it, the flow of eq. (7)). With ``population`` it is a whole number of
    individuals, rounded by largest remainder after each generation, as in the paper's Example 1; ``start [k, k]``,
    whole numbers with a zero diagonal, says how many chose each action at first (see :func:`drawn`). For k = 1 there is
    nothing to choose: the state is ``[[1]]``. Time and memory are ``O(k^2)``, with ``population`` a generation
    ``O(k^2 log k)``.

    Raises ValueError for payoffs that are not finite or not square, or options out of range.
    """
    phi = _checked(payoff, generations, strength, population, time)
    if len(phi) == 1:
        return np.ones((1, 1))
    lead = _lead(phi)
    if population is not None:
        return _individuals(lead, generations, strength, population, start)
    if start is not None:
        raise ValueError("start: needs a population of individuals")
    return _closed(lead, generations, strength, time)


def evolve(
    payoff: Any,
    generations: int = 50,
    strength: float = 0.8,
    population: int | None = None,
    *,
    time: Time = "discrete",
) -> Evolution:
    """Return :func:`equilibrium`'s state with a report of how far it is from rest."""
    state = equilibrium(payoff, generations, strength, population, time=time)
    before = equilibrium(payoff, max(0, generations - 1), strength, population, time=time)
    change = float(np.abs(state - before).max())
    return Evolution(state, change, nash_gap(payoff, state), float(np.abs(state - nearest(payoff)).max()))


def _checked(payoff: Any, generations: int, strength: float, population: int | None, time: str) -> Floats:
    phi = as_square(payoff, "payoff")
    if not np.isfinite(phi).all():
        raise ValueError("payoff has numbers that are not finite; allowed: finite numbers")
    if generations < 0:
        raise ValueError(f"generations is {generations}; allowed: 0 or more")
    if not (np.isfinite(strength) and strength >= 0):
        raise ValueError(f"strength is {strength}; allowed: 0 or more")
    if population is not None and population < 1:
        raise ValueError(f"population is {population}; allowed: 1 or more individuals, or None for shares")
    if time not in ("discrete", "continuous"):
        raise ValueError(f"time is {time!r}; allowed: 'discrete', 'continuous'")
    if population is not None and time != "discrete":
        raise ValueError("population: individuals revise their choice in discrete time only")
    return phi


def _lead(phi: Floats) -> Floats:
    """Return ``u(i, a) - mean_b u(i, b)`` ``[k, k]``, the mean over the k - 1 actions of i (papers.md T2); nan on the
    diagonal.
    """
    k = len(phi)
    mine = phi.T / k  # GTFLAT eq. (12): row i holds Phi[a, i] / k
    mine = np.where(np.eye(k, dtype=bool), np.nan, mine)
    # relative to one action first: equal payoffs then differ by exactly 0, however large they are
    relative = mine - np.nanmax(mine, axis=1, keepdims=True)
    return np.asarray(relative - np.nansum(relative, axis=1, keepdims=True) / (k - 1))


def _closed(lead: Floats, generations: int, strength: float, time: Time) -> Floats:
    with np.errstate(divide="ignore", invalid="ignore"):
        if time == "continuous":
            logs = strength * generations * lead
        else:
            # the mean over a of the factor is 1, so that one of them is above 0
            logs = generations * np.log1p(np.maximum(strength * lead, -1.0)) if generations else 0.0 * lead
    logs = np.where(np.isnan(lead), -np.inf, logs)
    logs = logs - logs.max(axis=1, keepdims=True)
    shares = np.exp(logs)
    return np.asarray(shares / shares.sum(axis=1, keepdims=True))


def drawn(k: int, population: int, draw: np.random.Generator) -> Floats:
    """Return a random start ``[k, k]``: each individual of each of the k populations chooses one of the k - 1 models of
    the others, as in GTFLAT's public code (papers.md T5). Rows sum to ``population``.
    """
    found = np.zeros((k, k))
    if k > 1:
        found[~np.eye(k, dtype=bool)] = draw.multinomial(population, [1 / (k - 1)] * (k - 1), size=k).ravel()
    return found


def _individuals(lead: Floats, generations: int, strength: float, population: int, start: Any = None) -> Floats:
    """Whole individuals: ``n_a (1 + w (u_a - mean_b u_b))``, scaled to the population, rounded (papers.md T1, T3)."""
    k = len(lead)
    factor = np.where(np.isnan(lead), 0.0, np.maximum(1.0 + strength * lead, 0.0))
    counts = _rounded(np.where(np.isnan(lead), 0.0, 1.0), population) if start is None else _start(start, k, population)
    moving = np.arange(k)  # rows at rest stay there: a generation is a function of the row alone
    for _ in range(generations):
        grown = counts[moving] * factor[moving]
        alive = grown.sum(axis=1) > 0  # rounding may leave only choices that nobody repeats: they stay
        after = counts[moving].copy()
        after[alive] = _rounded(grown[alive], population)
        still = (after != counts[moving]).any(axis=1)
        counts[moving] = after
        moving = moving[still]
        if not len(moving):
            break
    return counts / population


def _start(start: Any, k: int, population: int) -> Floats:
    """Return a given start as float64 ``[k, k]``. Raises ValueError if it is none."""
    counts = as_square(start, "start").copy()
    whole = counts.shape == (k, k) and (counts == np.round(counts)).all() and (counts >= 0).all()
    if not whole or np.diag(counts).any() or (counts.sum(axis=1) != population).any():
        raise ValueError(f"start: needs {k} rows of whole numbers with the sum {population}, and 0 on the diagonal")
    return counts


def _rounded(wanted: Floats, population: int) -> Floats:
    """Scale rows ``[r, k]`` to the population and round by largest remainder; ties to the lower action.

    A remainder counts as tied up to 1e-9 of an individual, so that the last bits of a product decide nothing.
    """
    exact = wanted / wanted.sum(axis=1, keepdims=True) * population
    whole = np.floor(exact + 1e-9)
    missing = population - whole.sum(axis=1)
    order = np.argsort(-np.round(exact - whole, 9), axis=1, kind="stable")
    rank = np.empty_like(order)
    np.put_along_axis(rank, order, np.arange(wanted.shape[1])[None, :], axis=1)
    return np.asarray(whole + (rank < missing[:, None]))


def nearest(payoff: Any) -> Floats:
    """Return the rest point ``[k, k]``: everybody chooses the model of the highest payoff, ties shared equally."""
    phi = as_square(payoff, "payoff")
    if len(phi) == 1:
        return np.ones((1, 1))
    mine = np.where(np.eye(len(phi), dtype=bool), -np.inf, phi.T)
    best = mine == mine.max(axis=1, keepdims=True)
    return np.asarray(best / best.sum(axis=1, keepdims=True))


def weights(state: Any) -> Floats:
    """Return ``E|T_a| / k`` ``[k]``, GTFLAT eq. (11) over k (papers.md T6): the share of all that chose each model."""
    return np.asarray(as_square(state, "state").mean(axis=0))


def expected_payoffs(payoff: Any, state: Any) -> Floats:
    """Return ``u(i, a)`` ``[k, k]``, GTFLAT eq. (12), when player i chooses a and the others mix as in ``state``.

    The diagonal is nan: nobody may choose its own model. ``O(k^2)``.
    """
    phi, shares = as_square(payoff, "payoff"), as_square(state, "state")
    total = shares.sum(axis=0)
    others = total @ phi - np.einsum("ij,ji->i", shares, phi)  # what those who are not i pay i, whatever i chooses
    found = (phi.T + others[:, None]) / len(phi)
    np.fill_diagonal(found, np.nan)
    return np.asarray(found)


def nash_gap(payoff: Any, state: Any) -> float:
    """Return the most that any player would gain by leaving ``state`` alone, eq. (5): 0 at a Nash equilibrium."""
    shares = as_square(state, "state")
    if len(shares) == 1:
        return 0.0
    gains = expected_payoffs(payoff, shares)
    played = np.where(shares > 0, gains, 0.0)
    return float(max(0.0, np.max(np.nanmax(gains, axis=1) - (shares * played).sum(axis=1))))


def printed(
    payoff: Any,
    steps: int,
    *,
    tau: float = 1.0,
    mean: Literal["population", "actions"] = "population",
    divide: bool = True,
    shift: float = 0.0,
    strength: float = 1.0,
) -> Floats:
    """Return the state after ``steps`` of eq. (6) as it is printed, with the payoffs of eq. (12).

    The payoffs are negative, so that dividing by their mean turns the dynamics round: the *farther* model wins
    (papers.md T1). The options are the readings that were tried: ``mean`` over the population or over the actions,
    ``divide`` by it or not, payoffs lifted by ``shift``. For study; :func:`equilibrium` is what GTFLAT uses.
    """
    phi = as_square(payoff, "payoff")
    k = len(phi)
    if k == 1:
        return np.ones((1, 1))
    own = np.eye(k, dtype=bool)
    state = np.where(own, 0.0, 1.0 / (k - 1))
    for _ in range(steps):
        u = np.where(own, 0.0, expected_payoffs(phi, state) + shift)
        average = (state * u).sum(axis=1) if mean == "population" else u.sum(axis=1) / (k - 1)
        change = strength * tau * (u - average[:, None])  # GTFLAT eq. (6)
        grown = state * np.maximum(1.0 + (change / average[:, None] if divide else change), 0.0)
        state = grown / grown.sum(axis=1, keepdims=True)
    return np.asarray(state)
