"""Clients are told what they were worth, and may leave on it (GreedyFed sec. VI names this as open).

It is a part like the others, beside a mechanism's own: it asks, it learns, its state is checkpointed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from hanse.core.part import Context, Ints, Named, Part, State, View
from hanse.core.port import Ask, Request

__all__ = ["Feedback"]


@dataclass(frozen=True)
class Feedback(Part):
    """Before each round, tells those who sat in the last one their value, its mean so far and how often they were
    valued.

    Whoever answers ``stay = False`` is gone for good: it is no longer present, so it costs no more traffic.
    """

    needs: ClassVar[Named] = frozenset({"values"})

    def init(self, context: Context) -> State:
        """Nobody has a value, nobody is gone."""
        n = context.num_clients
        return {
            "last": np.full(n, np.nan),
            "sum": np.zeros(n),
            "times": np.zeros(n, np.int64),
            "gone": np.zeros(n, bool),
        }

    def asks(self, view: View, state: State) -> Sequence[Request]:
        """Tell last round's clients and ask them whether they stay."""
        if view.stage != "open":
            return ()
        told = view.present[~np.isnan(state["last"][view.present])]
        mean = state["sum"] / np.maximum(state["times"], 1)

        def news(c: int) -> Mapping[str, Any]:
            return {"value": float(state["last"][c]), "mean": float(mean[c]), "times": int(state["times"][c])}

        return [Request(c, (Ask("stay", news(c)),)) for c in told.tolist()]

    def gone(self, view: View, state: State) -> Ints:
        """Return the ids ``[m]`` of all who have left, those who said so just now included."""
        gone = state["gone"].copy()
        gone[view.leaving] = True
        return np.flatnonzero(gone)

    def learn(self, outcome: View, state: State) -> State:
        """Remember who left and what the seats were worth."""
        left, total, times = state["gone"].copy(), state["sum"].copy(), state["times"].copy()
        left[self.gone(outcome, state)] = True
        last = np.full(len(total), np.nan)
        if outcome.values is not None:
            clients, place = np.unique(outcome.trained.seats.client, return_inverse=True)
            last[clients] = np.bincount(place, weights=outcome.values.per_seat)
            total[clients] += last[clients]
            times[clients] += 1
        return {"last": last, "sum": total, "times": times, "gone": left}
