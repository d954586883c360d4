"""FedGen's generator, its training at the server, and how a client trains with it.

The generator turns a label and noise into a *latent*, an input for a classifier's head (its last linear layer). The
server trains it by :func:`train_generator` against the heads of the clients' models (:class:`Ensemble`), and sends it
as a payload. A client checks it with :func:`unsound`, and :func:`guided` computes its extra loss terms in training. The
mechanism is ``mechanisms/fedgen.py``.

Zhu, Hong, Zhou: Data-Free Knowledge Distillation for Heterogeneous Federated Learning, ICML 2021. Where the paper and
its published code differ, this follows the code, which produced GTFLAT's tables. Noise is uniform on [0, 1) (the paper:
normal). The ensemble's loss is the weighted sum of the heads' losses (eq. 4 has the loss of their mean logits).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hanse.base.pytorch import F, Tensor, nn, torch
from hanse.base.streams import stream
from hanse.core.declared import Declared
from hanse.core.port import Payload
from hanse.core.table import Layout


@dataclass(frozen=True)
class LastLayer:
    """A model's last linear layer.

    Attributes:
        weight: the name of the layer's weight.
        bias: the name of the layer's bias. None: the layer has no bias.
        classes: how many classes the head tells apart.
        latent: the width of the head's input.
    """

    weight: str
    bias: str | None
    classes: int
    latent: int

    @staticmethod
    def of(layout: Layout) -> LastLayer:
        """Return the head in a layout: it is made of the layout's last parameters.

        Raises:
            ValueError: the last parameters are not a linear layer's.
        """
        count = layout.offsets.index(layout.num_parameters)
        shapes = dict(zip(layout.names[:count], layout.shapes[:count], strict=True))
        last = layout.names[count - 1]
        prefix = last.rpartition(".")[0]
        weight = f"{prefix}.weight" if prefix else "weight"
        if weight not in shapes or len(shapes[weight]) != 2 or last.rpartition(".")[2] not in ("weight", "bias"):
            raise ValueError(f"the model's last parameter is {last!r}: it does not end in a linear layer")
        classes, latent = shapes[weight]
        return LastLayer(weight, last if last != weight else None, int(classes), int(latent))

    def tensors(self, layout: Layout, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return the heads of ``rows [S, P]``: weights ``[S, classes, latent]`` and biases ``[S, classes]``, zeros if
        the head has none.
        """
        views = layout.unflatten(rows)
        weight = views[self.weight]
        return weight, weight.new_zeros(weight.shape[:2]) if self.bias is None else views[self.bias]


def why_no_head(module: nn.Module, layout: Layout, x: Tensor) -> str | None:
    """Return why a model has no head, or None.

    The last linear layer in the layout must produce the model's output. The model is run to check this.

    Args:
        module: the model.
        layout: the layout of the model's rows.
        x: a few inputs.
    """
    try:
        head = LastLayer.of(layout)
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


_BETAS, _EPS = (0.9, 0.999), 1e-8  # Adam's usual settings


@dataclass(frozen=True)
class Generator:
    """The shape of a generator: from noise and a one-hot label through linear, batch norm, ReLU and linear to a latent.

    The generator's numbers form one flat row ``[size]``: ``num_parameters`` parameters, then the batch norm's mean and
    variance.

    Attributes:
        classes: how many labels there are.
        latent: the width of the generator's output.
        noise: how many numbers of noise go in.
        hidden: the width between the generator's two layers.

    Examples:
        >>> import numpy as np
        >>> generator = Generator(classes=10, latent=4, noise=8, hidden=16)
        >>> row = generator.initial(np.random.default_rng(0))
        >>> row.shape[0] == generator.size
        True
        >>> noise = generator.draw_noise(np.random.default_rng(1), 3)
        >>> generator.latents(row, noise, torch.tensor([0, 1, 2])).shape
        torch.Size([3, 4])
    """

    classes: int
    latent: int
    noise: int = 32
    hidden: int = 256

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """The shapes of a row's tensors, in the order of :meth:`parts`."""
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

    def parts(self, row: Tensor) -> Sequence[Tensor]:
        """Return a row's tensors as views.

        They are weight and bias of the first layer, scale and shift of the batch norm, weight and bias of the last
        layer, and mean and variance of the batch norm.

        Raises:
            ValueError: the row is of another length.
        """
        if row.shape != (self.size,):
            raise ValueError(f"generator row: shape {tuple(row.shape)}: must be ({self.size},)")
        pieces = torch.split(row, [math.prod(shape) for shape in self.shapes])
        return [piece.view(shape) for piece, shape in zip(pieces, self.shapes, strict=True)]

    def initial(self, draw: np.random.Generator) -> Tensor:
        """Return a first row, float32: linear layers uniform within 1/sqrt(inputs), like PyTorch; batch norm 1."""
        row = torch.zeros(self.size)
        weight, bias, scale, _, last_weight, last_bias, _, var = self.parts(row)
        for tensor, inputs in [(t, w.shape[1]) for w, b in ((weight, bias), (last_weight, last_bias)) for t in (w, b)]:
            bound = 1 / math.sqrt(inputs)
            tensor.copy_(torch.from_numpy(draw.uniform(-bound, bound, tuple(tensor.shape))))
        scale.fill_(1.0)
        var.fill_(1.0)
        return row

    def draw_noise(self, draw: np.random.Generator, n: int) -> Tensor:
        """Return noise ``[n, noise]``, float32, uniform on [0, 1)."""
        return torch.from_numpy(draw.random((n, self.noise), dtype=np.float32))

    def latents(self, row: Tensor, noise: Tensor, y: Tensor, statistics: Tensor | None = None) -> Tensor:
        """Return latents ``[n, latent]``.

        Args:
            row: the generator's numbers ``[size]``.
            noise: ``[n, noise]``.
            y: labels int64 ``[n]``.
            statistics: what batch norm uses. None: the row's statistics. In training, they are running statistics ``[2,
                hidden]``: these are updated in place, while batch norm uses the batch's own statistics.
        """
        weight, bias, scale, shift, last_weight, last_bias, *kept = self.parts(row)
        inputs = torch.cat([noise, F.one_hot(y, self.classes).to(noise)], 1)
        mean, var = kept if statistics is None else statistics
        hidden = F.linear(inputs, weight, bias)
        hidden = F.batch_norm(hidden, mean, var, scale, shift, training=statistics is not None)
        return F.linear(F.relu(hidden), last_weight, last_bias)


