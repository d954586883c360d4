"""FedGen's generator, its training at the server, and how a client trains with it.

The generator turns a label and noise into a *latent*, an input for a classifier's head (its last linear layer). The
server trains it by :func:`train_generator` against the heads of the clients' models (:class:`Ensemble`), and sends it
as a payload. :class:`FromGenerator` is the client's half, and :class:`Tutor` computes the client's extra loss terms in
training. The mechanism is ``mechanisms/fedgen.py``.

Zhu, Hong, Zhou: Data-Free Knowledge Distillation for Heterogeneous Federated Learning, ICML 2021. Where the paper and
its published code differ, this follows the code, which produced GTFLAT's tables. Noise is uniform on [0, 1) (the paper:
normal). The ensemble's loss is the weighted sum of the heads' losses (eq. 4 has the loss of their mean logits).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hanse.base.pytorch import F, Tensor, nn, torch
from hanse.base.streams import stream
from hanse.core.port import Between, Declaration, Like, Payload, Term
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


_MOST_SAMPLES = 2**53  # up to this, float64 holds every whole number
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


@dataclass(frozen=True)
class FromGenerator:
    """The client's half of FedGen's payload.

    The head is also trained on the generator's latents, and the model's answers on real samples are pulled towards the
    head's answers on latents of the same labels.

    The payload has two tensors: "row" ``[generator.size]``, the generator's numbers, and "labels" float64
    ``[classes]``, the probabilities by which a client draws labels. It also has numbers: the generator's shape; "alpha"
    and "beta", this round's weights of the two terms (both 0: plain training); and "batch", how many latents are drawn
    at each step. The answer has the tensor "label_counts" ``[classes]``, how often each label was met in training.
    """

    name: ClassVar[str] = "generator"
    numbers: ClassVar[Mapping[str, Between]] = {
        **dict.fromkeys(("classes", "latent", "noise", "hidden", "batch"), Between(1, 2**31 - 1, whole=True)),
        **dict.fromkeys(("alpha", "beta"), Between(0)),
    }

    @staticmethod
    def payload(generator: Generator, row: Tensor, labels: Tensor, alpha: float, beta: float, batch: int) -> Payload:
        """Return what the server sends.

        Args:
            generator: the generator's shape.
            row: the generator's numbers ``[size]``.
            labels: float64 ``[classes]``, the probabilities by which a client draws labels.
            alpha: the weight of the term that trains the head.
            beta: the weight of the term that pulls the model's answers.
            batch: how many latents are drawn at each step.
        """
        numbers = {name: getattr(generator, name) for name in ("classes", "latent", "noise", "hidden")}
        more = {"alpha": alpha, "beta": beta, "batch": batch}
        return Payload(FromGenerator.name, {"row": row, "labels": labels}, numbers | more)

    @staticmethod
    def generator(numbers: Mapping[str, int | float]) -> Generator:
        """Return the shape of the generator that a payload's numbers describe.

        Args:
            numbers: a mapping with the keys ``classes``, ``latent``, ``noise`` and ``hidden`` of :class:`Generator`.
        """
        return Generator(*(int(numbers[name]) for name in ("classes", "latent", "noise", "hidden")))

    def declares(self, numbers: Mapping[str, int | float]) -> Declaration:
        """Return the tensors of a payload with these numbers, and of its answer."""
        made, classes = self.generator(numbers), (int(numbers["classes"]),)
        return Declaration(
            {"row": Like((made.size,)), "labels": Like(classes, torch.float64, 0, 1)},
            {"label_counts": Like(classes, torch.int64, 0, _MOST_SAMPLES)},
        )

    def unfit(self, payload: Payload, layout: Layout) -> str | None:
        """Return why a payload cannot be used on a model of this layout, or None.

        The labels must be probabilities, and the latents as wide as the input of the model's head.
        """
        if not math.isclose(float(payload.tensors["labels"].sum()), 1, abs_tol=1e-9):
            return "tensor 'labels': must have the sum 1"
        made = self.generator(payload.numbers)
        try:
            head = LastLayer.of(layout)
        except ValueError as wrong:
            return str(wrong)
        if (head.classes, head.latent) == (made.classes, made.latent):
            return None
        return f"made for {made.classes} classes and a latent of {made.latent}: here are {head.classes}, {head.latent}"

    def term(self, payload: Payload, key: tuple[int, int, int, int], module: nn.Module, layout: Layout) -> Term | None:
        """Return the function that adds the two terms to a batch's loss, or None if both have the weight 0."""
        if payload.numbers["alpha"] == 0 and payload.numbers["beta"] == 0:
            return None
        head = LastLayer.of(layout)
        bias = None if head.bias is None else module.get_parameter(head.bias)
        return Tutor(payload, key, module.get_parameter(head.weight), bias).loss

    def reports(self, payload: Payload, y: Tensor, plan: NDArray[np.int64]) -> Mapping[str, Tensor]:
        """Return "label_counts": how often each label was met in training."""
        return {"label_counts": labels_met(y, plan, int(payload.numbers["classes"]))}


class Tutor:
    """A payload's generator for one seat.

    Args:
        payload: the generator and the weights of the two loss terms.
        key: the seat's ``(seed, round, client, start row)``; noise and labels come from its stream "guide".
        weight: the head's weight ``[classes, latent]``, which is trained.
        bias: the head's bias ``[classes]``, or None.
    """

    def __init__(self, payload: Payload, key: tuple[int, int, int, int], weight: Tensor, bias: Tensor | None) -> None:
        seed, round, client, start = key
        self.payload, self.weight, self.bias = payload, weight, bias
        self._draw = stream(seed, "guide", round=round, client=client, start=start)
        self._generator = FromGenerator.generator(payload.numbers)
        self._row = payload.tensors["row"].detach().to(weight)
        self._labels = payload.tensors["labels"].cpu().numpy()

    def loss(self, logits: Tensor, y: Tensor) -> Tensor:
        """Return the two terms for one batch, a scalar with gradients (FedGen eq. 6 and its published code).

        The terms are ``alpha CE(head(G(e, y')), y') + beta KL(softmax head(G(e, y))

        softmax logits)``, with fresh noise e and drawn labels y'. No gradient flows into the target of the second term.

        Args:
            logits: the model's outputs on real samples, ``[n, classes]``.
            y: the samples' labels, int64 ``[n]``.
        """
        numbers, n = self.payload.numbers, len(y)
        batch = int(numbers["batch"])
        drawn = torch.from_numpy(self._draw.choice(len(self._labels), batch, p=self._labels)).to(y)
        noise = self._generator.draw_noise(self._draw, n + batch).to(self.weight)
        with torch.no_grad():
            latents = self._generator.latents(self._row, noise, torch.cat([y, drawn]))
        answers = F.linear(latents, self.weight, self.bias)
        taught = F.cross_entropy(answers[n:], drawn)
        target = F.softmax(answers[:n].detach(), 1)
        pulled = F.kl_div(F.log_softmax(logits, 1), target, reduction="batchmean")
        return numbers["alpha"] * taught + numbers["beta"] * pulled


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
