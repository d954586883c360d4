"""The stacked engine: all seats of a round trained by one batched program with a hand-written backward pass.

One flat buffer holds the parameters of all seats *layer-major* (each block ``[S, *shape]`` is contiguous), and a second
one holds the velocities. Momentum is thus part of the gradient's product, and a step is a single addition. Seats are
sorted by their number of steps. Each step works on the unfinished seats, which come first in each block.

A :class:`Program` holds the weights, velocities and activations of S models that train together, for the layers of
:attr:`hanse.learning.job.Problem.stack`; :meth:`Program.bind` restricts it to the seats and the batch width of a step.
On a card, :class:`Graphs` records the steps once as CUDA graphs and replays them with other samples.

**Layers.** Each takes the activations of the layer before it and writes its own into a buffer. In the backward pass it
adds its gradients to its velocities, ``v = momentum v + g``, and returns the gradient at its inputs; below the first
layer that trains nobody needs it, and ``grad`` is returned as it is. Activations are *feature-major*, ``[S, features,
batch]``. Reductions over classes then vectorise along the batch: a log-softmax over 10 classes is six times faster. And
a weight's gradient with momentum is a single ``baddbmm_`` into its velocity. The first layer reads a view of the
samples, which lie sample-major, ``[S, batch, features]``, as in the pool.

In all signatures, B is the batch width. ``weights [S, 1, B]`` are each sample's weight in its batch's mean (0 for
padding), ``grad`` is the gradient of the loss at a layer's outputs (it may be overwritten), and ``tally [S, 1, B]`` is
each sample's weight in the loss that its model reports, or None at steps that are not reported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hanse.core.recipe import Recipe
from hanse.data.samples import Samples
from hanse.learning.batches import Batches, GroupEngine, SeatPlan, Segment, flat
from hanse.learning.job import Problem, SeatJob, constant_of, pull_of
from hanse.learning.losses import Objective

# ---- layers

_relu_backward = torch.ops.aten.threshold_backward.grad_input
_tanh_backward = torch.ops.aten.tanh_backward.grad_input


@dataclass(eq=False)
class Linear:
    """The layer ``W x + b``.

    Attributes:
        weight: ``W``, ``[S, out, in]``.
        weight_velocity: the velocity of ``weight``, in the same shape.
        bias: ``b``, ``[S, out, 1]``, or None.
        bias_velocity: the velocity of ``bias``, in the same shape.
        out: buffer of the outputs, ``[S, out, B]``.
        grad_in: the buffer of the gradient at the inputs, ``[S, in, B]``. None: no layer below trains.
        ones: ones ``[S, B, 1]``. A product with them sums over the batch.
    """

    weight: Tensor
    weight_velocity: Tensor
    bias: Tensor | None
    bias_velocity: Tensor | None
    out: Tensor
    grad_in: Tensor | None
    ones: Tensor

    def __post_init__(self) -> None:
        self.transposed = self.weight.transpose(1, 2)
        self.x = self.out

    def forward(self, x: Tensor, weights: Tensor) -> Tensor:
        """Return ``W x + b`` by one batched product, for inputs ``x [S, in, B]``."""
        self.x = x
        if self.bias is None:
            return torch.bmm(self.weight, x, out=self.out)
        return torch.baddbmm(self.bias, self.weight, x, out=self.out)

    def backward(self, grad: Tensor, momentum: float) -> Tensor:
        """Add each gradient by one batched product, and return the gradient at the inputs if it is wanted."""
        self.weight_velocity.baddbmm_(grad, self.x.transpose(1, 2), beta=momentum)
        if self.bias_velocity is not None:
            self.bias_velocity.baddbmm_(grad, self.ones, beta=momentum)
        if self.grad_in is None:
            return grad
        return torch.bmm(self.transposed, grad, out=self.grad_in)


class Activation:
    """ReLU or tanh.

    Args:
        kind: "relu" or "tanh".
        out: the buffer of the outputs, ``[S, d, B]``. None: the input may be overwritten.
    """

    def __init__(self, kind: str, out: Tensor | None) -> None:
        self.relu, self.out = kind == "relu", out
        self.y: Tensor | None = None

    def forward(self, x: Tensor, weights: Tensor) -> Tensor:
        """Apply the function to ``x [S, d, B]``, in place if that is allowed."""
        if self.out is not None:
            x = self.out.copy_(x)
        self.y = x.clamp_min_(0) if self.relu else x.tanh_()
        return self.y

    def backward(self, grad: Tensor, momentum: float) -> Tensor:
        """Multiply the gradient ``[S, d, B]`` by the function's slope, in place."""
        if self.relu:
            return _relu_backward(grad, self.y, 0, grad_input=grad)  # type: ignore[no-any-return]
        return _tanh_backward(grad, self.y, grad_input=grad)  # type: ignore[no-any-return]


