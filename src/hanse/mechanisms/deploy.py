"""DEPLOY: which model each client holds, and is tested with, after the round.

The two parts here serve most mechanisms. IFCA and PI-FL choose models in their own way and have parts of their own.
"""

from __future__ import annotations

from dataclasses import dataclass

from hanse.core.part import Deployment, DeployPart, State, View


@dataclass(frozen=True)
class ServerModel(DeployPart):
    """Every client holds its home row, the model from which it would start next. An empty slot does the same."""

    accepts = frozenset({"sums"})

    def deploy(self, view: View, state: State) -> tuple[Deployment, State]:
        """Return the home rows ``[N]`` of the new table."""
        return Deployment(view.mixed.home), state


@dataclass(frozen=True)
class OwnModel(DeployPart):
    """Each client holds its row "own", even if it starts the next round from another row."""

    needs = frozenset({"rows own"})

    def deploy(self, view: View, state: State) -> tuple[Deployment, State]:
        """Return each client's row "own", ``[N]``."""
        return Deployment(view.at("own")), state
