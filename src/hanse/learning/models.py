"""Built-in models, and users' modules by import path, each with its loss and its first row.

:func:`build_problem` is the entry point: it makes the module, draws its weights and returns the problem that engines
train, with the first row. :data:`MODELS` names the built-in models, and the other functions here make them. Two
arguments are common to them: ``input_shape``, the shape of a sample (without the number of samples), and
``num_classes``, the number of classes (None for regression, which has one output).

Built-in models of dense layers and simple convolutions are an ``nn.Sequential`` of standard layers, so many can be run
at once. Pooling precedes ReLU: max-pooling and ReLU commute, and ReLU then processes a quarter of the numbers.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from math import prod
from typing import Annotated, Any, Literal

from pydantic import Field

from hanse.base.errors import UserError, gated
from hanse.base.factories import Positive, call
from hanse.base.imports import import_path
from hanse.base.pytorch import Tensor, nn, torch
from hanse.base.streams import torch_seed
from hanse.base.wings import Names
from hanse.core.table import Layout
from hanse.data.samples import Inputs
from hanse.learning.job import Problem
from hanse.learning.losses import Objective

Shape = tuple[int, ...]
Factory = Callable[..., "nn.Module"]
"""Called as ``factory(input_shape, num_classes, **options)``."""
Send = Literal["all", "trainable"]
"""Which of a model's parameters are in its row."""


def image_size(name: str, input_shape: tuple[int, ...]) -> tuple[int, int, int]:
    """Return the channels, height and width of the input images of model ``name``.

    Raises:
        UserError: samples of this shape are not images.
    """
    if len(input_shape) != 3:
        raise UserError(f"model.name: {name!r}: takes images [channels, height, width]; samples have {input_shape}")
    channels, height, width = input_shape
    return channels, height, width


def logistic(input_shape: Shape, num_classes: int | None) -> nn.Module:
    """Return one linear layer: logistic regression, or linear regression without classes."""
    return nn.Sequential(nn.Flatten(), nn.Linear(prod(input_shape), num_classes or 1))


def mlp(
    input_shape: Shape,
    num_classes: int | None,
    hidden: Sequence[Positive] = (50, 25),
    batch_norm: bool = False,
    activation: Literal["relu", "tanh"] = "relu",
) -> nn.Module:
    """Return a multilayer perceptron.

    Args:
        input_shape: the shape of a sample.
        num_classes: the number of outputs. None: one.
        hidden: the width of each hidden layer.
        batch_norm: whether a batch norm follows each hidden layer.
        activation: "relu" or "tanh".
    """
    kinds: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "tanh": nn.Tanh}
    layers: list[nn.Module] = [nn.Flatten()]
    inputs = prod(input_shape)
    for width in hidden:
        layers.append(nn.Linear(inputs, width))
        if batch_norm:
            layers.append(nn.BatchNorm1d(width))
        layers.append(kinds[activation]())
        inputs = width
    return nn.Sequential(*layers, nn.Linear(inputs, num_classes or 1))


