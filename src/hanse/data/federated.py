"""Data as the federation uses it: shares of registered clients, and the server's own validation and test
sets.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hanse.data.dataset import Dataset, stratified_split
from hanse.data.partitions import Partition
from hanse.data.samples import Samples
from hanse.data.synthetic import CLASSES, DIMENSION, Synthetic
from hanse.errors import UserError
from hanse.streams import stream

__all__ = ["FederatedData", "GeneratedData", "Share", "SplitData", "server_sets"]

Share = Literal["train", "validation", "test"]
SHARES: tuple[str, ...] = ("train", "validation", "test")

_CACHED_SAMPLES = 10_000  # about what a round seats: memory must not grow with the clients seen
_COUNTED_CLIENTS = 1_000


@dataclass(frozen=True)
class FederatedData(ABC):
    """The samples of ``num_clients`` clients, ids 0..num_clients-1, and the server's sets.

    ``sizes [num_clients]``: train samples of each client. ``server_validation`` and ``server_test`` are
    disjoint; ``None`` where there is nothing. ``num_classes`` is ``None`` for regression. ``note`` belongs
    beside any result.
    """

    name: str
    num_classes: int | None
    input_shape: tuple[int, ...]
    note: str
    sizes: NDArray[np.int64]
    server_validation: Samples | None
    server_test: Samples | None

    @property
    def num_clients(self) -> int:
        """The number of registered clients."""
        return len(self.sizes)

    @abstractmethod
    def pool(self, clients: Sequence[int], share: str = "train") -> tuple[Samples, list[Tensor]]:
        """Return one pool of samples, and for each client the int64 positions of its share in it.

        The pool is shared and must not be written to. A client without samples in a share has an empty index.
        Raises UserError for an unknown share or client.
        """

    @abstractmethod
    def class_counts(self) -> NDArray[np.int64] | None:
        """Return train samples of each client and class, ``[clients, classes]``; ``None`` where it has no
        meaning or price.
        """

    def _check(self, clients: Sequence[int], share: str) -> None:
        if share not in SHARES:
            raise UserError(f"share = '{share}'; allowed: {', '.join(SHARES)}")
        for client in clients:
            if not 0 <= client < self.num_clients:
                raise UserError(f"client {client} is not registered; allowed: 0..{self.num_clients - 1}")


@dataclass(frozen=True)
class SplitData(FederatedData):
    """A data set in memory, split. The pool is always the whole train set: nothing is copied.

    ``order [n]`` holds each client's samples one client after another, its train share first, then
    validation, then test; ``bounds [clients, 4]`` are the ends of these in it.
    """

    train: Samples
    order: Tensor
    bounds: NDArray[np.int64]

    @staticmethod
    def of(
        dataset: Dataset,
        partition: Partition,
        *,
        seed: int = 0,
        client_test: float = 0.0,
        client_validation: float = 0.0,
        validation: float = 0.5,
    ) -> SplitData:
        """Cut each client's samples into shares and the source's test set into the server's two sets.

        A client's shares are disjoint, cut from a random order keyed by ``(seed, client)`` and rounded down,
        so that training keeps at least one sample.
        """
        sizes = partition.sizes
        ends = share_ends(sizes, client_test, client_validation)
        pieces: list[NDArray[np.int64]] = []
        for client, index in enumerate(partition.train):
            order = index
            if ends[client, 0] < len(index):
                order = stream(seed, "shares", client=client).permutation(index)
            parts = np.split(order, ends[client, :2])
            pieces.extend(np.sort(part) for part in parts)
        starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
        server_validation, server_test = server_sets(dataset.test, dataset.num_classes, validation, seed)
        return SplitData(
            name=dataset.name,
            num_classes=dataset.num_classes,
            input_shape=dataset.input_shape,
            note=dataset.note,
            sizes=ends[:, 0],
            server_validation=server_validation,
            server_test=server_test,
            train=dataset.train,
            order=torch.from_numpy(np.concatenate(pieces)),
            bounds=np.concatenate([starts[:, None], starts[:, None] + ends], axis=1),
        )

    def pool(self, clients: Sequence[int], share: str = "train") -> tuple[Samples, list[Tensor]]:
        """Return the whole train set and each client's positions in it (see :meth:`FederatedData.pool`)."""
        self._check(clients, share)
        column = SHARES.index(share)
        spans = self.bounds[list(clients), column : column + 2]
        return self.train, [self.order[a:b] for a, b in spans.tolist()]

    def class_counts(self) -> NDArray[np.int64] | None:
        """Return train samples of each client and class, or ``None`` for regression."""
        if self.num_classes is None:
            return None
        labels = self.train.y[self.order].numpy()
        rows = [np.bincount(labels[a:b], minlength=self.num_classes) for a, b in self.bounds[:, :2].tolist()]
        return np.stack(rows).astype(np.int64)


