"""Null twins: a mechanism's interface and cost without its game, for claims that the game is what helps.

They are made of the mechanisms' own parts. GTFLAT's twin needs none of these: it is GTFLAT with its random start and no
generation (``gtflat/twins.toml``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from hanse.base.factories import Weight
from hanse.core.part import Context, Settlement, SettlePart, State, ValuePart, Values, View
from hanse.core.port import Request
from hanse.core.telling import Joining, Telling, Terms
from hanse.mechanisms.pifl import Tokens
from hanse.mechanisms.value import GTG


@dataclass(frozen=True)
class ShuffledValues(ValuePart):
    """GreedyFed's values, estimated as they are and then dealt out at random among the clients of the round.

    Attributes:
        eps: GTG-Shapley's truncation threshold (:class:`hanse.mechanisms.value.GTG`).
        stop: when its sampling ends, by the same part.

    Examples:
        >>> from hanse.runs.rehearsal import rehearse
        >>> _, view, state = rehearse("greedyfed").before("value")
        >>> dealt, _ = ShuffledValues().value(view, state)
        >>> earned, _ = GTG().value(view, state)
        >>> sorted(dealt.per_seat) == sorted(earned.per_seat)
        True
    """

    needs = GTG.needs
    gives = GTG.gives
    eps: Weight = 1e-4
    stop: Literal["every", "mean"] = "every"

    def value(self, view: View, state: State) -> tuple[Values, State]:
        """Return the values in random order.

        Args:
            view: the round, as :class:`hanse.mechanisms.value.GTG` reads it.
            state: of this part, which keeps none: ``{}``.
        """
        found, state = GTG(self.eps, stop=self.stop).value(view, state)
        order = view.draw("twin: whose value is whose").permutation(len(found.per_seat))
        return Values(found.per_seat[order], metrics=found.metrics), state


@dataclass(frozen=True)
class ShuffledRewards(SettlePart):
    """PI-FL's tokens, with each tier's rewards dealt out at random among those who trained it.

    The ranks in contribution and participation, by which eqs (12) to (14) share a pool, are those of another client.
    Prices, pools and the amounts paid are PI-FL's, and the scheduler sees the true contributions.

    Attributes:
        tell: what clients are told of what they got (:class:`hanse.mechanisms.pifl.Tokens`).

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
        """The part that does everything else."""
        return Tokens(tell=self.tell)

    def init(self, context: Context) -> State:
        """Return the state of :class:`hanse.mechanisms.pifl.Tokens`."""
        return self.of.init(context)

    def asks(self, view: View, state: State) -> Sequence[Request]:
        """Ask what PI-FL asks."""
        return self.of.asks(view, state)

    def settle(self, view: View, state: State) -> tuple[Settlement, State]:
        """Return PI-FL's settlement, its ranks dealt out at random.

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

    def terms(self, joining: Joining) -> Terms | None:
        """Return PI-FL's terms."""
        return self.of.terms(joining)
