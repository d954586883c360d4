"""FedGen's generator: from a label and noise to a latent, the input of a classifier's last layer; and its training.

Zhu, Hong, Zhou: Data-Free Knowledge Distillation for Heterogeneous Federated Learning, ICML 2021. Where the paper and
its published code differ, the code is followed, since GTFLAT's tables were made with it: noise is uniform on [0, 1)
(the paper: normal), and the ensemble's loss is the weighted sum of the heads' losses (eq. 4 has the loss of their mean
logits).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["Ensemble", "Generator", "Schooled", "diversity", "ensemble_loss", "train_generator"]

_BETAS, _EPS = (0.9, 0.999), 1e-8  # Adam's


class _Parts(NamedTuple):
    """The tensors of a generator's row, in its order; ``mean`` and ``var`` are batch-norm statistics."""

    weight: Tensor  # [hidden, noise + classes]
    bias: Tensor
    gain: Tensor
    shift: Tensor
    out_weight: Tensor  # [latent, hidden]
    out_bias: Tensor
    mean: Tensor
    var: Tensor


@dataclass(frozen=True)
class Generator:
    """The shape of a generator: ``noise`` numbers and a one-hot label -> ``hidden``, batch norm, ReLU -> ``latent``.

    Its numbers are one flat row ``[size]``: ``num_parameters`` parameters, then the batch norm's mean and variance.
    """

    classes: int
    latent: int
    noise: int = 32
    hidden: int = 256

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """The shapes of a row's tensors, in order."""
        h = (self.hidden,)
        return (self.hidden, self.noise + self.classes), h, h, h, (self.latent, self.hidden), (self.latent,), h, h

    @property
    def size(self) -> int:
        """The length of a row."""
        return sum(math.prod(shape) for shape in self.shapes)

    @property
    def num_parameters(self) -> int:
        """How many of a row's numbers are trained by gradients."""
        return self.size - 2 * self.hidden

    def parts(self, row: Tensor) -> _Parts:
        """Return named views of a row. Raises ValueError for a row of another length."""
        if row.shape != (self.size,):
            raise ValueError(f"generator row: shape {tuple(row.shape)}: must be ({self.size},)")
        pieces = torch.split(row, [math.prod(shape) for shape in self.shapes])
        return _Parts(*(piece.view(shape) for piece, shape in zip(pieces, self.shapes, strict=True)))

    def initial(self, draw: np.random.Generator) -> Tensor:
        """Return a first row (float32): linear layers uniform within 1/sqrt(inputs), as PyTorch's; unit batch norm."""
        row = torch.zeros(self.size)
        parts = self.parts(row)
        for weight, bias in ((parts.weight, parts.bias), (parts.out_weight, parts.out_bias)):
            bound = 1 / math.sqrt(weight.shape[1])
            for tensor in (weight, bias):
                tensor.copy_(torch.from_numpy(draw.uniform(-bound, bound, tuple(tensor.shape))))
        parts.gain.fill_(1.0)
        parts.var.fill_(1.0)
        return row

    def draw_noise(self, draw: np.random.Generator, n: int) -> Tensor:
        """Return noise ``[n, noise]``, float32, uniform on [0, 1)."""
        return torch.from_numpy(draw.random((n, self.noise), dtype=np.float32))

    def latents(self, row: Tensor, noise: Tensor, y: Tensor, statistics: Tensor | None = None) -> Tensor:
        """Return latents ``[n, latent]`` for ``noise [n, noise]`` and labels ``y [n]``.

        Batch norm uses the row's statistics; in training ``statistics [2, hidden]`` are given, which are updated in
        place, while the batch's own are used.
        """
        parts = self.parts(row)
        inputs = torch.cat([noise, F.one_hot(y, self.classes).to(noise)], 1)
        hidden = F.linear(inputs, parts.weight, parts.bias)
        mean, var = (parts.mean, parts.var) if statistics is None else statistics
        hidden = F.batch_norm(hidden, mean, var, parts.gain, parts.shift, training=statistics is not None)
        return F.linear(F.relu(hidden), parts.out_weight, parts.out_bias)


