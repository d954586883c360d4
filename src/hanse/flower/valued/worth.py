"""Three ways to judge a model, one for each kind of judge that an app has.

:class:`ByFunction` calls the user's function. :class:`ByModule` loads the model into a torch module and tests it on the
server's validation set. Both can judge any model, including those of coalitions. :class:`ByClients` needs neither: it
divides a round's gain according to the clients' own evaluations.

The arguments ``validation`` and ``model`` of :func:`hanse.valued` decide which one is used. :func:`counted_in`
describes the unit of its values.
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

from hanse.base.errors import UserError, first_line
from hanse.core.table import Floats
from hanse.data.own import as_samples
from hanse.data.samples import Samples
from hanse.flower.arrays import own_copy, shares
from hanse.games.gram import inner_products
from hanse.learning.agreement import settle, why_unfit
from hanse.learning.coalitions import metric_of
from hanse.learning.engines import EngineChoice
from hanse.learning.figures import WORTH, Figures, as_figures, counted, less_is_better, signed, worth_of
from hanse.learning.job import Engine, Problem
from hanse.learning.models import build_problem
from hanse.learning.slopes import why_no_slope

Evaluate = Callable[[ArrayRecord], float | Mapping[str, float]]


class NoWorthError(Exception):
    """A model could not be judged.

    The message says why in one line. It becomes a gap in the record, and never ends a training.
    """


FIRST = "(of the initial arrays, the model before the first round)"
EMPTY = (
    "; a model that is still empty, as a forest without trees, is worth a guess: return {'loss': math.log(2)} for two "
    "classes"
)


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
            NoWorthError: ``evaluate`` raised, or returned nothing that can be compared.

        Examples:
            >>> import numpy as np
            >>> from flwr.app import Array, ArrayRecord
            >>> model = ArrayRecord({"w": Array(np.array([3.0, 4.0], np.float32))})
            >>> judge = ByFunction(lambda arrays: {"loss": float((arrays["w"].numpy() ** 2).sum())})
            >>> judge.worth(model), judge.known
            (-25.0, {'utility': 'loss'})
        """
        try:
            said: Any = self.evaluate(own_copy(arrays))
        except (Exception, SystemExit) as wrong:  # sys.exit() in it is no reason to end a training
            raise NoWorthError(f"validation: raised {first_line(wrong)}") from wrong
        try:
            figures = as_figures(said, "validation")
            if self.utility is not None and list(figures) == [WORTH] != [self.utility]:
                raise UserError(
                    f"utility: {self.utility!r}: validation returned {_shown(said)}: must be numbers by name"
                )
            number = worth_of(figures, self.utility, "utility")
            if list(figures) != [WORTH]:
                self.known["utility"] = counted(figures, self.utility) or ""
        except UserError as wrong:
            raise NoWorthError(str(wrong)) from None
        except Exception:  # whatever its own way of becoming a number, or a text, raises
            raise NoWorthError(f"validation: returned {_shown(said)}: must be a number, or numbers by name") from None
        if not math.isfinite(number):
            name = "" if list(figures) == [WORTH] else f" as {counted(figures, self.utility)!r}"
            raise NoWorthError(f"validation: returned {abs(number)}{name}: must be finite")
        return number

    def first_worth(self, arrays: ArrayRecord) -> float:
        """Return what the initial model is worth, before any client is asked.

        Raises:
            UserError: the model cannot be judged. A mistake in ``evaluate`` is thus found at once and not in every
                round.
        """
        try:
            return self.worth(arrays)
        except NoWorthError as wrong:
            # only these may come of a model with nothing in it; a TypeError is more often a wrong signature
            cause = wrong.__cause__
            failed = str(wrong).endswith("must be finite") if cause is None else not isinstance(cause, TypeError)
            raise UserError(f"{wrong} {FIRST}{EMPTY * failed}") from None


def _shown(said: Any) -> str:
    """Return what a function returned, in at most 80 characters, whatever its own ``repr`` does."""
    try:
        return " ".join(f"{said!r:.80}".split())
    except Exception:
        return type(said).__name__


