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

    def plus(self, clients: Ints, arrays: Mapping[str, Any]) -> ValueSums:
        """Return the sums after a round.

        Args:
            clients: ``[S]``, to whose sum the value of each seat counts.
            arrays: the seats' values, as :func:`valued_seats` returns them.
        """
        n, blocks = len(self.worth), arrays.get("value_without_block", np.zeros((len(clients), 0)))
        worth, squares, lacking = summed(np.arange(n), clients, arrays["value"]), np.zeros(n), np.zeros((n, 0))
        if "value_error" in arrays:
            np.add.at(squares, clients, np.nan_to_num(arrays["value_error"], nan=np.inf, posinf=np.inf) ** 2)
        if blocks.shape[1]:
            lacking = np.zeros((n, blocks.shape[1]))
            np.add.at(lacking, clients, blocks)
        else:  # the draw of the samples may be all of it
            squares[worth != 0] = np.inf
        wide = max(self.without.shape[1], lacking.shape[1])
        before, new = (np.pad(one, ((0, 0), (0, wide - one.shape[1]))) for one in (self.without, lacking))
        return ValueSums(self.worth + worth, before + new, self.variance + squares)

    def of_all(self, clients: Ints) -> ValueSums:
        """Return the sums of some ``clients [m]`` together, as those of one."""
        return ValueSums(*(one[clients].sum(axis=0, keepdims=True) for one in vars(self).values()))

    def sure(self) -> Floats:
        """Return what is surely due to each, ``[N]``: 0, or the nearer end of a 95 % interval without 0."""
        drawn = interval_errors(self.without) if self.without.shape[1] > 1 else np.zeros(len(self.worth))
        error = np.sqrt(self.variance + np.nan_to_num(drawn, nan=np.inf) ** 2)
        return np.asarray(np.sign(self.worth) * np.maximum(np.abs(self.worth) - SURE * error, 0.0))
