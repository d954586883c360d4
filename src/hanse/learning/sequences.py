"""Models of sequences: prediction of the next character, and the scoring of outputs at every position.

A sequence model takes tokens ``x [n, T]`` (int64) and puts out logits ``[n, k, T]``, the classes second, as in
PyTorch's cross-entropy. The labels are ``y [n, T]``, where :data:`IGNORED` marks positions that do not count. A
sample's loss is the mean over the positions that count. The sample is right to the degree in which, at these positions,
the likeliest class is the label.

:func:`lstm` is the built-in model; :func:`sequence_losses` and :func:`sequence_outcomes` score any model of this kind.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from hanse.base.errors import UserError
from hanse.base.factories import Positive
from hanse.data.dataset import IGNORED
from hanse.data.samples import Samples

__all__ = ["IGNORED", "is_text", "lstm", "perplexity", "sequence_losses", "sequence_outcomes"]

Shape = tuple[int, ...]


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
    return CharacterLSTM(num_classes, embedding, hidden, layers, last, padding)


def is_text(samples: Samples) -> bool:
    """Say whether samples have a class at every position, ``y [n, T]`` of integers. The inputs are not looked at."""
    return samples.y.ndim == 2 and not samples.y.is_floating_point()


def perplexity(loss: float) -> float:
    """Return ``exp(loss)`` of a mean loss in nats per position; infinite if that would overflow."""
    return math.exp(loss) if loss < 700 else math.inf


def sequence_losses(output: Tensor, y: Tensor) -> Tensor:
    """Return each sample's mean loss over the positions that count, ``[n]``; 0 for a sample without any.

    Args:
        output: logits ``[n, k, T]``.
        y: labels ``[n, T]``; a position labelled :data:`IGNORED` (-100) does not count.
    """
    losses = F.cross_entropy(output, y, reduction="none", ignore_index=IGNORED)  # 0 where the label is IGNORED
    return losses.sum(1) / (y != IGNORED).sum(1).clamp(min=1)


def sequence_outcomes(output: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return each sample's loss and the share of its counted positions that are right, both ``[n]``. Positions labelled
    :data:`IGNORED` (-100) do not count.

    The arguments are those of :func:`sequence_losses`.
    """
    counted = y != IGNORED
    loss = sequence_losses(output, y)
    right = (output.max(1).indices == y) & counted  # of equal logits the first class is taken
    share = right.sum(1) / counted.sum(1).clamp(min=1)
    return loss, torch.where(torch.isfinite(loss), share, torch.zeros_like(share))