def counted_in(worth: Worth) -> str:
    """Return a sentence that says what a value of 0.1 means."""
    if isinstance(worth, ByModule):
        name, whose = worth.utility, "on the server's validation samples"
    elif isinstance(worth, ByFunction):
        name, whose = worth.known.get("utility", ""), "by the server's own function"
    else:
        name, whose = worth.utility or "", "as the clients report it"
    if not name and isinstance(worth, ByFunction):
        return "A value of 0.1 is a model that the server's own function calls better by 0.1."
    if not name:  # which figure they have is seen once they reply
        return (
            "A value of 0.1 is a loss lower by 0.1, or, without a loss, an accuracy higher, as the clients report it."
        )
    return f"A value of 0.1 is {name[:60]} {'lower' if less_is_better(name) else 'higher'} by 0.1, {whose}."


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


def why_no_path(worth: Worth) -> str | None:
    """Return why path values are impossible with a judge, or None if they are possible."""
    if not isinstance(worth, ByModule) or worth.utility != "loss":
        return "follows the gradient of a loss: give model=, and validation= its samples, with utility 'loss'"
    why = why_no_slope(worth.problem, worth.samples)
    return None if why is None else f"needs a loss with a gradient, and {why}"


def validation_samples(given: Any, target: str | None) -> tuple[Samples, int | None]:
    """Return a validation set as samples, and its number of classes (None: targets are numbers).

    Args:
        given: ``(x, y)``, a PyTorch or Hugging Face data set, a table, or a ``DataLoader``. All batches of a loader are
            used; they are pairs ``(x, y)`` or dictionaries.
        target: the labels' name in dictionaries. None: the first of "label", "labels", "target" and "y" that exists.

    Raises:
        UserError: the set has no samples, or its labels cannot be found.
    """
    if not isinstance(given, DataLoader):
        return as_samples(given, target, "validation")
    found: list[tuple[Any, Any]] = []
    for batch in given:
        if isinstance(batch, Mapping):
            names = [name for name in (target, "label", "labels", "target", "y") if name in batch]
            rest = {name: x for name, x in batch.items() if not names or name != names[0]}
            if not names or not rest:
                raise UserError(
                    f"validation: its batches have {', '.join(map(str, batch))}: name the labels by target="
                )
            batch = (rest if len(rest) > 1 else next(iter(rest.values())), batch[names[0]])
        if not isinstance(batch, list | tuple) or len(batch) != 2:
            raise UserError("validation: its batches must be pairs (x, y), or dictionaries with the labels by target=")
        found.append((batch[0], batch[1]))
    if not found:
        raise UserError("validation: has no samples")
    xs, y = [x for x, _ in found], torch.cat([torch.as_tensor(y) for _, y in found])
    x = {name: torch.cat([one[name] for one in xs]) for name in xs[0]} if isinstance(xs[0], Mapping) else torch.cat(xs)
    return as_samples((x, y), None, "validation")


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
            NoWorthError: no client evaluated both models.

        Examples:
            >>> before = {0: (-0.9, 10), 1: (-0.5, 30)}  # minus the loss, samples
            >>> ByClients.gain(before, after={0: (-0.5, 10), 1: (-0.5, 30), 2: (-0.1, 5)})
            0.1
        """
        both = sorted(before.keys() & after.keys())
        if not both:
            why = "no client evaluated the model before" if not before else "no client evaluated both models"
            raise NoWorthError(f"{why} the round, so the clients do not say what it gained")
        weights = np.array([after[c][1] for c in both])
        weights = weights if weights.sum() > 0 else np.ones(len(both))
        return float(np.average([after[c][0] - before[c][0] for c in both], weights=weights))

    @staticmethod
    def values(gain: float, weights: Floats, moves: Tensor) -> Floats:
        """Return each update's share of the gain, ``[S]``. The shares sum to ``gain``.

        Args:
            gain: what the round gained.
            weights: ``[S]``, the weights with which the updates were averaged, on any scale.
            moves: ``[S, P]``, each update minus the model that it started from.

        Returns:
            The shares. They are zeros if the weighted updates cancel and the model did not move. A share is negative if
                its update opposed the others.
        """
        parts = shares(weights)
        together = parts * (inner_products(moves) @ parts)
        total = float(together.sum())
        if not total > 0:
            return np.zeros(len(weights))
        return np.asarray(gain * together / total)


Worth = ByFunction | ByModule | ByClients
