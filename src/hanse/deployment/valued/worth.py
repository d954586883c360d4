"""What a coalition's model is worth: to a module on the server's validation set, to a function of the user's own, or to
the clients' own evaluation.
"""

from __future__ import annotations

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
from hanse.deployment.arrays import own_copy, shares
from hanse.games.gram import inner_products
from hanse.learning.agreement import settle, why_unfit
from hanse.learning.coalitions import metric_of
from hanse.learning.engines import EngineChoice
from hanse.learning.figures import WORTH, Figures, as_figures, counted, less_is_better, signed, worth_of
from hanse.learning.job import Engine, Problem
from hanse.learning.models import build_problem

Evaluate = Callable[[ArrayRecord], float | Mapping[str, float]]


class NoWorthError(Exception):
    """Why a model has no worth; one line."""


FIRST = (
    "(of the initial arrays, the model before the first round: evaluate is asked for its worth, too. For a model that "
    "is still empty, as a forest without trees, return what a guess is worth: {'loss': math.log(2)} for two classes)"
)


@dataclass(frozen=True)
class ByFunction:
    """The user's ``evaluate(arrays)``, which returns a number (the more the better) or numbers by name, of which
    ``utility`` counts (default: :func:`hanse.learning.figures.counted`).
    """

    evaluate: Evaluate
    utility: str | None = None
    known: dict[str, str] = field(default_factory=dict)  # the figure that counts, under "utility"

    def worth(self, arrays: ArrayRecord) -> float:
        """Return what arrays are worth; ``evaluate`` may change those that it gets. Raises NoWorthError."""
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
        """Return what the model before the first round is worth. Raises UserError, which says that it is that one."""
        try:
            return self.worth(arrays)
        except NoWorthError as wrong:
            raise UserError(f"{wrong} {FIRST}") from None


def _shown(said: Any) -> str:
    """Return what was returned, shortly."""
    try:
        return " ".join(f"{said!r:.80}".split())
    except Exception:
        return type(said).__name__


def counted_in(worth: Worth) -> str:
    """Return a sentence of what the values' unit is."""
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
    """A torch ``module`` on validation samples, by ``utility``: minus the loss, the accuracy, or a metric's name."""

    problem: Problem
    engine: Engine
    samples: Samples
    num_classes: int | None
    utility: str

    @staticmethod
    def of(module: nn.Module, validation: Any, utility: str | None, target: str | None) -> ByModule:
        """Return it, once it is seen that the module takes the samples. Raises UserError."""
        samples, classes = validation_samples(validation, target)
        problem, row = build_problem(module, samples.inputs or tuple(samples.x.shape[1:]), classes, 0)
        if (why := why_unfit(problem, samples, classes)) is not None:
            raise UserError(f"model: {type(module).__name__}: the model {why}")
        metric_of(problem, samples, utility or "loss")
        few = samples.take(torch.arange(min(64, len(samples))))
        one = EngineChoice("sequential", 1, 1)
        _, problem, engine, _ = settle(one, problem, row, few, torch.device("cpu"), "float32")
        return ByModule(problem, engine, samples, classes, utility or "loss")


def validation_samples(given: Any, target: str | None) -> tuple[Samples, int | None]:
    """Return a validation set of any form, and its number of classes; of a ``DataLoader`` all its batches: pairs, or
    dictionaries with the ``target`` (default: "label", "labels", "target" or "y"). Raises UserError.
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
    """The clients' own evaluation, of the ``utility`` among the metrics of their evaluate replies (default: the
    loss, else the accuracy): no data are needed at the server, and nothing is asked beside.

    The round's gain is what the clients that evaluated both models report, weighted by their samples. It is shared out
    to first order: client i's part is ``w_i <D_i, sum_j w_j D_j>``, how far its update ``D_i`` went the way that the
    clients' updates, each a step down its own loss, go together. FedCE (Jiang et al., CVPR 2023) has this direction as
    one of its two terms.
    """

    utility: str | None = None
    known: dict[str, str] = field(default_factory=dict)  # the figure that was found, under "utility"

    def figure(self, numbers: Figures) -> float | None:
        """Return what a client's evaluation says, the more the better; None if it has no such figure."""
        wanted = self.utility or self.known.get("utility")
        name = counted(numbers, wanted) if wanted else counted(numbers, "loss") or counted(numbers, "accuracy")
        if name is None or not math.isfinite(numbers[name]):
            return None
        self.known.setdefault("utility", name)
        return signed(numbers, name)

    @staticmethod
    def gain(before: Mapping[int, tuple[float, float]], after: Mapping[int, tuple[float, float]]) -> float:
        """Return how much better the new model is to the clients that evaluated both, from (figure, samples) by client.

        Raises NoWorthError if nobody did.
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
        """Return each update's part of the gain, ``[S]``, from the weights ``[S]`` and moves ``[S, P]``."""
        parts = shares(weights)
        together = parts * (inner_products(moves) @ parts)
        total = float(together.sum())
        if not total > 0:
            return np.zeros(len(weights))  # nothing moved
        return np.asarray(gain * together / total)


Worth = ByFunction | ByModule | ByClients
