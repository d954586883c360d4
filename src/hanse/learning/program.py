"""Turns a module's layers into a stacked program: the layout of its tensors and its buffers.

The layers are those of :attr:`hanse.learning.job.Problem.stack`. A :class:`Program` holds the weights, velocities and
activations of S models that train together. :meth:`Program.bind` restricts it to the seats and the batch width of a
step; the result is an :class:`ActiveProgram` of layers (:mod:`hanse.learning.layers`). The stacked engine drives it
(:mod:`hanse.learning.stacked`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hanse.core.recipe import Recipe
from hanse.learning.job import Problem, SeatJob, constant_of
from hanse.learning.layers import (
    Activation,
    AnyLoss,
    BatchNorm,
    CrossEntropy,
    Enter,
    Layer,
    Linear,
    Loss,
    SquaredError,
)
from hanse.learning.module_layers import Spec


@dataclass(frozen=True)
class ActiveProgram:
    """A program restricted to its first a seats and to batch width b. All tensors are views of the program's buffers.

    Attributes:
        inputs: ``[a, b, d]``, destination of a batch's samples.
        layers: the layers, in the order of the forward pass.
        loss: the last element of the stack.
        parameters: the parameters of the a seats, layer by layer. They are one flat tensor if a is the number of all
            seats.
        velocity: the momentum buffers, in the form of ``parameters``.
        pull: what is multiplied by each parameter and added to its gradient (weight decay and ``mu``): one number for
            all seats, or tensors in the form of ``parameters``.
        constant: a constant that is added to the gradient (:func:`constant_of`). None: nothing is added.
        frozen_velocity: the velocities of parameters that do not train.
    """

    inputs: Tensor
    layers: list[Layer]
    loss: Loss
    parameters: list[Tensor]
    velocity: list[Tensor]
    pull: list[Tensor] | float
    constant: list[Tensor] | None
    frozen_velocity: list[Tensor]

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
        problem: the model and its loss (:class:`hanse.learning.job.Problem`).
        specs: the model's layers, ``problem.stack``.
        seats: S.
        width: the largest batch, B.
        device: where the buffers lie.
        dtype: the type of all buffers.

    Examples:
        >>> from hanse.core.table import Layout
        >>> from torch import nn
        >>> module = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
        >>> problem = Problem(module, Layout.of(module))
        >>> program = Program(problem, problem.stack, 2, 8, torch.device("cpu"), torch.float32)
        >>> jobs = [SeatJob(torch.arange(8), problem.layout.flatten(module), (0, 0, client, 0)) for client in range(2)]
        >>> program.start(jobs, Recipe())
        >>> program.bind(active=2, width=8).inputs.shape
        torch.Size([2, 8, 3])
    """

    def __init__(
        self,
        problem: Problem,
        specs: Sequence[Spec],
        seats: int,
        width: int,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self.problem, self.layout, self.specs = problem, problem.layout, list(specs)
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
        self.entered = self._empty(samples * specs[0].inputs) if specs[0].kind != "linear" else None
        self.loss_out = self._empty(samples * specs[-1].outputs)
        self.ones = torch.ones(samples, dtype=dtype, device=device)
        self.pull: Tensor | float = 0.0
        self.constant: Tensor | None = None
        self._bound: dict[tuple[int, int], ActiveProgram] = {}

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
        self._bound.clear()  # they hold the pull and the constant of the round before
        pulls = [recipe.weight_decay + (job.mu if job.centre is not None else 0.0) for job in jobs]
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

    def store(self, rows: Tensor, seats: Sequence[int]) -> None:
        """Copy the trained rows into ``rows[seats]``, where ``rows`` is ``[jobs, P]``."""
        where = torch.tensor(seats, device=self.device)
        for (_, _, a, b), block in zip(self.layout._blocks(), self.blocks.values(), strict=True):
            rows[where, a:b] = block.view(self.seats, -1)

    def bind(self, active: int, width: int) -> ActiveProgram:
        """Return the program for the first ``active`` seats and batches of ``width``, valid until the next start."""
        key = (active, width)
        if key not in self._bound:
            self._bound[key] = self._bind(active, width)
        return self._bound[key]

    def _bind(self, active: int, width: int) -> ActiveProgram:
        """Make the views, layers and loss for the first ``active`` seats and batches of ``width``."""

        def shaped(flat: Tensor, features: int) -> Tensor:
            return flat[: active * features * width].view(active, features, width)

        def column(blocks: dict[str, Tensor], name: str) -> Tensor:
            return blocks[name][:active].unsqueeze(2)

        inputs = self.inputs[: active * width * self.specs[0].inputs].view(active, width, self.specs[0].inputs)
        layers: list[Layer] = []
        if self.entered is not None:
            layers.append(Enter(shaped(self.entered, self.specs[0].inputs)))
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
                layers.append(Linear(weight, velocity, bias, bias_velocity, out, grad_in, ones, not layers))
            elif spec.kind == "batch_norm":
                layers.append(
                    BatchNorm(
                        scale=column(self.blocks, f"{name}.weight"),
                        shift=column(self.blocks, f"{name}.bias"),
                        scale_velocity=column(self.velocity_blocks, f"{name}.weight"),
                        shift_velocity=column(self.velocity_blocks, f"{name}.bias"),
                        mean=column(self.blocks, f"{name}.running_mean"),
                        var=column(self.blocks, f"{name}.running_var"),
                        decay=spec.decay,
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
        total, last = self.total[:active], shaped(self.loss_out, self.specs[-1].outputs)
        loss = _loss_layer(self.problem, last, total)
        return ActiveProgram(
            inputs=inputs,
            layers=layers,
            loss=loss,
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


def _loss_layer(problem: Problem, out: Tensor, total: Tensor) -> Loss:
    """Return the loss at the end of a stack.

    Args:
        problem: the problem, whose loss is used.
        out: ``[S, k, B]``, the buffer for the gradient at the outputs.
        total: ``[S, 1, 1]``, to which reported losses are added.
    """
    if problem.objective is not None:
        return AnyLoss(problem.objective, out, total)
    return CrossEntropy(out, total) if problem.loss == "cross_entropy" else SquaredError(out, total)
