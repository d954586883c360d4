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

The population of player i chooses among the k - 1 models of the others. ``X[i, a]`` is the share of it that chose a. By
eq. (12) the payoff of a is ``u(i, a) = (Phi[a, i] + sum_{j != i} sum_b X[j, b] Phi[b, i]) / k``, whose second term does
not depend on a. So ``u(i, a) - u(i, b) = (Phi[a, i] - Phi[b, i]) / k`` in every state: each population evolves by
itself, and t generations have a closed form (docs/papers.md, T10). Choosing the nearest model is a dominant strategy.
``Phi[i, j]`` is player i's estimate of model j: larger is better, and the diagonal is 0.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from hanse.base.pytorch import torch
from hanse.games.gram import Floats, as_models, distances

Time = Literal["discrete", "continuous"]


def payoff_matrix(params: Any, eps: float = 0.0) -> Floats:
    """Return GTFLAT's payoffs ``-|theta_i - theta_j|``, eq. (10), ``[k, k]``.

    Args:
        params: ``[k, P]``, one model per row. All columns count (docs/papers.md, T7), so leave buffers out.
        eps: a number added to each entry of a difference, as ``torch.nn.PairwiseDistance`` does with 1e-6.

    Raises:
        ValueError: a wrong shape, or a number that is not finite.
    """
    lengths = distances(params)
    if eps:
        # |d + eps 1|^2 = |d|^2 + 2 eps sum(d) + P eps^2
        rows = as_models(params)
        sums = (rows.double() - rows[:1].double()).sum(dim=1).cpu().numpy()
        shifted = lengths**2 + 2 * eps * (sums[:, None] - sums[None, :]) + rows.shape[1] * eps**2
        lengths = np.sqrt(np.maximum(shifted, 0.0))
        np.fill_diagonal(lengths, 0.0)
    return np.asarray(0.0 - lengths)


def mean_distance(payoff: Any) -> float:
    """Return the scale of the game: the mean size of the payoffs off the diagonal. It is 0 for one player.

    For :func:`payoff_matrix` this is the mean distance between models.
    """
    square = as_square(payoff, "payoff")
    k = len(square)
    if k < 2:
        return 0.0
    off = np.abs(square)[~np.eye(k, dtype=bool)]
    largest = float(off.max())
    return largest * float((off / largest).mean()) if largest > 0 else 0.0


def scale_free(payoff: Any) -> Floats:
    """Return payoffs ``[k, k]`` divided by their mean size, which makes the equilibrium independent of the unit of
    distance. If all are 0 (equal models), they stay 0.
    """
    square = as_square(payoff, "payoff")
    mean = mean_distance(square)
    return np.asarray(square / mean) if mean > 0 else square.copy()


def as_square(array: Any, name: str) -> Floats:
    """Return a square matrix ``[k, k]`` in float64. Raises ValueError, with its ``name``, for another shape."""
    square = np.asarray(array.detach().cpu() if isinstance(array, torch.Tensor) else array, dtype=np.float64)
    if square.ndim != 2 or square.shape[0] != square.shape[1] or square.shape[0] < 1:
        raise ValueError(f"{name} has shape {square.shape}; allowed: (k, k), k at least 1")
    return square


def equilibrium(
    payoff: Any,
    generations: int = 50,
    strength: float = 0.8,
    population: int | None = None,
    *,
    time: Time = "discrete",
    start: Any = None,
) -> Floats:
    """Return the state ``X [k, k]`` after some generations, eq. (6). Row i has the shares of player i's population.

    Rows sum to 1 and the diagonal is 0, since nobody chooses its own model. For k = 1 the state is ``[[1]]``. A
    generation multiplies the share of action a by ``1 + strength (u_a - mean_b u_b)``, at least 0, and then rescales
    each row to sum to 1. The mean is over the k - 1 actions, not over the population (docs/papers.md, T1-T4). Time and
    memory are ``O(k^2)``. With ``population``, a generation takes ``O(k^2 log k)``.

    Args:
        payoff: ``[k, k]``, such as :func:`payoff_matrix` makes.
        generations: how many generations, at least 0.
        strength: the selection strength, at least 0.
        population: None for shares. With a number, each population has that many individuals. Each generation is then
            rounded by largest remainder, as in the paper's Example 1.
        time: "discrete" generations, or "continuous" time: the flow of eq. (7), which multiplies by ``exp(strength (u_a
            - mean_b u_b))`` per generation.
        start: ``[k, k]``, how many individuals choose each action at first, if there is a ``population`` (see
            :func:`drawn`). Default: equal shares.

    Raises:
        ValueError: payoffs that are not finite or not square, or options out of range.

    Examples:
        >>> payoff = [[0, -0.53, -0.55], [-0.53, 0, -0.37], [-0.55, -0.37, 0]]  # GTFLAT's Example 1
        >>> equilibrium(payoff, population=100).tolist()  # models 1 and 2 are near each other
        [[0.0, 0.5, 0.5], [0.13, 0.0, 0.87], [0.12, 0.88, 0.0]]
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


def _finite(array: Any, name: str) -> Floats:
    """Return a square matrix as float64. Raises ValueError for another shape, or numbers that are not finite."""
    square = as_square(array, name)
    if not np.isfinite(square).all():
        raise ValueError(f"{name} has numbers that are not finite; allowed: finite numbers")
    return square


def _checked(payoff: Any, generations: int, strength: float, population: int | None, time: str) -> Floats:
    """Return the payoffs as float64. Raises ValueError for options out of range."""
    phi = _finite(payoff, "payoff")
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
    """Return ``u(i, a) - mean_b u(i, b)``, ``[k, k]``: the mean is over the k - 1 actions of i (docs/papers.md, T2).

    The diagonal is NaN.
    """
    k = len(phi)
    mine = phi.T / k  # GTFLAT eq. (12): row i holds Phi[a, i] / k
    mine = np.where(np.eye(k, dtype=bool), np.nan, mine)
    # relative to one action first: equal payoffs then differ by exactly 0, however large they are
    relative = mine - np.nanmax(mine, axis=1, keepdims=True)
    return np.asarray(relative - np.nansum(relative, axis=1, keepdims=True) / (k - 1))


def _closed(lead: Floats, generations: int, strength: float, time: Time) -> Floats:
    """Return the shares after so many generations at once: powers of one generation's factors, taken as logarithms."""
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
    """Return a random start for :func:`equilibrium`, as in GTFLAT's public code (docs/papers.md, T5).

    Each individual of each population chooses one of the k - 1 models of the others, all with the same chance.

    Args:
        k: number of players.
        population: individuals per player.
        draw: a numpy generator.

    Returns:
        ``[k, k]`` whole numbers. Each row sums to ``population``.
    """
    counts = np.zeros((k, k))
    if k > 1:
        counts[~np.eye(k, dtype=bool)] = draw.multinomial(population, [1 / (k - 1)] * (k - 1), size=k).ravel()
    return counts


