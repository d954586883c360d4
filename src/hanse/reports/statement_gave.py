"""What a participant's updates were worth, round by round, and its share of what everyone's were."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from hanse.reports.certainty import SURE, Errors, errors_of
from hanse.reports.chart import Floats
from hanse.runs.record import RunRecord

__all__ = ["Contributed", "Round", "contributed"]


@dataclass(frozen=True)
class Round:
    """A round in which the client was to train. ``value`` is what its update was worth (the sum over its seats), with
    its standard ``error`` from sampling and from the validation samples together, where known; ``of`` the sum of
    everybody's values in the round; ``share`` its part of all values above zero (0 if its own is not), so that a
    round's shares sum to 1; ``weight`` that its update had in the model that it trained. ``refused`` says why there is
    none of these.
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
    """The rounds, and their sums: ``value`` with its standard error from the ``sampling`` of coalitions and that from
    the draw of the validation samples (``drawn``), ``share`` of the sums above zero of all clients, and the client's
    ``place`` (1 is the highest value) among the ``ranked`` clients: those of whom more than one update was valued.
    None: nobody is valued in this run, this client never was, or too seldom to be ranked. ``valued``: how many are.
    """

    rounds: tuple[Round, ...]
    value: float | None = None
    sampling: float | None = None
    drawn: float | None = None
    share: float | None = None
    place: int | None = None
    ranked: int = 0
    valued: int = 0

    @property
    def error(self) -> float | None:
        """The standard error of ``value``, from both; None if neither is known."""
        known = [e for e in (self.sampling, self.drawn) if e is not None]
        return math.hypot(*known) if known else None

    @property
    def sure(self) -> bool:
        """Whether the whole 95 % interval of ``value`` lies on one side of zero."""
        return self.value is not None and self.error is not None and abs(self.value) > SURE * self.error


def contributed(run: RunRecord, client: int) -> Contributed:
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
    valued, updates = np.unique(seats.client[some], return_counts=True)
    if not mine.any():
        return Contributed(rounds, valued=len(valued))
    totals = np.bincount(seats.client[some], weights=seats.value[some])[valued]
    own = float(totals[np.searchsorted(valued, client)])
    above = float(np.maximum(totals, 0.0).sum())
    errors = errors_of(run, [np.array([client])], np.array([played - 1]))
    ranked = updates > 1
    return Contributed(
        rounds,
        own,
        _known(errors.sampling[0, 0]),
        _known(errors.drawn[0, 0]),
        max(own, 0.0) / above if above > 0 else None,
        1 + int((totals[ranked] > own).sum()) if ranked[np.searchsorted(valued, client)] else None,
        int(ranked.sum()),
        len(valued),
    )


def _known(number: float) -> float | None:
    return float(number) if np.isfinite(number) else None


def _positive_by_round(run: RunRecord, some: np.ndarray, played: int) -> Floats:
    """Return, for each round, the sum of the clients' values above zero, ``[R]``; a client's seats count together."""
    seats = run.seats
    width = run.num_clients
    key = seats.round[some] * width + seats.client[some]
    pairs, place = np.unique(key, return_inverse=True)
    values = np.bincount(place, weights=seats.value[some], minlength=len(pairs))
    found = np.bincount(pairs // width, weights=np.maximum(values, 0.0), minlength=played)
    return found.astype(np.float64)


def _sum(numbers: Floats) -> Floats:
    """Return the sum of what is known of ``numbers``; NaN if nothing is."""
    known = numbers[np.isfinite(numbers)]
    return np.asarray(known.sum() if len(known) else np.nan)


def _round(run: RunRecord, number: int, at: list[int], total: float, positive: float) -> Round:
    seats = run.seats
    values = seats.value[at]
    # of several seats in one round the errors of the draw may add up: they share the validation samples
    errors = Errors(np.sqrt(_sum(seats.error[at] ** 2)), _sum(seats.drawn[at])).total
    weights = [w for i in at if (w := run.clients[i].weight) is not None]
    reasons = [reason for i in at if (reason := run.clients[i].refused)]
    known = np.isfinite(values)
    value = float(values[known].sum()) if known.any() else None
    share = None if value is None or positive <= 0 else max(value, 0.0) / positive
    return Round(
        number,
        value,
        None if value is None else _known(float(errors)),
        total if value is not None else None,
        share,
        float(sum(weights)) if weights else None,
        reasons[0] if reasons and len(reasons) == len(at) else None,
    )
