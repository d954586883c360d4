"""A pot that is shared out once, after the last round: by what each client's updates were worth, and for proven work.

This rule is hanse's own. Whoever wants the joint model puts up the pot. Clients stake nothing, so nobody ends below
what it had, and nobody can leave with what a later round would have taken back. The pot is the same whatever values
come out, so that only differences between clients matter.

Values of few rounds say little about who is worth more. Before they are paid, those above 0 are drawn together as far
as their errors may explain that they differ (:func:`hanse.games.shares.shares`): clients that cannot be told apart get
the same. What is sent at random can be worth something by chance; proofs of training end that.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from hanse.base.factories import Positive, Share, TokenAmount
from hanse.base.plain_text import quantity
from hanse.core.entry import MINT, TOKEN, Transaction, in_tokens, pool
from hanse.core.entry import client as account
from hanse.core.part import Context, PostedRound, Settlement, SettlePart, State, Unproved, View, set_words
from hanse.core.table import Floats
from hanse.core.telling import BeforeJoining, Check, Kind, Telling, Terms
from hanse.games.jackknife import jackknife_errors
from hanse.games.shares import shares
from hanse.mechanisms.by_value import payees, rounded
from hanse.mechanisms.value_checks import other_payee
from hanse.mechanisms.value_sums import ValueSums, valued_seats

POT = pool("pot")


@dataclass(frozen=True)
class Pot(SettlePart):
    """Shares out a pot after the last round, by the summed values of the mechanism's value part.

    Clients of one member (``[clients] members``) are one payee: their values are summed before anything else, a round
    in which one of them proved work counts once, and the first of them to take part is paid.

    A client whose summed values are 0 or less gets nothing for them. A part of the pot may be for work, whatever it was
    worth: each update that was accepted, of a client that proved that it trained, earns the same. What nobody earned
    goes back.

    Attributes:
        tokens: the pot.
        for_work: the share of the pot that is for proven work. It needs proof of training (``[evidence] training``),
            since otherwise an update that says nothing would earn it.
        vests: after how many rounds of work all that updates were worth is paid; of a client that worked in fewer, say
            since it left, as many parts of it.

    Examples:
        >>> from hanse.runs.rehearsal import rehearse
        >>> part, view, state = rehearse({"name": "fedavg", "value": "path", "settle": "pot"}).before("settle")
        >>> settlement, state = part.settle(view, state)
        >>> settlement.transactions, state["work"].tolist()  # nothing moves before the end
        ((), [1, 1, 1, 1])
    """

    needs = frozenset({"values", "weights", "positive"})
    accepts = frozenset({"sums"})
    tokens: TokenAmount = 100.0
    for_work: Share = 0.0
    vests: Positive = 1

    def __post_init__(self) -> None:
        """Need proof of training if work is paid."""
        if self.for_work > 0:
            set_words(self, needs=self.needs | {"proofs"})

    @property
    def units(self) -> int:
        """The pot in units."""
        return round(self.tokens * TOKEN)

    def init(self, context: Context) -> State:
        """Return the state in which nobody was worth anything: :class:`ValueSums`, ``work [N]`` and whether the pot is
        ``filled``; where clients have members, who is paid for whom (:func:`hanse.mechanisms.by_value.payees`).
        """
        n = context.num_clients
        return {**ValueSums.nothing(n).state(), "work": np.zeros(n, np.int64), "filled": 0}

    def settle(self, view: View, state: State) -> tuple[Settlement, State]:
        """Return what fills the pot ("open" of the first round) or shares it out ("end"); "close" adds up values."""
        payee, state = payees(view, state)
        if view.stage == "open":
            if state["filled"]:
                return Settlement(), state
            return Settlement(transactions=self.filled()), {**state, "filled": 1}
        if view.stage == "close":
            clients, values = valued_seats(view)
            unproved = view.get(Unproved)
            proved = clients if unproved is None else np.setdiff1d(clients, unproved.clients)
            everyone = np.arange(len(state["work"]))
            sums = ValueSums.of(state).plus(ValueSums.of_round(payee[clients], values, len(payee)))
            worked = np.unique(payee[proved])
            work = state["work"] + np.isin(everyone, worked)
            return Settlement(arrays={"pot_work": worked}), {**state, **sums.state(), "work": work}
        return Settlement(transactions=self.paid_out(state)), {**state, "filled": 0}

    def filled(self) -> tuple[Transaction, ...]:
        """Return the transaction that fills the pot."""
        return (Transaction("pot", "pot", ((MINT, -self.units), (POT, self.units)), "the pot, from outside"),)

    def paid_out(self, state: State) -> tuple[Transaction, ...]:
        """Return the transactions that empty the pot: for worth, for work, and back what nobody earned."""
        if not state["filled"]:
            return ()
        work, for_work = state["work"], round(self.for_work * self.units)
        worth = shares(state["worth"], errors_of(state)) * np.minimum(1.0, work / self.vests)
        parts = {
            "shares": (self.units - for_work, worth, "by what updates were worth"),
            "work": (for_work, work / max(1, work.sum()), "for proven work"),
        }
        found = []
        for kind, (units, share, said) in parts.items():
            unearned = units * max(0.0, 1.0 - float(share.sum()))
            *earned, back = rounded([*(units * share), unearned], units)
            to = [(account(c), n) for c, n in enumerate(earned) if n] + [(MINT, back)] * (back != 0)
            if units:
                found.append(Transaction(kind, kind, ((POT, -units), *to), f"shares of the pot, {said}"))
        return tuple(found)

    def tells(self, slots: frozenset[str]) -> Telling:
        """Return what the pot and its shares are called in reports."""
        pot = quantity(f"{self.tokens:g}", "token")
        work = f" {self.for_work:.0%} of it is for proven work." if self.for_work else ""
        work += f" Who trained in fewer than {self.vests} rounds gets as many parts of its share." * (self.vests > 1)
        return Telling(
            f"After the last round it gets a share of {pot} by what its updates were worth.{work}",
            f"A pot of {pot} is shared out after the last round by what updates were worth.{work}",
            "The pot",
            (),
            (
                Kind("pot", "the pot, from outside"),
                Kind("shares", "shares of the pot, by worth"),
                Kind("work", "shares of the pot, for work"),
            ),
        )

    def checks(self, rounds: Iterable[PostedRound], parts: Mapping[str, Any]) -> Iterator[Check]:
        """Yield whether each member was paid once."""
        were = set[int]()  # of a member that a client has left since, the pot has what it earned there
        yield Check.of("pot", "each member has one payee", ((r.number, other_payee(r, were)) for r in rounds))

    def terms(self, joining: BeforeJoining) -> Terms:
        """Return what a client that considers joining can get; this rule takes nothing."""
        work = f" {self.for_work:.0%} of it goes to proven work, the same for each update." if self.for_work else ""
        work += f" Of its share it gets one part in {self.vests} for each round of work." * (self.vests > 1)
        return Terms(
            (),
            (f"A share of {in_tokens(self.units)} from outside, once, after the last round.{work}",),
            ("How much its updates will be worth compared with others'.",),
            0,
        )


def errors_of(state: State) -> Floats:
    """Return the standard errors ``[N]`` of summed values, from the draw of samples (plain ones: how far values are
    drawn together goes by variances, and not by intervals) and from the estimation, of which some parts know a bound.

    With other samples all values would be higher, or all lower, which tells nobody apart. So it is the error of the
    difference from the mean of those above 0; or the value's own, where that is smaller: who sends next to nothing has
    next to none. Infinite: not known.
    """
    without, worth = state["without"], state["worth"]
    if without.shape[1] < 2:
        return np.full(len(worth), np.inf)
    known = np.isfinite(without).all(axis=1)
    counted = known & (worth > 0)
    apart = without - without[counted].mean(axis=0) if counted.any() else without
    drawn = np.fmin(jackknife_errors(apart), jackknife_errors(without))
    return np.asarray(np.where(known, np.sqrt(drawn**2 + state["variance"]), np.inf))
