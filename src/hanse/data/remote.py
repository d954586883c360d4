"""What a server knows of clients whose data lie elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hanse.data.federated import FederatedData
from hanse.data.samples import Samples

__all__ = ["RemoteData"]


@dataclass(frozen=True)
class RemoteData(FederatedData):
    """The server's own sets, the shape of a sample, and the clients' reported sizes; no client's sample is here.

    ``text``: samples are tokens with a label at every position.
    """

    text: bool = field(default=False, kw_only=True)

    @staticmethod
    def of(
        sizes: Sequence[int],
        input_shape: tuple[int, ...],
        num_classes: int | None,
        validation: Samples | None = None,
        test: Samples | None = None,
        text: bool = False,
    ) -> RemoteData:
        """Return what the server knows of clients with these reported ``sizes``."""
        numbers = np.array(sizes, dtype=np.int64)
        return RemoteData("remote", num_classes, input_shape, "", numbers, validation, test, text=text)

    def pool(self, clients: Sequence[int], share: str = "train") -> tuple[Samples, list[Tensor]]:
        """Return no samples: they are elsewhere."""
        self._check(clients, share)
        shape, kind = self.input_shape, torch.float32 if self.num_classes is None else torch.int64
        none = Samples(torch.zeros(0, *shape), torch.zeros(0, dtype=kind))
        if self.text:
            none = Samples(torch.zeros(0, *shape, dtype=kind), torch.zeros(0, *shape, dtype=kind))
        return none, [torch.zeros(0, dtype=torch.int64) for _ in clients]

    def origin(self, share: str) -> Sequence[str]:
        """Return nothing: each participant's node keeps a fingerprint of its own data."""
        return ()

    def class_counts(self) -> NDArray[np.int64] | None:
        """Return None: the server does not know them."""
        return None
