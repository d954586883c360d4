"""WEIGH, rules that withstand bad updates: what a group's row becomes when some of its clients send anything.

Each is of the kind "again": it is applied again to the updates of each coalition that is valued, so that what a rule
does with fewer members stands in its docstring. Updates count alike in all of them, since the number of samples is
what a client reports (``geometric_median`` may go by it). Distances are between the parameters; what a rule does to
columns, it does to buffers too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from hanse.base.errors import UserError
from hanse.base.factories import Count, Positive, Rate
from hanse.core.part import Aggregate, AggregatePart, Group, State, View
from hanse.core.port import Request
from hanse.core.table import Floats
from hanse.games.gram import distances
from hanse.mechanisms.weigh import BySamples, sample_shares

GROUPS = frozenset({"clients", "groups"})
BY_SAMPLES = BySamples()  # what another rule is made of, if nothing is said
_BLOCK = 1 << 18  # numbers of a block of columns: they stay in the cache, and no second table is made


def by_column(group: Group, middle: Callable[[Tensor], Tensor]) -> Tensor:
    """Return the row ``[P]`` of what ``middle`` makes of the group's updates ``[m, n]``, each column sorted, block by
    block: ``[n]`` each.
    """
    size = group.view.context.layout.size
    row = torch.empty(size, dtype=torch.float32, device=group.old.device)
    width = max(1, _BLOCK // len(group))
    for a in range(0, size, width):
        b = min(a + width, size)
        row[a:b] = middle(sorted_columns(group.columns(a, b)))
    return row


def sorted_columns(rows: Tensor) -> Tensor:
    """Return ``rows [m, n]`` with every column in ascending order. Few rows are sorted all columns at a time, by
    comparing neighbours m times over (odd-even transposition), which is many times faster than column by column.
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
    """The coordinate-wise median (Yin et al. 2018): of each number the middle one of the group's updates, or the mean
    of the two in the middle. One member's update is the row.
    """

    kind = "again"
    needs = GROUPS

    def aggregate(self, group: Group, state: State) -> Aggregate:
        """Return the row of medians."""
        low, high = (len(group) - 1) // 2, len(group) // 2
        return Aggregate(row=by_column(group, lambda rows: rows[low : high + 1].mean(dim=0)))


@dataclass(frozen=True)
class TrimmedMean(AggregatePart):
    """The coordinate-wise trimmed mean (Yin et al. 2018): of each number the mean without the lowest and the highest
    ``share`` of the group, rounded down. Of fewer than ``1 / share`` members nothing is cut: it is the plain mean.
    """

    kind = "again"
    needs = GROUPS
    share: Annotated[float, Field(ge=0, lt=0.5)] = 0.2

    def aggregate(self, group: Group, state: State) -> Aggregate:
        """Return the row of trimmed means; ``weigh/trimmed`` records how many were cut at each end."""
        cut = int(self.share * len(group) + 1e-9)  # 0.2 of 5 is 1
        row = by_column(group, lambda rows: rows[cut : len(rows) - cut].mean(dim=0, dtype=torch.float64).float())
        return Aggregate(row=row, metrics={"weigh/trimmed": float(cut)})


@dataclass(frozen=True)
class GeometricMedian(AggregatePart):
    """The geometric median (RFA, Pillutla et al. 2022): the model whose distances to the updates have the least sum,
    which is a mean with weights ``~ q_k / |z - U_k|`` (Weiszfeld). All updates count alike (``by`` "samples": as many
    times as they report samples). It takes at most ``steps``, all of them on the ``m x m`` distances.

    Of two members alike it is the mean, of one its update.
    """

    kind = "again"
    needs = GROUPS
    by: Literal["uniform", "samples"] = "uniform"
    steps: Positive = 100

    def aggregate(self, group: Group, state: State) -> Aggregate:
        """Return the weights; ``weigh/effective_seats`` is ``1 / sum w^2``."""
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
        return Aggregate(weights, metrics={"weigh/effective_seats": 1 / float(weights @ weights)})


def krum_scores(squared: Floats, attackers: int) -> Floats:
    """Return Krum's scores ``[m]`` from squared distances ``[m, m]``: the sum of those to the ``m - attackers - 2``
    nearest others (Blanchard et al. 2017), at least one.
    """
    nearest = max(1, len(squared) - attackers - 2)
    return np.asarray(np.sort(squared, axis=1)[:, 1 : nearest + 1].sum(axis=1))


