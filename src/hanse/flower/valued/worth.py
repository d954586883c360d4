"""Three ways to judge a model, one for each kind of judge that an app has.

:class:`ByFunction` calls the user's function. :class:`ByModule` loads the model into a torch module and tests it on the
server's validation set. Both can judge any model, including those of coalitions. :class:`ByClients` needs neither: it
divides a round's gain according to the clients' own evaluations.

The arguments ``validation`` and ``model`` of :func:`hanse.valued` decide which one is used (:func:`judge_of`).
:func:`counted_in` describes the unit of its values.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord
from torch import Tensor, nn
from torch.utils.data import DataLoader

from hanse.base.errors import UserError, gated
from hanse.core.table import Floats
from hanse.data.own import as_samples
from hanse.data.samples import Samples
from hanse.flower.arrays import own_copy
from hanse.games.gram import inner_products
from hanse.learning import slopes
from hanse.learning.agreement import settle, why_unfit
from hanse.learning.coalitions import metric_of
from hanse.learning.engines import EngineChoice
from hanse.learning.figures import WORTH, Figures, as_figures, counted, less_is_better, signed, worth_of
from hanse.learning.job import Engine, Problem
from hanse.learning.models import build_problem

Evaluate = Callable[[ArrayRecord], float | Mapping[str, float]]


@dataclass(frozen=True)
class ByFunction:
    """A user's function that judges models.

    Attributes:
        evaluate: ``evaluate(arrays)`` returns a number (higher is better), or numbers by name.
        utility: the name of the number that counts. None: the loss, else the accuracy, else the only number
            (:func:`hanse.learning.figures.counted`).
        known: the name of the number that counts, once it is found, under "utility". The first call fills it in.
    """

    evaluate: Evaluate
    utility: str | None = None
    known: dict[str, str] = field(default_factory=dict)

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
            (-25.0, {'utility': 'loss'})
        """
        with gated("validation"):
            figures = as_figures(self.evaluate(own_copy(arrays)), "validation")
        if list(figures) != [WORTH]:
            self.known["utility"] = counted(figures, self.utility) or ""
        elif self.utility not in (None, WORTH):
            raise UserError(f"utility: {self.utility!r}: validation returned one number: must be numbers by name")
        number = worth_of(figures, self.utility, "utility")
        if not math.isfinite(number):
            name = f" as {self.known['utility']!r}" if self.known else ""
            raise UserError(f"validation: returned {abs(number)}{name}: must be finite")
        return number


def counted_in(worth: Worth) -> str:
    """Return a sentence that says what a value of 0.1 means."""
    whose = {ByModule: "on the server's validation samples", ByFunction: "by the server's own function"}
    by, name = whose.get(type(worth), "as the clients report it"), worth.utility or worth.known.get("utility", "")
    what = f"{name[:60]} {'lower' if less_is_better(name) else 'higher'} by 0.1"
    if not name:  # of clients, which figure they have is seen once they reply
        guess = "a loss lower by 0.1, or, without a loss, an accuracy higher"
        what = guess if isinstance(worth, ByClients) else "a model better by 0.1"
    return f"A value of 0.1 is {what}, {by}."


@dataclass(frozen=True)
class ByModule:
    """A torch module on the server's validation set.

    Attributes:
        problem: the module, with its loss and metrics.
        engine: the engine that scores rows of the module's state.
        samples: the validation set.
        num_classes: the number of classes. None: targets are numbers.
        utility: "loss" (a model's worth is then minus its loss), "accuracy", "balanced", or a metric of hanse.
    """

    problem: Problem
    engine: Engine
    samples: Samples
    num_classes: int | None
    utility: str
    known: Mapping[str, str] = field(default_factory=dict, init=False)

    @staticmethod
    def of(module: nn.Module, validation: Any, utility: str | None, target: str | None) -> ByModule:
        """Return the judge, after checking that the module takes the samples.

        Args:
            module: the model; it is not changed.
            validation: a validation set, as :func:`validation_samples` takes it.
            utility: the figure that counts. None: the loss.
            target: the labels' name, where samples are dictionaries or a table.

        Raises:
            UserError: the samples cannot be read, do not fit the module, or have no such metric.
        """
        samples, classes = validation_samples(validation, target)
        # a judge's copy may be frozen, which says nothing of what the app trains
        module = copy.deepcopy(module)
        for parameter in module.parameters():
            parameter.requires_grad_(parameter.is_floating_point())
        problem, row = build_problem(module, samples.inputs or tuple(samples.x.shape[1:]), classes, 0)
        if (why := why_unfit(problem, samples, classes)) is not None:
            raise UserError(f"model: {type(module).__name__}: the model {why}")
        metric_of(problem, samples, utility or "loss")
        # the first samples are enough to see how outputs and labels fit together
        few = samples.take(torch.arange(min(64, len(samples))))
        one = EngineChoice("sequential", 1, 1)
        _, problem, engine, _ = settle(one, problem, row, few, torch.device("cpu"), "float32")
        return ByModule(problem, engine, samples, classes, utility or "loss")