def diversity(noise: Tensor, latents: Tensor) -> Tensor:
    """Return the diversity loss of the published code, ``exp(-mean_ij |e_i - e_j|_2^2/d_e |z_i - z_j|_1/d_z)``.

    ``noise [n, d_e]``, ``latents [n, d_z]``; the mean is over all pairs, a sample with itself included. It is 1 if all
    latents are the same.
    """
    apart = torch.cdist(noise, noise).square() / noise.shape[1]
    spread = torch.cdist(latents, latents, p=1) / latents.shape[1]
    return torch.exp(-(apart * spread).mean())


@dataclass(frozen=True)
class Ensemble:
    """The last layers of the clients' updated models: ``weight [S, C, latent]``, ``bias [S, C]``, and ``trust [S, C]``:
    how much of the truth about label c client s holds (columns sum to 1). ``labels [C]`` are the probabilities by which
    labels are drawn.
    """

    weight: Tensor
    bias: Tensor
    trust: Tensor
    labels: NDArray[np.float64]

    @staticmethod
    def of(weight: Tensor, bias: Tensor, counts: Tensor, labels: NDArray[np.float64]) -> Ensemble:
        """Weigh heads by the labels that each client trained on, ``counts [S, C]``; one is added to each count, as in
        the published code, so that every column has a sum.
        """
        seen = counts.double() + 1
        return Ensemble(weight, bias, (seen / seen.sum(0)).to(weight), labels)


def ensemble_loss(ensemble: Ensemble, latents: Tensor, y: Tensor) -> Tensor:
    """Return ``mean_b sum_s trust[s, y_b] CE(head_s(z_b), y_b)``: FedGen eq. (4), as the published code has it."""
    heads, classes, width = ensemble.weight.shape
    logits = latents @ ensemble.weight.reshape(heads * classes, width).t() + ensemble.bias.reshape(-1)
    n = len(y)
    each = F.cross_entropy(logits.view(n * heads, classes), y.repeat_interleave(heads), reduction="none")
    return (each.view(n, heads) * ensemble.trust[:, y].t()).sum(1).mean()


class Schooled(NamedTuple):
    """A generator after training: its row, Adam's moments ``[2, parameters]``, its steps so far, the loss of each step
    of this training.
    """

    row: Tensor
    moments: Tensor
    steps: int
    losses: NDArray[np.float64]


def train_generator(
    generator: Generator,
    row: Tensor,
    moments: Tensor,
    steps_before: int,
    ensemble: Ensemble,
    draw: np.random.Generator,
    *,
    steps: int,
    batch: int,
    lr: float,
    weight_decay: float,
    eta: float,
) -> Schooled:
    """Train a generator by Adam (decay added to the gradient) on ``ensemble_loss + eta diversity``.

    Adam goes on from ``moments`` after ``steps_before`` steps. Nothing given is changed.
    """
    row, moments, count = row.clone(), moments.clone(), generator.num_parameters
    first, second = moments
    statistics = row[count:].view(2, generator.hidden).clone()  # apart from what autograd keeps of the row
    losses = torch.zeros(steps, dtype=torch.float64)
    for step in range(steps):
        y = torch.from_numpy(draw.choice(generator.classes, batch, p=ensemble.labels)).to(row.device)
        noise = generator.draw_noise(draw, batch).to(row)
        leaf = row.requires_grad_()
        latents = generator.latents(leaf, noise, y, statistics)
        loss = ensemble_loss(ensemble, latents, y) + eta * diversity(noise, latents)
        [gradient] = torch.autograd.grad(loss, [leaf])
        row = leaf.detach()
        with torch.no_grad():
            losses[step] = loss
            moving = gradient[:count] + weight_decay * row[:count]
            first.lerp_(moving, 1 - _BETAS[0])
            second.mul_(_BETAS[1]).addcmul_(moving, moving, value=1 - _BETAS[1])
            t = steps_before + step + 1
            scale = second.div(1 - _BETAS[1] ** t).sqrt_().add_(_EPS)
            row[:count].addcdiv_(first, scale, value=-lr / (1 - _BETAS[0] ** t))
    row[count:] = statistics.view(-1)
    return Schooled(row, moments, steps_before + steps, losses.numpy())
