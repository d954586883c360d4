"""The scoring of sequence models, which predict at every position, such as the next character.

A sequence model takes tokens ``x [n, T]`` (int64) and puts out logits ``[n, k, T]``, the classes second, as in
PyTorch's cross-entropy. The labels are ``y [n, T]``, where :data:`IGNORED` marks positions that do not count. A
sample's loss is the mean over the positions that count. The sample is right to the degree in which, at these positions,
the likeliest class is the label.

The built-in one is :func:`hanse.learning.models.lstm`.
"""

from __future__ import annotations

import math

from hanse.base.pytorch import F, Tensor, torch
from hanse.data.dataset import IGNORED
from hanse.data.samples import Samples

__all__ = ["IGNORED", "is_text", "perplexity", "sequence_losses", "sequence_outcomes"]


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
