"""Payment by value: those who train pay one another by how far their updates' worth is from the mean.

No published system's. The rule is linear in the values, so what one member gains by an update it loses by the opposite
one: two keys that send d + z and -z have together what d alone brings, unless a stake limits the round: then they may
have up to what d would bring without the limit. Who sends nothing pays the mean. Nobody gets anything before it has
delivered. The stake limits gains as it limits losses: where only losses were limited, updates thirty times as large as
what was learnt, good in one round and harmful in the next, gained up to the others' stakes together and lost one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from hanse.core.entry import TOKEN, Transaction, escrow
from hanse.core.entry import client as account
from hanse.core.entry import tokens as say
from hanse.core.part import Settlement, SettlePart, State, View
from hanse.core.table import Floats, Ints
from hanse.core.telling import Joining, Kind, Telling, Terms

Tokens = Annotated[float, Field(ge=1e-6, le=1e9)]


@dataclass(frozen=True)
class Staked:
    """Hands on who put up a stake this round, ``[n]``."""

    clients: Ints


@dataclass(frozen=True)
class ByValue(SettlePart):
    """Pays by values, which the mechanism's value part makes: best where the server judges, as with "path".

    At the start of a round each present client that can puts ``stake`` tokens into escrow. Once the updates are valued,
    the stakes go back, and of those who were asked to train each gets ``rate`` tokens for each unit of utility by which
    its updates were worth more than the mean of them, or pays so much. If anybody would gain or lose more than a stake,
    all amounts of the round shrink alike. An update that did not come, or was refused, was worth 0. Who has no stake in
    escrow trains unpaid.

    Attributes:
        rate: tokens for a unit of utility, such as a fall of the validation loss by 1.
        stake: the most tokens that anybody can gain or lose in a round.

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

    @property
    def units(self) -> int:
        """The stake in units."""
        return round(self.stake * TOKEN)

    def settle(self, view: View, state: State) -> tuple[Settlement, State]:
        """Return the stakes that are put up ("open"), or their return with what is paid by value ("close").

        Args:
            view: the round; ``stage``, ``present``, ``seats``, ``trained``, ``values``, ``get(Staked)`` and ``book``
                are read.
            state: of this part, which keeps none: ``{}``.
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
        paid = dict(zip(players.tolist(), transfers(self._worth(view, players), self.rate, self.units), strict=True))
        total = sum(units for units in paid.values() if units > 0) / TOKEN
        arrays: dict[str, NDArray[np.int64]] = {
            "by_value_client": players,
            "by_value_units": np.array([paid[c] for c in players.tolist()], np.int64),
        }
        done = given_back(staked_here.clients.tolist(), paid, self.units)
        return Settlement(transactions=(done,), metrics={"by_value/paid": total}, arrays=arrays), state

    @staticmethod
    def _worth(view: View, players: Ints) -> Floats:
        """Return what each player's updates were worth, ``[m]``: 0 for those that did not come."""
        if view.values is None:
            return np.zeros(len(players))
        return worth_of(players, *view.values.by_client(view))

    def tells(self, slots: frozenset[str]) -> Telling:
        """Return what stakes and payments are called in reports."""
        return Telling(
            f"You put up {self.stake:g} tokens a round and get them back with what your update was worth: more if it "
            "was worth more than the mean, less if less.",
            "Those who train pay one another by how far their updates' worth is from the mean.",
            "Payment by value",
            (),
            (Kind("stake", "stakes put up"), Kind("value", "stakes returned, paid by value")),
        )

    def terms(self, joining: Joining) -> Terms:
        """Return what a client that thinks of joining can lose."""
        most = min(joining.at_stake, self.units * joining.rounds)
        return Terms(
            (f"In each round in which it is asked to train it can lose at most {say(self.units)} tokens.",),
            (
                f"{self.rate:g} tokens for each unit by which its updates are worth more than the mean of the round's, "
                "at most as many a round as it can lose.",
            ),
            ("How much its updates will be worth beside the others'.",),
            most,
            self.units,
        )


def worth_of(players: Ints, clients: Ints, values: Floats) -> Floats:
    """Return what each of the ``players [m]`` is paid for: its own of the ``values`` of ``clients``, 0 if it has none.

    Both client arrays ascend; what is no finite number counts as 0.
    """
    worth, known = np.zeros(len(players)), np.isin(clients, players)
    worth[np.searchsorted(players, clients[known])] = np.nan_to_num(values[known], posinf=0.0, neginf=0.0)
    return worth


def put_up(clients: Sequence[int], units: int) -> Transaction:
    """Return the transaction by which clients put up their stakes of so many units."""
    moved = tuple(one for c in clients for one in ((account(c), -units), (escrow(c), units)))
    return Transaction("stake", "stake", moved, "stakes, held until the round is valued")


def given_back(clients: Sequence[int], paid: Mapping[int, int], units: int) -> Transaction:
    """Return the transaction by which stakes of so many units go back, with what clients are ``paid`` or pay."""
    back = []
    for c in clients:
        back += [(escrow(c), -units)]
        back += [(account(c), kept)] if (kept := units + paid.get(c, 0)) else []
    return Transaction("by value", "value", tuple(back), "stakes, and what updates were worth")


def transfers(worth: Floats, rate: float, most: int) -> list[int]:
    """Return what each of m members gets, in units; the amounts sum to 0 and are from ``-most`` to ``most``.

    Args:
        worth: ``[m]``, what each one's updates were worth.
        rate: tokens for a unit of it.
        most: the units that anybody can gain or lose.

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
    exact = [min(most, max(-most, round(amount * scale, 3))) for amount in apart.tolist()]
    units = [math.floor(amount) for amount in exact]
    order = sorted(range(len(units)), key=lambda i: (units[i] - exact[i], i))
    for i in order[: -sum(units)]:  # what rounding left goes to the largest remainders
        units[i] += 1
    return units