def _convolutional(
    name: str,
    input_shape: Shape,
    num_classes: int | None,
    channels: Sequence[int],
    kernel: int,
    pooled: Sequence[bool],
    dense: Sequence[int],
    padding: int | Sequence[int] = 0,
    *,
    stride: int = 1,
    norm: bool = False,
    activated: bool = True,
    dropout: bool = False,
) -> nn.Module:
    """Stack convolutions with ReLU, and linear layers; widths follow from the image's size.

    Args:
        name: the model's name.
        input_shape: ``(channels, height, width)``.
        num_classes: the number of outputs. None: one.
        channels: how many channels each convolution has.
        kernel: the width of a convolution.
        pooled: for each convolution, whether it is pooled by 2.
        dense: the widths of the linear layers before the last one.
        padding: the padding of all convolutions, or of each.
        stride: the stride of all convolutions.
        norm: whether a batch norm follows each convolution.
        activated: whether ReLU follows each linear layer but the last one.
        dropout: whether there is dropout of 1/4 before each of these, and of 1/2 after it.

    Raises:
        UserError: samples are not images or are too small.
    """
    depth, height, width = image_size(name, input_shape)
    layers: list[nn.Module] = []
    padded = [padding] * len(channels) if isinstance(padding, int) else padding
    for out, pool, pad in zip(channels, pooled, padded, strict=True):
        layers.append(nn.Conv2d(depth, out, kernel, stride, pad))
        depth, height, width = out, *((side + 2 * pad - kernel) // stride + 1 for side in (height, width))
        if norm:
            layers.append(nn.BatchNorm2d(out))
        if pool:
            layers.append(nn.MaxPool2d(2))
            height, width = height // 2, width // 2
        layers.append(nn.ReLU())
    if min(height, width) < 1:
        raise UserError(f"model.name: {name!r}: needs larger images than {input_shape[1]} x {input_shape[2]}")
    inputs = depth * height * width
    layers.append(nn.Flatten())
    for features in dense:
        layers += [nn.Dropout(0.25)] * dropout
        layers += [nn.Linear(inputs, features), *[nn.ReLU()] * activated, *[nn.Dropout(0.5)] * dropout]
        inputs = features
    return nn.Sequential(*layers, nn.Linear(inputs, num_classes or 1))


def cnn(input_shape: Shape, num_classes: int | None) -> nn.Module:
    """Return PI-FL's CNN: 3x3 convolutions of 32, 64 and 64 channels (two pooled), and a linear layer of 128."""
    return _convolutional("cnn", input_shape, num_classes, (32, 64, 64), 3, (True, True, False), (128,))


def cnn_pifl(
    input_shape: Shape,
    num_classes: int | None,
    convolutions: Literal[3, 4] = 4,
    padded: Literal[0, 1, 2] = 0,
    dropout: bool = True,
) -> nn.Module:
    """Return PI-FL's CNN from its authors' code.

    It has 3x3 convolutions of 32, 64, 64 and 64 channels, pooled after the second and the last. A linear layer of 128
    follows, with dropout of 1/4 before it and 1/2 after it.

    Args:
        input_shape: ``(channels, height, width)``.
        num_classes: the number of outputs. None: one.
        convolutions: 4, or 3 for the network that the paper's text describes (32, 64, 64, linear 3136 and 128, without
            ``dropout``).
        padded: how many of the first two convolutions are padded, 0 to 2. The others are always padded. The linear
            layer has 3,136 inputs on 32x32 images with 0, and on 28x28 images with 2.
        dropout: whether there is dropout.

    Raises:
        UserError: samples are not images or are too small.
    """
    places = range(convolutions)
    pooled, padding = [k in (1, convolutions - 1) for k in places], [int(k >= 2 or k < padded) for k in places]
    channels = (32, 64, 64, 64)[:convolutions]
    return _convolutional("cnn_pifl", input_shape, num_classes, channels, 3, pooled, (128,), padding, dropout=dropout)


def cnn_greedyfed(
    input_shape: Shape, num_classes: int | None, padding: Annotated[int, Field(ge=0, le=3)] = 0
) -> nn.Module:
    """Return GreedyFed's CNN for CIFAR-10: two pooled 4x4 convolutions of 8 channels, and one linear layer.

    Args:
        input_shape: ``(channels, height, width)``.
        num_classes: the number of outputs. None: one.
        padding: the padding around the images. On 32x32 images the linear layer has 200 inputs with 0, and 392
            with 1, as in the authors' code.

    Raises:
        UserError: samples are not images or are too small.
    """
    return _convolutional("cnn_greedyfed", input_shape, num_classes, (8, 8), 4, (True, True), (), padding)


def cnn_small(input_shape: Shape, num_classes: int | None) -> nn.Module:
    """Return a small CNN for 28x28 images: two pooled 5x5 convolutions of 16 and 32 channels, and one linear layer."""
    return _convolutional("cnn_small", input_shape, num_classes, (16, 32), 5, (True, True), ())


def cnn_fedgen(input_shape: Shape, num_classes: int | None) -> nn.Module:
    """Return FedGen's CNN (Zhu et al. 2021), from its authors' code.

    It has 3x3 convolutions of 6 and 16 channels with stride 2 and batch norm. Two linear layers follow, the first with
    32 outputs and the second with one for each class, without an activation between them (784-32-10 on 28x28 images).
    """
    shape = (6, 16), 3, (False, False), (32,), 1
    return _convolutional("cnn_fedgen", input_shape, num_classes, *shape, stride=2, norm=True, activated=False)


def lenet(input_shape: Shape, num_classes: int | None) -> nn.Module:
    """Return the LeNet of iPFL's public code (``model/cv_model.py``).

    It has pooled 5x5 convolutions of 6 and 16 channels, and then linear layers of 120 and 84. This makes 62,006
    parameters on 3 x 32 x 32 images of ten classes, and 44,426 on 1 x 28 x 28.
    """
    return _convolutional("lenet", input_shape, num_classes, (6, 16), 5, (True, True), (120, 84))


def cnn_femnist(input_shape: Shape, num_classes: int | None) -> nn.Module:
    """Return the CNN that iPFL's public code trains on FEMNIST.

    It has 3x3 convolutions of 32 and 64 channels, the second one pooled. Dropout of 1/4, a linear layer of 128 (9,216
    inputs on 28x28 images), and dropout of 1/2 follow.
    """
    layers = _convolutional("cnn_femnist", input_shape, num_classes, (32, 64), 3, (False, True), (128,))
    assert isinstance(layers, nn.Sequential)
    *images, flat, wide, relu, last = layers.children()
    return nn.Sequential(*images, nn.Dropout(0.25), flat, wide, relu, nn.Dropout(0.5), last)


def cnn_gtflat(input_shape: Shape, num_classes: int | None) -> nn.Module:
    """Return the CNN that GTFLAT's public code trains on CIFAR-10.

    It has pooled 5x5 convolutions of 32 and 64 channels with batch norm. Two linear layers follow, the first with 512
    outputs and the second with one for each class, without an activation between them (1600-512-10 on 32x32 images).
    """
    shape = (32, 64), 5, (True, True), (512,)
    return _convolutional("cnn_gtflat", input_shape, num_classes, *shape, norm=True, activated=False)


def resnet20(input_shape: tuple[int, ...], num_classes: int | None) -> nn.Module:
    """Return the residual network of 20 layers (He et al. 2016, section 4.2), which iPFL's public code trains on PACS.

    It has a 3x3 convolution of 16 channels, three stages of three blocks with 16, 32 and 64 channels, the mean over the
    image, and one linear layer. Weights are Kaiming-normal. For ten classes of RGB images these are 269,722 parameters.

    Args:
        input_shape: ``(channels, height, width)``.
        num_classes: the number of outputs. None: one.

    Raises:
        UserError: samples of this shape are not images.
    """
    from hanse.learning.modules import Residual  # late: a class of torch

    depth, _, _ = image_size("resnet20", input_shape)
    widths = [16] * 4 + [32] * 3 + [64] * 3
    module = nn.Sequential(
        nn.Conv2d(depth, 16, 3, 1, 1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        *(Residual(*pair) for pair in pairwise(widths)),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, num_classes or 1),
    )
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(layer.weight)
    return module


def lstm(
    input_shape: Shape,
    num_classes: int | None,
    embedding: Positive = 8,
    hidden: Positive = 256,
    layers: Positive = 2,
    last: bool = False,
    padding: bool = False,
) -> nn.Module:
    """Return LEAF's network for Shakespeare (Caldas et al. 2018), which predicts the next character.

    The defaults are LEAF's: an embedding of 8, and two LSTM layers of 256 units.

    Args:
        input_shape: ``(positions,)``.
        num_classes: how many different characters there are.
        embedding: the width of the embedding.
        hidden: the units of each layer.
        layers: how many layers.
        last: whether only the character after the last position is predicted, as in LEAF and iPFL's public code
            (``data.source`` "shakespeare_next"). If not, every position counts.
        padding: whether token 0 only fills up texts.

    Raises:
        UserError: samples that are not texts.
    """
    if num_classes is None or len(input_shape) != 1:
        raise UserError(f"model.name: 'lstm': takes texts [positions] of classes; samples have {input_shape}")
    from hanse.learning.modules import CharacterLSTM  # late: a class of torch

    return CharacterLSTM(num_classes, embedding, hidden, layers, last, padding)


_MAKERS = (
    logistic, mlp, cnn, cnn_pifl, cnn_greedyfed, cnn_small, cnn_fedgen, cnn_gtflat, cnn_femnist, lenet, resnet20, lstm,
)  # fmt: skip
MODELS: Mapping[str, Callable[..., nn.Module]] = Names({make.__name__: make for make in _MAKERS}, "models")


def build_module(
    name: str | nn.Module | Factory,
    input_shape: Shape | Inputs,
    num_classes: int | None,
    seed: int,
    *,
    number: int = 0,
    **options: Any,
) -> nn.Module:
    """Return a module with weights drawn from the stream ``(seed, "model", number)``. Global generators stay unchanged.

    Args:
        name: a name of :data:`MODELS`, an import path, a factory, or a module. A module is copied.
        input_shape: the shape of a sample. For samples of several inputs, an :class:`Inputs`: a factory then gets the
            shapes by name, and the module its inputs by name.
        num_classes: the number of classes. None: regression.
        seed: the run's seed.
        number: the model's number, if there are several. A module that is given as an object keeps its own weights for
            number 0, and gets new weights for other numbers.
        options: further options, for the factory.

    Raises:
        UserError: an unknown name or option, or a factory that does not return a module.
    """
    where = _called(name)
    inputs = input_shape if isinstance(input_shape, Inputs) else Inputs()
    if isinstance(name, str) and name in MODELS and inputs:
        several = f"{len(inputs.parts)} ({', '.join(inputs.shapes)})"
        raise UserError(f"{where}: takes one input; samples have {several}: give a model of your own")
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(torch_seed(seed, "model", start=number))
        if isinstance(name, nn.Module):
            module = _copied(name, number, options)
        else:
            shape = inputs.shapes if isinstance(input_shape, Inputs) else tuple(input_shape)
            if isinstance(name, str) and name in MODELS:
                module = call(MODELS[name], options, "model", first=(shape, num_classes))
            else:
                factory = import_path(name, "model.name", MODELS) if isinstance(name, str) else name
                with gated(f"{where}: could not be made", "it is called with (input_shape, num_classes, **options)"):
                    module = factory(shape, num_classes, **options)
    if not isinstance(module, nn.Module):
        raise UserError(f"{where}: returned a {type(module).__name__}, not a torch.nn.Module")
    if not inputs:
        return module
    from hanse.learning.modules import ByName  # late: a class of torch

    return ByName(module, inputs)


def _called(name: str | nn.Module | Factory) -> str:
    """Return what messages call a model: the key and its value, or the class or function that was given."""
    if isinstance(name, str):
        return f"model.name: {name!r}"
    return f"model: {type(name).__name__ if isinstance(name, nn.Module) else getattr(name, '__name__', repr(name))}"


def _copied(module: nn.Module, number: int, options: Mapping[str, Any]) -> nn.Module:
    """Return a copy of a module that was given as an object; for a ``number`` above 0 it draws its weights anew."""
    if options:
        raise UserError(f"model.{next(iter(options))}: a module that is given as an object has no options")
    where = f"model: {type(module).__name__}"
    with gated(f"{where}: cannot be copied, which every client's training does", "give a factory, which makes it"):
        made = copy.deepcopy(module)
    if number:
        for part in made.modules():
            own = [name for name, p in part.named_parameters(recurse=False) if p.requires_grad]
            if own and not callable(getattr(part, "reset_parameters", None)):
                raise UserError(
                    f"{where}: the mechanism starts with several different models, and "
                    f"{type(part).__name__} cannot draw its '{own[0]}' anew (it has no reset_parameters): give a "
                    "factory (input_shape, num_classes) instead of the module"
                )
            if own:
                with gated(f"{where}: cannot draw new weights ({type(part).__name__}.reset_parameters)"):
                    part.reset_parameters()  # type: ignore[operator]
    return made


def structure(module: nn.Module) -> str:
    """Return a digest of a module's structure (classes, settings, tensors' names and shapes): 16 hexadecimal digits.

    The digest does not depend on weights. A run keeps it as the fingerprint of a module given as an object.
    """
    tensors = [*module.named_parameters(), *module.named_buffers()]
    shapes = [f"{name} {tuple(t.shape)} {t.dtype} {t.requires_grad}" for name, t in tensors]
    return hashlib.blake2b("\n".join([str(module), *shapes]).encode(), digest_size=8).hexdigest()


def _overlapping(module: nn.Module) -> tuple[str, str] | None:
    """Return the names of two parameters in the same memory, or None. Copies of the module would not share it."""
    spans = []
    for name, p in module.named_parameters():
        reach = 1 + sum((length - 1) * stride for length, stride in zip(p.shape, p.stride(), strict=True))
        if p.numel():
            spans.append((p.data_ptr(), p.data_ptr() + p.element_size() * reach, name))
    pairs = pairwise(sorted(spans))
    return next(((one, other) for (_, end, one), (begin, _, other) in pairs if begin < end), None)


def _unlike_parameters(module: nn.Module) -> str | None:
    """Return which parameter or buffer could not be in a row as it is, and why, or None.

    A row holds real numbers, and the hooks of a parameter would not be run.
    """
    tensors = [(f"parameter {name!r}", p) for name, p in module.named_parameters()]
    for name, tensor in [*tensors, *((f"buffer {name!r}", b) for name, b in module.named_buffers())]:
        if nn.parameter.is_lazy(tensor):
            return f"{name} has no shape yet (a lazy layer): run the module once on a sample before"
        if tensor.is_complex():
            return f"{name} is complex; a model's row holds real numbers: keep two real tensors"
        if tensor.is_meta:
            return f"{name} lies on the device 'meta', without numbers: module.to_empty, and draw its weights"
    for name, parameter in module.named_parameters():
        if parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None):
            return (
                f"parameter {name!r} has a gradient hook, which would not be run: mask in forward, or freeze parameters"
            )
    return None


