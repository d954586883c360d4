"""From models to the market and back: distances between models, and the proximal centre that imports make.

:func:`distances` (or :func:`cosine_gram`, where cosines are needed for the centre as well) makes the market's
distances. After :func:`hanse.games.market.learn_graph`, :func:`centre_weights` says how each client's centre is mixed
from the models that it imports.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from hanse.base.pytorch import torch
from hanse.games.gram import Floats, as_models
from hanse.games.gram import distances as euclidean

Kind = Literal["cosine", "squared_l2"]

_BLOCK = 1 << 22  # numbers at a time
_TILE = 128  # models of a tile of the product


def cosine_gram(models: Any) -> tuple[Floats, Floats]:
    """Return the cosines between models, and their lengths, from one Gram product.

    Products of a block of columns are made in the models' own precision and added up in float64. A model of length 0
    has cosine 0 with every other.

    Args:
        models: ``[m, P]``, a model per row.

    Returns:
        The cosines ``[m, m]`` and the lengths ``[m]``.

    Raises:
        ValueError: a wrong shape, or numbers that are not finite.
    """
    rows = as_models(models, "models")
    m = rows.shape[0]
    gram = torch.zeros((m, m), dtype=torch.float64, device=rows.device)
    width = max(256, _BLOCK // m)
    for a in range(0, rows.shape[1], width):
        block = rows[:, a : a + width]
        for top in range(0, m, _TILE):  # one half; the other is the same
            gram[top : top + _TILE, top:] += block[top : top + _TILE] @ block[top:].T
    products = gram.cpu().numpy()
    if not np.isfinite(products).all():
        raise ValueError("models: numbers that are not finite or too large: must be finite")
    products = np.triu(products) + np.triu(products, 1).T
    length = np.sqrt(np.diag(products))
    return _cosines(products, length), length


def distances(models: Any, kind: Kind = "cosine") -> Floats:
    """Return the distances between models, ``d [m, m]``, 0 on the diagonal.

    Args:
        models: ``[m, P]``, a model per row.
        kind: "cosine" for ``1 - cos``, or "squared_l2" for the squared Euclidean distance. ``1 - cos`` is never
            negative, so that Theorem 1 is true (docs/papers.md, I15).

    Raises:
        ValueError: a wrong shape, or numbers that are not finite.
    """
    if kind == "cosine":
        return cosine_distances(cosine_gram(models)[0])
    found = euclidean(models) ** 2
    np.fill_diagonal(found, 0.0)
    return np.asarray(found)


def cosine_distances(cosines: Floats) -> Floats:
    """Return ``1 - cos`` of ``cosines [m, m]``, with 0 on the diagonal."""
    found = 1.0 - cosines
    np.fill_diagonal(found, 0.0)
    return found


def gram_distances(gram: Floats, kind: Kind = "cosine") -> Floats:
    """Return the distances of :func:`distances` from inner products ``gram [m, m]``.

    What has length 0 has cosine 0 with the others.
    """
    squares = np.diag(gram)
    if kind == "cosine":
        return cosine_distances(_cosines(gram, np.sqrt(np.maximum(squares, 0.0))))
    found = np.maximum(squares[:, None] + squares[None, :] - 2 * gram, 0.0)
    np.fill_diagonal(found, 0.0)
    return np.asarray(found)


def _cosines(gram: Floats, length: Floats) -> Floats:
    """Return the cosines ``[m, m]`` from inner products and lengths; with what has length 0 the cosine is 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        cosines = gram / (length[:, None] * length[None, :])
    return np.clip(np.where(np.isfinite(cosines), cosines, 0.0), -1.0, 1.0)


