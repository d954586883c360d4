"""FedProx's synthetic(alpha, beta): every client has its own linear model and its own inputs, made on demand.

Li et al. 2020, "Federated optimization in heterogeneous networks", section 5.1 and appendix C.1, for client
k::

    u_k ~ N(0, alpha)    W_k [10, 60], b_k [10] ~ N(u_k, 1)          y = argmax(softmax(W_k x + b_k))
    B_k ~ N(0, beta)     v_k [60] ~ N(B_k, 1)                        x ~ N(v_k, diag(j^-1.2))

The second argument of N is read as a variance throughout, as it must be for the inputs; the authors' code
takes ``alpha`` and ``beta`` for standard deviations, which is the same at 0 and 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from hanse.base.errors import UserError
from hanse.base.streams import stream
from hanse.data.samples import Samples
from hanse.data.sizes import check_count

__all__ = ["CLASSES", "DIMENSION", "TEST_CLIENTS", "TEST_SAMPLES", "Synthetic"]

DIMENSION = 60
CLASSES = 10
TEST_CLIENTS = 100
"""The global test set takes draws from the first 100 clients, or from all if there are fewer."""
TEST_SAMPLES = 20
"""Samples that each of them adds to the test set; fresh draws, no train sample."""


@dataclass(frozen=True)
class Synthetic:
    """The generator. A client's samples depend on ``seed``, ``alpha``, ``beta``, its number and its size; not
    on others.

    ``samples_per_client``: the size of every client; ``None`` draws 50 + the whole part of Lognormal(4, 2),
    as the authors do.
    """

    alpha: float
    beta: float
    seed: int = 0
    samples_per_client: int | None = None

    def __post_init__(self) -> None:
        for name, value in (("alpha", self.alpha), ("beta", self.beta)):
            if not 0 <= value < float("inf"):
                raise UserError(f"{name} = {value!r}; allowed: a finite number of at least 0")
        if self.samples_per_client is not None:
            check_count("samples_per_client", self.samples_per_client)

    def sizes(self, clients: int) -> NDArray[np.int64]:
        """Return each client's number of samples, ``[clients]``; it does not depend on how many others there are."""
        check_count("clients", clients)
        if self.samples_per_client is not None:
            return np.full(clients, self.samples_per_client, dtype=np.int64)
        draws = stream(self.seed, "synthetic-sizes").lognormal(4.0, 2.0, clients)
        return 50 + draws.astype(np.int64)

    def client(self, client: int, size: int) -> Samples:
        """Make the samples of one client: x float32 ``[size, 60]``, y int64 ``[size]``; the draws are
        independent.
        """
        return self._draw(client, size, stream(self.seed, "synthetic-inputs", client=client))

    def test(self, clients: int) -> Samples:
        """Make the global test set: :data:`TEST_SAMPLES` fresh draws from each of the first clients."""
        parts = [
            self._draw(k, TEST_SAMPLES, stream(self.seed, "synthetic-test", client=k))
            for k in range(min(clients, TEST_CLIENTS))
        ]
        return Samples(torch.cat([p.x for p in parts]), torch.cat([p.y for p in parts]))

    def _draw(self, client: int, size: int, draw: np.random.Generator) -> Samples:
        model = stream(self.seed, "synthetic", client=client)
        u = model.normal(0.0, np.sqrt(self.alpha))
        centre = model.normal(0.0, np.sqrt(self.beta))
        weight = model.normal(u, 1.0, (CLASSES, DIMENSION))
        bias = model.normal(u, 1.0, CLASSES)
        mean = model.normal(centre, 1.0, DIMENSION)
        scale = np.arange(1, DIMENSION + 1, dtype=np.float32) ** np.float32(-0.6)  # the square root of j^-1.2
        # single precision halves the time, which every seated client costs in every round
        x = draw.standard_normal((size, DIMENSION), dtype=np.float32) * scale + mean.astype(np.float32)
        # softmax keeps the order, so that the label is the largest logit
        y = (x @ weight.T.astype(np.float32) + bias.astype(np.float32)).argmax(axis=1)
        return Samples(torch.from_numpy(x), torch.from_numpy(y))
