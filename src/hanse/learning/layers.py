"""Stacked layers: the same layer of S models at once, with hand-written forward and backward passes.

A :class:`hanse.learning.program.Program` builds them and the stacked engine runs them. Every :class:`Layer` takes the
activations of the layer before it and writes its own into a buffer. In the backward pass it adds its gradients to its
velocities. A :class:`Loss` ends the stack.

Activations are *feature-major*, ``[S, features, batch]``. Reductions over classes then vectorise along the batch: a
log-softmax over 10 classes is six times faster. And a weight's gradient with momentum is a single ``baddbmm_`` into its
velocity. Only the first layer's input is sample-major, ``[S, batch, features]``, as it lies in the pool.

In all signatures, B is the batch width. ``weights [S, 1, B]`` are each sample's weight in its batch's mean (0 for
padding), and ``grad`` is the gradient of the loss at a layer's outputs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from hanse.learning.losses import Objective

_relu_backward = torch.ops.aten.threshold_backward.grad_input
_tanh_backward = torch.ops.aten.tanh_backward.grad_input


class Layer(Protocol):
    """One stacked layer, bound to its weights, velocities and buffers."""

    def forward(self, x: Tensor, weights: Tensor) -> Tensor:
        """Return the outputs ``[S, out, B]`` of inputs ``x [S, in, B]``, which may be overwritten."""
        ...

    def backward(self, grad: Tensor, momentum: float) -> Tensor:
        """Put the gradients into the velocities, ``v = momentum v + g``, and return the gradient at the inputs.

        ``grad [S, out, B]`` may be overwritten. The result is ``[S, in, B]``. A layer below which nothing trains
        returns ``grad`` unchanged.
        """
        ...


@dataclass(frozen=True, eq=False)
class Enter:
    """Transposes the pool's ``[S, B, features]`` to feature-major, for stacks that do not begin with a linear layer.

    Attributes:
        out: ``[S, features, B]``, where the samples go.
    """

    out: Tensor

    def forward(self, x: Tensor, weights: Tensor) -> Tensor:
        """Copy the samples transposed."""
        return self.out.copy_(x.transpose(1, 2))

    def backward(self, grad: Tensor, momentum: float) -> Tensor:
        """Return ``grad`` unchanged: gradients at the samples are not needed."""
        return grad


class Linear:
    """The layer ``W x + b``.

    Args:
        weight: ``W``, ``[S, out, in]``.
        weight_velocity: the velocity of ``weight``, in the same shape.
        bias: ``b``, ``[S, out, 1]``, or None.
        bias_velocity: the velocity of ``bias``, in the same shape.
        out: buffer of the outputs, ``[S, out, B]``.
        grad_in: the buffer of the gradient at the inputs, ``[S, in, B]``. None: no layer below trains.
        ones: ones ``[S, B, 1]``. A product with them sums over the batch.
        from_pool: whether the inputs are the pool's samples, ``[S, B, in]``.
    """

    def __init__(
        self,
        weight: Tensor,
        weight_velocity: Tensor,
        bias: Tensor | None,
        bias_velocity: Tensor | None,
        out: Tensor,
        grad_in: Tensor | None,
        ones: Tensor,
        from_pool: bool,
    ) -> None:
        self.weight, self.weight_velocity = weight, weight_velocity
        self.bias, self.bias_velocity = bias, bias_velocity
        self.out, self.grad_in, self.ones, self.from_pool = out, grad_in, ones, from_pool
        self.transposed = weight.transpose(1, 2)
        # the input, and its views [S, in, B] and [S, B, in]: the same buffer at every step, so they are made once
        self.x: Tensor | None = None
        self.x_columns = self.x_rows = out

    def forward(self, x: Tensor, weights: Tensor) -> Tensor:
        """Return ``W x + b`` by one batched product. Samples from the pool are not transposed for it."""
        if x is not self.x:
            self.x, swapped = x, x.transpose(1, 2)
            self.x_columns, self.x_rows = (swapped, x) if self.from_pool else (x, swapped)
        if self.bias is None:
            return torch.bmm(self.weight, self.x_columns, out=self.out)
        return torch.baddbmm(self.bias, self.weight, self.x_columns, out=self.out)

    def backward(self, grad: Tensor, momentum: float) -> Tensor:
        """Add each gradient by one batched product, and return the gradient at the inputs if it is wanted."""
        self.weight_velocity.baddbmm_(grad, self.x_rows, beta=momentum)
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


class BatchNorm:
    """Batch normalisation over each model's own batch without padding. Running statistics are updated as in PyTorch.

    Args:
        scale: PyTorch's ``weight``; all tensors but ``normal`` and ``out`` are ``[S, features, 1]``.
        shift: PyTorch's ``bias``.
        scale_velocity: the velocity of ``scale``.
        shift_velocity: the velocity of ``shift``.
        mean: the running mean.
        var: the running variance.
        decay: PyTorch's ``momentum``: how far the running statistics move towards the batch's in one step.
        eps: the number added to the variance.
        normal: buffer of the normalised inputs ``[S, features, B]``.
        out: buffer of the outputs ``[S, features, B]``.
    """

    def __init__(
        self,
        scale: Tensor,
        shift: Tensor,
        scale_velocity: Tensor,
        shift_velocity: Tensor,
        mean: Tensor,
        var: Tensor,
        decay: float,
        eps: float,
        normal: Tensor,
        out: Tensor,
    ) -> None:
        self.scale, self.shift = scale, shift
        self.scale_velocity, self.shift_velocity = scale_velocity, shift_velocity
        self.mean, self.var, self.decay, self.eps = mean, var, decay, eps
        self.normal, self.out = normal, out
        self.rstd = torch.empty_like(scale)
        self.weights = out

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
        self.mean.lerp_(mean, self.decay)
        self.var.lerp_(unbiased, self.decay)
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


class Loss(Protocol):
    """The last step of a forward pass and the first of a backward pass."""

    def gradient(self, output: Tensor, y: Tensor, weights: Tensor, tally: Tensor | None) -> Tensor:
        """Return the gradient at the outputs, ``[S, k, B]``.

        Args:
            output: ``[S, k, B]``.
            y: labels ``[S, 1, B]`` or targets ``[S, d, B]``.
            weights: each sample's share of its batch.
            tally: ``[S, 1, B]``, each sample's weight in the loss that its model reports. None: the losses of this step
                are not reported.
        """
        ...


class CrossEntropy:
    """Cross-entropy of logits ``[S, classes, B]`` with labels ``[S, 1, B]``.

    Args:
        out: buffer of the gradient, ``[S, classes, B]``.
        total: ``[S, 1, 1]``, the sums to which reported losses are added.
    """

    def __init__(self, out: Tensor, total: Tensor) -> None:
        self.out, self.total = out, total
        # scattered onto the labels' places it makes softmax - one-hot, with no one-hot tensor
        self.minus_one = torch.full((out.shape[0], 1, out.shape[2]), -1.0, dtype=out.dtype, device=out.device)

    def gradient(self, output: Tensor, y: Tensor, weights: Tensor, tally: Tensor | None) -> Tensor:
        """Return ``weights (softmax - one-hot)``."""
        logs = torch.log_softmax(output, 1, out=self.out)
        if tally is not None:
            self.total.sub_((logs.gather(1, y) * tally).sum(2, keepdim=True))
        return logs.exp_().scatter_add_(1, y, self.minus_one).mul_(weights)


class SquaredError:
    """Squared error of outputs ``[S, d, B]`` with targets ``[S, d, B]``, the mean over a sample's d numbers.

    The arguments are those of :class:`CrossEntropy`.
    """

    def __init__(self, out: Tensor, total: Tensor) -> None:
        self.out, self.total = out, total

    def gradient(self, output: Tensor, y: Tensor, weights: Tensor, tally: Tensor | None) -> Tensor:
        """Return ``2 weights (output - target) / d``."""
        error = torch.sub(output, y, out=self.out)
        if tally is not None:
            self.total.add_((error.square().mean(1, keepdim=True) * tally).sum(2, keepdim=True))
        return error.mul_(weights * (2.0 / error.shape[1]))


class AnyLoss:
    """Any loss of a sample's outputs ``[S, k, B]`` and target ``[S, d, B]``.

    Autograd computes its gradient at the outputs, where the stack's own backward pass continues.

    Args:
        objective: the loss, one number per sample.
        out: buffer ``[S, k, B]`` of the gradient, which :meth:`gradient` fills and returns.
        total: ``[S, 1, 1]``, to which :meth:`gradient` adds each seat's losses, weighted by its ``tally``.
    """

    def __init__(self, objective: Objective, out: Tensor, total: Tensor) -> None:
        self.objective, self.out, self.total = objective, out, total

    def gradient(self, output: Tensor, y: Tensor, weights: Tensor, tally: Tensor | None) -> Tensor:
        """Return ``weights [S, 1, B]`` times the gradient ``[S, k, B]`` of each sample's loss at its outputs. With a
        ``tally [S, 1, B]``, the losses times the tally are added to ``total``.
        """
        seats, outputs, width = output.shape
        targets = y.transpose(1, 2).reshape(seats * width, -1)
        with torch.enable_grad():
            flat = output.detach().transpose(1, 2).reshape(seats * width, outputs).requires_grad_()
            losses = self.objective(flat, targets if self.objective.regression else targets.squeeze(1))
            [slope] = torch.autograd.grad(losses, flat, weights.reshape(-1))
        if tally is not None:
            self.total.add_((losses.detach().view(seats, 1, width) * tally).sum(2, keepdim=True))
        return self.out.copy_(slope.view(seats, width, outputs).transpose(1, 2))
