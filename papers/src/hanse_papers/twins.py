"""Null twins: mechanisms with another's interface and cost but without its game. They test whether the game helps.

Twins reuse the mechanisms' parts. GTFLAT's twin needs no class here: it is GTFLAT with its random start and no
generations (``gtflat/twins.toml``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from hanse.base.factories import Weight, options_of
from hanse.core.part import (
    Aggregate,
    AggregatePart,
    Context,
    Group,
    Mechanism,
    Settlement,
    SettlePart,
    State,
    ValuePart,
    Values,
    View,
)
from hanse.core.port import Request
from hanse.core.telling import BeforeJoining, Telling, Terms
from hanse.games.market import Market
from hanse.mechanisms.ipfl import Offers, market_of
from hanse.mechanisms.pifl import Tokens
from hanse.mechanisms.value import GTG
from hanse.mechanisms.weigh import sample_shares
from hanse_papers.authors import AuthorsMarket


@dataclass(frozen=True)
class CappedShares(AggregatePart):
    """Weights by each client's share of the samples, capped and then normalised, which evens out weights without a
    game.

    Attributes:
        most: the cap.

    Examples:
        >>> from hanse.runs.rehearsal import rehearse
        >>> (group,) = rehearse("fedavg").groups
        >>> CappedShares(most=0.001).aggregate(group, {}).weights.tolist()
        [0.25, 0.25, 0.25, 0.25]
    """

    most: Annotated[float, Field(gt=0, le=1)] = 0.25

    def aggregate(self, group: Group, state: State) -> Aggregate:
        """Return the weights ``[m]``.

        Args:
            group: the seats of a row. The method reads ``num_samples``.
            state: the part's state, always ``{}``, since this part keeps none.
        """
        shares = np.minimum(sample_shares(group.num_samples), self.most)
        return Aggregate(shares / shares.sum())


@dataclass(frozen=True)
class ShuffledValues(ValuePart):
    """GreedyFed's values, shuffled among the clients of the round.

    Attributes:
        eps: GTG-Shapley's truncation threshold (:class:`hanse.mechanisms.value.GTG`).
        stop: when GTG-Shapley's sampling ends (:class:`hanse.mechanisms.value.GTG`).

    Examples:
        >>> from hanse.runs.rehearsal import rehearse
        >>> _, view, state = rehearse("greedyfed").before("value")
        >>> dealt, _ = ShuffledValues().value(view, state)
        >>> earned, _ = GTG().value(view, state)
        >>> sorted(dealt.per_seat) == sorted(earned.per_seat)
        True
    """

    needs = GTG.needs
    accepts = GTG.accepts
    eps: Weight = 1e-4
    stop: Literal["every", "mean"] = "every"

    def value(self, view: View, state: State) -> tuple[Values, State]:
        """Return the values in random order.

        Args:
            view: the round, as :class:`hanse.mechanisms.value.GTG` reads it.
            state: the part's state, always ``{}``, since this part keeps none.
        """
        valued, state = GTG(self.eps, stop=self.stop).value(view, state)
        order = view.draw("twin: whose value is whose").permutation(len(valued.per_seat))
        return Values(valued.per_seat[order], metrics=valued.metrics), state


@dataclass(frozen=True)
class ShuffledRewards(SettlePart):
    """PI-FL's tokens, with each tier's rewards shuffled among the clients that trained it.

    Eqs (12) to (14) divide a pool by ranks. Here, each client gets the rank of another client, drawn at random. Prices,
    pools and amounts are PI-FL's, and the scheduler sees the true contributions.

    Attributes:
        tell: what clients are told about what they got (:class:`hanse.mechanisms.pifl.Tokens`).

    Examples:
        >>> from hanse.runs.rehearsal import rehearse
        >>> _, view, state = rehearse("pifl", 2).before("settle")
        >>> settlement, _ = ShuffledRewards().settle(view, state)
        >>> all(sum(units for _, units in one.postings) == 0 for one in settlement.transactions)
        True
    """

    needs = Tokens.needs
    gives = Tokens.gives
    tell: Literal["net", "rewards"] = "rewards"

    @property
    def of(self) -> Tokens:
        """The PI-FL part that does everything else."""
        return Tokens(tell=self.tell)

    def init(self, context: Context) -> State:
        """Return the state of :class:`hanse.mechanisms.pifl.Tokens`."""
        return self.of.init(context)

    def asks(self, view: View, state: State) -> Sequence[Request]:
        """Ask what PI-FL asks."""
        return self.of.asks(view, state)

    def settle(self, view: View, state: State) -> tuple[Settlement, State]:
        """Return PI-FL's settlement with shuffled ranks.

        Args:
            view: the round, as PI-FL reads it.
            state: as :meth:`init` makes it.
        """
        dealt = {**state, "worth": state["worth"].copy(), "sat": state["sat"].copy()}
        draw = view.draw(f"twin: whose reward is whose, {view.stage}")
        for k in set(state["tier"].tolist()):
            there = ((state["tier"] == k) & state["worked"]).nonzero()[0]
            other = there[draw.permutation(len(there))]
            dealt["worth"][there] = state["worth"][other]
            dealt["sat"][state["client"][there], k] = state["sat"][state["client"][other], k]
        settlement, _ = self.of.settle(view, dealt)
        return settlement, state

    def learn(self, outcome: View, state: State) -> State:
        """Keep what PI-FL keeps."""
        return self.of.learn(outcome, state)

    def tells(self, slots: frozenset[str]) -> Telling:
        """Return what PI-FL's tokens are called in reports."""
        return self.of.tells(slots)

    def terms(self, joining: BeforeJoining) -> Terms | None:
        """Return PI-FL's terms."""
        return self.of.terms(joining)


@dataclass(frozen=True)
class RandomMarket(AuthorsMarket):
    """iPFL with a random graph: at each market, clients swap places at random.

    Each client takes another's distances, size, cost and eagerness. So the graph keeps its degrees, and the same money
    changes hands, but between random clients. The options are those of :class:`hanse_papers.authors.AuthorsMarket`.

    Examples:
        >>> RandomMarket(lam=1.0).mu
        0.2
    """

    def _offers(self, view: View, state: State) -> Offers:
        """Return iPFL's market with the clients in random places."""
        offers = super()._offers(view, state)
        market, order = offers.market, view.draw("twin: whose place").permutation(offers.market.size)
        mixed = Market.of(
            market.distance[np.ix_(order, order)],
            market.sizes[order],
            market.costs[order],
            market.eagerness[order],
            market.lam,
        )
        return replace(offers, market=mixed)


@options_of(RandomMarket, "lam eta bounded keep_best stop pull_alone last_market")
def ipfl_at_random(part: RandomMarket) -> Mechanism:
    """iPFL with :class:`RandomMarket` as its market."""
    return market_of("ipfl", part)
