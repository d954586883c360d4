"""Secure sums: the server learns the sum of a group's updates, and no single update.

``[federation] secure = { group = 3 }`` turns it on in a simulation. Who is asked to train is put into groups of at
least ``group`` members, drawn anew every round; a group's updates come to the server as one sum, weighted by the
numbers of samples, in whole numbers of 2^-28. In this engine nobody has to mask anything: all clients are in this
process, and masks that cancel leave the same whole numbers. What a mechanism is given is exactly what a server would
have. A group of which fewer than ``group`` members answer is never summed.

:class:`Secured` wraps a federation, so that whatever is behind the port acts the same.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from hanse.base.streams import stream
from hanse.core.port import Closing, Federation, Reply, Request, Roster, Train, Trained
from hanse.core.table import Ints
from hanse.federation.check import refusal

STEPS = 2.0**28
"""How many steps of the whole numbers make 1."""
MOST_CHANGE = 64.0
"""The most by which an update may change a number of the model."""
MOST_SAMPLES = 2**23
"""The most samples that a member may have: a sum of :data:`MOST_CHANGE` by 63 members stays below 2^63."""
MOST_MEMBERS = 32
"""The largest ``group``; with what is left over of a division a group then has at most 63 members."""


@dataclass(frozen=True)
class SecureSums:
    """Which updates are summed together.

    Attributes:
        group: the least members of a group, from 3: in a pair each would know the other's update.
    """

    group: Annotated[int, Field(ge=3, le=MOST_MEMBERS)] = 3

    def groups(self, seed: int, clients: Ints, round: int) -> list[Ints]:
        """Return the groups of those who are asked to train, ids ascending within each; none if they are too few.

        Args:
            seed: the run's seed.
            clients: ids, each once.
            round: the round's number.
        """
        count = len(clients) // self.group
        if not count:
            return []
        order = stream(seed, "secure sums", round=round).permutation(np.sort(clients))
        return [np.sort(part) for part in np.array_split(order, count)]


@dataclass(frozen=True)
class Secured:
    """A federation of whose updates only sums over groups are seen.

    In the place of each member's update stands the mean of its group's, weighted by samples: an average of updates by
    samples is the same as before, to the steps of the whole numbers. Loss and steps are the group's means, too.

    Attributes:
        inner: the federation that is asked.
        rule: which updates are summed together.
        seed: the run's seed.
        size: P, the columns of a model.
    """

    inner: Federation
    rule: SecureSums
    seed: int
    size: int

    def present(self, round: int) -> Roster:
        """Return the clients that are present."""
        return self.inner.present(round)

    def exchange(
        self, round: int, requests: Sequence[Request], deadline_s: float | None, closing: Closing | None
    ) -> Sequence[Reply]:
        """Return the replies; those that trained have their group's mean, or a reason why it was not summed."""
        replies = self.inner.exchange(round, requests, deadline_s, closing)
        asked = {r.client: r for r in requests if any(isinstance(task, Train) for task in r.tasks)}
        came, out = dict[int, Summand](), dict[int, Reply]()
        for reply in replies:
            if reply.client not in asked:
                continue
            found = summand(asked[reply.client], reply, self.size, deadline_s)
            if isinstance(found, Summand):
                came[reply.client] = found
            else:  # what is not summed is not seen either
                out[reply.client] = replace(reply, results=(), refused=found)
        ids = np.array(sorted(asked), np.int64)
        for group in self.rule.groups(self.seed, ids, round) or [ids]:
            out |= self._summed({c: came[c] for c in group.tolist() if c in came}, len(group))
        return [out.get(r.client, r) for r in replies]

    def _summed(self, group: Mapping[int, Summand], size: int) -> dict[int, Reply]:
        """Return the replies of a group's members with the mean of all their updates in the place of each."""
        wrong, members = None, list(group.values())
        if len(members) < self.rule.group:
            wrong = f"{len(members)} of its group of {size} can be summed; a sum is of at least {self.rule.group}"
        elif not all(one.start is members[0].start or torch.equal(one.start, members[0].start) for one in members):
            wrong = "the members of its group start from different models, whose updates are no sum"
        if wrong is not None:
            return {c: replace(one.reply, results=(), refused=wrong) for c, one in group.items()}
        mean = mean_update(members[0].start, [one.trained for one in members])
        return {c: one.showing(mean) for c, one in group.items()}


@dataclass(frozen=True)
class Summand:
    """A sound reply whose update can be summed.

    Attributes:
        reply: the reply.
        place: which of its results is the update.
        start: ``[P]``, the model that it started from.
        trained: the update.
    """

    reply: Reply
    place: int
    start: Tensor
    trained: Trained

    def showing(self, mean: Trained) -> Reply:
        """Return the reply with a mean in the place of its update."""
        shown = replace(mean, seat=self.trained.seat, num_samples=self.trained.num_samples)
        results = (*self.reply.results[: self.place], shown, *self.reply.results[self.place + 1 :])
        return replace(self.reply, results=results)


def summand(request: Request, reply: Reply, size: int, deadline_s: float | None) -> Summand | str:
    """Return a reply to a training request as what can be summed, or the reason why it cannot.

    Args:
        request: what was asked.
        reply: the answer.
        size: P, the columns of a model.
        deadline_s: seconds after which an answer is too late; None: never.
    """
    if (wrong := refusal(request, reply, size)) is not None:
        return wrong
    if deadline_s is not None and reply.arrival is not None and reply.arrival.seconds > deadline_s:
        return f"it came after {reply.arrival.seconds:g} s, and its group is summed after {deadline_s:g}"
    pairs = [
        (place, task, result)
        for place, (task, result) in enumerate(zip(request.tasks, reply.results, strict=True))
        if isinstance(task, Train) and isinstance(result, Trained)
    ]
    place, task, result = pairs[0]
    if len(pairs) > 1 or task.private or result.extras:
        return "it sends more than one update, a private one or extras: sums are of one update a client"
    if result.num_samples > MOST_SAMPLES:
        return f"{result.num_samples} samples; a sum takes at most {MOST_SAMPLES} of a member"
    if (most := float((result.row - task.start).abs().max())) > MOST_CHANGE:
        return f"a number of the model changes by {most:.4g}; a sum takes at most {MOST_CHANGE:g}"
    return Summand(reply, place, task.start, result)


def whole_numbers(trained: Trained, start: Tensor) -> Tensor:
    """Return an update times its samples in whole numbers, ``[P]`` int64: what members' masks would be added to."""
    steps = ((trained.row - start).double() * STEPS).round().long()
    return steps * int(trained.num_samples)


def mean_update(start: Tensor, trained: Sequence[Trained]) -> Trained:
    """Return the mean of a group's updates by samples, made from the sum of their whole numbers.

    Without samples the mean is the model that they started from. The loss is the mean by samples, None if one has none;
    steps are the whole number below the mean.
    """
    total = sum(int(one.num_samples) for one in trained)
    added = torch.zeros(len(start), dtype=torch.int64, device=start.device)
    for one in trained:
        added += whole_numbers(one, start)
    change = added.double() / (STEPS * max(total, 1))
    losses = [one.loss for one in trained]
    loss = None
    if total and None not in losses:
        loss = math.fsum(float(one.loss or 0.0) * one.num_samples for one in trained) / total
    steps = sum(one.steps for one in trained) // len(trained)
    return Trained(0, (start.double() + change).to(start.dtype), 0, loss, steps)
