"""How sure sums of values are: the error of sampling coalitions, and that of the draw of the validation samples.

Sampling is independent from round to round, so that its variances add. The validation samples are the same ones in
every round, so that their errors do not: what a sum would have been without each block of them is added up round by
round, and the jackknife is taken of the sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hanse.games.jackknife import jackknife_errors
from hanse.reports.chart import Floats, Ints
from hanse.runs.record import RunRecord

__all__ = ["SURE", "Errors", "errors_of", "shown"]

SURE = 1.96  # standard errors on either side: a 95 % interval


@dataclass(frozen=True)
class Errors:
    """Standard errors of sums of values, ``[...]`` each: ``sampling`` of coalitions (NaN: exact, or not known) and
    ``drawn``, of the draw of the validation samples (NaN: not recorded).
    """

    sampling: Floats
    drawn: Floats

    @property
    def total(self) -> Floats:
        """Both together, ``[...]``; of one that is not known the other alone; NaN if neither is."""
        unknown = np.isnan(self.sampling) & np.isnan(self.drawn)
        both = np.sqrt(np.nan_to_num(self.sampling) ** 2 + np.nan_to_num(self.drawn) ** 2)
        return np.where(unknown, np.nan, both)


def errors_of(run: RunRecord, groups: Sequence[Ints], ends: Ints) -> Errors:
    """Return the errors ``[n, C]`` of the sum of values of each group of clients until each of the rounds ``ends [C]``
    (0-based, ascending); a client is in one group at most.
    """
    group_of = np.full(run.num_clients, -1, np.int64)
    for g, clients in enumerate(groups):
        group_of[clients] = g
    return Errors(_sampling(run, group_of, len(groups), ends), _drawn(run, group_of, len(groups), ends))


def _sampling(run: RunRecord, group_of: Ints, count: int, ends: Ints) -> Floats:
    seats = run.seats
    ours = (group_of[seats.client] >= 0) & np.isfinite(seats.value) & (seats.round <= ends[-1])
    some = ours & np.isfinite(seats.error)
    squares, known = np.zeros((count, len(ends))), np.zeros(count, bool)
    group = group_of[seats.client[some]]
    np.add.at(squares, (group, np.searchsorted(ends, seats.round[some])), seats.error[some] ** 2)
    known[group] = True
    return np.where(known[:, None], np.sqrt(squares.cumsum(axis=1)), np.nan)


def _drawn(run: RunRecord, group_of: Ints, count: int, ends: Ints) -> Floats:
    """Return NaN from the first round on whose values without blocks are not recorded."""
    blocks = max((without.shape[1] for _, without in run.without_block.values()), default=0)
    sums, known = np.zeros((count, len(ends), blocks)), np.ones((count, len(ends)), bool)
    seats = run.seats
    valued = np.unique(seats.round[np.isfinite(seats.value) & (seats.round <= ends[-1])])
    for round in valued.tolist():
        column = int(np.searchsorted(ends, round))  # the first of ``ends`` that has this round in it
        clients, without = run.without_block.get(round, (np.zeros(0, np.int64), np.zeros((0, 0))))
        if without.shape[1] != blocks or blocks < 2:
            known[:, column:] = False
            continue
        group = group_of[clients]
        np.add.at(sums[:, column], group[group >= 0], np.nan_to_num(without[group >= 0]))
    if blocks < 2:
        return np.full((count, len(ends)), np.nan)
    return np.where(known, jackknife_errors(sums.cumsum(axis=1)), np.nan)


def shown(errors: Errors) -> str:
    """Return which errors are shown and how large they are at the median, as the end of a sentence."""
    found = []
    for name, numbers in (("the sampling of coalitions", errors.sampling), ("the validation samples", errors.drawn)):
        known = numbers[np.isfinite(numbers)]
        if len(known):
            found.append(f"from {name} ({np.median(known):.2g} at the median)")
    return f"one standard error, {' and '.join(found)}" if found else "one standard error, which is not known here"