def diversity(noise: Tensor, latents: Tensor) -> Tensor:
    """Return the diversity loss of the published code, ``exp(-mean_ij |e_i - e_j|_2^2/d_e |z_i - z_j|_1/d_z)``.

    The loss is 1 if all latents are equal, and falls with their distance. The mean is over all pairs, including each
    sample with itself.

    Args:
        noise: e, ``[n, d_e]``.
        latents: z, ``[n, d_z]``.
    """
    apart = torch.cdist(noise, noise).square() / noise.shape[1]
    spread = torch.cdist(latents, latents, p=1) / latents.shape[1]
    return torch.exp(-(apart * spread).mean())


@dataclass(frozen=True)
class Ensemble:
    """The heads of the clients' updated models, which judge a generator's latents.

    Attributes:
        weight: ``[S, C, latent]``.
        bias: ``[S, C]``.
        trust: ``[S, C]``, the weight of each client for each label; each column sums to 1.
        labels: float64 ``[C]``, the probabilities by which labels are drawn.
    """

    weight: Tensor
    bias: Tensor
    trust: Tensor
    labels: NDArray[np.float64]

    @staticmethod
    def of(weight: Tensor, bias: Tensor, counts: Tensor, labels: NDArray[np.float64]) -> Ensemble:
        """Return the ensemble of heads, weighted by the labels that each client trained on.

        One is added to each count, as in the published code, so no column is zero.

        Args:
            weight: ``[S, C, latent]``.
            bias: ``[S, C]``.
            counts: ``[S, C]``, how often client s trained on label c.
            labels: float64 ``[C]``, the probabilities by which labels are drawn.
        """
        seen = counts.double() + 1
        return Ensemble(weight, bias, (seen / seen.sum(0)).to(weight), labels)


def ensemble_loss(ensemble: Ensemble, latents: Tensor, y: Tensor) -> Tensor:
    """Return ``mean_b sum_s trust[s, y_b] CE(head_s(z_b), y_b)``: FedGen eq. (4), as the published code has it.

    Args:
        ensemble: the heads.
        latents: z, ``[n, latent]``.
        y: labels int64 ``[n]``.
    """
    heads, classes, width = ensemble.weight.shape
    logits = latents @ ensemble.weight.reshape(heads * classes, width).t() + ensemble.bias.reshape(-1)
    n = len(y)
    each = F.cross_entropy(logits.view(n * heads, classes), y.repeat_interleave(heads), reduction="none")
    return (each.view(n, heads) * ensemble.trust[:, y].t()).sum(1).mean()


class Schooled(NamedTuple):
    """A generator after training.

    Attributes:
        row: the generator's numbers ``[size]``.
        moments: Adam's two moments, ``[2, num_parameters]``.
        steps: how many steps Adam has taken in total.
        losses: ``[steps]``, the loss at each step of this training.
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

    No argument is changed.

    Args:
        generator: the generator's shape.
        row: the generator's numbers ``[size]``.
        moments: Adam's two moments ``[2, num_parameters]``, with which it continues.
        steps_before: how many steps Adam took before.
        ensemble: the heads that judge the generator.
        draw: the random generator for labels and noise.
        steps: how many steps to take.
        batch: how many latents are made at each step.
        lr: the learning rate.
        weight_decay: multiple of the parameters added to the gradient.
        eta: the weight of diversity.
    """
    row, moments, count = row.clone(), moments.clone(), generator.num_parameters
    first, second = moments
    # a copy: batch norm updates them in place, which autograd would refuse on a row that it still needs
    statistics = row[count:].view(2, generator.hidden).clone()
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