@dataclass(eq=False)
class BatchNorm:
    """Batch normalisation over each model's own batch without padding. Running statistics are updated as in PyTorch.

    Attributes:
        scale: PyTorch's ``weight``; all tensors but ``normal`` and ``out`` are ``[S, features, 1]``.
        shift: PyTorch's ``bias``.
        scale_velocity: the velocity of ``scale``.
        shift_velocity: the velocity of ``shift``.
        mean: the running mean.
        var: the running variance.
        pace: PyTorch's ``momentum``, how far the running statistics move towards the batch's in one step: a number, or
            a buffer ``[S, 1, 1]`` that has each step's.
        eps: the number added to the variance.
        normal: buffer of the normalised inputs ``[S, features, B]``.
        out: buffer of the outputs ``[S, features, B]``.
    """

    scale: Tensor
    shift: Tensor
    scale_velocity: Tensor
    shift_velocity: Tensor
    mean: Tensor
    var: Tensor
    pace: Tensor | float
    eps: float
    normal: Tensor
    out: Tensor

    def __post_init__(self) -> None:
        self.rstd = torch.empty_like(self.scale)
        self.weights = self.out

    def forward(self, x: Tensor, weights: Tensor) -> Tensor:
        """Return the normalised, scaled and shifted inputs, and move the running statistics.

        The running variance moves towards the unbiased variance, ``n / (n - 1)`` times the batch's, where ``n = 1 /
        weight``.
        """
        self.weights = weights
        column = weights.transpose(1, 2)
        mean = torch.bmm(x, column)
        torch.sub(x, mean, out=self.normal)
        var = torch.bmm(torch.mul(self.normal, self.normal, out=self.out), column)
        torch.rsqrt(var + self.eps, out=self.rstd)
        self.normal.mul_(self.rstd)
        unbiased = var / (1 - weights.amax(2, keepdim=True))
        self.mean.lerp_(mean, self.pace)
        self.var.lerp_(unbiased, self.pace)
        return torch.addcmul(self.shift, self.normal, self.scale, out=self.out)

    def backward(self, grad: Tensor, momentum: float) -> Tensor:
        """Return ``scale rstd (g - w sum(g) - normal w sum(g normal))``, w being the weights.

        Padding, whose weight is 0, keeps the gradient 0.
        """
        sum_grad = grad.sum(2, keepdim=True)
        product = torch.mul(grad, self.normal, out=self.out)  # nobody needs the outputs any longer
        sum_product = product.sum(2, keepdim=True)
        self.shift_velocity.mul_(momentum).add_(sum_grad)
        self.scale_velocity.mul_(momentum).add_(sum_product)
        correction = torch.mul(self.normal, sum_product, out=self.out).add_(sum_grad).mul_(self.weights)
        return grad.sub_(correction).mul_(self.scale * self.rstd)


