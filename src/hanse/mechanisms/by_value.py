"""Payment by value: clients that train pay each other, by how far the values of their updates lie from the mean.

This rule is hanse's own. Payments are linear in the values, so a member loses by an update what it gains by the
opposite one. A member that sends nothing pays the mean, and nobody is paid before it has delivered.

A stake for each round limits what a member can gain or lose, and the limit is on its *sum over the rounds*
(:func:`within`). If it were on each round alone, a member whose update costs the others fifty stakes in one round and
brings five in the next would lose one stake and gain one. What the limit cuts is therefore kept, and counts in later
rounds; what was gained before can be lost again. So of members that train in the same rounds, one with a higher sum of
values never has less. The limit holds for gains as well as losses. Two keys that send d + z and -z get together what d
alone brings, as long as nobody is at a limit. At limits, which each key has, splitting d can bring more (one key is cut
at its stake, two at two), but never more than d and nothing would bring without a limit on these two keys.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from hanse.base.factories import TokenAmount
from hanse.base.plain_text import quantity
from hanse.core.entry import TOKEN, Transaction, escrow, in_tokens
from hanse.core.entry import client as account
from hanse.core.part import Context, PostedRound, Settlement, SettlePart, State, View
from hanse.core.table import Floats, Ints
from hanse.core.telling import BeforeJoining, Check, Kind, Telling, Terms
from hanse.mechanisms.value_checks import Payments, other_payee
from hanse.mechanisms.value_sums import ValueSums, matched, valued_seats


@dataclass(frozen=True)
class Staked:
    """Tells later parts which clients put up a stake this round, ``[n]``."""

    clients: Ints


@dataclass(frozen=True)
class ByValue(SettlePart):
    """Pays by the values of the mechanism's value part; works best where the server judges updates, as with "path".

    Clients of one member (``[clients] members``) are one payee, with one stake: what is said of a client here is said
    of the first of them to take part, to which the values of all of them count.

    At the start of a round each present client that can afford it puts ``stake`` tokens into escrow. Once the updates
    are valued, the stakes are returned. A unit of utility has a price, ``rate`` tokens. Each client that was asked to
    train gets it for every unit by which its updates were worth more than the mean, and pays it for every unit below
    the mean. Over all rounds nobody gains or loses more than a stake for each round in which it was asked, and nobody
    pays more than it has. What a client cannot pay is missing to all the others alike; it owes it in later rounds. An
    update that was refused or did not arrive is worth 0. A client without a stake in escrow trains unpaid.

    Attributes:
        rate: tokens per unit of utility, such as a fall of the validation loss by 1.
        stake: the most tokens that anybody can gain or lose over the run for each round in which it trains.
        pays_when: "always", or "sure". "sure" pays only what the 95 % interval of a member's value above the mean
            supports, over all rounds so far. The rest is carried over, and stays unpaid if it never becomes sure.
            Values whose error from the draw of samples is not recorded are never sure.

    Examples:
        >>> from hanse.runs.rehearsal import rehearse
        >>> part, view, state = rehearse({"name": "fedavg", "value": "path", "settle": "by_value"}).before("settle")
        >>> settlement, state = part.settle(view, state)
        >>> sum(units for _, units in settlement.transactions[0].postings)
        0
    """

    needs = frozenset({"values", "weights"})
    accepts = frozenset({"sums"})
    rate: TokenAmount = 10.0
    stake: TokenAmount = 1.0
    pays_when: Literal["always", "sure"] = "always"

    def init(self, context: Context) -> State:
        """Return the state in which nobody was paid.

        It has ``paid [N]``, the units that each client was paid over all rounds; ``rounds [N]``, in how many it was
        asked to train and had a stake; ``over [N]``, the units by which the limit changed what it was paid, below 0 if
        it owes. If only what is sure is paid, it also has what is carried over (:class:`ValueSums`); where clients
        have members, who is paid for whom (:func:`payees`).
        """
        n = context.num_clients
        carried = {} if self.pays_when == "always" else ValueSums.nothing(n).state()
        return {"paid": np.zeros(n, np.int64), "rounds": np.zeros(n, np.int64), "over": np.zeros(n), **carried}

    def figures(self, state: State) -> dict[str, Floats]:
        """Return the tokens that are carried over, ``[N]``."""
        return {"by_value_carried": state["worth"] * self.rate} if "worth" in state else {}

    @property
    def units(self) -> int:
        """The stake in units."""
        return round(self.stake * TOKEN)

    def settle(self, view: View, state: State) -> tuple[Settlement, State]:
        """Return the stakes to put up (at "open"), or the return of the stakes with the payments by value (at "close").

        Args:
            view: the round. The method reads ``stage``, ``present``, ``members``, ``seats``, ``trained``, ``values``,
                ``get(Staked)`` and ``book``.
            state: as :meth:`init` makes it.
        """
        payee, state = payees(view, state)
        if view.stage == "open":
            here = [c for c in np.unique(payee[view.present]).tolist() if view.book.can_pay(account(c), self.units)]
            staked = Staked(np.array(here, np.int64))
            return Settlement(transactions=(put_up(here, self.units),) if here else (), found=(staked,)), state
        staked_here = view.get(Staked)
        if view.stage == "end" or staked_here is None or not len(staked_here.clients):
            return Settlement(), state
        asked = np.zeros(0, np.int64) if view.seats is None else view.seats.client
        players = np.intersect1d(payee[asked], staked_here.clients)
        floor = view.book.floor
        held = np.array([view.book.balance(account(c)) - floor + self.units for c in players.tolist()], np.int64)
        clients, values = valued_seats(view)
        valued = ValueSums.of_round(payee[clients], values, len(payee))
        units, state = self.amounts(players, held, valued, state)
        paid = dict(zip(players.tolist(), units, strict=True))
        total = sum(amount for amount in units if amount > 0) / TOKEN
        arrays = {"by_value_client": players, "by_value_units": np.array(units, np.int64)}
        if view.context.members:
            arrays["by_value_payee"] = payee
        done = given_back(staked_here.clients.tolist(), paid, self.units)
        return Settlement(transactions=(done,), metrics={"by_value/paid": total}, arrays=arrays), state

    def amounts(self, players: Ints, held: Ints, valued: ValueSums, state: State) -> tuple[list[int], State]:
        """Return what each of the ``players [m]`` gets, in units, and the next state.

        Args:
            players: the clients that were asked to train and have a stake, ascending.
            held: ``[m]``, the units that each of them has, its stake included.
            valued: what each client's updates were worth.
            state: the part's state.
        """
        scale, worth, left = self.rate * TOKEN, valued.worth[players], np.zeros(len(players))
        rounds, paid, over = (state[name].copy() for name in ("rounds", "paid", "over"))
        rounds[players] += 1
        most, so_far = rounds[players] * self.units, paid[players]
        low = np.minimum(0, np.maximum(-most - so_far, -held)).astype(float)
        high = (most - so_far).astype(float)
        if self.pays_when == "sure":
            due = ValueSums.of(state).plus(valued.above_mean(players))
            units = rounded((matched(due.sure()[players], low / scale, high / scale) * scale).tolist())
            paid[players] += np.array(units, np.int64)
            left_due = due.less(players, np.array(units) / scale)
            return units, {**state, "rounds": rounds, "paid": paid, **left_due.state()}
        exact = over[players] + scale * (worth - worth.mean()) if len(players) else worth
        if bool((exact < low).any() | (exact > high).any()) or over[players].any():
            # one huge value moves the mean so far that the others' differences would be lost in rounding
            wanted = over[players] + scale * (worth - np.median(worth))
            exact, shift = within(wanted, low, high)
            left = wanted - shift - exact
        units = rounded(exact.tolist())
        paid[players] += np.array(units, np.int64)
        over[players] = left
        return units, {**state, "rounds": rounds, "paid": paid, "over": over}

    def tells(self, slots: frozenset[str]) -> Telling:
        """Return what stakes and payments are called in reports."""
        stake = quantity(f"{self.stake:g}", "token")
        sure = " Only what is sure is paid; the rest is carried over." if self.pays_when == "sure" else ""
        return Telling(
            f"It puts up {stake} a round and gets back the stake with what its update was worth: more if that was more "
            f"than the mean, less if less, and over the rounds at most {stake} a round more or less.{sure}",
            "Those who train pay one another by how far their updates' worth is from the mean.",
            "Payment by value",
            (),
            (Kind("stake", "stakes put up"), Kind("value", "stakes returned, paid by value")),
        )

    def checks(self, rounds: Iterable[PostedRound], parts: Mapping[str, Any]) -> Iterator[Check]:
        """Yield whether stakes and payments follow from the recorded values, within the limits."""
        payments = Payments(self.rate, self.units, self.pays_when == "sure")
        wrong = ((r.number, other_payee(r, set()) or payments.wrong(r)) for r in rounds)
        yield Check.of("by value", "every payment follows from the recorded values, each member's once", wrong)

    def terms(self, joining: BeforeJoining) -> Terms:
        """Return what a client that considers joining can lose."""
        most = min(joining.at_stake, self.units * joining.rounds)
        return Terms(
            (
                f"For each round in which it is asked to train it can lose at most {in_tokens(self.units)}. What "
                "it gained in earlier rounds can be lost again.",
            ),
            (
                f"{quantity(f'{self.rate:g}', 'token')} for each unit by which its updates are worth more than the "
                "mean of the round's, over the run at most as much as it can lose.",
            ),
            ("How much its updates will be worth compared with others'.",),
            most,
        )


def payees(view: View, state: State) -> tuple[Ints, State]:
    """Return which client is paid for each client's updates, ``[N]``, and the next state, which remembers that.

    Each client is paid itself, unless it shares a member (:attr:`hanse.core.part.View.members`) with others: then the
    first of them to take part is paid for all. So nobody gains by splitting what it sends among several keys. A client
    that no member is named for is paid itself, whatever it calls itself.

    Args:
        view: the round. The function reads ``stage``, ``members`` and the context.
        state: the part's state: at "open" of a round with members, ``payee [N]`` and ``joined`` are added.
    """
    payee = np.arange(view.context.num_clients)
    if view.stage != "open" or not view.context.members:
        return state.get("payee", payee), state
    joined = json.loads(state.get("joined", "{}"))
    for client, member in view.members.items():
        if member in view.context.members.values() and joined.get(str(client)) != member:
            joined.pop(str(client), None)  # who moves to another member is the last of it
            joined[str(client)] = member
    first = dict[str, int]()
    for client, member in joined.items():
        payee[int(client)] = first.setdefault(member, int(client))
    return payee, {**state, "payee": payee, "joined": json.dumps(joined)}


def put_up(clients: Sequence[int], units: int) -> Transaction:
    """Return the transaction by which clients put up their stakes, ``units`` each."""
    moved = tuple(one for c in clients for one in ((account(c), -units), (escrow(c), units)))
    return Transaction("stake", "stake", moved, "stakes, held until the round is valued")


def given_back(clients: Sequence[int], paid: Mapping[int, int], units: int) -> Transaction:
    """Return the transaction that returns stakes of ``units`` each, and adds what each client is ``paid``."""
    back = []
    for c in clients:
        back += [(escrow(c), -units)]
        back += [(account(c), kept)] if (kept := units + paid.get(c, 0)) else []
    return Transaction("by value", "value", tuple(back), "stakes, and what updates were worth")


def within(wanted: Floats, low: Floats, high: Floats) -> tuple[Floats, float]:
    """Return the amounts of sum 0 that lie within limits and are otherwise ``wanted [m]`` less one number for all.

    Args:
        wanted: ``[m]``, what each should get.
        low: ``[m]``, the least that each can get, at most 0.
        high: ``[m]``, the most that each can get, at least 0.

    Returns:
        The amounts ``[m]``, and that number.

    Examples:
        >>> within(np.array([0.3, -0.6, 0.3]), np.full(3, -0.4), np.full(3, 0.4))[0].round(3).tolist()
        [0.2, -0.4, 0.2]
    """
    span, total = float(high.max() - low.min()), 0.0
    # the second time without what huge numbers lose in rounding: how far beyond a limit somebody is no longer matters
    for _ in range(2):
        ends = np.sort(np.concatenate([wanted - low, wanted - high]))
        first, last = 0, len(ends) - 1  # the sum of the amounts falls as the number rises, and passes 0 in between
        while last - first > 1:
            middle = (first + last) // 2
            above = np.clip(wanted - ends[middle], low, high).sum() > 0
            first, last = (middle, last) if above else (first, middle)
        about = wanted - (ends[first] + ends[last]) / 2
        free = (about > low) & (about < high)
        limited = float(np.where(about <= low, low, high)[~free].sum())
        shift = float((wanted[free].sum() + limited) / free.sum()) if free.any() else float(ends[first])
        wanted, total = np.clip(wanted - shift, low - span, high + span), total + shift
    return np.clip(wanted, low, high), total


def rounded(amounts: Sequence[float], total: int = 0) -> list[int]:
    """Round amounts to whole units that sum to ``total``, each up or down, by the largest remainder.

    Args:
        amounts: what is shared out; the amounts sum to ``total`` but for the error of floats. Amounts that are equal to
            three digits are tied, and the earlier is first.
        total: the sum of the result.

    Examples:
        >>> rounded([1.5, -0.5, -1.0]), rounded([0.6, 2.4], 3)
        ([2, -1, -1], [1, 2])
    """
    exact = [round(amount, 3) for amount in amounts]
    units = [math.floor(amount) for amount in exact]
    if sum(units) > total:  # of thousands of amounts, what the three digits added comes to whole units
        exact, units = list(amounts), [math.floor(amount) for amount in amounts]
    order = sorted(range(len(units)), key=lambda i: (units[i] - exact[i], i))
    missing = min(max(total - sum(units), 0), len(units))
    for i in order[:missing]:
        units[i] += 1
    if rest := total - sum(units):  # floats of huge sums lost as much
        units[max(order, key=exact.__getitem__)] += rest
    return units
