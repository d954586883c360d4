"""What the mint gives to new clients: a grant at once, or in parts (:class:`Vesting`)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hanse.core.entry import MINT, Transaction
from hanse.core.entry import client as account_of
from hanse.core.part import Context, Part, State, View


def grant(client: int, units: int) -> Transaction:
    """Return the transaction that gives a client this much."""
    return Transaction(f"grant/{client}", "grant", ((MINT, -units), (account_of(client), units)))


def part_of(units: int, parts: int, number: int) -> int:
    """Return the units of one part of a grant. Parts sum to the grant and differ by one unit at most.

    Examples:
        >>> [part_of(10, 3, k) for k in range(3)]
        [3, 3, 4]
    """
    return units * (number + 1) // parts - units * number // parts


@dataclass(frozen=True)
class Vesting(Part):
    """Gives grants in parts: the first when a client joins, one more after each round in which its update counted.

    So leaving and coming back under another key gains nothing.

    Attributes:
        units: the whole grant.
        parts: in how many parts a grant is given.
    """

    units: int
    parts: int

    def init(self, context: Context) -> State:
        """Return the state before any grant."""
        return {"given": np.zeros(context.num_clients, np.int64), "worked": np.zeros(context.num_clients, bool)}

    def due(self, view: View, state: State) -> tuple[list[Transaction], State]:
        """Return the parts that present clients get in this round, and the next state."""
        given = state["given"].copy()
        posted = []
        for c in view.present.tolist():
            if given[c] == 0 or (state["worked"][c] and given[c] < self.parts):
                units = part_of(self.units, self.parts, int(given[c]))
                posted += [grant(c, units)] if units else []
                given[c] += 1
        return posted, {**state, "given": given}

    def learn(self, outcome: View, state: State) -> State:
        """Remember whose updates counted."""
        return {**state, "worked": np.isin(np.arange(len(state["worked"])), outcome.trained.seats.client)}