class Loss:
    """The last step of a forward pass and the first of a backward pass.

    Args:
        problem: the problem, whose loss is used.
        out: buffer of the gradient, ``[S, k, B]``.
        total: ``[S, 1, 1]``, the sums to which reported losses are added.
    """

    def __init__(self, problem: Problem, out: Tensor, total: Tensor) -> None:
        self.objective, self.regression, self.out, self.total = problem.objective, problem.loss == "mse", out, total
        # scattered onto the labels' places it makes softmax - one-hot, with no one-hot tensor
        self.minus_one = torch.full((out.shape[0], 1, out.shape[2]), -1.0, dtype=out.dtype, device=out.device)

    def gradient(self, output: Tensor, y: Tensor, weights: Tensor, tally: Tensor | None) -> Tensor:
        """Return the gradient at outputs ``[S, k, B]`` with labels ``[S, 1, B]`` or targets ``[S, d, B]``.

        It is ``weights (softmax - one-hot)`` for the cross-entropy, ``2 weights (output - target) / d`` for the squared
        error, and autograd's for any other loss.
        """
        if self.objective is not None:
            return self._by_autograd(self.objective, output, y, weights, tally)
        if self.regression:
            error = torch.sub(output, y, out=self.out)
            if tally is not None:
                self.total.add_((error.square().mean(1, keepdim=True) * tally).sum(2, keepdim=True))
            return error.mul_(weights * (2.0 / error.shape[1]))
        logs = torch.log_softmax(output, 1, out=self.out)
        if tally is not None:
            self.total.sub_((logs.gather(1, y) * tally).sum(2, keepdim=True))
        return logs.exp_().scatter_add_(1, y, self.minus_one).mul_(weights)

    def _by_autograd(
        self, objective: Objective, output: Tensor, y: Tensor, weights: Tensor, tally: Tensor | None
    ) -> Tensor:
        seats, outputs, width = output.shape
        targets = y.transpose(1, 2).reshape(seats * width, -1)
        with torch.enable_grad():
            flat = output.detach().transpose(1, 2).reshape(seats * width, outputs).requires_grad_()
            losses = objective(flat, targets if objective.regression else targets.squeeze(1))
            [slope] = torch.autograd.grad(losses, flat, weights.reshape(-1))
        if tally is not None:
            self.total.add_((losses.detach().view(seats, 1, width) * tally).sum(2, keepdim=True))
        return self.out.copy_(slope.view(seats, width, outputs).transpose(1, 2))


Layer = Linear | Activation | BatchNorm
"""What passes activations forward, and gradients back into its velocities."""


# ---- programs


@dataclass(frozen=True)
class ActiveProgram:
    """A program restricted to its first a seats and to batch width b. All tensors are views of the program's buffers.

    Attributes:
        inputs: ``[a, b, d]``, destination of a batch's samples.
        columns: their view ``[a, d, b]``, which the first layer reads.
        layers: the layers, in the order of the forward pass.
        loss: the last element of the stack.
        pace: ``[a, 1, 1]``, destination of a step's paces. None: the batch norms have paces of their own.
        parameters: the parameters of the a seats, layer by layer. They are one flat tensor if a is the number of all
            seats.
        velocity: the momentum buffers, in the form of ``parameters``.
        pull: what is multiplied by each parameter and added to its gradient (weight decay and ``mu``): one number for
            all seats, or tensors in the form of ``parameters``.
        constant: a constant that is added to the gradient (:func:`constant_of`). None: nothing is added.
        frozen_velocity: the velocities of parameters that do not train.
    """

    inputs: Tensor
    columns: Tensor
    layers: list[Layer]
    loss: Loss
    pace: Tensor | None
    parameters: list[Tensor]
    velocity: list[Tensor]
    pull: list[Tensor] | float
    constant: list[Tensor] | None
    frozen_velocity: list[Tensor]

    @property
    def pulls(self) -> list[Tensor]:
        """What pulls the seats: tensors that :meth:`Program.start` makes anew in every round."""
        return [*(self.pull if isinstance(self.pull, list) else []), *(self.constant or [])]

    def descend(self, lr: float) -> None:
        """Take a step: add the pulls to the velocities, which already contain the gradients, then ``-lr`` times the
        velocities to the parameters. Frozen parameters do not change.
        """
        if isinstance(self.pull, list):
            torch._foreach_addcmul_(self.velocity, self.pull, self.parameters)
        elif self.pull:
            torch._foreach_add_(self.velocity, self.parameters, alpha=self.pull)
        if self.constant is not None:
            torch._foreach_add_(self.velocity, self.constant)
        if self.frozen_velocity:
            torch._foreach_zero_(self.frozen_velocity)
        torch._foreach_add_(self.parameters, self.velocity, alpha=-lr)


