"""Distances between models from Gram products, accurate even for nearly equal models.

``|x_i - x_j|^2 = g_ii + g_jj - 2 g_ij`` needs one matrix product for all pairs. But if two models are close to each
other and far from the origin, the subtraction leaves few correct digits. All models are therefore first shifted by one
of them. Groups that are still too close for their norms are shifted again and recomputed.

GTFLAT uses :func:`distances` and :func:`cosines`; IDA's inverse-distance weights use :func:`distances_to_mean`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hanse.base.pytorch import Tensor, torch

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_BLOCK = 1 << 17  # numbers in float64 at a time: they stay in the cache, and no second table is made
_CLOSE = 1e-3  # below this share of its norms a squared distance has lost three digits: done again


def as_models(params: Any, name: str = "params") -> Tensor:
    """Return ``params [k, P]`` (torch, numpy or lists) as a tensor.

    Raises:
        ValueError: ``params`` has another shape; the message calls it ``name``.
    """
    rows = params.detach() if isinstance(params, Tensor) else torch.as_tensor(np.asarray(params, dtype=np.float64))
    if rows.ndim != 2 or rows.shape[0] < 1:
        raise ValueError(f"{name} has shape {tuple(rows.shape)}; allowed: (k, P), one model per row, at least one")
    return rows


def distances(params: Any) -> Floats:
    """Return the Euclidean distances between models, ``[k, k]`` float64: symmetric, and exactly 0 for equal models.

    This takes ``O(k^2 P)`` time, and ``O(k^2)`` memory in addition to the models. Clusters of nearly equal models are
    computed again separately.

    Args:
        params: ``[k, P]``, one model per row, as torch, numpy or lists.

    Raises:
        ValueError: a wrong shape, or a number that is not finite, or whose square is not.
    """
    rows = as_models(params)
    squared = np.zeros((len(rows), len(rows)))
    _fill(squared, rows, np.arange(len(rows)))
    return np.asarray(np.sqrt(squared))


def _finite(sums: Tensor, rows: Tensor, name: str) -> Floats:
    """Return sums of squares or products of the rows. Raises ValueError if they are not finite."""
    if not bool(torch.isfinite(sums).all()):
        bad = int(rows.abs().nan_to_num(nan=np.inf, posinf=np.inf).amax(dim=1).argmax())
        raise ValueError(
            f"{name}[{bad}] has numbers that are not finite, or whose squares are not; allowed: finite ones"
        )
    return np.asarray(sums.cpu().numpy())


def _fill(squared: Floats, rows: Tensor, part: Ints) -> None:
    """Write the squared distances among the models ``part`` into ``squared [k, k]``."""
    gram = _gram(rows, part)
    gram = np.triu(gram) + np.triu(gram, 1).T  # a product's halves differ in their last bits
    # the first model is the origin here, and its products are 0: distances do not depend on the origin
    norms = np.diag(gram)
    both = norms[:, None] + norms[None, :]
    squares = np.maximum(both - 2.0 * gram, 0.0)
    close = squares < _CLOSE * both
    np.fill_diagonal(squares, 0.0)
    np.fill_diagonal(close, False)
    squared[np.ix_(part, part)] = squares
    if not close.any():
        return
    from scipy.sparse.csgraph import connected_components  # late: few tables have models so close to each other

    count, cluster = connected_components(close, directed=False)
    for name in range(count):
        members = np.flatnonzero(cluster == name)
        if len(members) > 1:  # fewer than before: the first, which all are relative to, is close to none
            _fill(squared, rows, part[members])


def _gram(rows: Tensor, part: Ints) -> Floats:
    """Return the inner products of the models ``part`` relative to the first of them, in float64, block by block."""
    k = len(part)
    gram = torch.zeros((k, k), dtype=torch.float64, device=rows.device)
    first, others = int(part[0]), torch.as_tensor(part[1:], device=rows.device)
    adjacent = bool((np.diff(part) == 1).all())  # a slice is a view, an index a copy
    width = max(1, _BLOCK // k)
    for a in range(0, rows.shape[1], width):
        b = a + width
        rest = rows[first + 1 : first + k, a:b] if adjacent else rows[others, a:b]
        centre = rows[first, a:b].double()
        gaps = rest.double() - centre
        if k == 1:
            gram += centre.square().sum()  # only to see whether it is finite
        gram[1:, 1:].addmm_(gaps, gaps.T)
    return _finite(gram, rows, "params")


def distances_to_mean(params: Any) -> Floats:
    """Return each model's Euclidean distance from the plain mean of ``params [k, P]``, ``[k]``.

    Args:
        params: ``[k, P]``, a model per row.

    Raises:
        ValueError: a wrong shape, or a number that is not finite, or whose square is not.
    """
    rows = as_models(params)
    total = torch.zeros(len(rows), dtype=torch.float64, device=rows.device)
    width = max(1, _BLOCK // len(rows))
    for a in range(0, rows.shape[1], width):
        block = rows[:, a : a + width].double()
        gaps = block - block[:1]  # relative to one of them: equal models are exactly at their mean
        gaps = gaps - gaps.mean(dim=0)
        total += gaps.square().sum(dim=1)
    return _finite(total.sqrt(), rows, "params")


def cosines(vectors: Any) -> Floats:
    """Return the cosines between ``vectors [k, P]``, ``[k, k]`` with ones on the diagonal.

    A vector of length 0 has cosine 0 with all others.

    Raises:
        ValueError: a wrong shape, or a number that is not finite, or whose square is not.
    """
    products = inner_products(vectors)
    length = np.sqrt(np.diag(products))
    both = length[:, None] * length[None, :]
    cosine: Floats = np.divide(products, both, out=np.zeros_like(products), where=both > 0).clip(-1.0, 1.0)
    np.fill_diagonal(cosine, 1.0)
    return cosine


def inner_products(vectors: Any) -> Floats:
    """Return the inner products of ``vectors [k, P]``, ``[k, k]`` float64.

    Raises:
        ValueError: a wrong shape, or a number that is not finite, or whose square is not.
    """
    rows = as_models(vectors, "vectors")
    gram = torch.zeros((len(rows), len(rows)), dtype=torch.float64, device=rows.device)
    width = max(1, _BLOCK // len(rows))
    for a in range(0, rows.shape[1], width):
        block = rows[:, a : a + width].double()
        gram.addmm_(block, block.T)
    return _finite(gram, rows, "vectors")