_PAYLOAD = Declared[Payload](Payload)


def generator_of(payload: Payload) -> Generator:
    """Return the shape of a payload's generator."""
    return Generator(payload.classes, payload.latent, payload.noise, payload.hidden)


def unsound(payload: Payload, layout: Layout) -> str | None:
    """Return why a payload must not be used to train a model of this layout, or None.

    Its fields must have their types, the labels be probabilities, and the latents as wide as the input of the model's
    last layer.
    """
    try:
        _PAYLOAD.check(payload)
        head = LastLayer.of(layout)
    except ValueError as wrong:
        return str(wrong)
    made, sizes = generator_of(payload), (len(payload.row), len(payload.labels))
    if sizes != (made.size, made.classes):
        return f"Payload.row and labels: of {sizes[0]} and {sizes[1]} numbers: must be {made.size} and {made.classes}"
    if not bool(torch.isfinite(payload.row).all()):
        return "Payload.row: has NaN or infinite entries"
    if not math.isclose(float(payload.labels.sum()), 1, abs_tol=1e-9):
        return "Payload.labels: must have the sum 1"
    if (head.classes, head.latent) == (made.classes, made.latent):
        return None
    return f"Payload: for {made.classes} classes and a latent of {made.latent}: here are {head.classes}, {head.latent}"


def term_of(
    payload: Payload, key: tuple[int, int, int, int], module: nn.Module, layout: Layout
) -> Callable[[Tensor, Tensor], Tensor] | None:
    """Return the function that adds the two terms to a batch's loss, or None if both have the weight 0.

    Args:
        payload: what was sent.
        key: the seat's ``(seed, round, client, start row)``, for its random stream.
        module: the model during training. Its parameters change with each step.
        layout: where each tensor of the model is in a row.
    """
    if payload.alpha == 0 and payload.beta == 0:
        return None
    head = LastLayer.of(layout)
    bias = None if head.bias is None else module.get_parameter(head.bias)
    return guided(payload, key, module.get_parameter(head.weight), bias)


def guided(
    payload: Payload, key: tuple[int, int, int, int], weight: Tensor, bias: Tensor | None
) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the two terms of a seat, a function of a batch (FedGen eq. 6 and its published code).

    It gets the model's outputs ``[n, classes]`` on real samples and their labels, int64 ``[n]``, and returns the scalar
    ``alpha CE(head(G(e, y')), y') + beta KL(softmax head(G(e, y)), softmax outputs)``, with fresh noise e and drawn
    labels y'. No gradient flows into the target of the second term.

    Args:
        payload: the generator and the weights of the two terms.
        key: the seat's ``(seed, round, client, start row)``; noise and labels come from its stream "guide".
        weight: the head's weight ``[classes, latent]``, which is trained.
        bias: the head's bias ``[classes]``, or None.
    """
    seed, round, client, start = key
    draw, generator = stream(seed, "guide", round=round, client=client, start=start), generator_of(payload)
    row, labels = payload.row.detach().to(weight), payload.labels.cpu().numpy()

    def loss(logits: Tensor, y: Tensor) -> Tensor:
        n = len(y)
        drawn = torch.from_numpy(draw.choice(len(labels), payload.batch, p=labels)).to(y)
        noise = generator.draw_noise(draw, n + payload.batch).to(weight)
        with torch.no_grad():
            latents = generator.latents(row, noise, torch.cat([y, drawn]))
        answers = F.linear(latents, weight, bias)
        target = F.softmax(answers[:n].detach(), 1)
        pulled = F.kl_div(F.log_softmax(logits, 1), target, reduction="batchmean")
        return payload.alpha * F.cross_entropy(answers[n:], drawn) + payload.beta * pulled

    return loss


def labels_met(y: Tensor, plan: NDArray[np.int64], classes: int) -> Tensor:
    """Return how often each label was met in training, int64 ``[classes]`` (FedGen's label counter).

    Args:
        y: the labels of the client's samples, ``[n]``.
        plan: the batches as positions in ``y``, -1 where a batch is short.
        classes: how many labels there are.

    Examples:
        >>> labels_met(torch.tensor([0, 2, 2]), np.array([[0, 1], [2, -1]]), 3).tolist()
        [1, 0, 2]
    """
    positions = torch.from_numpy(plan[plan >= 0]).to(y.device)
    return torch.bincount(y[positions], minlength=classes).cpu()
