"""PI-FL's tiers: initial tiers, importance weights, scheduling, and personal models.

The functions, in the paper's order: :func:`first_tiers` groups clients before training. :func:`importance` measures how
well each tier's model fits a client. With these weights, clients bid (:mod:`hanse.federation.policy`), the server
schedules the bidders (:func:`schedule`), and clients mix their personal models (:func:`mixture`). Payments are in
:mod:`hanse.games.tokens`.

Arrays may be anything that numpy accepts. Results are numpy float64 unless stated otherwise. In the shapes n is the
number of clients, K the number of tiers and C the number of classes.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hanse.games.gram import Floats, Ints

if TYPE_CHECKING:
    from sklearn.cluster import KMeans


def _array(name: str, values: Any, ndim: int) -> Floats:
    """Return ``values`` as float64. Raises ValueError, naming the argument, unless it has ``ndim`` dimensions and is
    finite.
    """
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != ndim:
        raise ValueError(f"{name}: shape {array.shape}: allowed: {ndim} dimensions")
    if not np.isfinite(array).all():
        raise ValueError(f"{name}: has NaN or infinite entries: allowed: finite numbers")
    return array


def _ratio(over: Floats, under: Floats) -> Floats:
    """Return ``over / under``, and 0 where ``under`` is 0."""
    return np.asarray(np.divide(over, under, out=np.zeros_like(over), where=under > 0))


def importance(correct: Any, sizes: Any) -> Floats:
    """Return the importance weights, PI-FL eq. (3): ``v[c, k] = correct[c, k] / sizes[c]``, ``[n, K]``.

    The printed denominator is read as the client's own number of samples (docs/papers.md, P3). A client without samples
    has weights of 0.

    Args:
        correct: ``[n, K]``, how many of each client's own samples each tier's model gets right.
        sizes: ``[n]``, how many samples each client has.

    Raises:
        ValueError: counts that are negative, or larger than the size.
    """
    right, total = _array("correct", correct, 2), _array("sizes", sizes, 1)
    if len(right) != len(total):
        raise ValueError(f"correct: shape {right.shape}: allowed: {len(total)} rows, one for each of sizes")
    if (right < 0).any() or (right > total[:, None]).any():
        raise ValueError("correct: allowed: from 0 to the client's size")
    return _ratio(right, np.broadcast_to(total[:, None], right.shape))


def mixture(v: Any, normalised: bool = True) -> Floats:
    """Return the weight of each tier's model in each client's personal model, PI-FL eq. (4), ``[n, K]``.

    Args:
        v: ``[n, K]``, importance weights, at least 0.
        normalised: whether each row is divided by its sum (a row of zeros becomes uniform). If not, the result is ``v``
            itself, as printed. Its rows do not sum to 1 (docs/papers.md, P4).

    Raises:
        ValueError: negative weights.

    Examples:
        >>> mixture([[0.9, 0.3], [0.0, 0.0]]).tolist()  # nothing fits the second client
        [[0.75, 0.25], [0.5, 0.5]]
    """
    weights = _array("v", v, 2)
    if (weights < 0).any():
        raise ValueError("v: allowed: importance weights, at least 0")
    if not normalised:
        return weights.copy()
    total = weights.sum(1, keepdims=True)
    uniform = 1 / max(1, weights.shape[1])
    return np.where(total > 0, _ratio(weights, np.broadcast_to(total, weights.shape)), uniform)


def schedule(
    bidders: Sequence[Sequence[int]],
    contributions: Any,
    by_contribution: int,
    at_random: int,
    random_order: Sequence[Sequence[int]],
) -> list[list[int]]:
    """Return who trains each tier, PI-FL Alg. 3 as read in docs/papers.md, P7 and P8.

    The best bidders come first, the best of them before the others, and then the clients in the order of the draw.

    Args:
        bidders: for each tier, the clients that bid for it.
        contributions: ``[K, N]``, each client's value for each tier, by client id.
        by_contribution: how many bidders are chosen for each tier because they have the largest contributions. In a
            tie, the lower id is chosen.
        at_random: how many more clients are drawn for each tier.
        random_order: for each tier, the available clients in random order. The first that were not chosen are drawn.

    Raises:
        ValueError: contributions that are not finite, negative numbers of seats, or different numbers of tiers.
    """
    psi = _array("contributions", contributions, 2)
    if not len(bidders) == len(psi) == len(random_order):
        raise ValueError(f"bidders, contributions, random_order: {len(bidders)}, {len(psi)}, {len(random_order)} tiers")
    if by_contribution < 0 or at_random < 0:
        raise ValueError(f"by_contribution, at_random: {by_contribution}, {at_random}: allowed: at least 0")
    tiers = []
    for k, interested in enumerate(bidders):
        chosen = sorted(set(interested), key=lambda i: (-psi[k, i], i))[:by_contribution]
        others = [i for i in dict.fromkeys(random_order[k]) if i not in set(chosen)]
        tiers.append([*chosen, *others[:at_random]])
    return tiers


def f1_scores(confusion: Any) -> Floats:
    """Return the F1 score of each class, ``[n, C]``; 0 where it would be 0/0.

    Args:
        confusion: ``[n, C, C]``, confusion counts (true class, predicted class).
    """
    counts = _array("confusion", confusion, 3)
    right = np.diagonal(counts, axis1=1, axis2=2)
    total = counts.sum(1) + counts.sum(2)  # 2 TP + FP + FN
    return _ratio(2 * right, total)


def most_varying(f1: Any, rho: int) -> Ints:
    """Return the classes whose F1 scores vary most over the clients, in descending order, ``[rho]`` int64.

    PI-FL eq. (5) prints rho as a variance, but the text means a number of classes (docs/papers.md, P6). The variance is
    the population variance, and ties go to the lower class.

    Args:
        f1: ``[n, C]``, F1 scores.
        rho: how many classes, from 1 to C.

    Raises:
        ValueError: ``rho`` is out of range.
    """
    scores = _array("f1", f1, 2)
    if not 1 <= rho <= scores.shape[1]:
        raise ValueError(f"rho: {rho}: allowed: 1 to {scores.shape[1]}, the number of classes")
    # equal columns must tie although rounding makes their variances differ in the last bits
    variance = np.where(np.ptp(scores, axis=0) == 0, 0.0, scores.var(axis=0))
    return np.argsort(-variance, kind="stable")[:rho].astype(np.int64)


def first_tiers(f1: Any, rho: int, tiers: int, *, seed: int = 0, initial_centres: Any = None) -> KMeans:
    """Group clients into tiers by the F1 scores of their local models, PI-FL sec. 3.1 (pre-training).

    This is scikit-learn's K-means (Lloyd) on the classes whose F1 scores vary most, eq. (5), which is returned as it
    was fitted: its ``labels_ [n]`` are the clients' tiers, its ``cluster_centers_ [K, rho]`` the tiers' mean scores.

    Args:
        f1: ``[n, C]``, F1 scores.
        rho: how many classes are used.
        tiers: how many tiers, K; at most n.
        seed: the seed of the random starts.
        initial_centres: ``[K, rho]``, where to start. Default: the best of ten random starts.

    Raises:
        ValueError: ``tiers`` or ``rho`` is out of range.
    """
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning

    scores = _array("f1", f1, 2)
    if not 1 <= tiers <= len(scores):
        raise ValueError(f"tiers: {tiers}: allowed: 1 to {len(scores)}, the number of clients")
    features = scores[:, most_varying(scores, rho)]
    given = initial_centres is not None
    start = _array("initial_centres", initial_centres, 2) if given else "k-means++"
    # tol 0: Lloyd's steps end only when no client changes its tier
    model = KMeans(tiers, init=start, n_init=1 if given else 10, tol=0.0, algorithm="lloyd", random_state=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # fewer distinct clients than tiers: some stay empty
        model.fit(features)
    return model
