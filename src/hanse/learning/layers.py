"""Stacked layers: the same layer of S models at once, each with an explicit forward and backward on given buffers.

Activations are *feature-major*, ``[S, features, batch]``: reductions over classes then vectorise along the batch (a
log-softmax over 10 classes is six times faster so), and a weight's gradient is one ``baddbmm_`` into its velocity,
which folds momentum in. Only the first layer's input is sample-major ``[S, batch, features]``, as the pool has it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from hanse.learning.losses import Objective
from hanse.learning.products import direct_product

_relu_backward = torch.ops.aten.threshold_backward.grad_input
_tanh_backward = torch.ops.aten.tanh_backward.grad_input


class Layer(Protocol):
    """One stacked layer bound to its weights, velocities and buffers."""

    def forward(self, x: Tensor, weights: Tensor) -> Tensor:
        """Return the outputs ``[S, out, B]``; ``weights [S, 1, B]``: each sample's share of its batch (padding: 0)."""
        ...

    def backward(self, grad: Tensor, momentum: float) -> Tensor:
        """Put the gradients into the velocities (``v = momentum v + g``), return the input's ``[S, in, B]``."""
        ...


@dataclass(frozen=True, eq=False)
class Enter:
    """Turn the pool's ``[S, B, features]`` into feature-major, for stacks that do not begin with a linear layer."""

    out: Tensor

    def forward(self, x: Tensor, weights: Tensor) -> Tensor:
        """Copy transposed."""
        return self.out.copy_(x.transpose(1, 2))

    def backward(self, grad: Tensor, momentum: float) -> Tensor:
        """Nothing to do: samples have no gradient."""
        return grad


class Linear:
    """``W x + b`` with ``W [S, out, in]`` and ``b [S, out, 1]`` (or none)."""

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
        self.x: Tensor | None = None  # the input, and its views [S, in, B] and [S, B, in]: it is the same at every step
        self.x_columns = self.x_rows = out

    def forward(self, x: Tensor, weights: Tensor) -> Tensor:
        """One batched product; the pool's samples come untransposed."""
        if x is not self.x:
            self.x, swapped = x, x.transpose(1, 2)
            self.x_columns, self.x_rows = (swapped, x) if self.from_pool else (x, swapped)
        if self.bias is None:
            return torch.bmm(self.weight, self.x_columns, out=self.out)
        return torch.baddbmm(self.bias, self.weight, self.x_columns, out=self.out)

    def backward(self, grad: Tensor, momentum: float) -> Tensor:
        """Three batched products; none for the input where nothing trains below."""
        self.weight_velocity.baddbmm_(grad, self.x_rows, beta=momentum)
        if self.bias_velocity is not None:
            self.bias_velocity.baddbmm_(grad, self.ones, beta=momentum)
        if self.grad_in is None:
            return grad
        return torch.bmm(self.transposed, grad, out=self.grad_in)


class SeatwiseLinear:
    """The first layer, seat by seat: for one thread on processors where single products are faster than batched ones.

    See :mod:`hanse.learning.products`. ``x [S, B, in]`` is where the samples will be; all views are made
    once.
    """

    def __init__(
        self,
        weight: Tensor,
        weight_velocity: Tensor,
        bias: Tensor | None,
        bias_velocity: Tensor | None,
        out: Tensor,
        ones: Tensor,
        x: Tensor,
    ) -> None:
        self.bias, self.bias_velocity, self.out, self.ones = bias, bias_velocity, out, ones
        shift = torch.zeros_like(weight[:, :, :1]) if bias is None else bias
        self.forwards = list(zip(weight.unbind(0), x.unbind(0), shift.unbind(0), out.unbind(0), strict=True))
        self.velocities, self.x_columns = weight_velocity.unbind(0), x.transpose(1, 2).unbind(0)
        self.grad: Tensor | None = None
        self.grads: Sequence[Tensor] = ()

    def forward(self, x: Tensor, weights: Tensor) -> Tensor:
        """One product a seat."""
        for weight, rows, shift, out in self.forwards:
            torch.add(direct_product(weight, rows), shift, out=out)
        return self.out

    def backward(self, grad: Tensor, momentum: float) -> Tensor:
        """One product a seat, added to its velocity; nothing trains below."""
        if grad is not self.grad:
            self.grad, self.grads = grad, grad.unbind(0)
        for velocity, g, columns in zip(self.velocities, self.grads, self.x_columns, strict=True):
            torch.add(direct_product(g, columns), velocity, alpha=momentum, out=velocity)
        if self.bias_velocity is not None:
            self.bias_velocity.baddbmm_(grad, self.ones, beta=momentum)
        return grad