def why_no_slope(worth: Worth) -> str | None:
    """Return why a judge has no loss with a gradient, which path values need, or None if it has one."""
    if not isinstance(worth, ByModule) or worth.utility != "loss":
        return "give model=, and validation= its samples, with utility 'loss'"
    return slopes.why_no_slope(worth.problem, worth.samples)


def validation_samples(given: Any, target: str | None) -> tuple[Samples, int | None]:
    """Return a validation set as samples, and its number of classes (None: targets are numbers).

    Args:
        given: ``(x, y)``, a PyTorch or Hugging Face data set, a table, or a ``DataLoader``. All batches of a loader are
            used; they are pairs ``(x, y)`` or dictionaries.
        target: the labels' name in dictionaries. None: of a loader's, the first of "label", "labels", "target" and "y"
            that exists.

    Raises:
        UserError: the set has no samples, or its labels cannot be found.
    """
    if isinstance(given, DataLoader):
        batches: Any = list(given)  # once: an iterable set may have no second time
        given, first = DataLoader(batches, batch_size=None), next(iter(batches), None)
        if target is None and isinstance(first, Mapping):
            target = next((name for name in ("label", "labels", "target", "y") if name in first), None)
    return as_samples(given, target, "validation")


# ---- without data of the server's


@dataclass(frozen=True)
class ByClients:
    """The clients' own evaluations, for an app whose server has no samples.

    The gain of a round is the improvement reported by the clients that evaluated the model before and after it,
    weighted by their samples. Client i's part of the gain is proportional to ``w_i <D_i, sum_j w_j D_j>``: how far its
    update ``D_i`` went in the direction of all updates together. This is a first-order share, so it needs no models of
    coalitions. FedCE (Jiang et al., CVPR 2023) uses this direction as one of its two terms.

    Attributes:
        utility: the metric that counts in the clients' evaluate replies. None: the loss, else the accuracy.
        known: the metric that counts, under "utility". Once found it stays the same, so all rounds have one unit.
    """

    utility: str | None = None
    known: dict[str, str] = field(default_factory=dict)

    def figure(self, numbers: Figures) -> float | None:
        """Return a client's evaluation, higher is better, or None if the metric is missing or not finite."""
        wanted = self.utility or self.known.get("utility")
        name = counted(numbers, wanted) if wanted else counted(numbers, "loss") or counted(numbers, "accuracy")
        if name is None or not math.isfinite(numbers[name]):
            return None
        self.known.setdefault("utility", name)
        return signed(numbers, name)

    @staticmethod
    def gain(before: Mapping[int, tuple[float, float]], after: Mapping[int, tuple[float, float]]) -> float:
        """Return by how much the model got better for the clients that evaluated it before and after the round.

        Args:
            before: ``(figure, samples)`` for the model before the round, by client. Figures are as :meth:`figure`
                returns them.
            after: the clients' figures for the model after the round, in the same form. The mean over clients is
                weighted by these samples. If all of them are 0, it is not weighted.

        Raises:
            UserError: no client evaluated both models.

        Examples:
            >>> before = {0: (-0.9, 10), 1: (-0.5, 30)}  # minus the loss, samples
            >>> ByClients.gain(before, after={0: (-0.5, 10), 1: (-0.5, 30), 2: (-0.1, 5)})
            0.1
        """
        both = sorted(before.keys() & after.keys())
        if not both:
            why = "no client evaluated both models" if before else "no client evaluated the model before"
            raise UserError(f"{why} the round, so the clients do not say what it gained")
        weights = np.array([after[c][1] for c in both])
        weights = weights if weights.sum() > 0 else np.ones(len(both))
        return float(np.average([after[c][0] - before[c][0] for c in both], weights=weights))

    @staticmethod
    def values(gain: float, weights: Floats, moves: Tensor) -> Floats:
        """Return each update's share of the gain, ``[S]``. The shares sum to ``gain``.

        Args:
            gain: what the round gained.
            weights: ``[S]``, the weights with which the updates were averaged. They sum to 1.
            moves: ``[S, P]``, each update minus the model that it started from.

        Returns:
            The shares. They are zeros if the weighted updates cancel and the model did not move. A share is negative if
                its update opposed the others.
        """
        together = weights * (inner_products(moves) @ weights)
        total = float(together.sum())
        return np.asarray(gain * together / total) if total > 0 else np.zeros(len(weights))


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
    if model is not None:
        return ByModule.of(model, validation, utility, target)
    if validation is None:
        return ByClients(utility)
    if not callable(validation) or isinstance(validation, type):
        raise UserError(
            f"validation: {type(validation).__name__}: must be a function evaluate(arrays), or, with model=, a torch "
            "module, a validation set"
        )
    return ByFunction(validation, utility)


Worth = ByFunction | ByModule | ByClients
