"""Clients are told what their updates were worth, and may leave because of it (GreedyFed sec. VI leaves this open).

:class:`Feedback` is a helper of any mechanism with values. A market that tells its clients more
(:mod:`hanse.mechanisms.ipfl`) uses the functions below for the same purpose. :func:`no_news` makes the state and
:func:`news` the questions; :func:`gone` and :func:`with_worth` keep the state up to date.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hanse.core.part import Context, Helper, Most, State, View
from hanse.core.port import Ask, Request
from hanse.core.table import Floats, Ints


def no_news(num_clients: int) -> dict[str, Any]:
    """Return the state before round 0, in which nobody has left and nobody has been valued.

    The state has four arrays: ``gone [N]`` says who has left; ``last [N]`` is each client's value in the last round,
    NaN if it had none; ``sum [N]`` is the sum of its values; and ``times [N]`` how often it was valued.
    """
    return {
        "gone": np.zeros(num_clients, bool),
        "last": np.full(num_clients, np.nan),
        "sum": np.zeros(num_clients),
        "times": np.zeros(num_clients, np.int64),
    }


def news(view: View, state: State, more: Callable[[int], Mapping[str, Any]] = lambda client: {}) -> list[Request]:
    """Return a question for each present client that was valued in the last round: "do you stay?".

    The question tells the client its ``value`` in the last round, the ``mean`` so far, and how many ``times`` it was
    valued.

    Args:
        view: the round, before selection.
        state: a state with the keys of :func:`no_news`.
        more: a function from a client's id to whatever else that client is told.
    """
    here = view.present[~state["gone"][view.present] & ~np.isnan(state["last"][view.present])]

    def told(c: int) -> dict[str, Any]:
        last, total, times = float(state["last"][c]), float(state["sum"][c]), int(state["times"][c])
        return {"value": last, "mean": total / max(times, 1), "times": times, **more(c)}

    return [Request(c, (Ask("stay", told(c)),)) for c in here.tolist()]


def gone(view: View, state: State) -> NDArray[np.bool_]:
    """Return which clients have left, as a mask ``[N]``, including those that have just announced it."""
    left: NDArray[np.bool_] = state["gone"].copy()
    left[view.leaving] = True
    return left


def with_worth(state: State, clients: Ints, worth: Floats) -> dict[str, Any]:
    """Return the keys ``last``, ``sum`` and ``times`` of the state after a round in which some clients were valued.

    Args:
        state: a state with the keys of :func:`no_news`.
        clients: the ids ``[m]`` of the clients that were valued.
        worth: the values of these clients, ``[m]``.
    """
    last, total, times = np.full(len(state["last"]), np.nan), state["sum"].copy(), state["times"].copy()
    last[clients] = worth
    total[clients] += worth
    times[clients] += 1
    return {"last": last, "sum": total, "times": times}


@dataclass(frozen=True)
class Feedback(Helper):
    """Before each round, tells each client valued in the last round what it was worth, and asks whether it stays.

    A client that answers ``stay = False`` is gone for good. A client that leaves is no longer present, so it causes no
    further traffic.
    """

    needs = frozenset({"values"})

    def init(self, context: Context) -> State:
        """Return the state in which nobody has been valued and nobody has left."""
        return no_news(context.num_clients)

    def questions(self, clients: int, rows: int) -> Mapping[str, Most]:
        """Return what :meth:`asks` asks at most."""
        return {"Ask": Most(1, 0)}

    def asks(self, view: View, state: State) -> Sequence[Request]:
        """Ask the clients that were valued in the last round whether they stay.

        Args:
            view: the round. The method reads ``stage`` and ``present``.
            state: as :meth:`init` makes it.
        """
        return news(view, state) if view.stage == "open" else ()

    def gone(self, view: View, state: State) -> Ints:
        """Return who has left, including those that have just announced it."""
        return np.flatnonzero(gone(view, state))

    def learn(self, outcome: View, state: State) -> State:
        """Remember who has left and what this round's updates were worth.

        Args:
            outcome: the finished round. The method reads ``leaving`` and ``values``.
            state: as :meth:`init` makes it.
        """
        clients, worth = np.zeros(0, np.int64), np.zeros(0)
        if outcome.values is not None:
            clients, worth = outcome.values.by_client(outcome)
        return {"gone": gone(outcome, state), **with_worth(state, clients, worth)}
