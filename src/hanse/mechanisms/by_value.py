"""Payment by value: clients that train pay each other, by how far the values of their updates lie from the mean.

This rule is hanse's own. Payments are linear in the values, so a member loses by an update what it gains by the
opposite one. Two keys that send d + z and -z therefore get together what d alone brings. If a stake limits the round,
they get at most what d would bring without that limit. A member that sends nothing pays the mean, and nobody is paid
before it has delivered. The stake limits gains as well as losses. If the stake limited only losses, a cheat could send
updates thirty times too large, good in one round and harmful in the next. It could then gain all others' stakes and
lose only one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from hanse.core.entry import TOKEN, Transaction, escrow
from hanse.core.entry import client as account
from hanse.core.entry import tokens as say
from hanse.core.part import Context, Settlement, SettlePart, State, View
from hanse.core.table import Floats, Ints
from hanse.core.telling import Joining, Kind, Telling, Terms
from hanse.mechanisms.carried import Carried, Valued, sure_transfers

Tokens = Annotated[float, Field(ge=1e-6, le=1e9)]


@dataclass(frozen=True)
class Staked:
    """Tells later parts which clients put up a stake this round, ``[n]``."""

    clients: Ints


@dataclass(frozen=True)
class ByValue(SettlePart):
    """Pays by the values of the mechanism's value part; works best where the server judges updates, as with "path".

    At the start of a round each present client that can afford it puts ``stake`` tokens into escrow. Once the updates
    are valued, the stakes are returned. A unit of utility has a price, ``rate`` tokens. Each client that was asked to
    train gets it for every unit by which its updates were worth more than the mean, and pays it for every unit below
    the mean. If anybody would gain or lose more than a stake, all amounts of the round shrink by the same factor. An
    update that was refused or did not arrive is worth 0. A client without a stake in escrow trains unpaid.

    Attributes:
        rate: tokens per unit of utility, such as a fall of the validation loss by 1.
        stake: the most tokens that anybody can gain or lose in a round.
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

    needs = frozenset({"values"})
    gives = frozenset({"sums"})
    rate: Tokens = 10.0
    stake: Tokens = 1.0
    pays_when: Literal["always", "sure"] = "always"

    def init(self, context: Context) -> State:
        """Return the initial state, in which nothing is carried over. A rule that always pays keeps no state."""
        return {} if self.pays_when == "always" else Carried.nothing(context.num_clients).state()

    def figures(self, state: State) -> dict[str, Floats]:
        """Return the tokens that are carried over, ``[N]``."""
        return {"by_value_carried": state["due"] * self.rate} if state else {}

    @property
    def units(self) -> int:
        """The stake in units."""
        return round(self.stake * TOKEN)

    def settle(self, view: View, state: State) -> tuple[Settlement, State]:
        """Return the stakes to put up (at "open"), or the return of the stakes with the payments by value (at "close").

        Args:
            view: the round. The method reads ``stage``, ``present``, ``seats``, ``trained``, ``values``,
                ``get(Staked)`` and ``book``.
            state: the part's state: what is carried over from earlier rounds, or ``{}``.
        """
        if view.stage == "open":
            here = [c for c in view.present.tolist() if view.book.can_pay(account(c), self.units)]
            staked = Staked(np.array(here, np.int64))
            return Settlement(transactions=(put_up(here, self.units),) if here else (), found=(staked,)), state
        staked_here = view.get(Staked)
        if view.stage == "end" or staked_here is None or not len(staked_here.clients):
            return Settlement(), state
        asked = np.zeros(0, np.int64) if view.seats is None else view.seats.client
        players = np.intersect1d(asked, staked_here.clients)
        units, state = self.amounts(players, *_seats(view), state)
        paid = dict(zip(players.tolist(), units, strict=True))
        total = sum(units for units in paid.values() if units > 0) / TOKEN
        arrays: dict[str, NDArray[np.int64]] = {
            "by_value_client": players,
            "by_value_units": np.array([paid[c] for c in players.tolist()], np.int64),
        }
        done = given_back(staked_here.clients.tolist(), paid, self.units)
        return Settlement(transactions=(done,), metrics={"by_value/paid": total}, arrays=arrays), state

    def amounts(self, players: Ints, clients: Ints, arrays: Mapping[str, Any], state: State) -> tuple[list[int], State]:
        """Return what each of the ``players [m]`` gets, in units, and the next state.

        Args:
            players: the clients that were asked to train and have a stake, ascending.
            clients: ``[S]``, the clients of the seats that were valued.
            arrays: ``value [S]`` and, where they are known, ``value_error [S]`` and ``value_without_block [S, B]``.
            state: the part's state.
        """
        valued = Valued.of(players, clients, arrays)
        if self.pays_when == "always" or not len(players):
            return transfers(valued.worth, self.rate, self.units), state
        exact, carried = sure_transfers(Carried.of(state), players, valued, self.rate * TOKEN, self.units)
        units = rounded(exact.tolist(), self.units)
        return units, carried.paid(players, np.array(units) / (self.rate * TOKEN)).state()

    def tells(self, slots: frozenset[str]) -> Telling:
        """Return what stakes and payments are called in reports."""
        stake = f"{self.stake:g} token{'s' if self.stake != 1 else ''}"
        sure = _SURE if self.pays_when == "sure" else ""
        return Telling(
            f"It puts up {stake} a round and gets back the stake with what its update was worth: more if that was more "
            f"than the mean, less if less.{sure}",
            "Those who train pay one another by how far their updates' worth is from the mean.",
            "Payment by value",
            (),
            (Kind("stake", "stakes put up"), Kind("value", "stakes returned, paid by value")),
        )

    def terms(self, joining: Joining) -> Terms:
        """Return what a client that considers joining can lose."""
        most = min(joining.at_stake, self.units * joining.rounds)
        return Terms(
            (f"In each round in which it is asked to train it can lose at most {say(self.units)} tokens.",),
            (
                f"{self.rate:g} tokens for each unit by which its updates are worth more than the mean of the round's, "
                "at most as many a round as it can lose.",
            ),
            ("How much its updates will be worth compared with others'.",),
            most,
            self.units,
        )


