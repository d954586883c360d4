"""A model's head: its last linear layer, whose input is the *latent*."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from hanse.core.table import Layout

__all__ = ["Head", "why_no_head"]


@dataclass(frozen=True)
class Head:
    """A model's last linear layer: the names of its tensors, how many ``classes`` it tells apart, and the width of its
    input, the ``latent``.
    """

    weight: str
    bias: str | None
    classes: int
    latent: int

    @staticmethod
    def of(layout: Layout) -> Head:
        """Return the head as the layout shows it: the last parameters. Raises ValueError if those are not a linear
        layer's.
        """
        count = layout.offsets.index(layout.num_parameters)
        shapes = dict(zip(layout.names[:count], layout.shapes[:count], strict=True))
        last = layout.names[count - 1]
        prefix = last.rpartition(".")[0]
        weight = f"{prefix}.weight" if prefix else "weight"
        if weight not in shapes or len(shapes[weight]) != 2 or last.rpartition(".")[2] not in ("weight", "bias"):
            raise ValueError(f"the model's last parameter is {last!r}: it does not end in a linear layer")
        classes, latent = shapes[weight]
        return Head(weight, last if last != weight else None, int(classes), int(latent))

    def tensors(self, layout: Layout, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return the heads of ``rows [S, P]``: weights ``[S, classes, latent]`` and biases ``[S, classes]``."""
        views = layout.unflatten(rows)
        weight = views[self.weight]
        return weight, weight.new_zeros(weight.shape[:2]) if self.bias is None else views[self.bias]


def why_no_head(module: nn.Module, layout: Layout, x: Tensor) -> str | None:
    """Return why a model has no head, or None. ``x`` are a few inputs: the linear layer that comes last in the
    layout must be the one that makes the model's output.
    """
    try:
        head = Head.of(layout)
    except ValueError as reason:
        return str(reason)
    probe = copy.deepcopy(module).eval()
    made: list[Tensor] = []
    layer = probe.get_submodule(head.weight.rpartition(".")[0])
    if type(layer) is not nn.Linear:
        return f"the model's last layer is a {type(layer).__name__}, not a Linear"
    layer.register_forward_hook(lambda _module, _inputs, output: made.append(output))
    with torch.no_grad():
        output = probe(x.to(next(probe.parameters())) if x.is_floating_point() else x)
    if len(made) != 1 or not torch.equal(made[0], output):
        return "the output of the model's last linear layer is not the model's output"
    return None
