"""Generated data: FedProx's synthetic(alpha, beta), made on demand, and FedSoft's two linear models.

FedProx's data (Li et al. 2020, "Federated optimization in heterogeneous networks", section 5.1 and appendix C.1) are,
for client k::

    u_k ~ N(0, alpha)    W_k [10, 60], b_k [10] ~ N(u_k, 1)          y = argmax(softmax(W_k x + b_k))
    B_k ~ N(0, beta)     v_k [60] ~ N(B_k, 1)                        x ~ N(v_k, diag(j^-1.2))

The second argument of N is a variance throughout, as it must be for the inputs. The authors' code uses ``alpha`` and
``beta`` as standard deviations, which is the same at 0 and 1. :class:`Synthetic` is this generator.
:class:`GeneratedData` is the federation of its clients: there may be very many, and their samples are made only on
demand.

FedSoft's data come from Ruan and Joe-Wong 2022, "FedSoft: soft clustered federated learning with proximal local
updating", and its code. For distribution s they are ``w_s [10] ~ N(0, 10 I)``, ``x ~ N(0, I)``, ``y = <w_s, x> + e``,
``e ~ N(0, 1)``. There are 50,000 train and 1,000 test samples of each. :func:`fedsoft_linear` makes them as an ordinary
data set.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from hanse.base.pytorch import Tensor, torch
from hanse.base.streams import stream
from hanse.data.dataset import Dataset, Distributions
from hanse.data.federated import FederatedData
from hanse.data.samples import Samples
from hanse.data.shares import Cuts, server_cut, share_ends, taken
from hanse.data.units import SHARES

DIMENSION = 60
CLASSES = 10
TEST_CLIENTS = 100
"""The global test set takes draws from the first 100 clients, or from all if there are fewer."""
TEST_SAMPLES = 20
"""Samples that each of them adds to the test set; fresh draws, no train sample."""


@dataclass(frozen=True)
class Synthetic:
    """The generator of synthetic(alpha, beta).

    A client's samples depend only on the settings, its number and its size.

    Attributes:
        alpha: the variance of the models' means. With 0, all models are drawn around the same mean.
        beta: the variance of the inputs' means.
        seed: the seed of all draws.
        samples_per_client: the size of every client. None: 50 plus the whole part of Lognormal(4, 2), as the authors
            draw it.

    Examples:
        >>> generator = Synthetic(alpha=1.0, beta=1.0, samples_per_client=20)
        >>> generator.sizes(3), generator.client(1, 20).x.shape
        (array([20, 20, 20]), torch.Size([20, 60]))
    """

    alpha: float
    beta: float
    seed: int = 0
    samples_per_client: int | None = None

    def sizes(self, clients: int) -> NDArray[np.int64]:
        """Return each client's number of samples, ``[clients]``; it does not depend on the number of clients."""
        if self.samples_per_client is not None:
            return np.full(clients, self.samples_per_client, dtype=np.int64)
        draws = stream(self.seed, "synthetic-sizes").lognormal(4.0, 2.0, clients)
        return 50 + draws.astype(np.int64)

    def client(self, client: int, size: int) -> Samples:
        """Return the samples of one client: x float32 ``[size, 60]``, y int64 ``[size]``, drawn independently."""
        return self._draw(client, size, stream(self.seed, "synthetic-inputs", client=client))

    def test(self, clients: int) -> Samples:
        """Return the global test set: :data:`TEST_SAMPLES` fresh draws from each of the first clients."""
        return Samples.joined(
            [
                self._draw(k, TEST_SAMPLES, stream(self.seed, "synthetic-test", client=k))
                for k in range(min(clients, TEST_CLIENTS))
            ]
        )

    def _draw(self, client: int, size: int, draw: np.random.Generator) -> Samples:
        """Return ``size`` samples of a client's own model and inputs; ``draw`` gives the inputs."""
        # the client's own model and means: the same for its train samples and for the test set
        model = stream(self.seed, "synthetic", client=client)
        u = model.normal(0.0, np.sqrt(self.alpha))
        centre = model.normal(0.0, np.sqrt(self.beta))
        weight = model.normal(u, 1.0, (CLASSES, DIMENSION))
        bias = model.normal(u, 1.0, CLASSES)
        mean = model.normal(centre, 1.0, DIMENSION)
        scale = np.arange(1, DIMENSION + 1, dtype=np.float32) ** np.float32(-0.6)  # the square root of j^-1.2
        # single precision halves the time, which every seated client costs in every round
        x = draw.standard_normal((size, DIMENSION), dtype=np.float32) * scale + mean.astype(np.float32)
        # softmax keeps the order, so the label is the largest logit
        y = (x @ weight.T.astype(np.float32) + bias.astype(np.float32)).argmax(axis=1)
        return Samples(torch.from_numpy(x), torch.from_numpy(y))


LINEAR_FEATURES = 10
LINEAR_MODELS = 2
LINEAR_TRAIN, LINEAR_TEST = 50_000, 1_000


