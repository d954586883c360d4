"""Federations around another one, as the server sees it, so that they work the same with all engines.

:class:`Wrapped` is the base.
:class:`Bounded` (``[federation] refuse``, by the rule :class:`NormBound`) refuses updates that are far longer than the
others of their round. It is off by default: it hides how a mechanism itself handles attackers, and refuses honest
updates if clients differ much. :class:`Believed` is what the server believes of the noise that updates say they have.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Protocol

import numpy as np
from pydantic import Field

from hanse.base.factories import call
from hanse.base.imports import named
from hanse.base.pytorch import torch
from hanse.core.port import Call, Federation, Reply, Request, Result, Roster, Train, Trained
from hanse.core.recipe import Recipe
from hanse.federation.check import refusal


@dataclass(frozen=True)
class Wrapped:
    """A federation that asks another one and changes the requests or the replies. This one changes nothing.

    Override :meth:`asked` or :meth:`heard`; or :meth:`exchange`, if one exchange becomes several.

    Attributes:
        inner: the federation that is asked.
    """

    inner: Federation

    def present(self, round: int) -> Roster:
        """Return the clients that are present."""
        return self.inner.present(round)

    def exchange(self, call: Call) -> Sequence[Reply]:
        """Send the requests, and return the replies, both as this federation changes them."""
        return self.heard(call, self.inner.exchange(replace(call, requests=self.asked(call.requests))))

    def asked(self, requests: Sequence[Request]) -> Sequence[Request]:
        """Return the requests as they are sent."""
        return requests

    def heard(self, call: Call, replies: Sequence[Reply]) -> Sequence[Reply]:
        """Return the replies as the server gets them.

        Args:
            call: what was asked, before this federation changed it.
            replies: what came. It is not checked yet, and may be of clients that were not asked.
        """
        return replies


@dataclass(frozen=True)
class NormBound:
    """Refuses an update that is longer than a multiple of the median in its exchange.

    Attributes:
        times: the multiple, above 1.
        least: the smallest number of sound updates with which anything is refused, at least 5. A median of fewer
            updates means too little.
    """

    times: Annotated[float, Field(gt=1, allow_inf_nan=False)] = 3.0
    least: Annotated[int, Field(ge=5)] = 5

    def refusals(self, norms: Mapping[int, Sequence[float]]) -> Mapping[int, str]:
        """Return the reason for each client whose update is refused.

        Args:
            norms: the lengths of each client's updates, one for each seat.
        """
        if len(norms) < self.least:
            return {}
        median = float(np.median([norm for mine in norms.values() for norm in mine]))
        bound = self.times * median
        return {
            client: f"update of norm {max(mine):.4g}: the bound is {bound:.4g}, {self.times:g} times the median"
            for client, mine in norms.items()
            if max(mine) > bound
        }


REFUSALS: Mapping[str, Callable[..., Any]] = {"norm_bound": NormBound}


def build_refusal(given: str | Mapping[str, Any] | None) -> Any:
    """Return the rule that ``[federation] refuse`` names, or None.

    Args:
        given: "norm_bound", an import path, or a table of either as ``name`` with the rule's options
            (:class:`NormBound`). None: nothing is refused.

    Raises:
        UserError: there is no such rule, or an option is not allowed.
    """
    if given is None:
        return None
    return call(*named(given, "federation.refuse", REFUSALS), "federation.refuse")


@dataclass(frozen=True)
class Bounded(Wrapped):
    """A federation without the updates that a rule refuses.

    The server does not see private rows, so they are not bounded.

    Attributes:
        bound: the rule, such as :class:`NormBound`, or any object with such a method ``refusals``.
        width: how many columns are parameters. Norms are taken over these, relative to the row that was sent.
    """

    bound: Any
    width: int

    def heard(self, call: Call, replies: Sequence[Reply]) -> Sequence[Reply]:
        """Return the replies. Those over the bound are replaced by the reason."""
        asked = call.by_client
        sound = [r for r in replies if r.client in asked and refusal(asked[r.client], r) is None]
        norms = {r.client: self._norms(asked[r.client], r) for r in sound}
        over = self.bound.refusals({client: mine for client, mine in norms.items() if mine})
        return [replace(r, results=(), refused=over[r.client]) if r.client in over else r for r in replies]

    def _norms(self, request: Request, reply: Reply) -> list[float]:
        """Return the lengths of a reply's updates, one for each seat that is not private."""
        return [
            float(torch.linalg.vector_norm((result.row - task.start)[: self.width], dtype=torch.float64))
            for task, result in zip(request.tasks, reply.results, strict=True)
            if isinstance(task, Train) and isinstance(result, Trained) and not task.private
        ]


MOST_EPSILON = 1e6
EPSILON, BUDGET, DELTA, NOISE, WITHIN = "epsilon", "budget", "delta", "noise", "within"
"""What an update says besides its numbers: the epsilon that its client has spent so far, of which budget and at which
delta; the standard deviation of the noise at each number, in the unit of the parameters; and, with noise, whether it
was within the clip."""
SURELY = 25.0
"""Minus the logarithm of the chance with which an honest update is longer than it may be."""
TOO_LONG = "its update is longer than its clip and the noise that it says allow"


