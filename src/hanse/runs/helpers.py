"""What runs alongside the parts of a mechanism: grants in parts, what clients are told, and the helpers of guards."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from hanse.core.entry import TOKEN, Transaction, grant, part_of
from hanse.core.part import Context, Helper, Mechanism, Now, State, View
from hanse.mechanisms.feedback import Feedback
from hanse.runs.config import Experiment
from hanse.runs.guards import Guard


@dataclass(frozen=True)
class Vesting(Helper):
    """Gives grants in parts: the first when a client joins, one more after each round in which its update counted.

    So leaving and coming back under another key gains nothing.

    Attributes:
        units: the whole grant. 0: nothing is given.
        parts: in how many parts a grant is given.
    """

    units: int
    parts: int

    def init(self, context: Context) -> State:
        """Return the state before any grant."""
        return {"given": np.zeros(context.num_clients, np.int64), "worked": np.zeros(context.num_clients, bool)}

    def before(self, now: Now, state: State) -> State:
        """Post the parts that present clients get in this round."""
        if self.units == 0:
            return state
        given, posted = state["given"].copy(), list[Transaction]()
        for c in now.view.present.tolist():
            if given[c] == 0 or (state["worked"][c] and given[c] < self.parts):
                units = part_of(self.units, self.parts, int(given[c]))
                posted += [grant(c, units)] if units else []
                given[c] += 1
        now.post(posted)
        return {**state, "given": given}

    def learn(self, outcome: View, state: State) -> State:
        """Remember whose updates counted."""
        return {**state, "worked": np.isin(np.arange(len(state["worked"])), outcome.trained.seats.client)}


def moves_tokens(mechanism: Mechanism, guards: Mapping[str, Guard]) -> bool:
    """Return whether clients have accounts: the mechanism pays, or a guard moves tokens."""
    return mechanism.settle is not None or any("tokens" in guard.provides() for guard in guards.values())


def helpers_of(experiment: Experiment, mechanism: Mechanism, guards: Mapping[str, Guard]) -> dict[str, Helper]:
    """Return what runs alongside a mechanism's parts, by the key of its state, in the order in which it is called.

    Args:
        experiment: its ``[clients]`` say what they are told, and in how many parts they get their grants.
        mechanism: what it is played with.
        guards: its guards, whose options are read.
    """
    section, found = experiment.clients, dict[str, Helper]()
    if section.told:
        found["feedback"] = Feedback()
    if section.vests > 1:  # first: a bond is paid from it
        units = round(section.grant * TOKEN) if moves_tokens(mechanism, guards) else 0
        found["vesting"] = Vesting(units, section.vests)
    for guard in guards.values():
        found |= guard.helpers
    return found
