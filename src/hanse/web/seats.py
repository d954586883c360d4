"""What the seats of a run add up to, client by client, as they come."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from hanse.runs.record import Seat

__all__ = ["Contributor", "Contributors"]

REFUSALS = 20  # the last ones are shown


@dataclass
class Contributor:
    """One client so far: what its updates were worth in sum, how sure that is, the seats it trained in, those that were
    refused, its last round. ``score`` is the cumulative value as the mechanism keeps it, if it does.

    ``squares`` adds up the variances from sampling, which is independent from round to round, and ``drawn`` the errors
    from the draw of the validation samples, which are the same in every round: at most the error of their sum.
    """

    worth: float = 0.0
    valued: int = 0
    squares: float = 0.0
    drawn: float = 0.0
    known: int = 0  # values that came with a standard error
    trained: int = 0
    refused: int = 0
    last_round: int = -1
    score: float | None = None

    def row(self, client: int) -> list[int | float | None]:
        """Return the client as the page's script takes it: number, sum of values, its standard error at most (of those
        values that have one), the mechanism's score, seats trained in, seats refused, last round.
        """
        worth = self.worth if self.valued else None
        error = math.hypot(math.sqrt(self.squares), self.drawn) if self.known else None
        return [client, worth, error, self.score, self.trained, self.refused, self.last_round]


@dataclass
class Contributors:
    """All clients that ever had a seat, and the latest refusals as (round, client, reason)."""

    clients: dict[int, Contributor] = field(default_factory=dict)
    refusals: deque[tuple[int, int, str]] = field(default_factory=lambda: deque(maxlen=REFUSALS))
    names: dict[int, str] = field(default_factory=dict)
    round: int = -1
    latest: list[list[Any]] = field(default_factory=list)  # the last round's seats: client, value, error, reason

    def add(self, seat: Seat) -> None:
        """Take in the next seat."""
        if seat.round != self.round:
            self.round, self.latest = seat.round, []
        found = self.clients.setdefault(seat.client, Contributor())
        found.last_round = seat.round
        reason, error = None if seat.refused is None else seat.refused[:200], seat.error
        if reason is not None:
            found.refused += 1
            self.refusals.append((seat.round, seat.client, reason))
        else:
            found.trained += 1
        if seat.value is not None:
            found.worth += seat.value
            found.valued += 1
            known = [e for e in (seat.error, seat.drawn) if e is not None]
            found.squares += (seat.error or 0.0) ** 2
            found.drawn += abs(seat.drawn or 0.0)
            found.known += bool(known)
            error = math.hypot(*known) if known else None
        if seat.score is not None:
            found.score = seat.score
        if seat.name:
            self.names[seat.client] = seat.name[:80]
        self.latest.append([seat.client, seat.value, error, reason])
