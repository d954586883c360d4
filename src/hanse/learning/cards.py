"""Support for GPUs: samples stay on the device, and repeating the arithmetic gives the same bits.

:func:`hanse.learning.engines.make_engine` calls :func:`same_bits`. Engines and scorers hold their samples in a
:class:`Resident`.
"""

from __future__ import annotations

import torch

from hanse.data.samples import Samples

_KEPT = 2  # sets of samples on a card: those that are trained on, and those of the test


def same_bits(device: torch.device) -> None:
    """Make convolutions on a CUDA device compute in float32 and in a fixed order. On other devices, do nothing.

    By default PyTorch rounds the inputs of convolutions to 10 bits (TF32), so that rows differ from the CPU's by 1e-3.
    It may also vary the order of sums. The setting is cuDNN's, for the whole process.
    """
    if device.type == "cuda":
        cudnn = torch.backends.cudnn
        cudnn.allow_tf32, cudnn.deterministic, cudnn.benchmark = False, True, False


class Resident:
    """Caches the most recent sets of samples on a device, so they are not copied every round.

    Args:
        device: where to keep them. On the CPU, samples are returned unchanged.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._kept: list[tuple[Samples, Samples]] = []

    def of(self, pool: Samples) -> Samples:
        """Return the samples on the device."""
        for given, there in self._kept:
            if given is pool:
                return there
        there = pool.to(self.device)
        if there is not pool:
            self._kept = [*self._kept[1 - _KEPT :], (pool, there)]
        return there

    def clear(self) -> None:
        """Forget the samples, so their memory can be freed."""
        self._kept = []