class Program:
    """The buffers of S stacked models and their batches, kept from round to round.

    Rows are stored layer-major: the first tensor of all seats, then the second, and so on. All seats' weights of one
    layer are thus one contiguous block ``[S, *shape]``.

    Args:
        problem: the model, which can be stacked, and its loss.
        seats: S.
        width: the largest batch, B.
        device: where the buffers lie.
        dtype: the type of all buffers.

    Examples:
        >>> from hanse.core.table import Layout
        >>> from torch import nn
        >>> module = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
        >>> problem = Problem(module, Layout.of(module))
        >>> program = Program(problem, 2, 8, torch.device("cpu"), torch.float32)
        >>> jobs = [SeatJob(torch.arange(8), problem.layout.flatten(module), (0, 0, client, 0)) for client in range(2)]
        >>> program.start(jobs, Recipe())
        >>> program.bind(active=2, width=8).inputs.shape
        torch.Size([2, 8, 3])
    """

    def __init__(self, problem: Problem, seats: int, width: int, device: torch.device, dtype: torch.dtype) -> None:
        self.problem, self.layout, self.specs = problem, problem.layout, problem.stack or []
        specs = self.specs
        self.seats, self.width, self.device, self.dtype = seats, width, device, dtype
        self.trained = seats * self.layout.num_parameters
        self.flat = self._empty(seats * self.layout.size)
        self.velocity = self._empty(self.trained)
        self.total = self._empty(seats).view(seats, 1, 1)
        self.blocks = self._cut(self.flat)
        self.velocity_blocks = self._cut(self.velocity)
        samples = seats * width
        self.inputs = self._empty(samples * specs[0].inputs)
        self.outputs = [self._empty(samples * spec.outputs) for spec in specs]
        self.gradients = [self._empty(samples * spec.inputs) for spec in specs]
        self.normals = {s.name: self._empty(samples * s.outputs) for s in specs if s.kind == "batch_norm"}
        self.loss_out = self._empty(samples * specs[-1].outputs)
        self.ones = torch.ones(samples, dtype=dtype, device=device)
        self.pull: Tensor | float = 0.0
        self.constant: Tensor | None = None
        self.pace: Tensor | None = None
        self._bound: dict[tuple[int, int], ActiveProgram] = {}  # no cache of a method: a cycle would hold buffers

    def _empty(self, count: int) -> Tensor:
        """Return a flat buffer of ``count`` numbers whose values are not set."""
        return torch.empty(count, dtype=self.dtype, device=self.device)

    def _cut(self, flat: Tensor) -> dict[str, Tensor]:
        """Return the blocks ``[S, *shape]`` of a flat buffer by name; a buffer of parameters has none for
        statistics.
        """
        blocks = {}
        for name, shape, a, b in self.layout._blocks():
            if self.seats * b <= flat.numel():
                blocks[name] = flat[self.seats * a : self.seats * b].view(self.seats, *shape)
        return blocks

    def _spread(self, rows: Sequence[Tensor], flat: Tensor) -> None:
        """Copy rows ``[P]``, one for each seat, into a layer-major buffer."""
        same = all(row is rows[0] for row in rows)  # in most mechanisms all seats start from one shared row
        table = (rows[0].unsqueeze(0) if same else torch.stack(list(rows))).to(self.device)
        for (_, shape, a, b), block in zip(self.layout._blocks(), self._cut(flat).values(), strict=False):
            block.copy_(table[:, a:b].view(-1, *shape))

    def start(self, jobs: Sequence[SeatJob], recipe: Recipe) -> None:
        """Load the seats' start rows, reset velocities and losses, and set this round's pulls."""
        self._spread([job.start for job in jobs], self.flat)
        self.velocity.zero_()
        self.total.zero_()
        self.pace = self._empty(self.seats).view(-1, 1, 1) if self.normals and recipe.statistics == "anew" else None
        self._bound.clear()  # they hold the pull and the constant of the round before
        pulls = [pull_of(job, recipe) for job in jobs]
        if all(pull == pulls[0] for pull in pulls):
            self.pull = pulls[0]
        else:
            self.pull = self._empty(self.trained)
            for block in self._cut(self.pull).values():
                block.copy_(torch.tensor(pulls, dtype=self.dtype).view(-1, *[1] * (block.ndim - 1)))
        self.constant, given = None, [constant_of(job, self.dtype) for job in jobs]
        if any(one is not None for one in given):
            self.constant = self._empty(self.trained)
            none = torch.zeros_like(jobs[0].start, dtype=self.dtype)
            self._spread([none if one is None else one for one in given], self.constant)

    def columns(self) -> Iterator[tuple[slice, Tensor]]:
        """Yield the columns of the trained rows, a tensor's at a time, ``[S, numbers]``."""
        for (_, _, a, b), block in zip(self.layout._blocks(), self.blocks.values(), strict=True):
            yield slice(a, b), block.view(self.seats, -1)

    def bind(self, active: int, width: int) -> ActiveProgram:
        """Return the program for the first ``active`` seats and batches of ``width``, valid until the next start."""
        if (active, width) not in self._bound:
            self._bound[active, width] = self._bind(active, width)
        return self._bound[active, width]

    def _bind(self, active: int, width: int) -> ActiveProgram:
        """Make the views, layers and loss for the first ``active`` seats and batches of ``width``."""

        def shaped(flat: Tensor, features: int) -> Tensor:
            return flat[: active * features * width].view(active, features, width)

        def column(blocks: dict[str, Tensor], name: str) -> Tensor:
            return blocks[name][:active].unsqueeze(2)

        inputs = self.inputs[: active * width * self.specs[0].inputs].view(active, width, self.specs[0].inputs)
        layers: list[Layer] = []
        ones = self.ones[: active * width].view(active, width, 1)
        overwrite = trains_below = False
        # nothing below the first layer that trains needs a gradient: ``trains_below`` turns true after it
        for spec, out_buffer, grad_buffer in zip(self.specs, self.outputs, self.gradients, strict=True):
            out, name = shaped(out_buffer, spec.outputs), spec.name
            if spec.kind == "linear":
                weight, velocity = (b[f"{name}.weight"][:active] for b in (self.blocks, self.velocity_blocks))
                bias = column(self.blocks, f"{name}.bias") if spec.bias else None
                bias_velocity = column(self.velocity_blocks, f"{name}.bias") if spec.bias else None
                grad_in = shaped(grad_buffer, spec.inputs) if trains_below else None
                layers.append(Linear(weight, velocity, bias, bias_velocity, out, grad_in, ones))
            elif spec.kind == "batch_norm":
                layers.append(
                    BatchNorm(
                        scale=column(self.blocks, f"{name}.weight"),
                        shift=column(self.blocks, f"{name}.bias"),
                        scale_velocity=column(self.velocity_blocks, f"{name}.weight"),
                        shift_velocity=column(self.velocity_blocks, f"{name}.bias"),
                        mean=column(self.blocks, f"{name}.running_mean"),
                        var=column(self.blocks, f"{name}.running_var"),
                        pace=spec.decay if self.pace is None else self.pace[:active],
                        eps=spec.eps,
                        normal=shaped(self.normals[name], spec.outputs),
                        out=out,
                    )
                )
            else:
                layers.append(Activation(spec.kind, None if overwrite else out))
            # an activation may overwrite what a linear layer or batch norm put out: they do not need it again
            overwrite = spec.kind in ("linear", "batch_norm")
            trains_below = trains_below or overwrite
        last = shaped(self.loss_out, self.specs[-1].outputs)
        return ActiveProgram(
            inputs=inputs,
            columns=inputs.transpose(1, 2),
            layers=layers,
            loss=Loss(self.problem, last, self.total[:active]),
            pace=None if self.pace is None else self.pace[:active],
            parameters=self._prefix(self.flat[: self.trained], active),
            velocity=self._prefix(self.velocity, active),
            pull=self._prefix(self.pull, active) if isinstance(self.pull, Tensor) else self.pull,
            constant=self._prefix(self.constant, active) if self.constant is not None else None,
            frozen_velocity=[self.velocity_blocks[name][:active] for name in self.problem.frozen],
        )

    def _prefix(self, flat: Tensor, active: int) -> list[Tensor]:
        """Return the first ``active`` seats of every block; if these are all seats, the buffer itself, in one piece."""
        if active == self.seats:
            return [flat]
        return [block[:active] for block in self._cut(flat).values()]


