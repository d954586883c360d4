"""Clients are told what they were worth, and may leave on it (GreedyFed sec. VI names this as open).

:class:`Feedback` is a part like the others, beside a mechanism's own: it asks, it learns, its state is checkpointed. A
market that tells its clients more (:mod:`hanse.mechanisms.ipfl`) remembers and asks by the same functions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hanse.core.part import Context, Part, State, View
from hanse.core.port import Ask, Request
from hanse.core.table import Floats, Ints


def no_news(num_clients: int) -> dict[str, Any]:
    """Return the state before round 0: nobody is ``gone [N]``, and nobody has a value: none from the ``last`` round,
    no ``sum``, so many ``times`` valued.
    """
    return {
        "gone": np.zeros(num_clients, bool),
        "last": np.full(num_clients, np.nan),
        "sum": np.zeros(num_clients),
        "times": np.zeros(num_clients, np.int64),
    }


def news(view: View, state: State, more: Callable[[int], Mapping[str, Any]] = lambda client: {}) -> list[Request]:
    """Return a question to each client with a value from the last round: does it stay? It is told that value, its mean
    so far, how often it was valued, and what there is ``more``.
    """
    here = view.present[~state["gone"][view.present] & ~np.isnan(state["last"][view.present])]

    def told(c: int) -> dict[str, Any]:
        last, total, times = float(state["last"][c]), float(state["sum"][c]), int(state["times"][c])
        return {"value": last, "mean": total / max(times, 1), "times": times, **more(c)}

    return [Request(c, (Ask("stay", told(c)),)) for c in here.tolist()]


def gone(view: View, state: State) -> NDArray[np.bool_]:
    """Return who has left ``[N]``, those who said so just now included."""
    left: NDArray[np.bool_] = state["gone"].copy()
    left[view.leaving] = True
    return left


def with_worth(state: State, clients: Ints, worth: Floats) -> dict[str, Any]:
    """Return the values with those of a round: ``worth [m]`` of ``clients [m]``."""
    last, total, times = np.full(len(state["last"]), np.nan), state["sum"].copy(), state["times"].copy()
    last[clients] = worth
    total[clients] += worth
    times[clients] += 1
    return {"last": last, "sum": total, "times": times}


@dataclass(frozen=True)
class Feedback(Part):
    """Before each round, tells those who sat in the last one their value, its mean so far and how often they were
    valued.

    Whoever answers ``stay = False`` is gone for good: it is no longer present, so it costs no more traffic.
    """

    needs = frozenset({"values"})

    def init(self, context: Context) -> State:
        """Nobody has a value, nobody is gone."""
        return no_news(context.num_clients)

    def asks(self, view: View, state: State) -> Sequence[Request]:
        """Tell last round's clients and ask them whether they stay."""
        return news(view, state) if view.stage == "open" else ()

    def learn(self, outcome: View, state: State) -> State:
        """Remember who left and what the seats were worth."""
        clients, worth = np.zeros(0, np.int64), np.zeros(0)
        if outcome.values is not None:
            clients, worth = outcome.values.by_client(outcome)
        return {"gone": gone(outcome, state), **with_worth(state, clients, worth)}
