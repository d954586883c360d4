"""The modules that are classes of hanse's own: blocks of built-in models, and the wrapper of models of several inputs.

hanse treats each sample as one row of numbers. :class:`ByName` connects such rows to a user's module whose ``forward``
has a parameter for each input. :func:`own_module` gives back the user's module.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from hanse.data.samples import Inputs


class Residual(nn.Module):
    """A block of :func:`hanse.learning.models.resnet20`: two 3x3 convolutions with batch norm, added to their input.

    Some blocks halve the image and add channels. There, the shortcut takes every second pixel and pads channels with
    zeros on both sides (option A of the paper, without parameters).
    """

    def __init__(self, inputs: int, channels: int) -> None:
        super().__init__()
        self.stride, self.added = (1 if inputs == channels else 2), channels - inputs
        self.conv1 = nn.Conv2d(inputs, channels, 3, self.stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        """Take images ``[n, inputs, h, w]`` to ``[n, channels, h / stride, w / stride]``."""
        out = self.norm2(self.conv2(torch.relu(self.norm1(self.conv1(x)))))
        if self.added:
            x = F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.added // 2, self.added // 2))
        return torch.relu(out + x)


class CharacterLSTM(nn.Module):
    """An embedding, LSTM layers, and a linear layer at every position: tokens ``[n, T]`` to logits ``[n, k, T]``.

    Args:
        tokens: how many different tokens there are, k.
        embedding: the width of the embedding.
        hidden: the units of each LSTM layer.
        layers: how many LSTM layers.
        last: whether there is an output only at the last position, ``[n, k]``.
        padding: whether token 0 is embedded as zeros, also during training.
    """

    def __init__(
        self, tokens: int, embedding: int, hidden: int, layers: int, last: bool = False, padding: bool = False
    ) -> None:
        super().__init__()
        self.last = last
        self.embedding = nn.Embedding(tokens, embedding, 0 if padding else None)
        self.recurrent = nn.LSTM(embedding, hidden, layers, batch_first=True)
        self.output = nn.Linear(hidden, tokens)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of the token that follows each token, or only the last one."""
        states, _ = self.recurrent(self.embedding(x))
        logits: Tensor = self.output(states[:, -1]) if self.last else self.output(states).transpose(1, 2)
        return logits


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
