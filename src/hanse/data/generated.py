"""Synthetic clients as federated data: made when they are asked for."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hanse.data.federated import SHARES, FederatedData
from hanse.data.samples import Samples
from hanse.data.shares import server_cut, share_ends, taken
from hanse.data.synthetic import CLASSES, DIMENSION, Synthetic

__all__ = ["GeneratedData"]

_CACHED_SAMPLES = 10_000  # about what a round seats: memory must not grow with the clients seen
_COUNTED_CLIENTS = 1_000


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
        test = source.test(clients)
        held, rest = server_cut(test, CLASSES, validation, source.seed)
        return GeneratedData(
            name=f"synthetic({source.alpha:g}, {source.beta:g})",
            num_classes=CLASSES,
            input_shape=(DIMENSION,),
            note="",
            sizes=ends[:, 0],
            server_validation=taken(test, held),
            server_test=taken(test, rest),
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

    def origin(self, share: str) -> Sequence[str]:
        """Return the generator and the ends of each client's shares: its samples depend on nothing else."""
        return [f"{self.source}|{share}|{ends}" for ends in self.ends.tolist()]

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
