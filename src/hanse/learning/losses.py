"""The losses that training can minimise, by name or import path.

:func:`build_objective` turns an experiment's ``[train] loss`` into an :class:`Objective`. A loss is a function of
outputs and targets that returns one number per sample. Engines average these numbers over a batch and ignore padding.
Plain cross-entropy and squared error are not an :class:`Objective`, because engines have them built in.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal, cast

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from hanse.base.errors import RAISED, UserError, first_line
from hanse.base.factories import Rate, Weight, call
from hanse.base.imports import named
from hanse.base.pytorch import F, Tensor, torch

SampleLoss = Callable[[Tensor, Tensor], Tensor]
"""Takes outputs ``[n, k]`` and targets (classes ``[n]`` int64, or numbers ``[n, k]``); returns losses ``[n]``."""


@dataclass(frozen=True)
class Objective:
    """A loss that is neither plain cross-entropy nor the plain squared error.

    Attributes:
        each: the function that returns each sample's loss (see :data:`SampleLoss`).
        regression: whether targets are numbers.
        one_output: whether the model distinguishes two classes by one number, the logit of class 1.

    Examples:
        >>> objective = build_objective({"name": "focal", "gamma": 2.0}, 3)
        >>> objective.each(torch.zeros(2, 3), torch.tensor([0, 2])).shape
        torch.Size([2])
    """

    each: SampleLoss
    regression: bool = False
    one_output: bool = False

    def __call__(self, output: Tensor, y: Tensor) -> Tensor:
        """Return the losses ``[n]`` of outputs ``[n, ...]``; targets ``y`` are classes ``[n]`` or numbers
        ``[n, ...]``.
        """
        n = y.shape[0]
        return self.each(output.reshape(n, -1), y.reshape(n, -1) if self.regression else y)

    def of_models(self, output: Tensor, y: Tensor) -> Tensor:
        """Return the losses ``[C, m]`` of C models.

        Args:
            output: ``[C, k, m]``.
            y: the targets of m samples that all models share; or, if each model has samples of its own, all their
                targets, one model after another.
        """
        models, _, m = output.shape
        flat = output.transpose(1, 2).reshape(models * m, -1)
        targets = y.reshape(-1, m, *y.shape[1:])
        targets = targets.expand(models, *targets.shape[1:]).reshape(models * m, *y.shape[1:])
        return self(flat, targets).view(models, m)


def classes_of(objective: Objective | None, output: Tensor) -> Tensor:
    """Return the predicted class of each sample.

    Args:
        objective: the loss that was minimised, if it is not a built-in one.
        output: ``[n, k, ...]``, or one logit per sample, ``[n]`` or ``[n, 1]``.
    """
    if objective is not None and objective.one_output:
        return (output.reshape(len(output)) > 0).long()
    return output.argmax(dim=1)


# ---- by name

Weights = Literal["balanced"] | Sequence[Annotated[float, Field(ge=0, allow_inf_nan=False)]]


def _weighted(each: SampleLoss, weights: Weights | None) -> SampleLoss:
    """Return a loss times the weight of each sample's class."""
    if weights is None:
        return each
    if isinstance(weights, str):  # in an experiment ``balanced`` has put numbers there
        raise UserError(f"weights: '{weights}': must be numbers here")
    numbers = torch.tensor(list(weights), dtype=torch.float64)

    def weighted(output: Tensor, y: Tensor) -> Tensor:
        losses = each(output, y)
        return losses * numbers.to(losses)[y]

    return weighted


def cross_entropy(*, weights: Weights | None = None) -> Any:
    """Return the cross-entropy of k outputs, or None without ``weights``, since engines have the plain one built in.

    Args:
        weights: one number for each class, by which a sample's loss is multiplied, or "balanced" (:func:`balanced`).
    """
    return None if weights is None else _weighted(partial(F.cross_entropy, reduction="none"), weights)


