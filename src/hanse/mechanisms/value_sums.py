"""Adds up what updates were worth over the rounds, with what is known of the errors of these sums.

A value has an error, from the draw of validation samples and from the coalitions that were tried. The first kind adds
up by block of samples, because every round uses the same samples; the second as variances do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from hanse.core.part import State, View
from hanse.core.table import Floats, Ints
from hanse.games.jackknife import SURE, interval_errors

RECORDED = ("value", "value_error", "value_without_block")  # what a round's record has of values


def valued_seats(view: View) -> tuple[Ints, dict[str, Floats]]:
    """Return the clients of the seats that were valued, and what the round's record will have of their values:
    ``value [S]`` and, where they are known, ``value_error [S]`` and ``value_without_block [S, B]``.
    """
    values = view.values
    if values is None:
        return np.zeros(0, np.int64), {"value": np.zeros(0)}
    found = {"value_error": values.standard_errors, "value_without_block": values.without_block}
    known = {name: array for name, array in found.items() if array is not None}
    return view.trained.seats.client, {"value": values.per_seat, **known}


def summed(players: Ints, clients: Ints, values: Floats) -> Floats:
    """Return the sum of seats' ``values [S]`` for each of the ``players [m]``, ascending, by who is paid for each seat,
    ``clients [S]``; 0 for a player without a seat. A value that is not finite is 0.
    """
    known = np.isin(clients, players)
    found = np.zeros(len(players))
    np.add.at(found, np.searchsorted(players, clients[known]), np.nan_to_num(values[known], posinf=0.0, neginf=0.0))
    return found


@dataclass(frozen=True)
class ValueSums:
    """What each of N clients was worth over the rounds so far.

    Attributes:
        worth: ``[N]``, in units of the utility.
        without: ``[N, B]``: the validation samples are divided into B blocks, and column b is ``worth`` without block
            b. ``B < 2``: not known.
        variance: ``[N]``, the variance of ``worth`` from the sampling of coalitions; infinite if it is not known, or if
            nothing is known of the draw of the samples.
    """

    worth: Floats
    without: Floats
    variance: Floats

    @staticmethod
    def nothing(clients: int) -> ValueSums:
        """Return the sums before any round."""
        return ValueSums(np.zeros(clients), np.zeros((clients, 0)), np.zeros(clients))

    @staticmethod
    def of(state: State) -> ValueSums:
        """Return the sums that are in a part's state."""
        return ValueSums(state["worth"], state["without"], state["variance"])

    def state(self) -> State:
        """Return the sums as a part's state."""
        return dict(vars(self))

    @staticmethod
    def of_round(clients: Ints, arrays: Mapping[str, Any], count: int) -> ValueSums:
        """Return what each of ``count`` clients was worth in one round.

        Args:
            clients: ``[S]``, to whose sum the value of each seat counts.
            arrays: the seats' values, as :func:`valued_seats` returns them.
            count: N, above all of ``clients``.
        """
        worth, variance = summed(np.arange(count), clients, arrays["value"]), np.zeros(count)
        if "value_error" in arrays:
            np.add.at(variance, clients, np.nan_to_num(arrays["value_error"], nan=np.inf, posinf=np.inf) ** 2)
        blocks = arrays.get("value_without_block", np.zeros((len(clients), 0)))
        without = np.zeros((count, blocks.shape[1]))
        np.add.at(without, clients, blocks)
        if not blocks.shape[1]:  # the draw of the samples may be all of it
            variance[worth != 0] = np.inf
        return ValueSums(worth, without, variance)

    def plus(self, other: ValueSums) -> ValueSums:
        """Return both together; the shorter one has nothing of whom, and which blocks, it lacks."""
        shape = tuple(map(max, zip(self.without.shape, other.without.shape, strict=True)))

        def wide(of: Floats) -> Floats:
            return np.pad(of, [(0, to - now) for to, now in zip(shape, of.shape, strict=False)])

        mine, others = vars(self).values(), vars(other).values()
        return ValueSums(*(wide(a) + wide(b) for a, b in zip(mine, others, strict=True)))

    def above_mean(self, players: Ints) -> ValueSums:
        """Return by how much the worth of some ``players [m]`` is above their mean; 0 for all others, and for one that
        is alone.
        """
        m, found = len(players), ValueSums(*map(np.zeros_like, vars(self).values()))
        if m > 1:
            squares = self.variance[players]
            others = np.array([np.delete(squares, i).sum() for i in range(m)])  # a difference of infinities is NaN
            found.worth[players] = self.worth[players] - self.worth[players].mean()
            found.without[players] = self.without[players] - self.without[players].mean(axis=0)
            found.variance[players] = (1 - 1 / m) ** 2 * squares + others / m**2
        return found

    def less(self, players: Ints, amounts: Floats) -> ValueSums:
        """Return what is left after ``amounts [m]`` for the worth of some ``players [m]``."""
        paid = np.zeros(len(self.worth))
        paid[players] = amounts
        return ValueSums(self.worth - paid, self.without - paid[:, None], self.variance)

    def of_all(self, clients: Ints) -> ValueSums:
        """Return the sums of some ``clients [m]`` together, as those of one."""
        return ValueSums(*(one[clients].sum(axis=0, keepdims=True) for one in vars(self).values()))

    def sure(self) -> Floats:
        """Return what is surely due to each, ``[N]``: 0, or the nearer end of a 95 % interval without 0."""
        drawn = interval_errors(self.without) if self.without.shape[1] > 1 else np.zeros(len(self.worth))
        error = np.sqrt(self.variance + np.nan_to_num(drawn, nan=np.inf) ** 2)
        return np.asarray(np.sign(self.worth) * np.maximum(np.abs(self.worth) - SURE * error, 0.0))


def matched(sure: Floats, low: Floats, high: Floats) -> Floats:
    """Return how much of what is surely due is paid, ``[m]``, within limits ``low`` and ``high``; it sums to 0.

    What is to be received and what is to be paid need not be equal. All amounts on the larger side then shrink by the
    same factor.

    Examples:
        >>> matched(np.array([0.3, 0.1, -0.2]), np.full(3, -1), np.full(3, 1)).round(3).tolist()
        [0.15, 0.05, -0.2]
        >>> matched(np.array([0.3, 0.0, 0.0]), np.full(3, -1), np.full(3, 1)).tolist()  # nobody surely owes it
        [0.0, 0.0, 0.0]
        >>> matched(np.array([0.9, -0.5, -0.5]), np.full(3, -1), np.full(3, 0.4)).tolist()
        [0.4, -0.2, -0.2]
    """
    gets, pays = np.clip(sure, 0.0, high), np.clip(-sure, 0.0, -low)
    amount = min(gets.sum(), pays.sum())
    if not amount > 0:
        return np.zeros(len(sure))
    return np.asarray(gets * (amount / gets.sum()) - pays * (amount / pays.sum()))
