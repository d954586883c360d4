"""Samples: inputs and targets as two tensors, the one form in which data is handed around inside a client."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

__all__ = ["Samples"]


@dataclass(frozen=True)
class Samples:
    """``x [n, ...]`` (float32, or int64 tokens) and ``y [n]`` (int64 classes), ``[n, positions]`` (int64, one at each
    position of a text) or ``[n]``/``[n, d]`` (float32 targets).
    """

    x: Tensor
    y: Tensor

    def __len__(self) -> int:
        return int(self.x.shape[0])

    def take(self, index: Tensor) -> Samples:
        """Return the samples at ``index [m]`` as new tensors."""
        return Samples(self.x.index_select(0, index), self.y.index_select(0, index))
