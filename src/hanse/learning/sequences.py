"""Models of sequences: next-character prediction, and how outputs at every position are scored.

A sequence model takes tokens ``x [n, T]`` (int64) and puts out logits ``[n, k, T]``, the classes second, as
cross-entropy has it; its labels are ``y [n, T]``, where :data:`IGNORED` marks positions that do not count. A sample's
loss is the mean over its counted positions, and it is right by the share of positions whose best class is the label.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from hanse.base.errors import UserError
from hanse.data.dataset import IGNORED
from hanse.data.samples import Samples

__all__ = ["IGNORED", "is_text", "lstm", "perplexity", "sequence_losses", "sequence_outcomes"]

Shape = tuple[int, ...]


class CharacterLSTM(nn.Module):
    """An embedding, LSTM layers, and a linear layer at every position: tokens ``[n, T]`` to logits ``[n, k, T]``."""

    def __init__(self, tokens: int, embedding: int, hidden: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(tokens, embedding)
        self.recurrent = nn.LSTM(embedding, hidden, layers, batch_first=True)
        self.output = nn.Linear(hidden, tokens)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of what follows each token."""
        states, _ = self.recurrent(self.embedding(x))
        found: Tensor = self.output(states).transpose(1, 2)
        return found


def lstm(
    input_shape: Shape, num_classes: int | None, embedding: int = 8, hidden: int = 256, layers: int = 2
) -> nn.Module:
    """Return LEAF's network for Shakespeare (Caldas et al. 2018): embedding 8, two LSTM layers of 256 units, and the
    next character's logits. LEAF scores the last position alone; here every position counts.
    """
    if num_classes is None or len(input_shape) != 1:
        raise UserError(f"model.name: 'lstm': takes texts [positions] of classes; samples have {input_shape}")
    for name, width in (("embedding", embedding), ("hidden", hidden), ("layers", layers)):
        if isinstance(width, bool) or not isinstance(width, int) or width < 1:
            raise UserError(f"model.{name}: {width!r}: must be a whole number, 1 or more")
    return CharacterLSTM(num_classes, embedding, hidden, layers)


def is_text(samples: Samples) -> bool:
    """Say whether samples are texts: labels at every position."""
    return samples.y.ndim == 2 and not samples.y.is_floating_point()


def perplexity(loss: float) -> float:
    """Return ``exp(loss)`` of a mean loss in nats a position; infinite where that is too large for a number."""
    return math.exp(loss) if loss < 700 else math.inf


def position_losses(output: Tensor, y: Tensor) -> Tensor:
    """Return the loss at every position ``[n, T]`` of logits ``[n, k, T]``; 0 where the label does not count."""
    return F.cross_entropy(output, y, reduction="none", ignore_index=IGNORED)


def sequence_losses(output: Tensor, y: Tensor) -> Tensor:
    """Return each sample's mean loss over the positions that count, ``[n]``; 0 for a sample without any."""
    return position_losses(output, y).sum(1) / (y != IGNORED).sum(1).clamp(min=1)


def sequence_outcomes(output: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return each sample's loss and the share of counted positions that are right, both ``[n]``."""
    counted = y != IGNORED
    loss = sequence_losses(output, y)
    right = (output.max(1).indices == y) & counted  # of equal logits the first class counts
    share = right.sum(1) / counted.sum(1).clamp(min=1)
    return loss, torch.where(torch.isfinite(loss), share, torch.zeros_like(share))
