"""Models of several inputs: a sample's row is split into inputs, which the user's module gets by name.

hanse treats each sample as one row of numbers. :class:`ByName` connects such rows to a module whose ``forward`` has a
parameter for each input. :func:`own_module` gives back the user's module.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from hanse.data.samples import Inputs


class ByName(nn.Module):
    """Wraps a module whose ``forward`` takes inputs by name: the result takes one tensor, whose rows hold all inputs.

    It also accepts inputs by name.

    Args:
        model: the user's module.
        inputs: the names and shapes of the inputs (:class:`hanse.data.samples.Inputs`).
    """

    def __init__(self, model: nn.Module, inputs: Inputs) -> None:
        super().__init__()
        self.model, self.inputs = model, inputs

    def forward(self, x: Tensor | None = None, **named: Tensor) -> Any:
        """Return the model's outputs for rows ``x [n, width]``, or for inputs that are given by name."""
        return self.model(**(named if x is None else self.inputs.split(x)))


def own_module(module: nn.Module) -> nn.Module:
    """Return the user's own module, without the :class:`ByName` around it if there is one."""
    return module.model if isinstance(module, ByName) else module
