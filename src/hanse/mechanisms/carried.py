"""Pays by value only what is statistically sure, and carries the rest over to later rounds.

A value has an error, from the draw of validation samples and from the coalitions that were tried. A member's values
above the mean add up over rounds, and so do these errors. Errors of the draw add up by block of samples, because every
round uses the same samples. The amount paid is the end of the 95 % interval that is nearer to zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from hanse.core.part import State
from hanse.core.table import Floats, Ints
from hanse.games.jackknife import SURE, interval_errors

RECORDED = ("value", "value_error", "value_without_block")  # what a round's record has of values


@dataclass(frozen=True)
class CarriedValues:
    """What the updates of m members were worth in a round, and how sure these values are.

    Attributes:
        worth: ``[m]``, in units of the utility.
        errors: ``[m]``, standard errors from the sampling of coalitions; infinite if not known.
        without: ``[m, B]``: the validation samples are divided into B blocks, and column b is ``worth`` without block
            b. ``B < 2``: not known.
    """

    worth: Floats
    errors: Floats
    without: Floats

    @staticmethod
    def of(players: Ints, clients: Ints, arrays: Mapping[str, Any]) -> CarriedValues:
        """Return what the ``players [m]`` were worth in a round. A player without a seat is worth 0.

        Args:
            players: the players' ids, ascending.
            clients: ``[S]``, the clients of the seats that were valued.
            arrays: ``value [S]`` and, where they are known, ``value_error [S]`` and ``value_without_block [S, B]``.
        """
        known = np.isin(clients, players)
        at = np.searchsorted(players, clients[known])
        worth, squares = np.zeros((2, len(players)))
        np.add.at(worth, at, np.nan_to_num(arrays["value"][known], posinf=0.0, neginf=0.0))
        if "value_error" in arrays:
            np.add.at(squares, at, np.nan_to_num(arrays["value_error"][known], nan=np.inf) ** 2)
        blocks = arrays.get("value_without_block", np.zeros((len(clients), 0)))
        without = np.zeros((len(players), blocks.shape[1]))
        np.add.at(without, at, blocks[known])
        return CarriedValues(worth, np.sqrt(squares), without)


@dataclass(frozen=True)
class Carried:
    """What each client was worth above the mean, over the rounds, and was not paid yet.

    Attributes:
        due: ``[N]``, what each client is due, in units of the utility. It is below 0 for a client that owes.
        without: ``[N, B]``, ``due`` without each block of the validation samples.
        variance: ``[N]``, the variance of ``due`` from the sampling of coalitions.
    """

    due: Floats
    without: Floats
    variance: Floats

    @staticmethod
    def nothing(clients: int) -> Carried:
        """Return the state in which nothing is carried over."""
        return Carried(np.zeros(clients), np.zeros((clients, 0)), np.zeros(clients))

    @staticmethod
    def of(state: State) -> Carried:
        """Return what a part's state says is carried over."""
        return Carried(state["due"], state["without"], state["variance"])

    def state(self) -> State:
        """Return what is carried over as a part's state."""
        return {"due": self.due, "without": self.without, "variance": self.variance}

    def grown(self, clients: int, blocks: int) -> Carried:
        """Return a copy with room for at least so many clients and blocks of samples."""
        more, wide = max(0, clients - len(self.due)), max(0, blocks - self.without.shape[1])
        without = np.pad(self.without, ((0, more), (0, wide)))
        return Carried(np.pad(self.due, (0, more)), without, np.pad(self.variance, (0, more)))

    def plus(self, players: Ints, valued: CarriedValues) -> Carried:
        """Return the sums after a round in which the ``players [m]`` had these values, taken as they are."""
        blocks = valued.without.shape[1]  # without any, the draw of the samples may be all of it
        variance = valued.errors**2 + np.where((valued.worth != 0) & (blocks == 0), np.inf, 0.0)
        return self._added(players, valued.worth, valued.without, variance)

    def with_round(self, players: Ints, valued: CarriedValues) -> Carried:
        """Return what is carried over after a round in which the ``players [m]`` had these values."""
        m, squares, without = len(players), valued.errors**2, valued.without
        if m < 2:  # alone nobody is above or below the mean
            return self.grown(int(players.max(initial=-1)) + 1, without.shape[1])
        others = np.array([np.delete(squares, i).sum() for i in range(m)])  # no difference: infinities would be NaN
        variance = (1 - 1 / m) ** 2 * squares + others / m**2
        if not without.shape[1] and valued.worth.any():
            variance[:] = np.inf  # which samples were drawn is not known to matter: nothing of it is ever sure
        return self._added(players, valued.worth - valued.worth.mean(), without - without.mean(axis=0), variance)

    def _added(self, players: Ints, worth: Floats, without: Floats, variance: Floats) -> Carried:
        """Return a copy with these numbers of the ``players [m]`` added, and room for them."""
        now, blocks = self.grown(int(players.max(initial=-1)) + 1, without.shape[1]), without.shape[1]
        sums = Carried(now.due.copy(), now.without.copy(), now.variance.copy())
        sums.due[players] += worth
        sums.without[players, :blocks] += without
        sums.variance[players] += variance
        return sums

    def sure(self, players: Ints) -> Floats:
        """Return the sure part of what ``players [m]`` are due: 0, or the nearer end of a 95 % interval without 0."""
        due = self.due[players]
        drawn = interval_errors(self.without[players]) if self.without.shape[1] > 1 else np.zeros(len(players))
        error = np.sqrt(self.variance[players] + np.nan_to_num(drawn, nan=np.inf) ** 2)
        return np.asarray(np.sign(due) * np.maximum(np.abs(due) - SURE * error, 0.0))

    def paid(self, players: Ints, amounts: Floats) -> Carried:
        """Return what is carried over after ``amounts [m]`` were paid to ``players [m]``."""
        due, without = self.due.copy(), self.without.copy()
        due[players] -= amounts
        without[players] -= amounts[:, None]
        return Carried(due, without, self.variance)


def matched(sure: Floats, low: Floats, high: Floats) -> Floats:
    """Return how much of the sure dues is paid, ``[m]``, within limits ``low`` and ``high``; the amounts sum to 0.

    The sure sums to be received and to be paid need not be equal. All amounts on the larger side then shrink by the
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


def sure_transfers(
    before: Carried, players: Ints, valued: CarriedValues, scale: float, low: Floats, high: Floats
) -> tuple[Floats, Carried]:
    """Return the units that ``players [m]`` get, not yet rounded, and what was carried over before this payment.

    Args:
        before: what was carried over.
        players: the clients that were asked to train and have a stake, ascending.
        valued: what the players were worth.
        scale: how many units a unit of utility is worth.
        low: ``[m]``, the least units that each can get, at most 0.
        high: ``[m]``, the most units that each can get, at least 0.
    """
    after = before.with_round(players, valued)
    return matched(after.sure(players), low / scale, high / scale) * scale, after
