"""A pot that is shared out once, after the last round: by what each client's updates were worth, and for proven work.

This rule is hanse's own. Whoever wants the joint model puts up the pot. Clients stake nothing, so nobody ends below
what it had, and nobody can leave with what a later round would have taken back. The pot is the same whatever values
come out, so that only differences between clients matter.

Values of few rounds say little about who is worth more. Before they are paid, those above 0 are drawn toward their
mean, as far as their errors may explain that they differ (:func:`hanse.games.shares.shrunken`). If they cannot be told
apart at all, all of them get the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from hanse.core.entry import MINT, TOKEN, Transaction, pool
from hanse.core.entry import client as account
from hanse.core.entry import tokens as say
from hanse.core.part import Context, PostedRound, Settlement, SettlePart, State, Unproved, View
from hanse.core.table import Floats
from hanse.core.telling import BeforeJoining, Check, Kind, Telling, Terms
from hanse.games.jackknife import interval_errors
from hanse.games.shares import shares
from hanse.mechanisms.by_value import rounded, valued_seats
from hanse.mechanisms.carried import CarriedValues

POT = pool("pot")


@dataclass(frozen=True)
class Pot(SettlePart):
    """Shares out a pot after the last round, by the summed values of the mechanism's value part.

    A client whose summed values are 0 or less gets nothing for them. A part of the pot may be for work, whatever it was
    worth: each update that was accepted, of a client that proved that it trained, earns the same. What nobody earned
    goes back.

    Attributes:
        tokens: the pot.
        for_work: the share of the pot that is for proven work. It needs proof of training (``[evidence] training``),
            since otherwise an update that says nothing would earn it.

    Examples:
        >>> from hanse.runs.rehearsal import rehearse
        >>> part, view, state = rehearse({"name": "fedavg", "value": "path", "settle": "pot"}).before("settle")
        >>> settlement, state = part.settle(view, state)
        >>> settlement.transactions, state["work"].tolist()  # nothing moves before the end
        ((), [1, 1, 1, 1])
    """

    needs = frozenset({"values", "weights"})
    accepts = frozenset({"sums"})
    tokens: Annotated[float, Field(ge=1e-6, le=1e9)] = 100.0
    for_work: Annotated[float, Field(ge=0, le=1)] = 0.0

    def __post_init__(self) -> None:
        """Need proof of training if work is paid."""
        if self.for_work > 0:
            object.__setattr__(self, "needs", self.needs | {"proofs"})

    @property
    def units(self) -> int:
        """The pot in units."""
        return round(self.tokens * TOKEN)

    def init(self, context: Context) -> State:
        """Return the state in which nobody was worth anything: ``worth [N]``, ``variance [N]`` of the values'
        estimation, ``without [N, B]`` (without each block of samples), ``work [N]`` and whether the pot is ``filled``.
        """
        n = context.num_clients
        return {
            "worth": np.zeros(n), "variance": np.zeros(n), "without": np.zeros((n, 0)),
            "work": np.zeros(n, np.int64), "filled": 0,
        }  # fmt: skip

    def settle(self, view: View, state: State) -> tuple[Settlement, State]:
        """Return what fills the pot ("open" of the first round) or shares it out ("end"); "close" adds up values."""
        if view.stage == "open":
            if state["filled"]:
                return Settlement(), state
            fill = Transaction("pot", "pot", ((MINT, -self.units), (POT, self.units)), "the pot, from outside")
            return Settlement(transactions=(fill,)), {**state, "filled": 1}
        if view.stage == "close":
            return Settlement(), self.added(view, state)
        if not state["filled"]:
            return Settlement(), state
        amounts = self.amounts(state)
        left = self.units - sum(amounts)
        paid = [(account(c), units) for c, units in enumerate(amounts) if units]
        back = [(MINT, left)] if left else []
        done = Transaction("shares", "shares", ((POT, -self.units), *paid, *back), "shares of the pot")
        return Settlement(transactions=(done,)), {**state, "filled": 0}

    def added(self, view: View, state: State) -> State:
        """Return the state with a round's values, and the work that was proven in it."""
        clients, values = valued_seats(view)
        size = max(len(state["worth"]), int(clients.max(initial=-1)) + 1)
        now = CarriedValues.of(np.arange(size), clients, values)
        blocks = max(now.without.shape[1], state["without"].shape[1])
        unknown = np.where((now.worth != 0) & (now.without.shape[1] < 2), np.inf, 0.0)
        unproved = view.get(Unproved)
        work = np.bincount(clients, minlength=size) > 0
        if unproved is not None:
            work[unproved.clients] = False
        return {
            **state,
            "worth": _grown(state["worth"], size) + now.worth,
            "variance": _grown(state["variance"], size) + now.errors**2 + unknown,
            "without": _grown(state["without"], size, blocks) + _grown(now.without, size, blocks),
            "work": _grown(state["work"], size) + work,
        }

    def amounts(self, state: State) -> list[int]:
        """Return what each client gets, in units ``[N]``: together the pot, less what nobody earned."""
        work, worth = state["work"], state["worth"]
        for_work = round(self.for_work * self.units)
        by_work = work / work.sum() if work.any() else np.zeros(len(work))
        by_worth = shares(worth, errors_of(state))
        found = for_work * by_work + (self.units - for_work) * by_worth
        whole = (for_work if work.any() else 0) + (self.units - for_work if by_worth.any() else 0)
        return rounded([*found.tolist(), -float(whole)])[:-1] if whole else [0] * len(found)

    def tells(self, slots: frozenset[str]) -> Telling:
        """Return what the pot and its shares are called in reports."""
        work = f" {self.for_work:.0%} of it is for proven work." if self.for_work else ""
        return Telling(
            f"After the last round it gets a share of {self.tokens:g} tokens by what its updates were worth.{work}",
            f"A pot of {self.tokens:g} tokens is shared out after the last round by what updates were worth.{work}",
            "The pot",
            (),
            (Kind("pot", "the pot, from outside"), Kind("shares", "shares of the pot")),
        )

    def checks(self, rounds: Iterable[PostedRound], parts: Mapping[str, Any]) -> Iterator[Check]:
        """Yield whether the pot came in and went out once, and nobody got a share for nothing."""
        meaning = "it went to those whose updates were worth something, or who proved that they worked"
        yield Check.of("pot", meaning, self._wrong(rounds))

    def _wrong(self, rounds: Iterable[PostedRound]) -> Iterator[tuple[int, str]]:
        """Yield what is wrong in each round, "" if nothing."""
        worth = dict[str, float]()
        for r in rounds:
            moved = {t.kind: dict(t.postings) for t in r.posted}
            first = "pot" in moved and moved["pot"] == {MINT: -self.units, POT: self.units}
            if not r.ended:
                for client, value in zip(r.arrays.get("answered", ()), r.arrays.get("value", ()), strict=False):
                    worth[account(int(client))] = worth.get(account(int(client)), 0.0) + float(np.nan_to_num(value))
                yield r.number, "" if set(moved) <= {"pot"} and first == bool(moved) else "the pot did not come in"
                continue
            out = moved.get("shares", {})
            paid = {name: units for name, units in out.items() if name not in (POT, MINT)}
            if out.get(POT, 0) != -self.units or any(units < 0 for units in (*paid.values(), out.get(MINT, 0))):
                yield r.number, f"{out.get(POT, 0)} units left the pot of {self.units}"
            else:
                idle = [name for name in paid if self.for_work == 0 and worth.get(name, 0.0) <= 0]
                yield r.number, f"{idle[0]} got a share without any worth" if idle else ""

    def terms(self, joining: BeforeJoining) -> Terms:
        """Return what a client that considers joining can get; it can lose nothing."""
        return Terms(
            ("Nothing: the pot comes from outside.",),
            (f"A share of {say(self.units)} tokens, once, after the last round.",),
            ("How much its updates will be worth compared with others'.",),
            0,
        )


def errors_of(state: State) -> Floats:
    """Return the standard errors ``[N]`` of summed values, from the draw of samples and from the estimation.

    With other samples all values would be higher, or all lower, which tells nobody apart. So it is the error of the
    difference from the mean; or the value's own, where that is smaller: who sends next to nothing has next to none, and
    is not drawn to the mean. Infinite: not known.
    """
    without = state["without"]
    if without.shape[1] < 2:
        return np.full(len(without), np.inf)
    apart = without - without[state["worth"] > 0].mean(axis=0) if (state["worth"] > 0).any() else without
    drawn = np.minimum(interval_errors(apart), interval_errors(without))
    return np.asarray(np.sqrt(drawn**2 + state["variance"]))


def _grown(array: Any, size: int, blocks: int | None = None) -> Any:
    """Return ``array [n]`` or ``[n, b]`` with zeros up to ``size`` rows and ``blocks`` columns."""
    wide = [] if blocks is None else [(0, blocks - array.shape[1])]
    return np.pad(array, [(0, size - len(array)), *wide])
