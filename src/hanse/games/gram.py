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
        ValueError: a wrong shape, or a number that is not finite.
    """
    rows = as_models(params)
    squared = np.zeros((len(rows), len(rows)))
    scale = 1.0
    if not _fill(squared, rows, np.arange(len(rows)), scale):
        scale = _scale(rows, "params")  # squares that overflow, or numbers that are not finite
        _fill(squared, rows, np.arange(len(rows)), scale)
    with np.errstate(over="ignore"):
        lengths = np.sqrt(squared) * scale
    if not np.isfinite(lengths).all():
        raise ValueError("params: models are farther apart than a float64 can say; allowed: distances below 1.8e308")
    return np.asarray(lengths)


def _scale(rows: Tensor, name: str) -> float:
    """Return a power of two at least as large as the largest number. Divided by it, no square overflows.

    Raises:
        ValueError: a number is not finite.
    """
    if not bool(torch.isfinite(rows).all()):
        bad = int(torch.nonzero(~torch.isfinite(rows).all(dim=1))[0])
        raise ValueError(f"{name}[{bad}] has numbers that are not finite; allowed: finite numbers")
    # at most 2^1023: the next power of two is not a float64
    return float(2.0 ** min(1023, int(np.frexp(float(rows.abs().max()))[1])))


def _fill(squared: Floats, rows: Tensor, part: Ints, scale: float) -> bool:
    """Write the squared distances among the models ``part``, divided by ``scale^2``, into ``squared [k, k]``.

    Returns:
        Whether they are all finite; if not, nothing was written.
    """
    gram = _gram(rows, part, scale)
    if not np.isfinite(gram).all():
        return False
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
        return True
    from scipy.sparse.csgraph import connected_components  # late: few tables have models so close to each other

    count, cluster = connected_components(close, directed=False)
    for name in range(count):
        members = np.flatnonzero(cluster == name)
        if len(members) > 1:  # fewer than before: the first, which all are relative to, is close to none
            _fill(squared, rows, part[members], scale)
    return True


def _gram(rows: Tensor, part: Ints, scale: float) -> Floats:
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
        gaps = rest.double() / scale - centre / scale if scale != 1.0 else rest.double() - centre
        if k == 1:
            gram += (centre / scale).square().sum()  # only to see whether it is finite
        gram[1:, 1:].addmm_(gaps, gaps.T)
    return np.asarray(gram.cpu().numpy())


def distances_to_mean(params: Any) -> Floats:
    """Return each model's Euclidean distance from the plain mean of ``params [k, P]``, ``[k]``.

    Args:
        params: ``[k, P]``, a model per row.

    Raises:
        ValueError: a wrong shape, or a number that is not finite.
    """
    rows = as_models(params)
    lengths = _to_mean(rows, 1.0)
    if np.isfinite(lengths).all():
        return lengths
    scale = _scale(rows, "params")
    return np.asarray(_to_mean(rows, scale) * scale)


def _to_mean(rows: Tensor, scale: float) -> Floats:
    """Return the distances from the mean, ``[k]``, divided by ``scale``."""
    total = torch.zeros(len(rows), dtype=torch.float64, device=rows.device)
    width = max(1, _BLOCK // len(rows))
    for a in range(0, rows.shape[1], width):
        block = rows[:, a : a + width].double() / scale
        gaps = block - block[:1]  # relative to one of them: equal models are exactly at their mean
        gaps = gaps - gaps.mean(dim=0)
        total += gaps.square().sum(dim=1)
    return np.asarray(total.sqrt().cpu().numpy())


def cosines(vectors: Any) -> Floats:
    """Return the cosines between ``vectors [k, P]``, ``[k, k]`` with ones on the diagonal.

    A vector of length 0 has cosine 0 with all others.

    Raises:
        ValueError: a wrong shape, or a number that is not finite.
    """
    products = inner_products(vectors)
    length = np.sqrt(np.diag(products))
    both = length[:, None] * length[None, :]
    cosine: Floats = np.divide(products, both, out=np.zeros_like(products), where=both > 0).clip(-1.0, 1.0)
    np.fill_diagonal(cosine, 1.0)
    return cosine


def inner_products(vectors: Any) -> Floats:
    """Return the inner products of ``vectors [k, P]``, ``[k, k]`` float64.

    If they would overflow, all are divided by a common number, which is not returned. Use this only for ratios of
    products.

    Raises:
        ValueError: a wrong shape, or a number that is not finite.
    """
    rows = as_models(vectors, "vectors")
    products = _products(rows, 1.0)
    if not np.isfinite(products).all():
        products = _products(rows, _scale(rows, "vectors"))
    return products


def _products(rows: Tensor, scale: float) -> Floats:
    """Return the inner products of the rows divided by ``scale``, block by block."""
    gram = torch.zeros((len(rows), len(rows)), dtype=torch.float64, device=rows.device)
    width = max(1, _BLOCK // len(rows))
    for a in range(0, rows.shape[1], width):
        block = rows[:, a : a + width].double() / scale
        gram.addmm_(block, block.T)
    return np.asarray(gram.cpu().numpy())