def layout_of(module: nn.Module, send: Send = "all") -> Layout:
    """Return where a module's tensors lie in its row.

    Args:
        module: the module.
        send: whether "all" tensors are in the row, or only the "trainable" parameters (which is the same as "all" if
            none trains).
    """
    return Layout.of(module, frozen=send == "all" or all(not p.requires_grad for p in module.parameters()))


def build_problem(
    name: str | nn.Module | Factory,
    input_shape: Shape | Inputs,
    num_classes: int | None,
    seed: int,
    *,
    number: int = 0,
    send: Send = "all",
    objective: Objective | None = None,
    **options: Any,
) -> tuple[Problem, Tensor]:
    """Return the problem that engines train, and the model's first row ``[P]``, float32.

    Args:
        name: a name of :data:`MODELS`, ``"package.module:factory"``, a factory, or a module. A factory is called as
            ``factory(input_shape, num_classes, **options)``.
        input_shape: the shape of a sample, without the number of samples.
        num_classes: the number of classes. None: regression, with one output and the mean squared error.
        seed: the seed of the stream ``(seed, "model", number)``, from which the weights are drawn.
        number: the model's number. A table whose rows start from different models draws one model for each number.
        send: which tensors are in a row. "trainable" leaves out frozen parameters. They are neither sent nor mixed, and
            all rows share those of model 0.
        objective: a loss to minimise instead of cross-entropy or the squared error. If it takes one output for two
            classes, the model has one output.
        options: further options, for the factory.

    Raises:
        UserError: see :func:`build_module`. Also: no parameter trains, two parameters share memory, or one cannot be
            trained.

    Examples:
        >>> problem, row = build_problem("mlp", (1, 8, 8), 10, seed=0, hidden=[16])
        >>> problem.layout.names
        ('1.weight', '1.bias', '3.weight', '3.bias')
        >>> row.shape  # 64 x 16 + 16 + 16 x 10 + 10
        torch.Size([1210])
    """
    outputs = 1 if objective is not None and objective.one_output else num_classes
    module = build_module(name, input_shape, outputs, seed, number=number, **options)
    where = _called(name)
    given = name if isinstance(name, nn.Module) else module  # a copy has neither hooks nor shared memory
    if (why := _unlike_parameters(given)) is not None:
        raise UserError(f"{where}: {why}")
    try:
        layout = layout_of(module, send)
    except ValueError as error:
        raise UserError(f"{where}: {error}") from error
    if not any(p.requires_grad for p in module.parameters()):
        raise UserError(f"{where}: every parameter is frozen (requires_grad is False): nothing can train")
    if (pair := _overlapping(given)) is not None:
        raise UserError(
            f"{where}: {pair[0]!r} and {pair[1]!r} are two parameters in the same memory; to tie them, "
            "make them one object, as in b.weight = a.weight"
        )
    tensors = dict(module.named_parameters()) | dict(module.named_buffers())
    for name_in_row in layout.names:  # rows are float32, and the module holds what they hold
        tensors[name_in_row].data = tensors[name_in_row].data.float()
    loss: Literal["cross_entropy", "mse"] = "mse" if num_classes is None else "cross_entropy"
    problem = Problem(module, layout, loss, getattr(module, "judge", None), objective=objective)
    return problem, layout.flatten(module)
