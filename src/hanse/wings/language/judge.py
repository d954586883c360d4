"""Decides whether a language model's answer is right, by the likeliest candidate or token by token.

:class:`AnswerJudge` is the judge of a problem (:class:`hanse.learning.job.SampleJudge`): scorers call it instead of
comparing classes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from hanse.learning.sequences import IGNORED, sequence_losses

_TOGETHER = 16  # sequences of a forward pass


@dataclass(frozen=True)
class AnswerJudge:
    """Judges answers.

    The model's answer is the candidate with the highest likelihood ``sum log p(token | what is before it)``, including
    its end token. If the correct answer is not a candidate, or there are no candidates, a sample counts as right if
    greedy decoding would produce exactly the correct answer.

    Attributes:
        candidates: token sequences, each with its end token.
        padding: the token that fills up shorter sequences.
    """

    candidates: tuple[tuple[int, ...], ...] = ()
    padding: int = 0

    def __call__(self, outputs: Callable[[Tensor], Tensor], x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return each sample's mean loss a token of the wanted answer, and 1.0 where the model is right, both ``[n]``.

        Args:
            outputs: takes tokens ``[m, T]`` and returns logits ``[m, k, T]``.
            x: tokens int64 ``[n, T]``.
            y: labels int64 ``[n, T]``, ``IGNORED`` wherever no token of the answer is to be predicted.
        """
        losses, right = [], []
        for begin in range(0, len(x), _TOGETHER):
            part = slice(begin, begin + _TOGETHER)
            loss, exact = _wanted(outputs, x[part], y[part])
            losses.append(loss)
            right.append(self._chosen(outputs, x[part], y[part], exact))
        if not losses:
            return torch.zeros(0), torch.zeros(0)
        return torch.cat(losses), torch.cat(right)

    def _chosen(self, outputs: Callable[[Tensor], Tensor], x: Tensor, y: Tensor, exact: Tensor) -> Tensor:
        """Return 1.0 where the wanted candidate is the likeliest; samples that want none keep what ``exact`` says."""
        wanted = [tuple(row[row != IGNORED].tolist()) for row in y]
        asked = [n for n, answer in enumerate(wanted) if answer in self.candidates]
        right = exact.clone()
        rows = [(n, answer) for n in asked for answer in self.candidates]
        scores: list[float] = []
        for begin in range(0, len(rows), _TOGETHER):
            scores += self._likelihoods(outputs, x, y, rows[begin : begin + _TOGETHER])
        each = len(self.candidates)
        for place, n in enumerate(asked):
            own = scores[place * each : (place + 1) * each]
            right[n] = float(self.candidates[own.index(max(own))] == wanted[n])
        return right

    def _likelihoods(
        self, outputs: Callable[[Tensor], Tensor], x: Tensor, y: Tensor, rows: Sequence[tuple[int, tuple[int, ...]]]
    ) -> list[float]:
        """Return the log-likelihood of answers after the prompts of their samples; ``rows`` are pairs
        (sample, answer).
        """
        texts, labels = [], []
        for n, answer in rows:
            first = int((y[n] != IGNORED).nonzero()[0])
            said = x[n, : first + 1].tolist()
            texts.append(torch.tensor([*said, *answer[:-1]], device=x.device))
            labels.append(torch.tensor([IGNORED] * first + list(answer), device=x.device))
        inputs = pad_sequence(texts, batch_first=True, padding_value=self.padding)
        targets = pad_sequence(labels, batch_first=True, padding_value=IGNORED)
        losses = F.cross_entropy(outputs(inputs).float(), targets, reduction="none", ignore_index=IGNORED)
        return [-float(total) for total in losses.sum(1)]


def _wanted(outputs: Callable[[Tensor], Tensor], x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return the loss of the wanted answers, and 1.0 where each of their tokens is the likeliest."""
    counted = y != IGNORED
    # positions after the last answer of these samples are padding: the model need not be run on them
    width = int(counted.any(0).nonzero().max()) + 1 if bool(counted.any()) else 1
    output, labels = outputs(x[:, :width]).float(), y[:, :width]
    loss = sequence_losses(output, labels)
    exact = ((output.max(1).indices == labels) | ~counted[:, :width]).all(1) & torch.isfinite(loss)
    return loss, exact.float()