@dataclass(frozen=True)
class GeneratedData(FederatedData):
    """Synthetic clients: only the samples of clients that are asked for are made, and the last ones are kept.

    ``ends [clients, 3]``: where a client's train, validation and test samples end among its draws.
    """

    source: Synthetic
    ends: NDArray[np.int64]
    _cache: _Recent = field(default_factory=lambda: _Recent(_CACHED_SAMPLES), repr=False, compare=False)

    @staticmethod
    def of(
        source: Synthetic,
        clients: int,
        *,
        client_test: float = 0.0,
        client_validation: float = 0.0,
        validation: float = 0.5,
    ) -> GeneratedData:
        """Register ``clients`` clients; their samples are not made yet. Shares are rounded down."""
        ends = share_ends(source.sizes(clients), client_test, client_validation)
        server_validation, server_test = server_sets(source.test(clients), CLASSES, validation, source.seed)
        return GeneratedData(
            name=f"synthetic({source.alpha:g}, {source.beta:g})",
            num_classes=CLASSES,
            input_shape=(DIMENSION,),
            note="",
            sizes=ends[:, 0],
            server_validation=server_validation,
            server_test=server_test,
            source=source,
            ends=ends,
        )

    def pool(self, clients: Sequence[int], share: str = "train") -> tuple[Samples, list[Tensor]]:
        """Make these clients' samples and return them end to end, with each client's positions."""
        self._check(clients, share)
        column = SHARES.index(share)
        parts: dict[int, Samples] = {}
        index: dict[int, Tensor] = {}
        offset = 0
        for client in clients:
            if client in index:
                continue
            first = 0 if column == 0 else int(self.ends[client, column - 1])
            last = int(self.ends[client, column])
            own = self._samples(client)
            parts[client] = Samples(own.x[first:last], own.y[first:last])
            index[client] = torch.arange(offset, offset + last - first)
            offset += last - first
        if len(parts) == 1:
            return next(iter(parts.values())), [index[client] for client in clients]
        empty = [Samples(torch.zeros(0, DIMENSION), torch.zeros(0, dtype=torch.int64))]
        made = list(parts.values()) or empty
        merged = Samples(torch.cat([s.x for s in made]), torch.cat([s.y for s in made]))
        return merged, [index[client] for client in clients]

    def class_counts(self) -> NDArray[np.int64] | None:
        """Return train samples of each client and class; ``None`` for more than 1,000 clients (all would be
        made).
        """
        if self.num_clients > _COUNTED_CLIENTS:
            return None
        rows = [
            np.bincount(self._samples(k).y[: self.sizes[k]].numpy(), minlength=CLASSES) for k in range(self.num_clients)
        ]
        return np.stack(rows).astype(np.int64)

    def _samples(self, client: int) -> Samples:
        found = self._cache.get(client)
        if found is None:
            found = self.source.client(client, int(self.ends[client, -1]))
            self._cache.put(client, found)
        return found


class _Recent:
    """The clients used last, up to ``limit`` samples in all."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._held = 0
        self._items: OrderedDict[int, Samples] = OrderedDict()

    def get(self, client: int) -> Samples | None:
        if client in self._items:
            self._items.move_to_end(client)
        return self._items.get(client)

    def put(self, client: int, samples: Samples) -> None:
        self._items[client] = samples
        self._held += len(samples)
        while self._held > self._limit and self._items:
            self._held -= len(self._items.popitem(last=False)[1])


def share_ends(sizes: NDArray[np.int64], client_test: float, client_validation: float) -> NDArray[np.int64]:
    """Return where a client's train, validation and test shares end, ``[clients, 3]``. Raises UserError."""
    for name, value in (("client_test", client_test), ("client_validation", client_validation)):
        if not 0 <= value < 1:
            raise UserError(f"{name} = {value!r}; allowed: at least 0 and less than 1")
    if client_test + client_validation >= 1:
        raise UserError(f"client_test + client_validation = {client_test + client_validation:g}; allowed: less than 1")
    test = np.floor(sizes * client_test).astype(np.int64)
    validation = np.floor(sizes * client_validation).astype(np.int64)
    return np.stack([sizes - test - validation, sizes - test, sizes], axis=1)


def server_sets(
    test: Samples, num_classes: int | None, validation: float, seed: int
) -> tuple[Samples | None, Samples | None]:
    """Cut a test set into the server's validation set (this share of it, stratified by class) and its test
    set.
    """
    if not 0 <= validation < 1:
        raise UserError(f"validation = {validation!r}; allowed: at least 0 and less than 1")
    size = round(len(test) * validation)
    labels = None if num_classes is None else test.y.numpy()
    rest, cut = stratified_split(labels, len(test), size, stream(seed, "server-validation"))
    if size == 0:
        return None, test if len(test) else None
    return test.take(torch.from_numpy(cut)), test.take(torch.from_numpy(rest)) if len(rest) else None
