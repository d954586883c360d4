"""Whether a run has a result at all, whether its model is better than guessing, and its values meaningful.

:func:`nothing_mixed` is the test that every run has to pass to be called a success. :func:`doubts` returns the notes
that ``hanse run``, the report and the statement show first. They come from ``metrics.jsonl`` and from what a
guess scores on the server's test set (:class:`Guess`), which a run keeps in ``shape.json``.

Here is also what a refusal's reason says of a client that sits out with its privacy budget used up, or still trains.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, TypeGuard

from pydantic import Field

from hanse.learning.metrics import WORSE

if TYPE_CHECKING:
    from hanse.data.samples import Samples

MARGIN = 1.645
"""Standard errors of an accuracy: the one-sided 95 % quantile of the normal distribution."""
NEAR_ALL = 0.98
"""The accuracy from which on almost nothing is left to gain."""
LEAST_R2 = 0.01
"""McFadden's pseudo-R^2, one minus the loss over the entropy of the classes: what a model must at least explain."""
NAMED = 5
"""Clients, or rounds, that a line names; of the others it says how many there are."""


@dataclass(frozen=True)
class Guess:
    """The scores of guessing, without a model, on the server's test set.

    Attributes:
        samples: how many labels are tested. (For texts: how many positions.)
        most: the share of the most common class, the accuracy of always naming it.
        entropy: the entropy of the classes' shares, in nats. It is the cross-entropy of predicting these shares for
            every sample.

    Examples:
        >>> import torch
        >>> from hanse.data.samples import Samples
        >>> Guess.of(Samples(torch.zeros(4, 1), torch.tensor([0, 1, 0, 0]))).most
        0.75
    """

    samples: Annotated[int, Field(ge=1)]
    most: Annotated[float, Field(gt=0, le=1)]
    entropy: Annotated[float, Field(ge=0, le=50)]

    @staticmethod
    def of(samples: Samples | None) -> Guess | None:
        """Return what a guess scores on these samples, or None for no samples, or targets that are not classes."""
        if samples is None or samples.y.is_floating_point():
            return None
        counts = samples.y[samples.y >= 0].flatten().bincount()  # below 0: positions that are not predicted
        if not int(counts.sum()):
            return None
        shares = counts[counts > 0].double() / counts.sum()
        return Guess(int(counts.sum()), float(shares.max()), float(-(shares * shares.log()).sum()))

    @property
    def bar(self) -> float:
        """The accuracy above which a model is surely better: the most common class's plus :data:`MARGIN` standard
        errors.
        """
        return self.most + MARGIN * math.sqrt(self.most * (1 - self.most) / self.samples)

    def beaten(self, accuracy: float, loss: float | None) -> bool:
        """Say whether a model is better than guessing.

        A model is better if its accuracy is above :attr:`bar`. It is also better if its loss explains the share
        :data:`LEAST_R2` of the entropy; a model of rare events that never predicts the rare class can do so.

        Args:
            accuracy: the model's accuracy on these samples.
            loss: the model's mean cross-entropy on these samples. None: another loss was trained, or none is known.
        """
        explains = loss is not None and math.isfinite(loss) and loss < (1 - LEAST_R2) * self.entropy
        return accuracy > self.bar or explains

    def ranks(self, line: Mapping[str, Any], metric: str) -> bool:
        """Say whether a model is better by AUC or balanced accuracy, which weights of rare classes are for.

        Args:
            line: the line of ``metrics.jsonl`` with the test.
            metric: the run's main metric.
        """
        # a guess's balanced accuracy is 1 / k of k classes, and k is at least exp(entropy)
        level = {"auc": 0.5, "balanced_accuracy": min(0.5, math.exp(-self.entropy))}.get(metric)
        figure, error = line.get(f"test/{metric}"), line.get(f"test/{metric}_error")
        return level is not None and is_number(figure) and is_number(error) and figure > level + MARGIN * error


UNMOVED = (
    "The model never changed: train.loop left every client's as it was. Does it take steps at a learning rate of 0, or "
    "put the old weights back?"
)
"""Why a run of a training loop of one's own has no result, although its updates were mixed."""


def nothing_mixed(metrics: Sequence[Mapping[str, Any]], seats: Iterable[tuple[str | None, float | None]]) -> str | None:
    """Return why a run has no result: no update was mixed in any of its rounds. None: it has one, or no round yet.

    Args:
        metrics: the lines of ``metrics.jsonl``.
        seats: for each line of ``clients.jsonl``, why its update was refused (None: it was not) and its weight. A
            weight of None is not known and counts as one.
    """
    reasons, sat = Counter[str](), False
    for refused, weight in seats:
        if refused is None and weight != 0:
            return None
        sat = True
        reasons[refused or "its update has weight 0"] += 1
    if not metrics or (not sat and any(line.get("seats") for line in metrics)):
        return None
    why = f"most often: {reasons.most_common(1)[0][0]}" if reasons else "no client was asked to train"
    return f"No update was mixed in any round (of {len(metrics)}), so the model never changed; {why.rstrip('.?')}."


