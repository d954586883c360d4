"""Distances between LoRA adapters, measured on the products B A, not on the factors.

A LoRA adapter (Hu et al. 2021) changes a weight by ``alpha / rank B A``. The factors are not unique: ``(B R, R^-1 A)``
is the same change for every invertible R. Two clients with the same model may therefore have factors that are far apart
or even orthogonal, and clients with opposite models may have the same A. Products compare what the adapters change. The
products are never formed: ``<B_i A_i, B_j A_j> = <B_i^T B_j, A_i A_j^T>`` takes matrices of the rank's size.

:func:`product_gram` and :func:`travel_gram` return inner products, from which distances and cosines follow.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from hanse.base.pytorch import Tensor, torch
from hanse.core.table import Floats, Layout


def _pairs(layout: Layout, rows: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield each adapted weight's factors of all rows: ``A [k, rank, in]`` and ``B [k, out, rank]``."""
    views = layout.unflatten(rows)
    for name in layout.names:
        other = f"{name.removesuffix('lora_A')}lora_B"
        if name.endswith("lora_A") and other in views:
            yield views[name], views[other]


def has_adapters(layout: Layout) -> bool:
    """Return whether all parameters of a row are factors of adapters."""
    names = layout.names[: layout.offsets.index(layout.num_parameters)]
    return bool(names) and all(name.endswith(("lora_A", "lora_B")) for name in names)


def product_gram(layout: Layout, rows: Tensor) -> Floats:
    """Return the inner products ``[k, k]`` of the adapters' changes, summed over the weights, in float64.

    The factor ``(alpha / rank)^2``, which all adapters share, is left out.

    Args:
        layout: the layout of the rows.
        rows: the adapters, ``[k, P]``.

    Raises:
        ValueError: rows are not adapters, or numbers are not finite.
    """
    if not has_adapters(layout):
        raise ValueError("rows: the model has parameters that are not factors of an adapter")
    k = len(rows)
    gram = torch.zeros((k, k), dtype=torch.float64, device=rows.device)
    for A, B in _pairs(layout, rows):
        left, right = A.double(), B.double()
        for i in range(k):
            # [k, rank, rank]: B_i^T B_j and A_i A_j^T
            gram[i] += ((left[i] @ left.transpose(1, 2)) * (right[i].T @ right)).sum((1, 2))
    products = gram.cpu().numpy()
    if not np.isfinite(products).all():
        raise ValueError("rows: numbers that are not finite or too large: must be finite")
    return np.asarray((products + products.T) / 2)


def travel_gram(layout: Layout, rows: Tensor, reference: Tensor | None) -> Floats:
    """Return the inner products ``[k, k]`` of the adapters' moves, ``B A - B_0 A_0``.

    Args:
        layout: the layout of the rows.
        rows: the adapters, ``[k, P]``.
        reference: where the adapters started, ``[P]`` for all or ``[k, P]`` for each. None: they started at zero.

    Raises:
        ValueError: as :func:`product_gram`.
    """
    if reference is None:
        return product_gram(layout, rows)
    k = len(rows)
    before = reference.reshape(-1, rows.shape[1])
    whole = product_gram(layout, torch.cat([rows, before]))
    since = np.arange(k) + k if len(before) == k and reference.ndim == 2 else np.full(k, k)
    # row i of ``steps`` is +1 at row i and -1 at its reference, so steps G steps^T compares the differences
    steps = np.zeros((k, len(whole)))
    steps[np.arange(k), np.arange(k)] = 1.0
    steps[np.arange(k), since] = -1.0
    return np.asarray(steps @ whole @ steps.T)
