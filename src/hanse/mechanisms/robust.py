"""WEIGH, robust rules: they limit the harm that a client can do by sending an arbitrary update.

To use one, name it in the slot weigh (``weigh = "median"``), or replace the part in Python:
``dataclasses.replace(fedavg(), weigh=Krum(f=2))``. :class:`Clipped` shortens updates before another rule averages them.

To estimate the value of a coalition, all of these rules are applied again to the coalition's updates. Their docstrings
therefore say what a rule does with few updates. All updates count equally, because numbers of samples are only reported
(:class:`GeometricMedian` may use them). Distances use only the parameters. Rules that work column by column also change
buffers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from hanse.base.errors import UserError
from hanse.base.factories import Count, Positive, Rate
from hanse.base.pytorch import Tensor, torch
from hanse.core.part import Aggregate, AggregatePart, Group, Most, Size, State, View, in_slots, set_words
from hanse.core.port import Request
from hanse.core.table import Floats
from hanse.games.gram import distances
from hanse.mechanisms.weigh import GROUPED, BySamples, sample_shares

BY_SAMPLES = BySamples()  # the default for rules that are made of another one
_MEMORY = ("init", "learn", "weigh")  # methods by which a part has a memory or rows of its own
_BLOCK = 1 << 18  # numbers in a block of columns: a block stays in the cache, and no second table is made


def by_column(group: Group, middle: Callable[[Tensor], Tensor]) -> Tensor:
    """Return a row ``[P]`` that is made column by column from a group's updates.

    Args:
        group: the group.
        middle: a function from updates ``[m, n]``, with sorted columns, to ``[n]`` numbers.
    """
    size = group.view.context.layout.size
    row = torch.empty(size, dtype=torch.float32, device=group.old.device)
    width = max(1, _BLOCK // len(group))
    for a in range(0, size, width):
        b = min(a + width, size)
        row[a:b] = middle(sorted_columns(group.columns(a, b)))
    return row


def sorted_columns(rows: Tensor) -> Tensor:
    """Return ``rows [m, n]`` with every column in ascending order.

    Up to 64 rows are sorted by odd-even transposition: m times, neighbouring rows are compared, for all columns at
    once. For such short columns this is much faster than sorting each.

    Examples:
        >>> sorted_columns(torch.tensor([[3.0, 1.0], [1.0, 2.0], [2.0, 0.0]])).tolist()
        [[1.0, 0.0], [2.0, 1.0], [3.0, 2.0]]
    """
    if len(rows) > 64:
        return rows.sort(dim=0).values
    found = rows.clone()
    for turn in range(len(rows)):
        first, second = found[turn % 2 : -1 : 2], found[turn % 2 + 1 :: 2]
        low, high = torch.minimum(first, second), torch.maximum(first, second)
        first.copy_(low)
        second.copy_(high)
    return found


@dataclass(frozen=True)
class Median(AggregatePart):
    """The coordinate-wise median (Yin et al. 2018): each number is the median of that number over the group's updates.

    With an even number of updates, this is the mean of the middle two; a single update is returned as it is.
    """

    needs = GROUPED

    def aggregate(self, group: Group, state: State) -> Aggregate:
        """Return the row of medians."""
        low, high = (len(group) - 1) // 2, len(group) // 2
        return Aggregate(row=by_column(group, lambda rows: rows[low : high + 1].mean(dim=0)))


@dataclass(frozen=True)
class TrimmedMean(AggregatePart):
    """The coordinate-wise trimmed mean (Yin et al. 2018): each number is a mean without the extreme updates.

    With fewer than ``1 / share`` members nothing is cut off, and the result is the plain mean.

    Attributes:
        share: the share of the group that is cut off at each end, rounded down to whole updates. It is at least 0 and
            below 0.5.
    """

    needs = GROUPED
    share: Annotated[float, Field(ge=0, lt=0.5)] = 0.2

    def aggregate(self, group: Group, state: State) -> Aggregate:
        """Return the row of trimmed means. ``weigh/trimmed`` records how many updates were cut off at each end."""
        cut = int(self.share * len(group) + 1e-9)  # against rounding: 0.2 of 5 is 1
        row = by_column(group, lambda rows: rows[cut : len(rows) - cut].mean(dim=0, dtype=torch.float64).float())
        return Aggregate(row=row, metrics={"weigh/trimmed": float(cut)})


@dataclass(frozen=True)
class GeometricMedian(AggregatePart):
    """The geometric median (RFA, Pillutla et al. 2022): the model with the least sum of distances to the updates.

    It is a mean with weights ``~ q_k / |z - U_k|``, found by Weiszfeld's algorithm. All steps work on the ``m x m``
    distances between updates, so the number of steps hardly affects the time. For two members with equal weights the
    result is their mean, for a single member its update.

    Attributes:
        by: how updates count: "uniform" for all equally, or "samples" in proportion to the numbers of samples that
            clients report.
        steps: the most steps to take.
    """

    needs = GROUPED
    by: Literal["uniform", "samples"] = "uniform"
    steps: Positive = 100

    def aggregate(self, group: Group, state: State) -> Aggregate:
        """Return the weights ``[m]``; ``weigh/effective_seats`` records ``1 / sum w^2``."""
        shares = sample_shares(group.num_samples) if self.by == "samples" else np.full(len(group), 1 / len(group))
        squared = np.square(distances(group.parameters))
        weights = shares
        for _ in range(self.steps):
            # |z - U_k|^2 of the mean z with these weights, from the distances between updates
            apart = np.sqrt(np.maximum(squared @ weights - 0.5 * weights @ squared @ weights, 0.0))
            smooth = 1e-6 * float(apart @ shares)  # the paper's nu: z may be an update itself
            trust = shares / np.maximum(apart, smooth) if smooth > 0 else shares
            before, weights = weights, trust / trust.sum()
            if np.abs(weights - before).max() < 1e-12:
                break
        return Aggregate(weights, metrics={"weigh/effective_seats": 1 / float(weights @ weights)}, reapply=True)


def krum_scores(squared: Floats, attackers: int) -> Floats:
    """Return Krum's scores ``[m]``: summed squared distances to the ``m - attackers - 2`` nearest other updates.

    At least one other update is counted (Blanchard et al. 2017).

    Args:
        squared: squared distances between updates, ``[m, m]``.
        attackers: how many bad updates to withstand.

    Examples:
        Updates lie at 0, 1, 2 and 10 on a line, and one of them may be bad. The last one has the worst score:

        >>> at = np.array([0.0, 1.0, 2.0, 10.0])
        >>> krum_scores(np.square(at[:, None] - at), attackers=1)
        array([ 1.,  1.,  1., 64.])
    """
    nearest = max(1, len(squared) - attackers - 2)
    return np.asarray(np.sort(squared, axis=1)[:, 1 : nearest + 1].sum(axis=1))


def tolerated(members: int, f: int | None) -> int:
    """Return how many bad updates Krum is asked to withstand among so many ``members``.

    The number is ``f``, or as many as possible if ``f`` is None. Withstanding f bad updates takes 2f + 3 members. With
    fewer members, the number returned is smaller.
    """
    most = max(0, (members - 3) // 2)
    return most if f is None else min(f, most)


@dataclass(frozen=True)
class Krum(AggregatePart):
    """Krum (Blanchard et al. 2017): takes the one update that is nearest to its neighbours; in a tie, the first.

    Its neighbours are the nearest ``m - f - 2`` of m updates. A group needs ``2f + 3`` members to withstand ``f`` bad
    ones. A group with fewer members, such as a coalition, withstands as many bad updates as its size allows. With two
    members or one, the rule is the plain mean.

    Attributes:
        f: how many bad updates to withstand. None: as many as the number of members allows.
    """

    needs = GROUPED
    f: Count | None = None

    def unfit(self, size: Size) -> Sequence[str]:
        """Return a line if a round may have fewer updates than withstanding ``f`` bad ones takes."""
        least = 3 if self.f is None else 2 * self.f + 3
        if size.updates >= least:
            return ()
        asked = "" if self.f is None else f" with f = {self.f}"
        return [
            f"mechanism.weigh: {type(self).__name__}{asked} needs {least} updates a round, 2f + 3, and a round may "
            f"have {size.updates}"
        ]

    def aggregate(self, group: Group, state: State) -> Aggregate:
        """Return the weights ``[m]``; ``weigh/withstands`` records how many bad updates the rule was applied for."""
        bad = tolerated(len(group), self.f)
        keep, weights = self.kept(len(group) - bad), np.zeros(len(group))
        if len(group) < 3:
            weights[:] = 1.0
        else:
            scores = krum_scores(np.square(distances(group.parameters)), bad)
            weights[np.argsort(scores, kind="stable")[:keep]] = 1.0
        return Aggregate(weights / weights.sum(), metrics={"weigh/withstands": float(bad)}, reapply=True)

    def kept(self, good: int) -> int:
        """Return how many of the updates with the best scores are averaged, of so many ``good`` ones."""
        return 1


@dataclass(frozen=True)
class MultiKrum(Krum):
    """Multi-Krum (Blanchard et al. 2017): the plain mean of the ``keep`` updates with the best Krum scores.

    The rule needs as many members as Krum does.

    Attributes:
        f: how many bad updates to withstand. None: as many as the number of members allows.
        keep: how many updates to average. None: all but ``f``.
    """

    keep: Positive | None = None

    def unfit(self, size: Size) -> Sequence[str]:
        """Return a line if a round may have fewer updates than are needed, or than ``keep`` good ones."""
        lines, bad = super().unfit(size), tolerated(size.updates, self.f)
        if lines or self.keep is None or self.keep <= size.updates - bad:
            return lines
        asked = "" if self.f is None else f" with f = {self.f}"
        return [
            f"mechanism.weigh: {type(self).__name__}{asked} keeps {self.keep} updates, and of the {size.updates} that "
            f"a round may have {bad} may be bad: keep must be at most {size.updates - bad}"
        ]

    def kept(self, good: int) -> int:
        """Return ``keep``, or all ``good`` ones."""
        return self.keep or good


@dataclass(frozen=True)
class OfRule(AggregatePart):
    """The base of rules that are made of another one, whose needs and questions they have.

    Attributes:
        of: the other rule. It must have no state and no rows of its own.
    """

    of: AggregatePart = BY_SAMPLES

    def __post_init__(self) -> None:
        """Take over the other rule's needs.

        Raises:
            UserError: ``of`` does not make an aggregate, or it has state or rows of its own, which nothing would keep.
        """
        of, name = self.of, type(self.of).__name__
        if not callable(getattr(of, "aggregate", None)):
            raise UserError(f"of: {name} makes no aggregate of a group: must be a rule such as 'samples' or 'gtflat'")
        # a rule without memory or rows has these methods as every part inherits them, or not at all
        if any(hasattr(of, f) and getattr(type(of), f) is not getattr(AggregatePart, f, None) for f in _MEMORY):
            raise UserError(f"of: {name} has a memory or rows of its own: must be a rule such as 'samples' or 'gtflat'")
        set_words(self, needs=GROUPED | in_slots(of.needs, ["weigh"]))

    def questions(self, clients: int, rows: int) -> Mapping[str, Most]:
        """Return what :meth:`asks` asks at most."""
        return self.of.questions(clients, rows)

    def asks(self, view: View, state: State) -> Sequence[Request]:
        """Ask what the other rule wants to know."""
        return self.of.asks(view, {})


@dataclass(frozen=True)
class Clipped(OfRule):
    """Applies another rule to clipped updates: changes longer than ``norm`` are shortened to it (Sun et al. 2019).

    Lengths are measured over the parameters. Clipping shortens the change in all columns, buffers included.

    Attributes:
        of: the rule that averages the clipped updates.
        norm: the longest allowed change. None: the median length in the group, computed anew for each coalition.
        times: what the median is multiplied by.
    """

    norm: Rate | None = None
    times: Rate = 1.0

    def aggregate(self, group: Group, state: State) -> Aggregate:
        """Return the other rule's decision on the clipped updates.

        A clipped update is partly the old row. So the rule's weights are converted into weights on the unclipped
        updates, and the old row gets the rest. Recorded: ``weigh/clipped``, the share of updates that were clipped, and
        ``weigh/norm``.
        """
        length = lengths(group)
        norm = self.times * float(np.median(length)) if self.norm is None else self.norm
        share = shortened(length, norm)
        said = self.of.aggregate(group.shrinking(share), {})
        found = {**said.metrics, "weigh/clipped": float((share < 1).mean()), "weigh/norm": norm}
        if said.weights is None:
            return Aggregate(row=said.row, metrics=found)
        weights = said.weights * share
        return Aggregate(weights, said.old + float((said.weights - weights).sum()), found, reapply=True)


def shortened(length: Floats, norm: float) -> Floats:
    """Return the factors ``[m]`` by which changes of these lengths are multiplied, so that none is above ``norm``."""
    return np.where(length > norm, norm / np.maximum(length, 1e-300), 1.0)


def lengths(group: Group, along: Tensor | None = None) -> Floats:
    """Return how far each update went from the old row, ``[m]``, over the parameters.

    Args:
        group: the group.
        along: a direction ``[P]``. With it, the result is the inner product of each update's change with this
            direction.
    """
    # in blocks of columns and in float64: exact enough for a cosine, without a second table
    total = torch.zeros(len(group), dtype=torch.float64, device=group.old.device)
    width = max(1, _BLOCK // len(group))
    for a in range(0, group.num_parameters, width):
        b = min(a + width, group.num_parameters)
        way = group.columns(a, b).double() - group.old[a:b].double()
        total += way.square().sum(dim=1) if along is None else way @ along[a:b].double()
    return np.asarray((total.sqrt() if along is None else total).cpu().numpy())


@dataclass(frozen=True)
class FLTrust(AggregatePart):
    """FLTrust (Cao et al. 2021): the server trains on a root set, and trusts updates that go in its own direction.

    The server trains the old row on its root set (``data.root``). The server's trust in an update is ``TS_k = max(0,
    cos)``, where cos is the cosine between the update's change and the server's own change. Every change is scaled to
    the length of the server's: ``w' = w + sum_k TS_k |g_0| / |g_k| g_k / sum_k TS_k`` (eqs 2 to 4). If no update is
    trusted, the row stays. If only one update is trusted, the row changes in that update's direction, by the length of
    the server's change.
    """

    needs = GROUPED | {"root"}

    def aggregate(self, group: Group, state: State) -> Aggregate:
        """Return the weights on the updates and the old row.

        Two figures are recorded: ``weigh/trust``, the mean trust, and ``weigh/norm``, how far the server went.
        """
        view = group.view
        root = view.judge.trained(group.old, view.round, group.row) - group.old
        norm, length = float(root[: group.num_parameters].double().norm()), lengths(group)
        cosine = lengths(group, root) / np.maximum(length * norm, 1e-300)
        trust = np.maximum(cosine, 0.0)
        metrics = {"weigh/trust": float(trust.mean()), "weigh/norm": norm}
        if not trust.sum() > 0:
            return Aggregate(np.zeros(len(group)), 1.0, metrics, reapply=True)
        weights = trust / trust.sum() * norm / np.maximum(length, 1e-300)
        return Aggregate(weights, 1.0 - float(weights.sum()), metrics, reapply=True)