_SURE = " Only what is sure is paid; the rest is carried over."


def _seats(view: View) -> tuple[Ints, dict[str, Floats]]:
    """Return the clients of the seats that were valued, and what the round's record will have of their values."""
    values = view.values
    if values is None:
        return np.zeros(0, np.int64), {"value": np.zeros(0)}
    found = {"value_error": values.standard_errors, "value_without_block": values.without_block}
    known = {name: array for name, array in found.items() if array is not None}
    return view.trained.seats.client, {"value": values.per_seat, **known}


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


def transfers(worth: Floats, rate: float, most: int) -> list[int]:
    """Return what each of m members gets, in units; the amounts sum to 0 and are from ``-most`` to ``most``.

    Args:
        worth: ``[m]``, what each member's updates were worth.
        rate: tokens per unit of worth.
        most: the most units that anybody can gain or lose.

    Examples:
        >>> transfers(np.array([0.3, 0.1, 0.2]), rate=10.0, most=2_000_000)
        [1000000, -1000000, 0]
        >>> transfers(np.array([0.3, -0.6, 0.0]), rate=10.0, most=2_000_000)  # all shrink alike
        [1600000, -2000000, 400000]
    """
    if len(worth) == 0:
        return []
    apart = worth - worth.mean()
    largest = float(np.abs(apart).max())
    scale = rate * TOKEN if largest * rate * TOKEN <= most else most / largest
    return rounded([amount * scale for amount in apart.tolist()], most)


def rounded(amounts: Sequence[float], most: int) -> list[int]:
    """Round amounts of sum 0 to whole units of sum 0, none larger than ``most`` in size, by the largest remainder."""
    exact = [min(most, max(-most, round(amount, 3))) for amount in amounts]
    units = [math.floor(amount) for amount in exact]
    order = sorted(range(len(units)), key=lambda i: (units[i] - exact[i], i))
    for i in order[: -sum(units)]:  # what rounding left goes to the largest remainders
        units[i] += 1
    return units