# ---- steps


def take_steps(bound: ActiveProgram, x: Tensor, segment: Segment, momentum: float, lr: float) -> None:
    """Take the steps of one segment; step t reads the samples ``x[taken[t]]``."""
    gathered = bound.inputs.view(-1, bound.inputs.shape[2])
    layers, backwards, loss = bound.layers, bound.layers[::-1], bound.loss
    parts = zip(segment.taken.unbind(0), segment.targets.unbind(0), segment.weights.unbind(0), strict=True)
    for step, (index, y, w) in enumerate(parts):
        torch.index_select(x, 0, index, out=gathered)
        value = bound.columns
        if bound.pace is not None:
            bound.pace.copy_(segment.paces[step])
        for layer in layers:
            value = layer.forward(value, w)
        grad = loss.gradient(value, y, w, segment.tally[step] if segment.counted[step] else None)
        for layer in backwards:
            grad = layer.backward(grad, momentum)
        bound.descend(lr)


Steps = Callable[[ActiveProgram, Tensor, Segment, float, float], None]
"""What trains a program on samples ``x`` for a segment, with a momentum and a learning rate."""


# ---- graphs

_MOST = 16  # graphs of one program, so rounds of ever new shapes do not fill the card's memory

Capture = Callable[[Callable[[], None]], Callable[[], None]]