class NoiseTerms(Protocol):
    """A run's terms on noise: how much an update has of it, and how long it may be."""

    def of(self, client: int) -> NoiseTerms:
        """Return the terms of one client."""

    def level(self, samples: int, recipe: Recipe, lr: float, task: Train) -> float:
        """Return the standard deviation of the noise at each number of an update of so many samples, by its task and
        the round's learning rate.
        """

    def longest(self, samples: int, recipe: Recipe, lr: float, task: Train) -> float:
        """Return how long such an update can be without its noise."""


@dataclass(frozen=True)
class Believed(Wrapped):
    """Updates as the server believes them: with at least the noise that the run demands, and not longer than it allows.

    A client may declare less noise than it adds, or choose a clip so small that it adds next to none. Rules that weigh
    updates by their noise, and the errors of values, would then trust it more than a client that follows the run's
    terms. A client's declared noise is therefore taken as at least the noise of its own terms (``stricter``), and at
    most a million times that. A client that says more may send a longer update, but its update weighs less. If weights
    do not depend on noise, updates are shortened to the length that the run's terms allow.

    What a client claims about its account is kept if such an account is possible. Other numbers are left out.

    Attributes:
        rule: the run's terms. None: it has none, and only participants' own accounts add noise.
        recipe: how clients train.
        size: P, the numbers of an update.
        half: whether models travel as 16-bit floats.
        weighed: whether the weights of updates fall with their noise.
    """

    rule: NoiseTerms | None
    recipe: Recipe
    size: int
    half: bool = False
    weighed: bool = False

    def heard(self, call: Call, replies: Sequence[Reply]) -> Sequence[Reply]:
        """Return the replies. An update that is too long for the noise that it declares is refused."""
        asked = call.by_client
        return [self._believed(call.round, asked[r.client], r) if r.client in asked else r for r in replies]

    def _believed(self, round: int, request: Request, reply: Reply) -> Reply:
        """Return one reply as it is believed."""
        if reply.refused is not None or refusal(request, reply) is not None:
            return reply  # the exchange's own check refuses it
        results, rule = list[Result](), None if self.rule is None else self.rule.of(request.client)
        for task, result in zip(request.tasks, reply.results, strict=True):
            one: Result | None = result
            if isinstance(task, Train) and isinstance(result, Trained) and not task.private:
                one = self._without_terms(task, result) if rule is None else self._under(rule, round, task, result)
            if one is None:
                return replace(reply, results=(), refused=TOO_LONG)
            results.append(one)
        return replace(reply, results=tuple(results))

    def _under(self, rule: NoiseTerms, round: int, task: Train, result: Trained) -> Trained | None:
        """Return an update under its client's terms as it is believed; None: it is too long for the noise it says."""
        given, said = (int(result.num_samples), self.recipe, self.recipe.lr_at(round), task), result.metrics
        least, longest, length = rule.level(*given), rule.longest(*given), self._length(task, result)
        noise = max(least, min(said.get(NOISE, 0.0), 1e6 * least))  # its square stays finite
        if self.weighed and length > longest + noise * self._normal:
            return None
        if not self.weighed:
            shorter = min(1.0, (longest + least * self._normal) / length) if length > 0 else 1.0
            if shorter < 1:
                start = task.start.to(result.row.device)
                result = replace(result, row=start + shorter * (result.row - start))
            noise = max(least, min(shorter * noise, self._room(shorter * length)))
        within = {WITHIN: said[WITHIN]} if WITHIN in said else {}
        # what it claims of its account counts only if some account can be like that
        epsilon, budget, delta = (said.get(name, math.nan) for name in (EPSILON, BUDGET, DELTA))
        if 0 <= epsilon <= budget and 0 < budget <= MOST_EPSILON and 0 < delta < 1:
            within |= {EPSILON: epsilon, BUDGET: budget, DELTA: delta}
        return replace(result, metrics={**within, NOISE: noise})

    def _without_terms(self, task: Train, result: Trained) -> Trained:
        """Return an update whose noise is its client's own affair, as it is believed."""
        if NOISE not in result.metrics:
            return result
        noise = min(max(0.0, result.metrics[NOISE]), self._room(self._length(task, result)))
        return replace(result, metrics={**result.metrics, NOISE: noise})

    def _room(self, length: float) -> float:
        """Return the most noise in an update of some length: P normal numbers have about the length sqrt(P)."""
        return max(0.0, 2 * length / math.sqrt(self.size))

    @property
    def _normal(self) -> float:
        """How long a draw of P standard normal numbers is at most, but for one in 10^10 (Laurent, Massart 2000, lemma
        1).
        """
        return math.sqrt(self.size + 2 * math.sqrt(self.size * SURELY) + 2 * SURELY)

    def _length(self, task: Train, result: Trained) -> float:
        """Return the least length of an update that arrives like this: models are rounded, on both ways."""
        start = task.start.to(result.row.device)
        step, model = (
            float(torch.linalg.vector_norm(x, dtype=torch.float64)) for x in (result.row - start, result.row)
        )
        return step / 1.001 - model * (2**-9 if self.half else 2**-22)
