"""Secure sums: the server learns the sum of a group's updates, and no single update.

``[federation] secure = { group = 3 }`` turns it on. The clients asked to train are put into groups of at least
``group`` members, by default drawn anew every round. A group's updates reach the server as one sum, weighted by the
numbers of samples, in multiples of 2^-28. A group in which too few members answer (:meth:`SecureSums.least`) is never
summed.

On a network members mask what they send (:mod:`hanse.wings.private.masked_sums`). In a simulation nobody has to: all
clients are in this process, and masks that cancel leave the same whole numbers. :class:`Secured` wraps its federation,
so a mechanism gets exactly what a server on a network would have.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from hanse.base.streams import stream
from hanse.core.port import Call, Reply, Request, Train, Trained
from hanse.core.table import Ints
from hanse.federation.check import refusal
from hanse.federation.mask_steps import COUNTS
from hanse.federation.wrapped import Wrapped

STEPS = 2.0**28
"""How many steps of the whole numbers make 1."""
MOST_CHANGE = 64.0
"""The most by which an update may change a number of the model."""
MOST_SAMPLES = 2**23
"""The most samples that a member may have: a sum of :data:`MOST_CHANGE` by 63 members stays below 2^63."""
LOSS_STEPS, MOST_LOSS = 2.0**20, 2.0**14
"""How many steps make a loss of 1, and the largest loss that is summed; with a larger one a group's is not known."""
MOST_STEPS = 2**53
"""The most optimiser steps of a member."""
MOST_MEMBERS = 32
"""The largest ``group``; with what is left over of a division a group then has at most 63 members."""


