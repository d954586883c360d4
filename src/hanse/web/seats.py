"""What the seats of a run add up to, client by client, as they come."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hanse.base.files import is_count
from hanse.reports.load import is_number

__all__ = ["Contributor", "Seats"]

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
class Seats:
    """All clients that ever had a seat, and the latest refusals as (round, client, reason)."""

    clients: dict[int, Contributor] = field(default_factory=dict)
    refusals: deque[tuple[int, int, str]] = field(default_factory=lambda: deque(maxlen=REFUSALS))
    names: dict[int, str] = field(default_factory=dict)
    round: int = -1
    latest: list[list[Any]] = field(default_factory=list)  # the last round's seats: client, value, error, reason

    def add(self, line: Mapping[str, Any]) -> int | None:
        """Take in one line of ``clients.jsonl`` and return its client; None if it is none."""
        round, client = line.get("round"), line.get("client")
        if not is_count(round, "round") or not is_count(client, "client"):
            return None
        if round != self.round:
            self.round, self.latest = round, []
        found = self.clients.setdefault(client, Contributor())
        found.last_round = round
        reason = line.get("refused")
        value, error, drawn = line.get("value"), line.get("value_error"), line.get("value_draw_error")
        if reason is not None:
            found.refused += 1
            self.refusals.append((round, client, str(reason)[:200]))
        else:
            found.trained += 1
        if is_number(value):
            found.worth += value
            found.valued += 1
            known = [e for e in (error, drawn) if is_number(e)]
            found.squares += error * error if is_number(error) else 0.0
            found.drawn += abs(drawn) if is_number(drawn) else 0.0
            found.known += bool(known)
            error = math.hypot(*known) if known else None
        if is_number(line.get("cumulative_value")):
            found.score = line["cumulative_value"]
        if line.get("name"):
            self.names[client] = str(line["name"])[:80]
        self.latest.append(
            [
                client,
                value if is_number(value) else None,
                error if is_number(error) else None,
                None if reason is None else str(reason)[:200],
            ]
        )
        return client
