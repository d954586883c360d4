"""What a participant's updates were worth, round by round, and its share of what everyone's were."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hanse.reports.chart import Floats
from hanse.reports.load import LoadedRun

__all__ = ["Contributed", "Round", "contributed"]


@dataclass(frozen=True)
class Round:
    """A round in which the client was to train. ``value`` is what its update was worth (the sum over its seats), with
    the standard error of the estimate, where known; ``of`` the sum of everybody's values in the round; ``share`` its
    part of all values above zero (0 if its own is not), so that a round's shares sum to 1; ``weight`` that its update
    had in the model that it trained. ``refused`` says why there is none of these.
    """

    round: int
    value: float | None
    error: float | None
    of: float | None
    share: float | None
    weight: float | None
    refused: str | None


@dataclass(frozen=True)
class Contributed:
    """The rounds, and their sums: ``value`` with its standard ``error``, ``share`` of the sums above zero of all
    clients, and the client's ``place`` among the ``valued`` clients (1 is the most valuable). None: nobody is valued
    in this run, or this client never was.
    """

    rounds: tuple[Round, ...]
    value: float | None
    error: float | None
    share: float | None
    place: int | None
    valued: int


def contributed(run: LoadedRun, client: int) -> Contributed:
    """Return what a client gave to the run. Values are as the mechanism measured them."""
    seats = run.seats
    some = np.isfinite(seats.value)
    played = int(run.metrics[-1]["round"]) + 1
    sums = np.bincount(seats.round[some], weights=seats.value[some], minlength=played)
    positive = _positive_by_round(run, some, played)
    lines: dict[int, list[int]] = {}
    for at in np.flatnonzero(seats.client == client).tolist():
        lines.setdefault(int(seats.round[at]), []).append(at)
    rounds = tuple(_round(run, r, at, float(sums[r]), float(positive[r])) for r, at in sorted(lines.items()))
    mine = some & (seats.client == client)
    if not mine.any():
        return Contributed(rounds, None, None, None, None, len(np.unique(seats.client[some])))
    valued = np.unique(seats.client[some])
    totals = np.bincount(seats.client[some], weights=seats.value[some])[valued]
    own = float(totals[np.searchsorted(valued, client)])
    above = float(np.maximum(totals, 0.0).sum())
    errors = seats.error[mine & np.isfinite(seats.error)]
    return Contributed(
        rounds,
        own,
        float(np.sqrt((errors**2).sum())) if len(errors) else None,
        max(own, 0.0) / above if above > 0 else None,
        1 + int((totals > own).sum()),
        len(valued),
    )


def _positive_by_round(run: LoadedRun, some: np.ndarray, played: int) -> Floats:
    """Return, for each round, the sum of the clients' values above zero, ``[R]``; a client's seats count together."""
    seats = run.seats
    width = run.num_clients
    key = seats.round[some] * width + seats.client[some]
    pairs, place = np.unique(key, return_inverse=True)
    values = np.bincount(place, weights=seats.value[some], minlength=len(pairs))
    found = np.bincount(pairs // width, weights=np.maximum(values, 0.0), minlength=played)
    return found.astype(np.float64)


def _round(run: LoadedRun, number: int, at: list[int], total: float, positive: float) -> Round:
    seats = run.seats
    values, errors = seats.value[at], seats.error[at]
    weights = [w for i in at if isinstance(w := run.clients[i].get("weight"), int | float)]
    reasons = [str(run.clients[i]["refused"]) for i in at if run.clients[i].get("refused")]
    known = np.isfinite(values)
    value = float(values[known].sum()) if known.any() else None
    squares = errors[np.isfinite(errors)] ** 2
    share = None if value is None or positive <= 0 else max(value, 0.0) / positive
    return Round(
        number,
        value,
        float(np.sqrt(squares.sum())) if len(squares) else None,
        total if value is not None else None,
        share,
        float(sum(weights)) if weights else None,
        reasons[0] if reasons and len(reasons) == len(at) else None,
    )
