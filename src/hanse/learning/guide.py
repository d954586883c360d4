"""What guides a client's training without any data: a generator of latents, and two loss terms (FedGen).

The latent is the input of the model's last linear layer, its *head*: the head is trained on latents that the server's
generator makes (``alpha``), and the model's answers on real samples are pulled towards the head's on latents generated
for the same labels (``beta``).
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from numpy.typing import NDArray
from torch import Tensor, nn

from hanse.learning.generator import Generator
from hanse.streams import stream
from hanse.table import Layout

__all__ = ["Guide", "Head", "Tutor", "labels_met", "why_no_head"]


@dataclass(frozen=True)
class Head:
    """A model's last linear layer: the names of its tensors, how many ``classes`` it tells apart, and the width of its
    input, the ``latent``.
    """

    weight: str
    bias: str | None
    classes: int
    latent: int

    @staticmethod
    def of(layout: Layout) -> Head:
        """Return the head as the layout shows it: the last parameters. Raises ValueError if those are not a linear
        layer's.
        """
        count = layout.offsets.index(layout.num_parameters)
        shapes = dict(zip(layout.names[:count], layout.shapes[:count], strict=True))
        last = layout.names[count - 1]
        prefix = last.rpartition(".")[0]
        weight = f"{prefix}.weight" if prefix else "weight"
        if weight not in shapes or len(shapes[weight]) != 2 or last.rpartition(".")[2] not in ("weight", "bias"):
            raise ValueError(f"the model's last parameter is {last!r}: it does not end in a linear layer")
        classes, latent = shapes[weight]
        return Head(weight, last if last != weight else None, int(classes), int(latent))

    def tensors(self, layout: Layout, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return the heads of ``rows [S, P]``: weights ``[S, classes, latent]`` and biases ``[S, classes]``."""
        views = layout.unflatten(rows)
        weight = views[self.weight]
        return weight, weight.new_zeros(weight.shape[:2]) if self.bias is None else views[self.bias]


def why_no_head(module: nn.Module, layout: Layout, x: Tensor) -> str | None:
    """Return why a model has no head to guide, or None. ``x`` are a few inputs: the linear layer that comes last in the
    layout must be the one that makes the model's output.
    """
    try:
        head = Head.of(layout)
    except ValueError as reason:
        return str(reason)
    probe = copy.deepcopy(module).eval()
    made: list[Tensor] = []
    layer = probe.get_submodule(head.weight.rpartition(".")[0])
    if type(layer) is not nn.Linear:
        return f"the model's last layer is a {type(layer).__name__}, not a Linear"
    layer.register_forward_hook(lambda _module, _inputs, output: made.append(output))
    with torch.no_grad():
        output = probe(x.to(next(probe.parameters())) if x.is_floating_point() else x)
    if len(made) != 1 or not torch.equal(made[0], output):
        return "the output of the model's last linear layer is not the model's output"
    return None


@dataclass(frozen=True)
class Guide:
    """A generator and how much a client heeds it; it travels to the client with its training task.

    ``row [generator.size]`` are the generator's numbers, ``labels [classes]`` float64 the probabilities by which a
    client draws labels, ``alpha`` and ``beta`` this round's weights of the two terms (both 0: the client only reports
    its label counts), ``batch`` how many latents are drawn a step.
    """

    generator: Generator
    row: Tensor
    labels: Tensor
    alpha: float
    beta: float
    batch: int = 32

    @property
    def active(self) -> bool:
        """Whether it changes the training at all."""
        return self.alpha > 0 or self.beta > 0


@dataclass
class Tutor:
    """A guide at work on one seat, whose head is ``weight [classes, latent]`` and ``bias``.

    ``key`` is the seat's ``(seed, round, client, start row)``: its noise and labels come from the stream "guide".
    """

    guide: Guide
    key: tuple[int, int, int, int]
    weight: Tensor
    bias: Tensor | None
    _draw: np.random.Generator = field(init=False)
    _row: Tensor = field(init=False)
    _labels: NDArray[np.float64] = field(init=False)

    def __post_init__(self) -> None:
        seed, round, client, start = self.key
        self._draw = stream(seed, "guide", round=round, client=client, start=start)
        self._row = self.guide.row.detach().to(self.weight)
        self._labels = self.guide.labels.cpu().numpy()

    def loss(self, logits: Tensor, y: Tensor) -> Tensor:
        """Return the two terms for one batch, the model's ``logits [n, classes]`` on real samples of labels ``y [n]``.

        ``alpha CE(head(G(e, y')), y') + beta KL(softmax head(G(e, y)) || softmax logits)`` with fresh noise e and drawn
        labels y' (FedGen eq. 6 and its published code; no gradient flows into the target of the second term).
        """
        guide, n = self.guide, len(y)
        drawn = torch.from_numpy(self._draw.choice(len(self._labels), guide.batch, p=self._labels)).to(y)
        noise = guide.generator.draw_noise(self._draw, n + guide.batch).to(self.weight)
        with torch.no_grad():
            latents = guide.generator.latents(self._row, noise, torch.cat([y, drawn]))
        answers = F.linear(latents, self.weight, self.bias)
        taught = F.cross_entropy(answers[n:], drawn)
        target = F.softmax(answers[:n].detach(), 1)
        pulled = F.kl_div(F.log_softmax(logits, 1), target, reduction="batchmean")
        return guide.alpha * taught + guide.beta * pulled


def labels_met(y: Tensor, plan: NDArray[np.int64], classes: int) -> Tensor:
    """Return how often each label was met in training, ``[classes]`` int64: labels ``y [n]`` in the batches of
    ``plan``, positions into them, padded with -1 (FedGen's label counter).
    """
    positions = torch.from_numpy(plan[plan >= 0]).to(y.device)
    return torch.bincount(y[positions], minlength=classes).cpu()