def centre_weights(
    graph: NDArray[np.generic],
    sizes: Floats,
    eta: float,
    kind: Kind,
    cosines: Floats | None = None,
    lengths: Floats | None = None,
) -> Floats:
    """Return ``W [m, m]`` with ``centre = W theta``: the proximal centres of iPFL eq. (6).

    With squared L2 distances ``W_ij = 2 eta A_ij n_j/n_i``, and rows sum to 1. With cosine distances
    ``W_ij = eta A_ij n_j / (n_i |theta_i| |theta_j|)`` and ``W_ii = 1 - eta sum_j A_ij n_j/n_i cos_ij / |theta_i|^2``.

    Args:
        graph: ``[m, m]``, who imports whose model, and with what share of its size (1: all of it).
        sizes: ``[m]``, the clients' numbers of samples.
        eta: the step length of eq. (6).
        kind: which distance the market uses.
        cosines: ``[m, m]``, the cosines between the models theta. They are needed for "cosine".
        lengths: ``[m]``, the lengths of the models. They are needed for "cosine".

    Raises:
        ValueError: cosines or lengths are missing, or a model of length 0 imports or is imported.
    """
    A = np.asarray(graph, np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.where(A > 0, A * (sizes[None, :] / sizes[:, None]), 0.0)
    if kind == "squared_l2":
        W = 2 * eta * share
        W[np.diag_indices(len(sizes))] = 1 - W.sum(axis=1)
        return W
    if cosines is None or lengths is None:
        raise ValueError("cosines, lengths: missing: the cosine's gradient needs them")
    with np.errstate(divide="ignore", invalid="ignore"):
        W = np.where(share > 0, eta * share / (lengths[:, None] * lengths[None, :]), 0.0)
        own = np.where(share > 0, eta * share * cosines / lengths[:, None] ** 2, 0.0).sum(axis=1)
    if not (np.isfinite(W).all() and np.isfinite(own).all()):
        raise ValueError("lengths: 0: a model of length 0 has no direction to be pulled in")
    W[np.diag_indices(len(sizes))] = 1 - own
    return np.asarray(W)


def within_shares(W: Floats, gram: Floats, shares: Floats, kind: Kind) -> Floats:
    """Return weights of centres ``[m, m]`` in which each import is limited by its share.

    Suppose that a model is imported with a certain share of its size. What it adds to a step is then at most as long as
    this share of the way to it.

    Each import is limited independently of the others. Another import, however small or far away, does not change its
    limit.

    Args:
        W: ``[m, m]``, as :func:`centre_weights` returns it.
        gram: ``[m, m]``, the models' inner products.
        shares: ``[m, m]``, who imports whose model, and with what share of its size.
        kind: which distance the market uses.
    """
    square = np.diag(gram)
    others = W * (shares > 0)
    with np.errstate(divide="ignore", invalid="ignore"):  # with the cosine, a step is at right angles to the own model
        own = others if kind == "squared_l2" else np.where(others != 0, others * gram / square[:, None], 0.0)
    length = np.sqrt(np.maximum(others**2 * square - 2 * others * own * gram + own**2 * square[:, None], 0.0))
    reach = shares * np.sqrt(gram_distances(gram, "squared_l2"))
    scale = np.divide(reach, length, out=np.ones_like(length), where=length > reach)
    return np.asarray(np.diag(1 - (scale * own).sum(axis=1)) + scale * others)


def within_reach(W: Floats, gram: Floats, graph: NDArray[np.generic]) -> Floats:
    """Return weights of centres ``[m, m]`` whose steps are shortened to what is imported.

    No step away from the own model is then longer than the way to the farthest import. If models are imported with
    shares of their size, it is no longer than the largest such share of a way. The gradient of a cosine grows as models
    get short, and early on models have travelled little: the literal step of eq. (6) then lands far behind the imported
    models (docs/papers.md, I20).

    Args:
        W: ``[m, m]``, as :func:`centre_weights` returns it.
        gram: ``[m, m]``, the models' inner products.
        graph: ``[m, m]``, who imports whose model, and with what share.
    """
    step = W - np.eye(len(W))
    length = np.sqrt(np.maximum(np.einsum("ij,jk,ik->i", step, gram, step), 0.0))
    apart = np.sqrt(gram_distances(gram, "squared_l2"))
    reach = (graph * apart).max(axis=1, initial=0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        scale = np.where(length > reach, reach / length, 1.0)
    return np.asarray(np.eye(len(W)) + scale[:, None] * step)
