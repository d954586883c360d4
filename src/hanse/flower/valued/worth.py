"""Two ways to judge a model.

:class:`ByFunction` calls the user's function. :class:`ByModule` loads the model into a torch module and tests it on the
server's validation set.

The arguments ``validation`` and ``model`` of :func:`hanse.valued` decide which one is used (:func:`judge_of`).
:func:`counted_in` describes the unit of its values.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from flwr.app import ArrayRecord
from torch import nn

from hanse.base.errors import UserError, gated
from hanse.data.own import as_samples
from hanse.flower.arrays import own_copy
from hanse.learning import slopes
from hanse.learning.agreement import settle, why_unfit
from hanse.learning.coalitions import metric_of
from hanse.learning.figures import WORTH, as_figures, less_is_better, worth_of
from hanse.learning.models import build_problem
from hanse.runs.server_judge import ServerJudge
from hanse.runs.setup import REMOTE

Evaluate = Callable[[ArrayRecord], float | Mapping[str, float]]


@dataclass(frozen=True)
class ByFunction:
    """A user's function that judges models.

    Attributes:
        evaluate: ``evaluate(arrays)`` returns a number (higher is better), or numbers by name.
        utility: the name of the number that counts. None: the loss, else the accuracy, else the only number
            (:func:`hanse.learning.figures.counted`).
        known: the name of the number that counts, as for :func:`hanse.learning.figures.worth_of`.
    """

    evaluate: Evaluate
    utility: str | None = None
    known: dict[str | None, str] = field(default_factory=dict)

    def worth(self, arrays: ArrayRecord) -> float:
        """Return a model's worth. Higher is better, so a loss is negated.

        Args:
            arrays: the model; ``evaluate`` gets a copy, which it may change.

        Raises:
            UserError: ``evaluate`` raised, or returned nothing that can be compared.

        Examples:
            >>> import numpy as np
            >>> from flwr.app import Array, ArrayRecord
            >>> model = ArrayRecord({"w": Array(np.array([3.0, 4.0], np.float32))})
            >>> judge = ByFunction(lambda arrays: {"loss": float((arrays["w"].numpy() ** 2).sum())})
            >>> judge.worth(model), judge.known
            (-25.0, {None: 'loss'})
        """
        with gated("validation"):
            figures = as_figures(self.evaluate(own_copy(arrays)), "validation")
        if list(figures) == [WORTH] and self.utility not in (None, WORTH):
            raise UserError(f"utility: {self.utility!r}: validation returned one number: must be numbers by name")
        number = worth_of(figures, self.utility, "utility", self.known)
        if not math.isfinite(number):
            name = "" if WORTH in figures else f" as {self.known[self.utility]!r}"
            raise UserError(f"validation: returned {abs(number)}{name}: must be finite")
        return number


@dataclass(frozen=True)
class ByModule:
    """A torch module on the server's validation set.

    Attributes:
        judge: scores rows of the module's state on the validation set.
        utility: "loss" (a model's worth is then minus its loss), "accuracy", "balanced", or a metric of hanse.
    """

    judge: ServerJudge
    utility: str


def counted_in(worth: Worth) -> str:
    """Return a sentence that says what a value of 0.1 means."""
    by, name = "on the server's validation samples", worth.utility or ""
    if isinstance(worth, ByFunction):
        by, name = "by the server's own function", name or worth.known.get(None, WORTH)
    what = "a model better" if name == WORTH else f"{name[:60]} {'lower' if less_is_better(name) else 'higher'}"
    return f"A value of 0.1 is {what} by 0.1, {by}."


def why_no_slope(worth: Worth) -> str | None:
    """Return why a judge has no loss with a gradient, which path values need, or None if it has one."""
    if isinstance(worth, ByFunction) or worth.utility != "loss":
        return "give model=, and validation= its samples, with utility 'loss'"
    assert worth.judge.validation is not None
    return slopes.why_no_slope(worth.judge.problem, worth.judge.validation)


def judge_of(validation: Any, model: nn.Module | None, utility: str | None, target: str | None) -> Worth:
    """Return what judges models, of the arguments of :func:`hanse.valued`.

    Raises:
        UserError: the arguments do not fit together, or the samples do not fit the model.
    """
    if utility is not None and (not isinstance(utility, str) or not utility):
        raise UserError(f"utility: {utility!r}: must be a figure's name")
    if model is not None and not isinstance(model, nn.Module):
        raise UserError(f"model: {type(model).__name__}: must be a torch.nn.Module; of others give validation=evaluate")
    if validation is None and model is not None:
        raise UserError("model: needs validation=, the samples that it is judged on")
    if model is None:
        if not callable(validation) or isinstance(validation, type):
            raise UserError(
                f"validation: {type(validation).__name__}: must be a function evaluate(arrays), or, with model=, a "
                "torch module, a validation set; without data at the server, hanse.flower.client_app has values by "
                "gradients"
            )
        return ByFunction(validation, utility)
    samples, classes = as_samples(validation, target, "validation")
    module = copy.deepcopy(model)
    for parameter in module.parameters():  # a judge's copy may be frozen, which says nothing of what the app trains
        parameter.requires_grad_(parameter.is_floating_point())
    problem, row = build_problem(module, samples.inputs or tuple(samples.x.shape[1:]), classes, 0)
    if (why := why_unfit(problem, samples, classes)) is not None:
        raise UserError(f"model: {type(module).__name__}: the model {why}")
    metric_of(problem, samples, utility or "loss")
    # the first samples are enough to see how outputs and labels fit together
    few = samples.take(torch.arange(min(64, len(samples))))
    _, problem, engine, _ = settle(REMOTE, problem, row, few, torch.device("cpu"), "float32")
    return ByModule(ServerJudge(problem, engine, samples, 1, classes), utility or "loss")


Worth = ByFunction | ByModule
