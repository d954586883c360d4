"""Outputs of many models at once, with the samples last: ``[C, k, m]`` for C models with k outputs on m samples.

Scorers (:mod:`hanse.learning.scoring`) use this module. :func:`forward` runs models of linear layers with a single
first product for all of them, ``[C h, d] x [d, m]``. Later operations, such as a maximum over classes, vectorise over
samples. :func:`read_convolutions` reads a convolutional model as a :class:`ConvStack`, which runs its models side by
side: their first convolutions as one wide convolution, and the later ones grouped. This helps if the first convolution
is too narrow to fill the vector units (GreedyFed's has 8 channels), because samples are then read and unfolded only
once for all models. Wide models gain nothing and are run one by one.

Most of the speed comes from two more steps. Images are processed a few at a time, so each layer's output is still in
the cache for the next. Images are also cropped to what the last layer sees. GreedyFed's pooling drops the lower and
right edges, so only 29 x 29 of 32 x 32 pixels matter; this saves a fifth of the first convolution.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hanse.base.pytorch import F, Tensor, nn, torch
from hanse.learning.job import Problem
from hanse.learning.module_layers import Spec, flattens, is_changed, layers_in_order, read_layers, tensors_of


def forward(specs: Sequence[Spec], blocks: dict[str, Tensor], x: Tensor) -> Tensor:
    """Return the outputs ``[C, k, m]`` of C models.

    Args:
        specs: the models' layers.
        blocks: the models' tensors by name, each ``[C, *shape]``.
        x: samples ``[m, d]`` for all models, or ``[C, m, d]``, different ones for each. Batch norm uses its running
            statistics.
    """
    return through(specs, blocks, x.transpose(-1, -2))  # a view: the product reads the samples as they lie


def through(specs: Sequence[Spec], blocks: dict[str, Tensor], value: Tensor) -> Tensor:
    """Return the layers' outputs for feature-major values, which may be overwritten unless gradients are tracked.

    Args:
        specs: the layers.
        blocks: the models' tensors by name, each ``[C, *shape]``.
        value: ``[d, m]`` for all models, or ``[C, d, m]``.
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
        return forward(self.dense, blocks, torch.cat([features(part) for part in torch.split(x, few)], 1))


def read_convolutions(problem: Problem, widest: int = _NARROW) -> ConvStack | None:
    """Return the stack of an ``nn.Sequential`` that begins with a convolution of at most ``widest`` channels.

    None for any other module.
    """
    layers = None if problem.plain else layers_in_order(problem.module)
    if not layers or type(layers[0][1]) is not nn.Conv2d or layers[0][1].out_channels > widest:
        return None
    cut = next((i for i, (_, layer) in enumerate(layers) if flattens(layer)), len(layers))
    images, dense = layers[:cut], read_layers(layers[cut + 1 :])
    if not dense or dense[0].kind != "linear" or not all(_is_known(layer) for _, layer in images):
        return None
    convolutions = [(name, layer) for name, layer in images if isinstance(layer, nn.Conv2d)]
    own = tuple(f"{name}.{t}" for name, layer in convolutions for t, _ in layer.named_parameters())
    # a row must be the layers' tensors and nothing else, in order: none is shared
    return ConvStack(images, dense) if own + tensors_of(dense) == problem.layout.names else None


def _is_known(layer: nn.Module) -> bool:
    """Say whether a layer of images is one that :class:`ConvStack` runs as the layer itself does."""
    if is_changed(layer):
        return False
    if type(layer) is nn.Conv2d:
        return layer.groups == 1 and layer.padding_mode == "zeros"
    if type(layer) is nn.MaxPool2d:
        return not layer.return_indices
    return type(layer) in (nn.ReLU, nn.AvgPool2d)
