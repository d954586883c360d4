"""DEPLOY: which model each client holds after the round."""

from __future__ import annotations

from dataclasses import dataclass

from hanse.core.part import Deployment, DeployPart, State, View


@dataclass(frozen=True)
class ServerModel(DeployPart):
    """Every client holds the row that it will start from next."""

    def deploy(self, view: View, state: State) -> tuple[Deployment, State]:
        """Return the home rows of the new table."""
        return Deployment(view.mixed.home), state


@dataclass(frozen=True)
class OwnModel(DeployPart):
    """Each client holds its row "own", whatever row it starts the next round from."""

    reads = frozenset({"own"})

    def deploy(self, view: View, state: State) -> tuple[Deployment, State]:
        """Return the rows "own"."""
        return Deployment(view.at("own")), state
