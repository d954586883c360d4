"""Models of several inputs: a sample's row is taken apart, and its inputs go to the user's module by name."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from hanse.data.samples import Inputs


class ByName(nn.Module):
    """A user's ``model`` whose ``forward`` takes the inputs of a sample by name, as a module of one tensor: rows that
    hold all ``inputs`` (:class:`hanse.data.samples.Inputs`). It takes the inputs by name, too.
    """

    def __init__(self, model: nn.Module, inputs: Inputs) -> None:
        super().__init__()
        self.model, self.inputs = model, inputs

    def forward(self, x: Tensor | None = None, **named: Tensor) -> Any:
        """Return the model's outputs for rows ``x [n, width]``, or for inputs given by name."""
        return self.model(**(named if x is None else self.inputs.split(x)))


def own_module(module: nn.Module) -> nn.Module:
    """Return the user's own module, as ``forward`` of several inputs has it; any other is returned as it is."""
    return module.model if isinstance(module, ByName) else module