def fedsoft_weights(seed: int) -> NDArray[np.float64]:
    """Return the true weight vectors ``[2, 10]``; each component has variance 10."""
    return stream(seed, "fedsoft-weights").normal(0.0, np.sqrt(10.0), (LINEAR_MODELS, LINEAR_FEATURES))


def fedsoft_linear(seed: int) -> Dataset:
    """Return the data set of both linear models: x float32 ``[n, 10]``, y float32 ``[n]``.

    One linear layer can fit only one of the models.
    """
    (train, train_of), (test, test_of) = (
        _linear_samples(seed, size, share) for share, size in enumerate((LINEAR_TRAIN, LINEAR_TEST))
    )
    distributions = Distributions(tuple(f"model {'AB'[d]}" for d in range(LINEAR_MODELS)), train_of, test_of)
    return Dataset("fedsoft_linear", train, test, None, (LINEAR_FEATURES,), distributions=distributions)


def _linear_samples(seed: int, size: int, share: int) -> tuple[Samples, NDArray[np.int64]]:
    """Return ``size`` samples of each model, first those of model A, and the model of each sample, ``[2 * size]``."""
    weights = fedsoft_weights(seed)
    draw = stream(seed, "fedsoft-samples", start=share)
    x = draw.standard_normal((LINEAR_MODELS, size, LINEAR_FEATURES))
    y = np.einsum("dnf,df->dn", x, weights) + draw.standard_normal((LINEAR_MODELS, size))
    of: NDArray[np.int64] = np.repeat(np.arange(LINEAR_MODELS), size)
    flat = torch.from_numpy(x.reshape(-1, LINEAR_FEATURES).astype(np.float32))
    return Samples(flat, torch.from_numpy(y.reshape(-1).astype(np.float32))), of


_COUNTED_CLIENTS = 1_000


@dataclass(frozen=True, kw_only=True)
class GeneratedData(FederatedData):
    """Synthetic clients, whose samples are made on demand. The last ones asked for are cached.

    Attributes:
        source: the generator.
        ends: ``[clients, 3]``, the ends of each client's train, validation and test samples among its draws.

    Examples:
        >>> data = GeneratedData.of(Synthetic(alpha=1.0, beta=1.0), 5, Cuts(client_test=0.2))
        >>> data.num_clients, data.pool([3])[0].x.shape[1]
        (5, 60)
    """

    source: Synthetic
    ends: NDArray[np.int64]

    @staticmethod
    def of(source: Synthetic, clients: int, cuts: Cuts) -> GeneratedData:
        """Register ``clients`` clients without making their samples, and make the server's sets.

        Args:
            source: the generator, which says how many samples each client has.
            clients: how many clients there are.
            cuts: the parts; draws go by the generator's seed.
        """
        ends = share_ends(source.sizes(clients), cuts.client_test, cuts.client_validation)
        test = source.test(clients)
        held, rest, kept = server_cut(test, CLASSES, replace(cuts, seed=source.seed, validation_seed=None))
        return GeneratedData(
            name=f"synthetic({source.alpha:g}, {source.beta:g})",
            num_classes=CLASSES,
            input_shape=(DIMENSION,),
            sizes=ends[:, 0],
            server_validation=taken(test, held),
            server_test=taken(test, rest),
            server_root=taken(test, kept),
            source=source,
            ends=ends,
        )

    def pool(self, clients: Sequence[int], share: str = "train") -> tuple[Samples, list[Tensor]]:
        """Make these clients' samples, and return them with each client's positions."""
        self._check(clients, share)
        column, parts, index, offset = SHARES.index(share), list[Samples](), dict[int, Tensor](), 0
        for client in dict.fromkeys(clients):  # a client with several seats is asked for several times and made once
            first, last = [0, *self.ends[client].tolist()][column : column + 2]
            own = _made(self.source, client, int(self.ends[client, -1]))
            parts.append(Samples(own.x[first:last], own.y[first:last]))
            index[client] = torch.arange(offset, offset + last - first)
            offset += last - first
        none = Samples(torch.zeros(0, DIMENSION), torch.zeros(0, dtype=torch.int64))
        return parts[0] if len(parts) == 1 else Samples.joined(parts or [none]), [index[client] for client in clients]

    def origin(self, share: str) -> Sequence[str]:
        """Return the generator's settings and where each client's shares end: these determine the client's samples."""
        # made once: the text of the settings takes longer than that of a client
        made = f"{self.source}|{share}"
        return [f"{made}|{ends}" for ends in self.ends.tolist()]

    def class_counts(self) -> NDArray[np.int64] | None:
        """Return the train samples of each client and class.

        None above 1,000 clients, since the samples of all would have to be made.
        """
        if self.num_clients > _COUNTED_CLIENTS:
            return None
        rows = [
            np.bincount(_made(self.source, k, int(self.ends[k, -1])).y[: self.sizes[k]].numpy(), minlength=CLASSES)
            for k in range(self.num_clients)
        ]
        return np.stack(rows).astype(np.int64)


@lru_cache(maxsize=32)  # about what a round seats: memory must not grow with the clients seen
def _made(source: Synthetic, client: int, size: int) -> Samples:
    """Return a client's samples, made anew unless it was among the last ones asked for."""
    return source.client(client, size)