class Activation:
    """ReLU or tanh; ``out`` is None where it may overwrite its input."""

    def __init__(self, kind: str, out: Tensor | None) -> None:
        self.relu, self.out = kind == "relu", out
        self.y: Tensor | None = None

    def forward(self, x: Tensor, weights: Tensor) -> Tensor:
        """Apply it to ``x [S, d, B]``, in place if allowed."""
        if self.out is not None:
            x = self.out.copy_(x)
        self.y = x.clamp_min_(0) if self.relu else x.tanh_()
        return self.y

    def backward(self, grad: Tensor, momentum: float) -> Tensor:
        """Scale the gradient ``[S, d, B]`` in place."""
        if self.relu:
            return _relu_backward(grad, self.y, 0, grad_input=grad)  # type: ignore[no-any-return]
        return _tanh_backward(grad, self.y, grad_input=grad)  # type: ignore[no-any-return]


class BatchNorm:
    """Batch normalisation over each model's own batch, padding left out; running statistics as PyTorch keeps them."""

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
        # all but normal and out, [S, features, batch], are [S, features, 1]
        self.scale, self.shift = scale, shift
        self.scale_velocity, self.shift_velocity = scale_velocity, shift_velocity
        self.mean, self.var, self.decay, self.eps = mean, var, decay, eps
        self.normal, self.out = normal, out
        self.rstd = torch.empty_like(scale)
        self.weights = out

    def forward(self, x: Tensor, weights: Tensor) -> Tensor:
        """Normalise and move the running statistics (the variance unbiased: n / (n - 1), with n = 1 / weight)."""
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
        """Return ``scale rstd (g - w (sum g) - x w (sum g x))``: padding has weight 0 and keeps gradient 0."""
        sum_grad = grad.sum(2, keepdim=True)
        product = torch.mul(grad, self.normal, out=self.out)  # the output is not needed any more
        sum_product = product.sum(2, keepdim=True)
        self.shift_velocity.mul_(momentum).add_(sum_grad)
        self.scale_velocity.mul_(momentum).add_(sum_product)
        correction = torch.mul(self.normal, sum_product, out=self.out).add_(sum_grad).mul_(self.weights)
        return grad.sub_(correction).mul_(self.scale * self.rstd)


class Loss(Protocol):
    """The last step of a forward pass and the first of a backward pass."""

    def gradient(self, output: Tensor, y: Tensor, weights: Tensor, tally: Tensor | None) -> Tensor:
        """Return the gradient at the outputs; add each model's losses times ``tally [S, 1, B]`` to its total."""
        ...


class CrossEntropy:
    """Cross-entropy of logits ``[S, classes, B]`` with labels ``[S, 1, B]``; ``total [S, 1, 1]`` collects losses."""

    def __init__(self, out: Tensor, total: Tensor) -> None:
        self.out, self.total = out, total
        self.minus_one = torch.full((out.shape[0], 1, out.shape[2]), -1.0, dtype=out.dtype, device=out.device)

    def gradient(self, output: Tensor, y: Tensor, weights: Tensor, tally: Tensor | None) -> Tensor:
        """Return ``weights (softmax - one-hot)``."""
        logs = torch.log_softmax(output, 1, out=self.out)
        if tally is not None:
            self.total.sub_((logs.gather(1, y) * tally).sum(2, keepdim=True))
        return logs.exp_().scatter_add_(1, y, self.minus_one).mul_(weights)


class SquaredError:
    """Squared error of outputs ``[S, d, B]`` with targets ``[S, d, B]``, the mean over d for each sample."""

    def __init__(self, out: Tensor, total: Tensor) -> None:
        self.out, self.total = out, total

    def gradient(self, output: Tensor, y: Tensor, weights: Tensor, tally: Tensor | None) -> Tensor:
        """Return ``2 weights (output - target) / d``."""
        error = torch.sub(output, y, out=self.out)
        if tally is not None:
            self.total.add_((error.square().mean(1, keepdim=True) * tally).sum(2, keepdim=True))
        return error.mul_(weights * (2.0 / error.shape[1]))


class AnyLoss:
    """Any loss of a sample's outputs ``[S, k, B]`` and target ``[S, d, B]``: autograd gives the slope at the outputs,
    from where the stack's own backward pass goes on.
    """

    def __init__(self, objective: Objective, out: Tensor, total: Tensor) -> None:
        self.objective, self.out, self.total = objective, out, total

    def gradient(self, output: Tensor, y: Tensor, weights: Tensor, tally: Tensor | None) -> Tensor:
        """Return ``weights`` times the slope of each sample's loss."""
        seats, outputs, width = output.shape
        targets = y.transpose(1, 2).reshape(seats * width, -1)
        with torch.enable_grad():
            flat = output.detach().transpose(1, 2).reshape(seats * width, outputs).requires_grad_()
            losses = self.objective(flat, targets if self.objective.regression else targets.squeeze(1))
            [slope] = torch.autograd.grad(losses, flat, weights.reshape(-1))
        if tally is not None:
            self.total.add_((losses.detach().view(seats, 1, width) * tally).sum(2, keepdim=True))
        return self.out.copy_(slope.view(seats, width, outputs).transpose(1, 2))