def tolerated(members: int, f: int | None) -> int:
    """Return how many bad updates Krum is asked to withstand among so many: ``f``, or as many as it can (2f + 3 are
    needed); fewer, where there are too few members for ``f``.
    """
    most = max(0, (members - 3) // 2)
    return most if f is None else min(f, most)


@dataclass(frozen=True)
class Krum(AggregatePart):
    """Krum (Blanchard et al. 2017): the one update whose ``m - f - 2`` nearest others are nearest; ties: the first.

    It needs ``2f + 3`` members to withstand ``f`` bad ones (None: as many as the members allow). Of fewer members, a
    coalition's, it withstands as many as they allow; of two or one it is the plain mean.
    """

    kind = "again"
    needs = GROUPS
    f: Count | None = None

    @property
    def least(self) -> int:
        """The least members of a round's group."""
        return 3 if self.f is None else 2 * self.f + 3

    def aggregate(self, group: Group, state: State) -> Aggregate:
        """Return the weights; ``weigh/withstands`` is how many bad updates the rule was applied for."""
        return _nearest(group, tolerated(len(group), self.f), 1)


@dataclass(frozen=True)
class MultiKrum(AggregatePart):
    """Multi-Krum (Blanchard et al. 2017): the plain mean of the ``keep`` updates with the best scores of Krum (None: of
    all but ``f``). Members as for Krum.
    """

    kind = "again"
    needs = GROUPS
    f: Count | None = None
    keep: Positive | None = None

    @property
    def least(self) -> int:
        """The least members of a round's group."""
        return 3 if self.f is None else 2 * self.f + 3

    def aggregate(self, group: Group, state: State) -> Aggregate:
        """Return the weights; ``weigh/withstands`` as for Krum."""
        attackers = tolerated(len(group), self.f)
        return _nearest(group, attackers, self.keep or len(group) - attackers)


def _nearest(group: Group, attackers: int, keep: int) -> Aggregate:
    """Return equal weights on the ``keep`` updates with the lowest scores; on both of two."""
    weights = np.zeros(len(group))
    if len(group) < 3:
        weights[:] = 1.0
    else:
        scores = krum_scores(np.square(distances(group.parameters)), attackers)
        weights[np.argsort(scores, kind="stable")[:keep]] = 1.0
    return Aggregate(weights / weights.sum(), metrics={"weigh/withstands": float(attackers)})


def borrowed(part: AggregatePart, of: AggregatePart) -> None:
    """Let a ``part`` that is made ``of`` another one have its needs. Raises UserError if it is no plain rule: if it
    makes no aggregate, or has a memory or rows of its own.
    """
    name = type(of).__name__
    if not callable(getattr(of, "aggregate", None)):
        raise UserError(f"of: {name} makes no aggregate of a group: must be a rule such as 'samples' or 'gtflat'")
    own = [f for f in ("learn", "init", "weigh") if hasattr(of, f) and getattr(type(of), f) is not _inherited(f)]
    if own:
        raise UserError(f"of: {name} has a memory or rows of its own: must be a rule such as 'samples' or 'gtflat'")
    needs = of.needs if isinstance(of.needs, frozenset) else of.needs.get("weigh", frozenset())
    object.__setattr__(part, "needs", GROUPS | needs)


def _inherited(name: str) -> object:
    """Return a method that parts have if they say nothing else."""
    return getattr(AggregatePart, name, None)


@dataclass(frozen=True)
class Clipped(AggregatePart):
    """Another rule ``of`` updates that are clipped (Sun et al. 2019): whose way from the old row is longer than
    ``norm`` goes only so far on it. ``norm`` None is the median of the group's (so a coalition has its own).

    Ways are measured in the parameters, and shortened in all columns.
    """

    kind = "again"
    needs = GROUPS
    of: AggregatePart = BY_SAMPLES
    norm: Rate | None = None

    def __post_init__(self) -> None:
        """Take over the other rule's needs."""
        borrowed(self, self.of)

    def asks(self, view: View, state: State) -> Sequence[Request]:
        """Ask what the other rule wants to know."""
        return self.of.asks(view, {})

    def aggregate(self, group: Group, state: State) -> Aggregate:
        """Return the rule's row; of its weights, those on the updates as they came and on the old row.
        ``weigh/clipped`` is the share of updates that were clipped, ``weigh/norm`` where.
        """
        length = lengths(group)
        norm = float(np.median(length)) if self.norm is None else self.norm
        share = np.where(length > norm, norm / np.maximum(length, 1e-300), 1.0)
        said = self.of.aggregate(group.shrinking(share), {})
        found = {**said.metrics, "weigh/clipped": float((share < 1).mean()), "weigh/norm": norm}
        if said.weights is None:
            return Aggregate(row=said.row, metrics=found)
        weights = said.weights * share
        return Aggregate(weights, said.old + float((said.weights - weights).sum()), found)


def lengths(group: Group, along: Tensor | None = None) -> Floats:
    """Return how long each update's way from the old row is, ``[m]``, in the parameters; with ``along [P]``, its inner
    product with that way.
    """
    total = torch.zeros(len(group), dtype=torch.float64, device=group.old.device)
    width = max(1, _BLOCK // len(group))
    for a in range(0, group.num_parameters, width):
        b = min(a + width, group.num_parameters)
        way = group.columns(a, b).double() - group.old[a:b].double()
        total += way.square().sum(dim=1) if along is None else way @ along[a:b].double()
    return np.asarray((total.sqrt() if along is None else total).cpu().numpy())


@dataclass(frozen=True)
class FLTrust(AggregatePart):
    """FLTrust (Cao et al. 2021): the server trains the old row itself, on a root set of its own (``data.root``), and
    trusts an update by the cosine between its way and the server's, ``TS_k = max(0, cos)``; each way is made as long
    as the server's: ``w' = w + sum_k TS_k |g_0| / |g_k| g_k / sum_k TS_k`` (eqs 2 to 4).

    Where nobody is trusted the row stays. One member's way is followed, as long as the server's, if it is trusted.
    """

    kind = "again"
    needs = GROUPS | {"root"}

    def aggregate(self, group: Group, state: State) -> Aggregate:
        """Return the weights; ``weigh/trust`` is the mean trust, ``weigh/norm`` how far the server went."""
        view = group.view
        root = view.judge.trained(group.old, view.round, group.row) - group.old
        norm, length = float(root[: group.num_parameters].double().norm()), lengths(group)
        cosine = lengths(group, root) / np.maximum(length * norm, 1e-300)
        trust = np.maximum(cosine, 0.0)
        metrics = {"weigh/trust": float(trust.mean()), "weigh/norm": norm}
        if not trust.sum() > 0:
            return Aggregate(np.zeros(len(group)), 1.0, metrics)
        weights = trust / trust.sum() * norm / np.maximum(length, 1e-300)
        return Aggregate(weights, 1.0 - float(weights.sum()), metrics)