def _cuda_capture(work: Callable[[], None]) -> Callable[[], None]:
    """Record what ``work`` launches, without running it, and return a function that runs it."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph.replay


@dataclass(frozen=True)
class _Recorded:
    """A graph, and all that its kernels read and write: none of it may be freed before the graph is."""

    replay: Callable[[], None]
    bound: ActiveProgram
    x: Tensor
    segment: Segment


class Graphs:
    """Takes the steps of one program's segments.

    A new kind of segment first runs normally, which also warms up the GPU's libraries. The second time it is recorded,
    and after that replayed.

    Args:
        capture: the function that records steps; tests can replace it.
    """

    def __init__(self, capture: Capture = _cuda_capture) -> None:
        self.capture = capture
        self._kept: dict[tuple[object, ...], _Recorded | None] = {}

    def __call__(self, bound: ActiveProgram, x: Tensor, segment: Segment, momentum: float, lr: float) -> None:
        """Train ``bound`` on a segment of the samples ``x [n, d]``, which must stay where they are in memory."""
        new = [*bound.pulls, *segment.tensors]
        shapes = tuple((part.shape, part.dtype) for part in new)
        numbers = None if isinstance(bound.pull, list) else bound.pull, tuple(segment.counted), momentum, lr
        key = (x.data_ptr(), x.shape, shapes, bound.constant is None, bound.pace is None, *numbers)
        if key not in self._kept:
            if len(self._kept) >= _MOST:
                self._kept.clear()
            self._kept[key] = None
            take_steps(bound, x, segment, momentum, lr)
            return
        recorded = self._kept[key]
        if recorded is None:
            taken, targets, weights, tally, paces = (part.clone() for part in segment.tensors)
            still = Segment(taken, targets, weights, tally, paces, segment.counted)
            replay = self.capture(lambda: take_steps(bound, x, still, momentum, lr))
            recorded = self._kept[key] = _Recorded(replay, bound, x, still)
        # also right after it was recorded: recording does not run anything
        for old, part in zip([*recorded.bound.pulls, *recorded.segment.tensors], new, strict=True):
            if old is not part:
                old.copy_(part)
        recorded.replay()


# ---- the engine


class StackedEngine(GroupEngine):
    """Trains all seats as one stack, for models that :func:`hanse.learning.module_layers.read_stack` can read.

    Args:
        problem: the model and its loss (:class:`hanse.learning.job.Problem`).
        device: where the buffers lie.
        threads: intra-op threads. None: PyTorch's setting is kept.
        dtype: the type of weights, gradients and steps.
        graphs: whether steps are recorded and replayed on a CUDA device (:class:`Graphs`).

    Raises:
        ValueError: the model cannot be stacked.
    """

    name = "stacked"

    def __init__(
        self,
        problem: Problem,
        device: torch.device | str = "cpu",
        threads: int | None = None,
        dtype: torch.dtype = torch.float32,
        graphs: bool = False,
    ) -> None:
        super().__init__(problem, torch.device(device), dtype, threads=threads)
        if problem.stack is None:
            raise ValueError("the model is not a sequence of layers that can be stacked")
        self._program = lru_cache(maxsize=8)(self._made)  # seats may come in ever new shapes: buffers fill the memory
        self._graphs = graphs

    def laid_out(self, pool: Samples) -> Samples:
        """Return the samples as rows."""
        return Samples(*flat(pool, self.problem, self.dtype))

    def close(self) -> None:
        """Release the buffers."""
        self._program.cache_clear()
        super().close()

    def _made(self, seats: int, width: int) -> tuple[Program, Steps]:
        """Return the buffers for so many seats and such a width, and what takes their steps."""
        steps = Graphs() if self._graphs else take_steps
        return Program(self.problem, seats, width, self.device, self.dtype), steps

    @torch.no_grad()
    def train_group(
        self, pool: Samples, plans: Sequence[SeatPlan], jobs: Sequence[SeatJob], recipe: Recipe, lr: float
    ) -> tuple[Iterable[tuple[slice, Tensor]], NDArray[np.float64]]:
        """Train one group of seats; the rows come layer by layer."""
        x, y = pool.x, pool.y
        program, steps = self._program(len(plans), max(plan.width for plan in plans))
        program.start(jobs, recipe)
        batches = Batches.of(plans, self.device, self.dtype)
        for begin, end, active, width in batches.segments:
            bound = program.bind(active, width)
            taken = batches.samples[begin:end, :active, :width].reshape(end - begin, -1)
            # gathered for the whole segment at once; samples, which are larger, are gathered step by step
            targets = y.index_select(0, taken.reshape(-1)).view(end - begin, active, width, -1).transpose(2, 3)
            weights = batches.weights[begin:end, :active, :width].unsqueeze(2).contiguous()
            tally = batches.tally[begin:end, :active, :width].unsqueeze(2)
            paces = batches.paces if bound.pace is None else batches.paces[begin:end, :active, None, None]
            segment = Segment(taken, targets.contiguous(), weights, tally, paces, batches.reports[begin:end])
            steps(bound, x, segment, recipe.momentum, lr)
        return program.columns(), program.total.view(-1).double().cpu().numpy().copy()
