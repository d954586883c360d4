"""Reads which layers a module runs one after another (:func:`read_stack`, :func:`read_convolutions`), and runs such
layers for many models at once.

Engines that do not run the module itself rely on this. The answer is therefore None whenever something is not known
exactly.

Outputs have the samples last: ``[C, k, m]`` for C models with k outputs on m samples. :func:`forward` runs models of
linear layers with a single first product for all of them, ``[C h, d] x [d, m]``. Later operations, such as a maximum
over classes, vectorise over samples. A :class:`ConvStack` runs its models side by side: their first convolutions as one
wide convolution, and the later ones grouped. This helps if the first convolution is too narrow to fill the vector units
(GreedyFed's has 8 channels), because samples are then read and unfolded only once for all models. Wide models gain
nothing and are run one by one.

Most of the speed comes from two more steps. Images are processed a few at a time, so each layer's output is still in
the cache for the next. Images are also cropped to what the last layer sees. GreedyFed's pooling drops the lower and
right edges, so only 29 x 29 of 32 x 32 pixels matter; this saves a fifth of the first convolution.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hanse.base.pytorch import F, Tensor, nn, torch


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


def forward(specs: Sequence[Spec], blocks: dict[str, Tensor], value: Tensor) -> Tensor:
    """Return the outputs ``[C, k, m]`` of C models for feature-major values, which may be overwritten unless gradients
    are tracked.

    Args:
        specs: the models' layers. Batch norm uses its running statistics.
        blocks: the models' tensors by name, each ``[C, *shape]``.
        value: the samples' features ``[d, m]`` for all models, or ``[C, d, m]``, different ones for each. A transposed
            view costs nothing: the product reads the samples as they lie.
    """
    for spec in specs:
        if spec.kind == "linear":
            value = _linear(spec, blocks, value)
        elif spec.kind == "batch_norm":
            value = _normalise(spec, blocks, value)
        elif value.requires_grad:
            value = value.relu() if spec.kind == "relu" else value.tanh()
        else:
            value = value.relu_() if spec.kind == "relu" else value.tanh_()
    return value


def _linear(spec: Spec, blocks: dict[str, Tensor], value: Tensor) -> Tensor:
    """Return ``W x + b`` of C models, ``[C, out, m]``."""
    weight = blocks[f"{spec.name}.weight"]
    bias = blocks[f"{spec.name}.bias"].unsqueeze(2) if spec.bias else None
    if value.ndim == 3:
        return torch.bmm(weight, value) if bias is None else torch.baddbmm(bias, weight, value)
    models, outputs = weight.shape[:2]
    if models == 1:  # the samples as the left factor split better over threads; the transposed view costs nothing
        flat = torch.mm(value.t(), weight[0].t()).t().unsqueeze(0)
    else:
        flat = torch.mm(weight.reshape(models * outputs, -1), value).view(models, outputs, -1)
    return flat if bias is None else flat.add_(bias)


def _normalise(spec: Spec, blocks: dict[str, Tensor], value: Tensor) -> Tensor:
    """Return the values normalised by the running statistics: one product and one sum, both worked out beforehand."""
    name = spec.name
    scale = blocks[f"{name}.weight"] * torch.rsqrt(blocks[f"{name}.running_var"] + spec.eps)
    shift = blocks[f"{name}.bias"] - blocks[f"{name}.running_mean"] * scale
    return torch.addcmul(shift.unsqueeze(2), value, scale.unsqueeze(2))


_NARROW = 16  # output channels of the first convolution up to which several models together are faster
_CACHED = 1 << 20  # numbers that the first convolution writes for a few images: they stay in the cache


@dataclass(frozen=True)
class ConvStack:
    """A module of convolutions, pooling and ReLU up to a Flatten, and of stackable layers after it.

    Attributes:
        convolutions: the named layers before the Flatten.
        dense: the layers after it.
    """

    convolutions: Sequence[tuple[str, nn.Module]]
    dense: Sequence[Spec]

    @property
    def narrow(self) -> bool:
        """Whether running models side by side pays."""
        first = self.convolutions[0][1]
        return isinstance(first, nn.Conv2d) and first.out_channels <= _NARROW

    def forward(self, blocks: dict[str, Tensor], x: Tensor) -> Tensor:
        """Return the outputs ``[C, k, m]`` of C models on images ``x [m, channels, height, width]``.

        ``blocks`` are the models' tensors by name, each ``[C, *shape]``.
        """
        models, x = len(next(iter(blocks.values()))), x.contiguous(memory_format=torch.channels_last)
        # the weights and biases of all models side by side
        wide = {
            name: (
                blocks[f"{name}.weight"].flatten(0, 1).contiguous(memory_format=torch.channels_last),
                blocks[f"{name}.bias"].reshape(-1) if layer.bias is not None else None,
            )
            for name, layer in self.convolutions
            if isinstance(layer, nn.Conv2d)
        }

        def features(value: Tensor) -> Tensor:
            """Return the features ``[C, m, d]`` of all models on some images.

            The first convolution is one wide one over the same images; from then on each model has channels of its own,
            and the convolutions are grouped.
            """
            groups, images = 1, len(value)
            for name, layer in self.convolutions:
                if isinstance(layer, nn.Conv2d):
                    value = F.conv2d(value, *wide[name], layer.stride, layer.padding, layer.dilation, groups)
                    groups = models
                else:
                    value = value.relu_() if isinstance(layer, nn.ReLU) else layer(value)
            return value.reshape(images, models, -1).transpose(0, 1)  # [m, C channels, h, w] -> [C, m, features]

        # so many images at a time that what the first convolution writes stays in the cache
        few = max(4, _CACHED // (len(wide[self.convolutions[0][0]][0]) * x.shape[2] * x.shape[3]))
        return forward(self.dense, blocks, torch.cat([features(part) for part in torch.split(x, few)], 1).mT)


def read_convolutions(module: nn.Module, names: tuple[str, ...]) -> ConvStack | None:
    """Return the stack of an ``nn.Sequential`` that begins with a convolution. None for any other module.

    The arguments are those of :func:`read_stack`.
    """
    layers = layers_in_order(module)
    if not layers or type(layers[0][1]) is not nn.Conv2d:
        return None
    cut = next((i for i, (_, layer) in enumerate(layers) if flattens(layer)), len(layers))
    images, dense = layers[:cut], read_layers(layers[cut + 1 :])
    if not dense or dense[0].kind != "linear" or not all(_is_known(layer) for _, layer in images):
        return None
    convolutions = [(name, layer) for name, layer in images if isinstance(layer, nn.Conv2d)]
    own = tuple(f"{name}.{t}" for name, layer in convolutions for t, _ in layer.named_parameters())
    # a row must be the layers' tensors and nothing else, in order: none is shared
    return ConvStack(images, dense) if own + tensors_of(dense) == names else None


def _is_known(layer: nn.Module) -> bool:
    """Say whether a layer of images is one that :class:`ConvStack` runs as the layer itself does."""
    if is_changed(layer):
        return False
    if type(layer) is nn.Conv2d:
        return layer.groups == 1 and layer.padding_mode == "zeros"
    if type(layer) is nn.MaxPool2d:
        return not layer.return_indices
    return type(layer) in (nn.ReLU, nn.AvgPool2d)