def unsold(metrics: Sequence[Mapping[str, Any]]) -> int:
    """Return how many markets a run had, if nobody bought a model in any of them; else 0.

    Args:
        metrics: the lines of ``metrics.jsonl``.
    """
    bought = [line["market/edges"] for line in metrics if "market/edges" in line]
    return 0 if any(bought) else len(bought)


def in_no_sum(seats: Iterable[tuple[int, str | None]]) -> dict[str, Any]:
    """Return which clients' updates, that are only seen as sums of groups, were lost in every round, and most often
    why; nothing if there are none, or all were.

    Args:
        seats: for each line of ``clients.jsonl``, the client and why its update was refused (None: it was not).
    """
    reasons: dict[int, Counter[str]] = {}
    summed = set()
    for client, refused in seats:
        reasons.setdefault(client, Counter())[refused or ""] += 1
        summed |= {client} if refused is None else set()
    lost = sorted(reasons.keys() - summed)
    if not lost or not summed:
        return {}
    return {"clients": lost, "why": sum((reasons[client] for client in lost), Counter[str]()).most_common(1)[0][0]}


def doubts(
    metrics: Sequence[Mapping[str, Any]], guess: Guess | None, *, main: str, trained: Any, several: bool = False
) -> list[tuple[str, dict[str, Any]]]:
    """Return the doubts to show before a run's other results, by their notes' codes, with what these say it of.

    There are two such doubts. The model was no better than chance at the last test (:meth:`Guess.beaten`). Or some
    coalition's loss was above ln C in more than half of the later valued rounds; values by the loss then rank a useless
    update above skewed ones.

    Args:
        metrics: the lines of ``metrics.jsonl``.
        guess: a guess's scores on the server's test set. None: they are not known, and chance is not judged.
        main: the run's main metric.
        trained: the loss that is trained, as ``[train] loss`` has it; None is the cross-entropy.
        several: whether there are several models, which may be good for their own clients alone.
    """
    found = list[tuple[str, dict[str, Any]]]()
    tested = [line for line in metrics if is_number(line.get("test/accuracy"))]
    if guess is not None and tested:
        accuracy, loss = tested[-1]["test/accuracy"], tested[-1].get("test/loss")
        own = tested[-1].get("client/test_accuracy")
        at_home = several and own is not None and is_number(own) and own > guess.bar
        plain = trained in (None, "cross_entropy") and is_number(loss)
        beaten = guess.beaten(accuracy, loss if plain else None)
        if not (at_home or beaten or guess.ranks(tested[-1], main)):
            weighted = isinstance(trained, Mapping) and "weights" in trained
            said = {"accuracy": accuracy, "most": guess.most, "bar": guess.bar, "weighted": weighted}
            found.append(("chance_level", said))
    valued = [line for line in metrics if is_number(line.get(WORSE))]
    late = valued[len(valued) // 2 :]
    worse = sum(line[WORSE] > 0 for line in late)
    if 2 * worse > len(late):
        found.append(("loss_above_chance", {"worse": worse, "of": len(late)}))
    return found


def nothing_left(metrics: Sequence[Mapping[str, Any]]) -> float | None:
    """Return how often the model was right at the first test if that was almost always, so nothing could be gained.

    None otherwise, and where only one round was tested.

    Args:
        metrics: the lines of ``metrics.jsonl``.
    """
    figures = (line.get("test/accuracy", line.get("client/test_accuracy")) for line in metrics)
    tested = [float(figure) for figure in figures if is_number(figure)]
    return tested[0] if len(tested) > 1 and tested[0] >= NEAR_ALL else None


def is_number(value: object) -> TypeGuard[int | float]:
    """Say whether this is a finite number of at most 64 bits."""
    if type(value) is float:  # most are
        return math.isfinite(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return math.isfinite(value) if isinstance(value, float) else -(2**63) <= value < 2**63


STILL = "still trains: the round did not wait for it"
SAT_OUT = "its privacy budget is"
"""How the reason begins for which a client sits out."""


def used_up(seats: Iterable[tuple[int, int, str | None]]) -> dict[int, int]:
    """Return since which round each client whose privacy budget is used up has not taken part, as the client says.

    Args:
        seats: for each seat the client, the round, and why there is no update (None: there is one), in the order of
            rounds.
    """
    since: dict[int, int] = {}
    for client, round, refused in seats:
        if refused is not None and refused.startswith(f"{SAT_OUT} used up"):
            since.setdefault(client, round)
        elif refused is None:
            since.pop(client, None)
    return since


def told_used_up(since: Mapping[int, int]) -> list[str]:
    """Return a line that says since when clients have not taken part (:func:`used_up`), unless all do."""
    rounds = sorted(set(since.values()))
    told = [f"{clients_named([c for c in sorted(since) if since[c] == r])} from round {r} on" for r in rounds[:NAMED]]
    told += ["others later"] if len(rounds) > NAMED else []
    return [f"privacy budgets are used up: {', '.join(told)}"] if told else []


def clients_named(who: Sequence[object]) -> str:
    """Return the first clients by number or name, and how many more there are."""
    more = f" and {len(who) - NAMED} more" if len(who) > NAMED else ""
    return f"client{'s' * (len(who) > 1)} {', '.join(map(str, who[:NAMED]))}{more}"
