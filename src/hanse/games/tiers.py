"""PI-FL's tiers: how well each tier's model fits a client, what it bids for, who trains where, and the first tiers.

Arrays may be anything that numpy takes; results are numpy float64 unless said. K is the number of tiers.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def _array(name: str, values: Any, ndim: int) -> Floats:
    found = np.asarray(values, dtype=np.float64)
    if found.ndim != ndim:
        raise ValueError(f"{name}: shape {found.shape}: allowed: {ndim} dimensions")
    if not np.isfinite(found).all():
        raise ValueError(f"{name}: has NaN or infinite entries: allowed: finite numbers")
    return found


def _ratio(over: Floats, under: Floats) -> Floats:
    """Return ``over / under``, 0 where ``under`` is 0."""
    found = np.zeros_like(over)
    np.divide(over, under, out=found, where=under > 0)
    return found


def importance(correct: Any, sizes: Any) -> Floats:
    """Return the importance weights, PI-FL eq. (3): ``v[c, k] = correct[c, k] / sizes[c]``, 0 for a client without
    samples.

    ``correct [n, K]``: how many of client c's own samples tier k's model gets right; ``sizes [n]``: how many it has.
    The printed denominator is read as the client's own number of samples (papers.md P3). Raises ValueError for counts
    that are negative, or larger than the size.
    """
    right, total = _array("correct", correct, 2), _array("sizes", sizes, 1)
    if len(right) != len(total):
        raise ValueError(f"correct: shape {right.shape}: allowed: {len(total)} rows, one for each of sizes")
    if (right < 0).any() or (right > total[:, None]).any():
        raise ValueError("correct: allowed: from 0 to the client's size")
    return _ratio(right, np.broadcast_to(total[:, None], right.shape))


def mixture(v: Any, normalised: bool = True) -> Floats:
    """Return the weights ``[n, K]`` of the tiers' models in each client's personal model, PI-FL eq. (4).

    Rows of importance weights ``v [n, K]`` divided by their sums; uniform where all of them are 0. Unless
    ``normalised``, ``v`` itself as printed, whose rows do not sum to 1 (papers.md P4). Raises ValueError for negative
    weights.
    """
    weights = _array("v", v, 2)
    if (weights < 0).any():
        raise ValueError("v: allowed: importance weights, at least 0")
    if not normalised:
        return weights.copy()
    total = weights.sum(1, keepdims=True)
    uniform = 1 / max(1, weights.shape[1])
    return np.where(total > 0, _ratio(weights, np.broadcast_to(total, weights.shape)), uniform)


def preferences(v: Any, threshold: float) -> list[int]:
    """Return the tiers whose importance weight ``v [K]`` is above ``threshold``, ascending: PI-FL Alg. 1 (one strict
    test a tier, papers.md P5).
    """
    return [int(k) for k in np.flatnonzero(_array("v", v, 1) > threshold)]


@dataclass(frozen=True)
class Schedule:
    """Who trains each tier: the best bidders ``chosen[k]``, then the ``drawn[k]``, in the order they were taken."""

    chosen: tuple[tuple[int, ...], ...]
    drawn: tuple[tuple[int, ...], ...]

    @property
    def tiers(self) -> list[list[int]]:
        """The clients of each tier, chosen first."""
        return [[*a, *b] for a, b in zip(self.chosen, self.drawn, strict=True)]


def schedule(
    bidders: Sequence[Sequence[int]],
    contributions: Any,
    by_contribution: int,
    at_random: int,
    random_order: Sequence[Sequence[int]],
) -> Schedule:
    """Return who trains each tier, PI-FL Alg. 3 as read in papers.md P7 and P8.

    ``bidders[k]`` are the clients that bid for tier k. The ``by_contribution`` of them with the largest
    ``contributions[k][client]`` train it (ties: the lower id), and ``at_random`` more: the first of
    ``random_order[k]``, an order of the available clients, that are not among them. Raises ValueError for
    contributions that are not finite.
    """
    psi = _array("contributions", contributions, 2)
    if not len(bidders) == len(psi) == len(random_order):
        raise ValueError(f"bidders, contributions, random_order: {len(bidders)}, {len(psi)}, {len(random_order)} tiers")
    if by_contribution < 0 or at_random < 0:
        raise ValueError(f"by_contribution, at_random: {by_contribution}, {at_random}: allowed: at least 0")
    chosen, drawn = [], []
    for k, interested in enumerate(bidders):
        best = sorted(set(interested), key=lambda i: (-psi[k, i], i))[:by_contribution]
        rest = [i for i in dict.fromkeys(random_order[k]) if i not in set(best)]
        chosen.append(tuple(best))
        drawn.append(tuple(rest[:at_random]))
    return Schedule(tuple(chosen), tuple(drawn))


def f1_scores(confusion: Any) -> Floats:
    """Return the F1 score of each class ``[n, C]`` from confusion counts ``[n, C, C]`` (true, predicted); 0/0 is 0."""
    counts = _array("confusion", confusion, 3)
    right = np.diagonal(counts, axis1=1, axis2=2)
    total = counts.sum(1) + counts.sum(2)  # 2 TP + FP + FN
    return _ratio(2 * right, total)


def most_varying(f1: Any, rho: int) -> Ints:
    """Return the ``rho`` classes whose F1 scores ``[n, C]`` vary most over the clients, most varying first.

    PI-FL eq. (5) prints rho as a variance; the text means a number of classes (papers.md P6). Population variance,
    ties: the lower class. Raises ValueError unless ``1 <= rho <= C``.
    """
    scores = _array("f1", f1, 2)
    if not 1 <= rho <= scores.shape[1]:
        raise ValueError(f"rho: {rho}: allowed: 1 to {scores.shape[1]}, the number of classes")
    # equal columns must tie although rounding makes their variances differ in the last bits
    variance = np.where(np.ptp(scores, axis=0) == 0, 0.0, scores.var(axis=0))
    return np.argsort(-variance, kind="stable")[:rho].astype(np.int64)


@dataclass(frozen=True)
class FirstTiers:
    """K-means over clients: ``labels [n]`` (the tier of each), ``centres [K, rho]``, ``inertia``, the ``classes``."""

    labels: Ints
    centres: Floats
    inertia: float
    classes: Ints


def first_tiers(f1: Any, rho: int, tiers: int, *, seed: int = 0, initial_centres: Any = None) -> FirstTiers:
    """Group clients into ``tiers`` by the F1 scores ``[n, C]`` of their local models, PI-FL sec. 3.1 (pre-training).

    scikit-learn's K-means (Lloyd) on the ``rho`` most varying classes, from ``initial_centres [K, rho]`` or the best of
    ten seeded starts. Raises ValueError for fewer clients than tiers.
    """
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning

    scores = _array("f1", f1, 2)
    if not 1 <= tiers <= len(scores):
        raise ValueError(f"tiers: {tiers}: allowed: 1 to {len(scores)}, the number of clients")
    classes = most_varying(scores, rho)
    features = scores[:, classes]
    given = initial_centres is not None
    start = _array("initial_centres", initial_centres, 2) if given else "k-means++"
    model = KMeans(tiers, init=start, n_init=1 if given else 10, tol=0.0, algorithm="lloyd", random_state=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # fewer distinct clients than tiers: some stay empty
        model.fit(features)
    return FirstTiers(model.labels_.astype(np.int64), model.cluster_centers_, float(model.inertia_), classes)
