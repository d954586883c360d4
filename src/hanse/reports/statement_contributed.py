"""What a client's updates were worth over a run (:func:`contributed`)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from hanse.games.jackknife import SURE
from hanse.reports.chart import Floats
from hanse.reports.contributions import (
    Errors,
    Standings,
    by_chance,
    clearly_harmful,
    errors_of,
    fallen,
    gained,
    in_words,
    standings,
    without_values,
)
from hanse.reports.digits import between, rounded
from hanse.reports.statement_fit import finite_or_none
from hanse.runs.run_record import RunRecord


@dataclass(frozen=True, kw_only=True)
class Round:
    """A round in which the client was asked to train, or in which its late update arrived. None: not known.

    Attributes:
        round: the number of the round, from 0.
        value: what the client's update was worth. If it had several seats, their sum.
        error: the standard error of the value, from the sampling of coalitions and the draw of the validation samples
            together.
        of: the sum of all clients' values in the round.
        share: the client's part of the total of all values above zero. The shares of a round sum to 1. A client whose
            own value is not above zero has share 0.
        weight: the weight that the update had in the model that it trained.
        late: how many rounds the update came after the one in which the client was asked.
        refused: why there was no usable update. None: there was one.
    """

    round: int
    value: float | None
    error: float | None
    of: float | None
    share: float | None
    weight: float | None
    late: int
    refused: str | None


@dataclass(frozen=True, kw_only=True)
class Contributed:
    """What a client's updates were worth over the run, by the mechanism's own measure.

    None: nobody is valued in this run, or this client never was, or it is not known.

    Attributes:
        rounds: the rounds in which the client was asked to train.
        value: the sum of its values over them.
        sampling: the standard error of that sum from the sampling of coalitions.
        drawn: its standard error from the draw of the validation samples.
        share: its part of the sums of all clients with a sum above zero, 0 to 1. None also for values whose sum has no
            meaning.
        place: the client's place among the ranked clients. 1 is the highest sum. None if fewer than two of its updates
            were valued.
        ranked: how many clients can be ranked. These are the clients with more than one valued update.
        valued: how many clients had an update valued.
        updates: how many of this client's updates were valued.
        tied: the places in the ranking of the clients that cannot be told apart from this one.
        share_interval: the 95 % interval of the share, from both errors together. None: the error of the draw is not
            known.
        measure: the name of one value, such as "Shapley value".
        measured: a sentence on what a value is.
        gaps: sentences on which rounds have no values, and why.
        gained: by how much the validation loss fell over the run, if the values are parts of this fall.
        fallen: what fell, such as "the validation loss".
        novel: whether only what was new in updates is valued.
        besides: the part of ``gained`` that came through no client's updates.
        above: the sum of all clients' sums above zero.
        below: the sum of those below zero.
        relative: whether values only rank (:class:`hanse.core.telling.Measure`).
        chance: the standard error of all clients' sums by the chance of which samples each has
            (:func:`hanse.reports.contributions.by_chance`).
    """

    rounds: tuple[Round, ...]
    value: float | None = None
    sampling: float | None = None
    drawn: float | None = None
    share: float | None = None
    place: int | None = None
    ranked: int = 0
    valued: int = 0
    updates: int = 0
    tied: tuple[int, ...] | None = None
    share_interval: tuple[float, float] | None = None
    measure: str = "value"
    measured: str = ""
    gaps: tuple[str, ...] = ()
    gained: float | None = None
    fallen: str = "the validation loss"
    novel: bool = False
    besides: float = 0.0
    above: float = 0.0
    below: float = 0.0
    relative: bool = False
    chance: float = 0.0

    @property
    def part(self) -> str:
        """A sentence on how much of the fall in loss is due to the client's updates; "" if that is not known."""
        if self.gained is None or self.value is None:
            return ""
        half = SURE * (self.error or 0.0)
        if self.share is not None and self.above > 0:
            return self._part_of_helpful(half)
        way, side = ("went down", 1.0) if self.gained >= 0 else ("went up", -1.0)
        through = "what was new in its updates" if self.novel else "its updates"
        sure = f" (95 % interval {between(side * self.value, half)})" if half else ""
        came = f"{rounded(side * self.value, half) if self.value else 0}{sure} came through {through}"
        if abs(self.besides) > 0.01 * abs(self.gained):
            came += f" and {side * self.besides:.2g} through no client's"
        return f"Of the {abs(self.gained):.3g} by which {self.fallen} {way} in this federation, {came}."

    def _part_of_helpful(self, half: float) -> str:
        """Return the same sentence for values that can be shared out, with what updates below zero took back."""
        value, share, left = self.value or 0.0, self.share or 0.0, self.gained or 0.0
        sure = f" (95 % interval {between(value, half)})" if half else ""
        worth = f"{rounded(value, half) if value else 0}{sure}"
        part = f"; {worth} of it, {100 * share:.1f} %, came through its updates"
        told = f"All helpful updates together lowered {self.fallen} by {rounded(self.above, most=2)}"
        told += f"{part if value > 0 else f'; its own updates gave {worth}'}."
        after = (
            [f"those with values below zero took back {rounded(-self.below, most=2)}"]
            if self.below < -0.01 * self.above
            else []
        )
        if abs(self.besides) > 0.01 * abs(left):
            after.append(f"{rounded(self.besides, most=2)} came through no client's updates")
        rest = " and ".join(after)
        return f"{told} {rest[0].upper()}{rest[1:]}, which leaves {rounded(left, most=2)}." if rest else told

    @property
    def standing(self) -> str:
        """A sentence on the client's rank, as far as the errors allow; "" if it has none."""
        if self.place is None:
            return ""
        many = f"the {self.ranked} clients with more than one valued update"
        told = f"By this sum it is number {self.place} of {many}."
        if not self.tied:
            return told
        if len(self.tied) == self.ranked - 1:
            others = "any of the others" if len(self.tied) > 1 else "the other"
        else:
            others = in_words(np.array(self.tied, np.int64), self.place)
        return f"{told} It cannot be told apart from {others}."

    @property
    def error(self) -> float | None:
        """The standard error of ``value`` from both sources together, or None if neither is known."""
        known = [e for e in (self.sampling, self.drawn) if e is not None]
        return math.hypot(*known) if known else None

    @property
    def exact(self) -> bool:
        """Whether the value is exact on the validation samples.

        It is if every group of updates was tried and no error from other validation samples is recorded. The error is
        then 0, which must not be shown as certainty. An idle update's path value is 0 on any samples, and so is its
        error.
        """
        return self.error == 0 and self.drawn is None

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval of ``value`` from both errors; None if the draw's is not known, or the value is exact.

        An interval from the sampling of coalitions alone would ignore other validation samples.
        """
        if self.value is None or self.error is None or self.drawn is None or self.exact:
            return None
        return self.value - SURE * self.error, self.value + SURE * self.error

    @property
    def sure(self) -> bool:
        """Whether the 95 % interval of ``value`` excludes zero, or the value is exact and not zero."""
        if self.interval is None:
            return self.exact and self.value != 0
        return self.interval[0] > 0 or self.interval[1] < 0

    @property
    def harmful(self) -> bool:
        """Whether the updates clearly did harm (:func:`hanse.reports.contributions.clearly_harmful`)."""
        if self.value is None or self.error is None or not self.sure or self.relative:  # the last place is no harm
            return False
        one = (np.array([self.value]), np.array([self.error]), np.array([self.updates]))
        return bool(clearly_harmful(*one, self.chance).item())


def contributed(run: RunRecord, client: int) -> Contributed:
    """Return what a client's updates were worth, by the values that the mechanism measured.

    Args:
        run: the run, as :func:`hanse.runs.run_record.load_run` reads it.
        client: the client's number.
    """
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
        return Contributed(rounds=rounds, valued=len(valued), gaps=tuple(without_values(run)))
    totals = np.bincount(seats.client[some], weights=seats.value[some])[valued]
    own = float(totals[np.searchsorted(valued, client)])
    above = float(np.maximum(totals, 0.0).sum())
    errors, fell = errors_of(run, [np.array([client])], np.array([played - 1])), gained(run)
    everybody = standings([run], valued, played - 1)
    ranked = everybody.among(valued[updates > 1])
    placed, measure = client in ranked.clients, run.about.measure
    # an infinite sampling error means that it is not known; the other error alone would be taken for all of it
    drawn = None if np.isinf(errors.sampling[0, 0]) else finite_or_none(errors.drawn[0, 0])
    return Contributed(
        rounds=rounds,
        value=own,
        sampling=finite_or_none(errors.sampling[0, 0]),
        drawn=drawn,
        share=max(own, 0.0) / above if above > 0 and measure.share_out else None,
        place=ranked.place(client) if placed else None,
        ranked=len(ranked.clients),
        valued=len(valued),
        updates=int(mine.sum()),
        tied=tuple(ranked.tied_places(client).tolist()) if placed and ranked.known else None,
        share_interval=_interval(everybody, client) if measure.share_out and drawn is not None else None,
        measure=measure.name,
        measured=measure.sentence,
        gaps=tuple(without_values(run)),
        gained=fell,
        fallen=fallen(run),
        novel=not measure.share_out,
        besides=0.0 if fell is None else fell - float(totals.sum()),
        above=above,
        below=float(np.minimum(totals, 0.0).sum()),
        relative=measure.ranks,
        chance=by_chance(np.asarray(totals, np.float64), measure),
    )


def _interval(sums: Standings, client: int) -> tuple[float, float] | None:
    """Return the 95 % interval of a client's part of all sums above zero, the same as on the invoice.

    None if its error is not known or the sums are exact, because an interval of zero width would claim certainty.
    """
    error = float(sums.parts()[1][sums.clients == client][0])
    if not math.isfinite(error) or error == 0:
        return None
    low, high = sums.between()[sums.clients == client][0].tolist()
    return low, high


def _positive_by_round(run: RunRecord, some: np.ndarray, played: int) -> Floats:
    """Return for each round the sum of the values above zero, ``[R]``; the seats of a client are added up first.

    ``some`` marks the seats that have a value, ``played`` is the number of rounds ``R``.
    """
    seats = run.seats
    width = run.num_clients
    key = seats.round[some] * width + seats.client[some]
    pairs, place = np.unique(key, return_inverse=True)
    values = np.bincount(place, weights=seats.value[some], minlength=len(pairs))
    found = np.bincount(pairs // width, weights=np.maximum(values, 0.0), minlength=played)
    return found.astype(np.float64)


def _sum(numbers: Floats) -> Floats:
    """Return the sum of the ``numbers`` that are not NaN; NaN if all are. An infinite one ("not known") stays so."""
    known = numbers[~np.isnan(numbers)]
    return np.asarray(known.sum() if len(known) else np.nan)


def _round(run: RunRecord, number: int, at: list[int], total: float, positive: float) -> Round:
    """Return one round of a client.

    ``at`` are the positions of its seats, ``total`` the sum of all values of the round, ``positive`` that of the values
    above zero.
    """
    seats = run.seats
    values = seats.value[at]
    # Sampling errors of several seats are independent and add as squares. Errors of the draw are not: the seats share
    # the validation samples, so these add as they are, which is the worst case.
    errors = Errors(np.sqrt(_sum(seats.error[at] ** 2)), _sum(seats.drawn[at])).total
    weights = [w for i in at if (w := run.clients[i].weight) is not None]
    reasons = [reason for i in at if (reason := run.clients[i].refused)]
    known = np.isfinite(values)
    value = float(values[known].sum()) if known.any() else None
    share = None if value is None or positive <= 0 else max(value, 0.0) / positive
    return Round(
        round=number,
        value=value,
        error=None if value is None else finite_or_none(float(errors)),
        of=total if value is not None else None,
        share=share,
        weight=float(sum(weights)) if weights else None,
        late=max(run.clients[i].staleness for i in at),
        refused=reasons[0] if reasons and len(reasons) == len(at) else None,
    )