def _individuals(lead: Floats, generations: int, strength: float, population: int, start: Any = None) -> Floats:
    """Return the shares of whole individuals, generation by generation (docs/papers.md, T1, T3).

    A generation makes ``n_a (1 + w (u_a - mean_b u_b))`` of ``n_a``, scales to the population and rounds.
    """
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
    """Return a given start as float64 ``[k, k]``. Raises ValueError unless it has whole populations."""
    counts = as_square(start, "start").copy()
    whole = counts.shape == (k, k) and (counts == np.round(counts)).all() and (counts >= 0).all()
    if not whole or np.diag(counts).any() or (counts.sum(axis=1) != population).any():
        raise ValueError(f"start: needs {k} rows of whole numbers with the sum {population}, and 0 on the diagonal")
    return counts


def _rounded(wanted: Floats, population: int) -> Floats:
    """Scale rows ``[r, k]`` to the population and round by largest remainder; ties go to the lower action.

    Remainders that differ by less than 1e-9 of an individual are tied, so that the last bits of a product decide
    nothing.
    """
    exact = wanted / wanted.sum(axis=1, keepdims=True) * population
    whole = np.floor(exact + 1e-9)
    missing = population - whole.sum(axis=1)
    order = np.argsort(-np.round(exact - whole, 9), axis=1, kind="stable")
    rank = np.empty_like(order)
    np.put_along_axis(rank, order, np.arange(wanted.shape[1])[None, :], axis=1)
    return np.asarray(whole + (rank < missing[:, None]))


def weights(state: Any) -> Floats:
    """Return the aggregation weights ``[k]``, GTFLAT eq. (11) divided by k (docs/papers.md, T6).

    A model's weight is the share of all individuals, over all populations, that chose it.

    Args:
        state: ``[k, k]``, as :func:`equilibrium` returns it.

    Examples:
        >>> payoff = [[0, -0.53, -0.55], [-0.53, 0, -0.37], [-0.55, -0.37, 0]]  # GTFLAT's Example 1
        >>> weights(equilibrium(payoff, population=100)).round(2).tolist()  # the outlier gets little
        [0.08, 0.46, 0.46]
    """
    return np.asarray(as_square(state, "state").mean(axis=0))


def expected_payoffs(payoff: Any, state: Any) -> Floats:
    """Return ``u(i, a)``, ``[k, k]``: what player i gets for choosing a while the others mix as in ``state``, eq. (12).

    The diagonal is NaN, since nobody may choose its own model. Takes ``O(k^2)``.

    Raises:
        ValueError: a matrix that is not square, not finite, or of another size than the other.
    """
    phi, shares = _finite(payoff, "payoff"), _finite(state, "state")
    if phi.shape != shares.shape:
        raise ValueError(f"state has shape {shares.shape}; allowed: the payoff's, {phi.shape}")
    total = shares.sum(axis=0)
    others = total @ phi - np.einsum("ij,ji->i", shares, phi)  # what those who are not i pay i, whatever i chooses
    expected = (phi.T + others[:, None]) / len(phi)
    np.fill_diagonal(expected, np.nan)
    return np.asarray(expected)


def nash_gap(payoff: Any, state: Any) -> float:
    """Return the most that any player gains by changing to its best model.

    It is 0 at a Nash equilibrium, GTFLAT eq. (5).

    It is ``max_i (max_a u(i, a) - sum_a X[i, a] u(i, a))`` with the payoffs u of :func:`expected_payoffs`.

    Args:
        payoff: ``[k, k]``; the diagonal does not count.
        state: ``[k, k]``, as :func:`equilibrium` returns it.

    Raises:
        ValueError: as :func:`expected_payoffs`.
    """
    gains, shares = expected_payoffs(payoff, state), as_square(state, "state")
    if len(shares) == 1:
        return 0.0
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
    """Return the state ``[k, k]`` after ``steps`` of eq. (6) as printed, with the payoffs of eq. (12).

    This is only for study. GTFLAT uses :func:`equilibrium`. The payoffs are negative, so dividing by their mean
    reverses the dynamics: the *farther* model wins (docs/papers.md, T1). The options are the readings of the equation
    that were tried.

    Args:
        payoff: ``[k, k]``.
        steps: how many steps from equal shares.
        tau: the step length.
        mean: whether payoffs are compared with the mean over the "population" or over the "actions".
        divide: whether to divide by that mean, as printed.
        shift: a number added to all payoffs, which can make them positive.
        strength: a factor of the growth.
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