@dataclass(frozen=True)
class SecureSums:
    """Says which updates are summed together.

    Attributes:
        group: the smallest number of members in a group, at least 3. In a pair, each would know the other's update.
        regroup: whether groups are drawn anew every round. Members' values need this, but over about ten rounds such
            sums reveal each member's mean update. If not, the same clients are always in the same groups. Default: true
            only if values are ``group_path``.
    """

    group: Annotated[int, Field(ge=3, le=MOST_MEMBERS)] = 3
    regroup: bool = True

    def least(self, size: int) -> int:
        """Return how many of a group's members must answer for its sum to be opened.

        For a group of n that was asked, it is n^2 / (2n - g + 1), rounded down, plus 1, and at least g. Then it is more
        than half of n, so no two sums of one group can be opened. Even a server that tells members different lists of
        who has answered can then open no sum of fewer than g members. To open a sum of m members, it must leave each of
        the other n - m out of the lists of at least ``least`` members. And each list has at least ``least`` names. Of
        the names on n lists, at most m n are of the m, and at most (n - m)(n - ``least``) of the others. So n ``least``
        <= m n + (n - m)(n - ``least``), or m >= n (2 ``least`` - n) / ``least`` > g - 1.

        Args:
            size: n.

        Examples:
            >>> [SecureSums(3).least(size) for size in (3, 4, 5)]
            [3, 3, 4]
        """
        return max(self.group, size**2 // (2 * size - self.group + 1) + 1)

    def groups(self, seed: int, clients: Ints, round: int) -> list[Ints]:
        """Return the groups of the clients asked to train, ids ascending in each; none if there are too few clients.

        Args:
            seed: the run's seed.
            clients: the clients' ids, each once.
            round: the round's number.
        """
        count = len(clients) // self.group
        if not count:
            return []
        order = stream(seed, "secure sums", round=round if self.regroup else 0).permutation(np.sort(clients))
        return [np.sort(part) for part in np.array_split(order, count)]


@dataclass(frozen=True)
class Secured(Wrapped):
    """A federation that shows only sums of its updates over groups.

    Each member's update is replaced by its group's mean, weighted by samples. So the sample-weighted average of all
    updates stays the same, up to rounding. Loss and steps are also the group's means.

    Attributes:
        rule: which updates are summed together.
        seed: the run's seed.
    """

    rule: SecureSums
    seed: int

    def heard(self, call: Call, replies: Sequence[Reply]) -> Sequence[Reply]:
        """Return the replies. Those that trained have their group's mean, or a reason why there is no sum."""
        asked = to_train(call.requests)
        found = [
            (reply, summand(asked[reply.client], reply, call.deadline_s)) for reply in replies if reply.client in asked
        ]
        came = {reply.client: one for reply, one in found if isinstance(one, Summand)}
        # what is not summed is not seen either
        out = {reply.client: replace(reply, results=(), refused=why) for reply, why in found if isinstance(why, str)}
        ids = np.array(sorted(asked), np.int64)
        for group in self.rule.groups(self.seed, ids, call.round) or [ids]:
            out |= self._summed({c: came[c] for c in group.tolist() if c in came}, len(group))
        return [out.get(r.client, r) for r in replies]

    def _summed(self, group: Mapping[int, Summand], size: int) -> dict[int, Reply]:
        """Return the replies of a group's members with the mean of all their updates instead of each."""
        wrong, members = None, list(group.values())
        if len(members) < self.rule.least(size):
            wrong = too_few(len(members), size, self.rule.least(size))
        elif not all(one.start is members[0].start or torch.equal(one.start, members[0].start) for one in members):
            wrong = OTHER_STARTS
        if wrong is not None:
            return {c: replace(one.reply, results=(), refused=wrong) for c, one in group.items()}
        start = members[0].start
        mean = mean_of(torch.stack([in_words(one.trained, start) for one in members]).sum(0), start, group)
        return {c: one.showing(mean) for c, one in group.items()}


def to_train(requests: Iterable[Request]) -> dict[int, Request]:
    """Return the requests that ask a client to train, by client."""
    return {r.client: r for r in requests if any(isinstance(task, Train) for task in r.tasks)}


OTHER_STARTS = "the members of its group start from different models, whose updates are no sum"


def too_few(came: int, size: int, least: int) -> str:
    """Return why a group's sum is not opened: only ``came`` of ``size`` members are left, and it takes ``least``."""
    return f"{came} of its group of {size} can be summed; it takes {least}"


@dataclass(frozen=True)
class Summand:
    """A sound reply whose update can be summed.

    Attributes:
        reply: the reply.
        place: which of the reply's results is the update.
        start: ``[P]``, the model that it started from.
        trained: the update.
    """

    reply: Reply
    place: int
    start: Tensor
    trained: Trained

    def showing(self, mean: Trained) -> Reply:
        """Return the reply with a mean instead of its update."""
        shown = replace(mean, seat=self.trained.seat, num_samples=self.trained.num_samples)
        results = (*self.reply.results[: self.place], shown, *self.reply.results[self.place + 1 :])
        return replace(self.reply, results=results)


def summand(request: Request, reply: Reply, deadline_s: float | None) -> Summand | str:
    """Return a reply to a training request as a summand, or the reason why it cannot be one.

    Args:
        request: what was asked.
        reply: the answer.
        deadline_s: the number of seconds after which an answer is too late. None: it is never too late.
    """
    if (wrong := refusal(request, reply)) is not None:
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
        return "it sends more than one update, a private one or extras: sums are of one update per client"
    if result.num_samples > MOST_SAMPLES:
        return f"{result.num_samples} samples; a sum takes at most {MOST_SAMPLES} of a member"
    if (most := float((result.row - task.start).abs().max())) > MOST_CHANGE:
        return f"a number of the model changes by {most:.4g}; a sum takes at most {MOST_CHANGE:g}"
    return Summand(reply, place, task.start, result)


def in_words(trained: Trained, start: Tensor) -> Tensor:
    """Return the words (integers) to which a member's masks are added: its update times its samples, and its counts.

    Args:
        trained: the update, as :func:`summand` takes it.
        start: ``[P]``, the model that it started from.

    Returns:
        ``[P + 5]`` int64. A group's sum stays within int64.
    """
    samples = int(trained.num_samples)
    change = ((trained.row - start).double() * STEPS).round().long() * samples
    told = trained.loss is not None and abs(trained.loss) <= MOST_LOSS
    loss = round(float(trained.loss or 0.0) * LOSS_STEPS) * samples if told else 0
    counts = [samples, min(trained.steps, MOST_STEPS), loss, int(told), 1]
    return torch.cat([change, torch.tensor(counts, dtype=torch.int64, device=change.device)])


def odd_sum(words: Tensor, said: int, survivors: Sequence[int]) -> str:
    """Return why words are no sum of what :func:`in_words` makes of members' updates, or "".

    Args:
        words: ``[P + 5]`` int64, the sum.
        said: how many samples the members stated in the clear.
        survivors: the members.
    """
    samples, steps, loss, told, members = words[-COUNTS:].tolist()
    if (samples, members) != (said, len(survivors)):
        return f"its group's sum is of {members} members and {samples} samples: {len(survivors)} and {said} were said"
    most = float(words[:-COUNTS].double().abs().max()) / (STEPS * max(samples, 1))
    if samples and not (steps or told or bool(words[:-COUNTS].any())):
        return "training failed at all members of its group; their own logs say why"
    bounded = 0 <= steps <= members * MOST_STEPS and abs(loss) <= MOST_LOSS * LOSS_STEPS * samples
    if most > MOST_CHANGE or not bounded or not 0 <= told <= members:
        return f"the sum of its group is beyond what members may send: one of the clients {survivors} sent too much"
    return ""


def mean_of(words: Tensor, start: Tensor, members: Iterable[int]) -> Trained:
    """Return the sample-weighted mean of a group's updates, from the sum of their words.

    Without samples the mean is the model that the members started from. The loss is also weighted by samples, and is
    None if a member has none. The number of steps is the mean rounded down. ``fit/sum`` records each opened sum by its
    first member.

    Args:
        words: ``[P + 5]`` int64, the sum of what :func:`in_words` returns for each member.
        start: ``[P]``, the model that the members started from.
        members: the clients whose updates are in the sum.
    """
    named = {"sum": float(min(members))}
    samples, steps, loss, told, count = words[-COUNTS:].tolist()
    change = words[:-COUNTS].double() / (STEPS * max(samples, 1))
    mean = loss / (LOSS_STEPS * samples) if samples and told == count else None
    return Trained(0, (start.double() + change).to(start.dtype), 0, mean, steps // count, metrics=named)
