"""Outputs of models, computed by compiled code: of one model at a time, or of mixtures that begin with a convolution.

:class:`NativeOutputs` checks its inputs and passes addresses to the functions of ``seats.c``, as
:mod:`hanse.learning.native.engine` does. :class:`hanse.learning.scoring.Scorer` uses it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from hanse.learning.job import Problem
from hanse.learning.native.library import (
    NativeLayer,
    NativeLayers,
    library,
    read_native,
    why_not_native,
    worth_for_images,
)


class NativeOutputs:
    """The outputs of models in compiled code, which passes each block of samples through all layers while it is in the
    cache.

    Args:
        layers: the model's layers.
        compiled: the compiled functions.
    """

    def __init__(self, layers: NativeLayers, compiled: ctypes.CDLL) -> None:
        self.layers, self._run, self._mix = layers, compiled.hanse_outputs, compiled.hanse_mixed
        dense = sum(layer.outputs * (layer.inputs + layer.bias) for layer in layers.dense)
        parts = [sum(p.numel() for p in convolution.parameters()) for convolution, _ in layers.convolutions]
        self._size, self._head = dense + sum(parts), parts[0] if parts else 0

    def __call__(self, rows: Tensor, x: Tensor) -> Tensor:
        """Return the outputs ``[C, k, m]`` of models ``rows [C, P]`` on samples ``x [m, ...]``, all float32.

        Raises:
            IndexError: samples of another shape than the model takes, or rows of another length than its own.
            MemoryError: there is not enough memory.
        """
        rows, x = rows.contiguous(), x.contiguous()
        layers = self._layers(rows, x.shape[1:])
        outputs = torch.empty((len(rows), layers[-1].outputs, len(x)))
        given = (NativeLayer * len(layers))(*layers)
        for row, out in zip(rows, outputs, strict=True):
            if self._run(given, len(layers), row.data_ptr(), x.data_ptr(), len(x), out.data_ptr()):
                raise MemoryError("native engine: not enough memory to score a model")
        return outputs

    def pays(self, shares: Tensor) -> bool:
        """Say whether mixing the first convolution's outputs by ``shares [C, S]`` takes less arithmetic than running it
        for each of the C models.
        """
        if not self.layers.convolutions:
            return False
        first, _ = self.layers.convolutions[0]
        models, rows = shares.shape
        taps = first.weight[0].numel()
        return int((shares != 0).sum()) + rows * taps < models * taps

    def mixed(self, rows: Tensor, shares: Tensor, x: Tensor) -> Tensor:
        """Return the outputs ``[C, k, m]`` of mixtures of ``rows [S, P]`` by ``shares [C, S]`` on ``x [m, ...]``.

        The first layer is a convolution, so it is linear in its weights. It is run once for each row, and its outputs
        are mixed.

        Raises:
            IndexError: for the same reasons as a call, or ``shares`` are for another number of rows.
            MemoryError: there is not enough memory.
        """
        layers = self._layers(rows, x.shape[1:])
        if shares.shape[1] != len(rows):
            raise IndexError(f"shares of {shares.shape[1]} rows, but there are {len(rows)}")
        outputs = torch.empty((len(shares), layers[-1].outputs, len(x)))
        if not len(shares):
            return outputs
        used = (shares != 0).any(0)
        if not used.any():
            used[0] = True  # compiled code reads one row at least
        shares, rows, x = shares[:, used].contiguous(), rows[used], x.contiguous()
        heads, rest = rows[:, : self._head].contiguous(), shares @ rows[:, self._head :]
        given = (NativeLayer * len(layers))(*layers)
        if self._mix(
            given, len(layers), heads.data_ptr(), len(heads), rest.data_ptr(), shares.data_ptr(), len(shares),
            x.data_ptr(), len(x), outputs.data_ptr(),
        ):  # fmt: skip
            raise MemoryError(f"native engine: not enough memory to score {len(shares)} models")
        return outputs

    def _layers(self, rows: Tensor, shape: Sequence[int]) -> list[NativeLayer]:
        """Return the layers for samples of this shape; raise IndexError where compiled code would read beyond."""
        if rows.shape[1] != self._size:
            raise IndexError(f"rows of {rows.shape[1]} numbers for {self._size} parameters")
        return self.layers.on(shape)


def outputs_of_images(problem: Problem) -> NativeOutputs | None:
    """Return compiled code for the outputs of a model with convolutions, or None for other models.

    The rule is the one that chooses how the model is trained (:func:`hanse.learning.engines.choose`).
    """
    compiled, layers = library(), read_native(problem)
    if isinstance(compiled, str) or layers is None or not layers.convolutions:
        return None
    fits = worth_for_images(problem) and why_not_native(problem) is None
    return NativeOutputs(layers, compiled) if fits else None
