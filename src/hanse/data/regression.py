"""FedSoft's synthetic regression: two linear models, and samples of each.

Ruan and Joe-Wong 2022, "FedSoft: soft clustered federated learning with proximal local updating", and its code: for
distribution s, ``w_s [10] ~ N(0, 10 I)``, ``x ~ N(0, I)``, ``y = <w_s, x> + e``, ``e ~ N(0, 1)``; 50,000 train and
1,000 test samples of each.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from hanse.base.streams import stream
from hanse.data.dataset import Dataset, Distributions
from hanse.data.samples import Samples

__all__ = ["fedsoft_linear", "fedsoft_weights"]

FEATURES = 10
DISTRIBUTIONS = 2
TRAIN, TEST = 50_000, 1_000


def fedsoft_weights(seed: int) -> NDArray[np.float64]:
    """Return the true weight vectors ``[2, 10]``; each component has variance 10."""
    return stream(seed, "fedsoft-weights").normal(0.0, np.sqrt(10.0), (DISTRIBUTIONS, FEATURES))


def fedsoft_linear(*, root: Path | None, seed: int, download: bool) -> Dataset:
    """Make the data set: x float32 ``[n, 10]``, y float32 ``[n]``; one linear layer fits one of the two."""
    del root, download
    (train, train_of), (test, test_of) = (_draw(seed, size, share) for share, size in enumerate((TRAIN, TEST)))
    told = Distributions(tuple(f"model {'AB'[d]}" for d in range(DISTRIBUTIONS)), train_of, test_of)
    return Dataset("fedsoft_linear", train, test, None, (FEATURES,), distributions=told)


def _draw(seed: int, size: int, share: int) -> tuple[Samples, NDArray[np.int64]]:
    weights = fedsoft_weights(seed)
    draw = stream(seed, "fedsoft-samples", start=share)
    x = draw.standard_normal((DISTRIBUTIONS, size, FEATURES))
    y = np.einsum("dnf,df->dn", x, weights) + draw.standard_normal((DISTRIBUTIONS, size))
    of: NDArray[np.int64] = np.repeat(np.arange(DISTRIBUTIONS), size)
    flat = torch.from_numpy(x.reshape(-1, FEATURES).astype(np.float32))
    return Samples(flat, torch.from_numpy(y.reshape(-1).astype(np.float32))), of
