"""Reads which layers a module runs one after another (:func:`read_stack`), and what tensors they have.

Engines that do not run the module itself rely on this. The answer is therefore None whenever something is not known
exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hanse.base.pytorch import nn


@dataclass(frozen=True)
class Spec:
    """One layer to stack.

    Attributes:
        kind: "linear", "relu", "tanh" or "batch_norm".
        name: the layer's name in the module, with which the names of its tensors begin.
        inputs: how many numbers go in per sample.
        outputs: how many numbers come out per sample.
        bias: whether a linear layer has a bias.
        decay: PyTorch's ``momentum`` of a batch norm: how far the running statistics move towards a batch's.
        eps: the number that a batch norm adds to the variance.

    Examples:
        >>> from hanse.core.table import Layout
        >>> module = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
        >>> [spec.kind for spec in read_stack(module, Layout.of(module).names)]
        ['linear', 'relu', 'linear']
    """

    kind: str
    name: str
    inputs: int
    outputs: int
    bias: bool = True
    decay: float = 0.1
    eps: float = 1e-5


_RUNS = ("__call__", "__iter__", "forward", "train")  # what makes an nn.Sequential run its layers one after another


def layers_in_order(module: nn.Module) -> list[tuple[str, nn.Module]] | None:
    """Return the named layers of an ``nn.Sequential`` in the order in which it runs them, or None.

    A layer used twice is returned twice. None stands for any other module, for one that overrides the methods that run
    the layers, and for one with hooks.
    """
    if not isinstance(module, nn.Sequential) or is_changed(module):
        return None
    if any(getattr(type(module), method) is not getattr(nn.Sequential, method) for method in _RUNS):
        return None
    # not named_children(), which names a layer that stands there twice only once
    return [(name, layer) for name, layer in module._modules.items() if layer is not None]


def is_changed(module: nn.Module) -> bool:
    """Return whether this object computes something other than its class, through hooks or its own ``forward``."""
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    return any(hooks) or "forward" in vars(module)


def read_layers(layers: Sequence[tuple[str, nn.Module]]) -> list[Spec] | None:
    """Return the specs of named layers, or None if one of them is not known.

    The known layers are Identity (which needs no spec), Linear, ReLU, Tanh, and BatchNorm1d with weights and running
    statistics. A layer must be of exactly one of these classes, and have no hooks. ReLU and Tanh must follow a layer of
    known width.
    """
    known = (nn.Identity, nn.Linear, nn.ReLU, nn.Tanh, nn.BatchNorm1d)
    specs: list[Spec] = []
    width = 0
    for name, layer in layers:
        if type(layer) not in known or is_changed(layer):
            return None
        match layer:
            case nn.Identity():
                pass
            case nn.Linear():
                specs.append(Spec("linear", name, layer.in_features, layer.out_features, layer.bias is not None))
                width = layer.out_features
            case nn.ReLU() | nn.Tanh() if width:
                specs.append(Spec("relu" if isinstance(layer, nn.ReLU) else "tanh", name, width, width))
            case nn.BatchNorm1d(affine=True, track_running_stats=True) if layer.momentum is not None:
                width = layer.num_features
                specs.append(Spec("batch_norm", name, width, width, decay=float(layer.momentum), eps=layer.eps))
            case _:
                return None
    return specs or None


def read_stack(module: nn.Module, names: tuple[str, ...]) -> list[Spec] | None:
    """Return the layers of an ``nn.Sequential`` of known layers, or None.

    A Flatten may come first. The layers' tensors must be exactly the row's tensors in the same order, so none is
    shared. See :func:`read_layers` for what is known.

    Args:
        module: any module.
        names: the names of the tensors of a row, in order.
    """
    layers = layers_in_order(module)
    if layers is None:
        return None
    specs = read_layers(layers[1:] if layers and flattens(layers[0][1]) else layers)
    return specs if specs is not None and tensors_of(specs) == names else None


def flattens(layer: nn.Module) -> bool:
    """Say whether a layer is a Flatten that turns each sample into one row of numbers."""
    return type(layer) is nn.Flatten and (layer.start_dim, layer.end_dim) == (1, -1) and not is_changed(layer)


def tensors_of(specs: Sequence[Spec]) -> tuple[str, ...]:
    """Return the names of these layers' tensors in a row's order: parameters, then float buffers."""
    kept = {"linear": ("weight", "bias"), "batch_norm": ("weight", "bias")}
    parameters = [f"{s.name}.{t}" for s in specs for t in kept.get(s.kind, ()) if t == "weight" or s.bias]
    buffers = [f"{s.name}.{t}" for s in specs if s.kind == "batch_norm" for t in ("running_mean", "running_var")]
    return (*parameters, *buffers)