def focal(*, gamma: Weight = 2.0, weights: Weights | None = None) -> SampleLoss:
    """Return the focal loss (Lin et al. 2017, eq. 5): cross-entropy times ``(1 - p)^gamma``.

    Args:
        gamma: how much less the samples count of which the model is sure. 0 is plain cross-entropy.
        weights: as for :func:`cross_entropy`.
    """

    def each(output: Tensor, y: Tensor) -> Tensor:
        losses = F.cross_entropy(output, y, reduction="none")
        missed = -torch.expm1(-losses)  # 1 - p of the true class
        # the clamp keeps the gradient finite: for gamma below 1 the slope of the power at 0 is infinite
        return losses * missed.clamp(min=torch.finfo(losses.dtype).tiny) ** gamma

    return _weighted(each, weights)


def bce(*, weights: Weights | None = None) -> SampleLoss:
    """Return the binary cross-entropy of one output, the logit of class 1 (PyTorch's ``BCEWithLogitsLoss``).

    Args:
        weights: as for :func:`cross_entropy`, two numbers.
    """

    def each(output: Tensor, y: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(output.squeeze(1), y.to(output.dtype), reduction="none")

    return _weighted(each, weights)


def mse() -> Any:
    """Return None: engines have the squared error built in."""


def mae() -> SampleLoss:
    """Return the absolute error, the mean over a sample's targets."""
    return lambda output, y: F.l1_loss(output, y, reduction="none").mean(1)


def huber(*, delta: Rate = 1.0) -> SampleLoss:
    """Return Huber's loss (PyTorch's ``HuberLoss``): half the squared error up to ``delta``, linear beyond it."""
    return lambda output, y: F.huber_loss(output, y, reduction="none", delta=delta).mean(1)


LOSSES: Mapping[str, Callable[..., Any]] = {
    "cross_entropy": cross_entropy, "focal": focal, "bce": bce, "mse": mse, "mae": mae, "huber": huber,
}  # fmt: skip
OF_CLASSES, OF_NUMBERS = ("cross_entropy", "focal", "bce"), ("mse", "mae", "huber")
WHERE = "train.loss"


def takes_one_output(given: str | Mapping[str, Any] | None) -> bool:
    """Return whether a ``[train] loss`` distinguishes two classes by one output, without importing anything."""
    table = {"name": given} if isinstance(given, str) else given
    if not isinstance(table, Mapping):
        return False
    name = table.get("name")
    return name == "bce" or (name not in LOSSES and table.get("outputs") == 1)


def balanced(given: Mapping[str, Any], num_classes: int | None, counts: NDArray[np.int64] | None) -> Mapping[str, Any]:
    """Return a ``[train] loss`` in which ``weights = "balanced"`` is replaced by numbers.

    A class with ``n_c`` of all n train samples in k classes has the weight ``n / (k n_c)``, as in scikit-learn.

    Args:
        given: the table of the loss.
        num_classes: the number of classes in the data. None: the targets are numbers.
        counts: int64 ``[clients, num_classes]``, how many train samples of each class each client has. None: not known
            here.

    Raises:
        UserError: the targets are numbers, or the counts are not known.

    Examples:
        >>> loss = balanced({"name": "cross_entropy", "weights": "balanced"}, 2, np.array([[30, 10], [45, 15]]))
        >>> [round(weight, 3) for weight in loss["weights"]]
        [0.667, 2.0]
    """
    if num_classes is None:
        raise UserError(f"{WHERE}.weights: 'balanced': the targets are no classes; leave it out")
    if counts is None:
        raise UserError(
            f"{WHERE}.weights: 'balanced': how many samples of each class the clients have is not known here; "
            f"give {num_classes} numbers"
        )
    each = counts.sum(axis=0)
    weights = np.divide(each.sum(), (each > 0).sum() * each, out=np.zeros(num_classes), where=each > 0)
    return {**given, "weights": weights.tolist()}


def build_objective(
    given: str | Mapping[str, Any] | None, num_classes: int | None, *, text: bool = False
) -> Objective | None:
    """Return the objective that ``[train] loss`` names, or None for a loss that engines have built in.

    Args:
        given: a name of :data:`LOSSES`, an import path, or a table with one of these under "name" and options.
        num_classes: the number of classes. None: the targets are numbers.
        text: whether samples are texts, with a label at every position.

    Raises:
        UserError: the name does not suit these targets, options are wrong, or the user's function does not return one
            loss for each sample.
    """
    if given is None:
        return None
    make, options = named(given, WHERE, LOSSES)
    name = given if isinstance(given, str) else str(given["name"])
    allowed = OF_NUMBERS if num_classes is None else OF_CLASSES
    if name in LOSSES and name not in allowed:
        kind = "numbers" if num_classes is None else f"{num_classes} classes"
        raise UserError(f"{WHERE}: '{name}': the targets are {kind}; allowed: {', '.join(allowed)}, or an import path")
    if name == "bce" and num_classes != 2:
        raise UserError(f"{WHERE}: 'bce': tells two classes apart; the data have {num_classes}: take 'cross_entropy'")
    each = call(make, options, WHERE) if name in LOSSES else _own(make, name, options, num_classes)
    if each is None:
        return None
    if text:
        raise UserError(f"{WHERE}: '{name}': texts have a label at every position; allowed: plain 'cross_entropy'")
    weights = options.get("weights") if name in LOSSES else None
    if weights is not None and len(weights) != num_classes:
        raise UserError(f"{WHERE}.weights: {len(weights)}: must be one for each of the {num_classes} classes")
    one = name == "bce" or (name not in LOSSES and options.get("outputs") == 1)
    objective = Objective(each, num_classes is None, one)
    return objective if name in LOSSES else _looked_at(objective, name, num_classes)


def _own(found: Callable[..., Any], name: str, options: Mapping[str, Any], num_classes: int | None) -> SampleLoss:
    """Return a loss of the user's own: a function of (outputs, targets), or an object of a class such as PyTorch's.

    Raises:
        UserError: it cannot be called so with these options.
    """
    options = dict(options)
    if "outputs" in options and (options.pop("outputs") != 1 or num_classes != 2):
        raise UserError(f"{WHERE}.outputs: must be 1, the logit of class 1 of two, or be left out")
    try:
        if inspect.isclass(found):
            made = cast(SampleLoss, found(**options))
            inspect.signature(made).bind(None, None)
            return made
        inspect.signature(found).bind(None, None, **options)
    except TypeError as wrong:
        raise UserError(f"{WHERE}: '{name}': cannot be called with (outputs, targets) and options: {wrong}") from None
    own: SampleLoss = partial(found, **options)
    return own


def _looked_at(objective: Objective, name: str, num_classes: int | None) -> Objective:
    """Return a loss of the user's own after it was tried on four made-up samples.

    Raises:
        UserError: it fails, does not give one number for each sample, or mixes the samples of a batch.
    """
    draw = torch.Generator().manual_seed(0)
    width = 1 if objective.one_output else num_classes or 1
    output = torch.randn((4, width), generator=draw).requires_grad_()
    y = torch.arange(4) % num_classes if num_classes else torch.randn((4, 1), generator=draw)
    try:
        losses, half = objective(output, y), objective(output[:2], y[:2])
        each = isinstance(losses, Tensor) and losses.shape == (4,)
        alone = each and torch.allclose(half, losses[:2], rtol=1e-4, atol=1e-6, equal_nan=True)
    except RAISED as error:  # a user's function may raise anything, and that is the reason
        hint = ""
        if num_classes == 2 and not objective.one_output:
            hint = "; outputs = 1 if it takes one output for two classes"
        raise UserError(f"{WHERE}: '{name}': fails on outputs [4, {width}] ({first_line(error)}){hint}") from None
    if not each:
        shape: Any = list(losses.shape) if isinstance(losses, Tensor) else f"a {type(losses).__name__}"
        shape = "one number" if shape in ([], "a float") else shape
        wrong = f"returned {shape} for 4 samples; one loss per sample is needed, [4] (reduction = 'none')"
    elif not losses.requires_grad:
        wrong = "gives no gradient, so no model can train on it: argmax, comparisons, detach() and item() cut it off"
    elif not alone:
        wrong = "a sample's loss must not depend on the other samples of its batch"
    else:
        return objective
    raise UserError(f"{WHERE}: '{name}': {wrong}")
